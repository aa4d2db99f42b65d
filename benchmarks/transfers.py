"""A file of 100 MB on its way to a computer and back, beside a plain copy over one websocket.

Server, computer and agent are processes of their own. The file is sent with `put_file`, and fetched with `save_blob`;
its hash is checked at each end. The plain copy is the same file between two processes, in the same direction, from disk
to disk, with the same hashes, in binary messages of the size of our chunks over one websocket of aiohttp. Memory is
what a process has more than before, at most. Small calls are made through the same Server meanwhile, by members of
another office, and while the same file goes through another Server, which tells what the machine alone is to blame for.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any

import aiohttp
import uvloop
from aiohttp import web

from a2c_smcp.agent.client import AsyncSMCPAgentClient
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.consent.approval import Caller
from a2c_smcp.computer.content.blob_handles import FileBlob
from a2c_smcp.protocol.results import CHUNK
from benchmarks.load import burst, result_of
from benchmarks.pressure import office
from benchmarks.processes import Running, hub, running
from benchmarks.report import save
from benchmarks.table import Row, median, options, per, ratio, report

__all__: list[str] = []

MB = 1_000_000
MIB = 1024 * 1024
SIZE, SIZE_QUICK = 100 * MB, 20 * MB
OFFICE, COMPUTER, AGENT = "desk", "laptop", "planner"
POLL = 0.01
SMALL = 400
CALLS, CALLS_QUICK = 2.0, 0.5  # seconds of a round of small calls
PUT, FETCH, COPY = "put", "fetch", "plain copy over one websocket"
DONE = "done"
READY = "ready "
_LANDED = "landed"


# The programs


async def be_computer(url: str, file: Path, folder: Path) -> None:
    """A computer that takes files, and offers one; the tool `offer` returns its handle."""
    computer = Computer(COMPUTER, landing=folder / _LANDED, state_folder=folder / "state")
    source = await asyncio.to_thread(_source, file)

    @computer.tool(auto_apply=True)
    async def offer() -> str:
        return computer.blobs.offer(Caller(OFFICE, AGENT), source)

    await computer.run(url, office=OFFICE, on_connection=lambda said: print(READY + said, flush=True))


def _source(file: Path) -> FileBlob:
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    return FileBlob(file, "application/octet-stream", file.stat().st_size, digest)


async def be_agent(url: str, file: Path, folder: Path) -> None:
    """An agent that transfers the file for each line that it reads, `put` or `fetch`, and says how long it took."""
    lines = asyncio.Queue[str]()
    asyncio.get_running_loop().add_reader(sys.stdin, lambda: lines.put_nowait(sys.stdin.readline()))
    async with AsyncSMCPAgentClient(AGENT, url=url, office=OFFICE) as agent:
        while "offer" not in agent.registry:
            await agent.get_tools(COMPUTER)
        print(READY, flush=True)
        while line := (await lines.get()).strip():
            start = time.perf_counter()
            if line == PUT:
                path = Path(await agent.put_file(COMPUTER, file))
            else:
                handle = (await agent.emit_tool_call(COMPUTER, "offer")).text
                path = await agent.save_blob(COMPUTER, handle, folder / "fetched")
            print(json.dumps(time.perf_counter() - start), flush=True)
            path.unlink()


async def be_copier(file: Path) -> None:
    """Sends the file over each websocket that is opened at `/fetch`, and receives one at `/put`."""

    async def serve(request: web.Request) -> web.WebSocketResponse:
        websocket = web.WebSocketResponse(compress=False)
        await websocket.prepare(request)
        if request.path == f"/{FETCH}":
            await sent(websocket, file)
        else:
            await received(websocket, file.with_suffix(".put"))
            await websocket.send_str(DONE)
        await websocket.close()
        return websocket

    app = web.Application()
    for which in (PUT, FETCH):
        app.router.add_get(f"/{which}", serve)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"{READY}{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


Websocket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse[Any]


async def sent(websocket: Websocket, file: Path) -> None:
    """Sends the file, and then its hash."""
    digest = hashlib.sha256()
    for content in _pieces(file):
        digest.update(content)
        await websocket.send_bytes(content)
    await websocket.send_str(digest.hexdigest())


async def received(websocket: Websocket, path: Path) -> None:
    digest = hashlib.sha256()
    with path.open("wb") as file:
        async for message in websocket:
            if message.type is aiohttp.WSMsgType.TEXT:
                assert message.data == digest.hexdigest()
                return
            digest.update(message.data)
            file.write(message.data)


def _pieces(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while content := opened.read(CHUNK):
            yield content


async def copied(port: str, which: str, file: Path) -> float:
    """How long a plain copy takes, in seconds."""
    start = time.perf_counter()
    async with aiohttp.ClientSession() as http, http.ws_connect(f"http://127.0.0.1:{port}/{which}") as websocket:
        if which == FETCH:
            await received(websocket, file.with_suffix(".fetched"))
        else:
            await sent(websocket, file)
            assert await websocket.receive_str() == DONE
    return time.perf_counter() - start


# The measurement


@dataclass(slots=True)
class Transferring:
    """The processes that a file goes through."""

    processes: dict[str, Running]
    agent: asyncio.subprocess.Process

    async def transfer(self, which: str) -> float:
        """How long it took, in seconds."""
        assert self.agent.stdin
        assert self.agent.stdout
        self.agent.stdin.write(f"{which}\n".encode())
        seconds: float = json.loads(await self.agent.stdout.readline())
        return seconds


@asynccontextmanager
async def transferring(file: Path, folder: Path) -> AsyncIterator[tuple[str, Transferring]]:
    command = (sys.executable, "-m", "benchmarks.transfers")
    await asyncio.to_thread(folder.mkdir)
    async with (
        hub() as (url, server),
        running(*command, "--be-computer", url, file, folder, says=f"{READY}joined") as computer,
    ):
        agent = await asyncio.create_subprocess_exec(
            *command,
            *("--be-agent", url, str(file), str(folder)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert agent.stdout
            await agent.stdout.readline()
            yield url, Transferring({"server": server, "computer": computer, "agent": Running(agent, "")}, agent)
        finally:
            with suppress(ProcessLookupError):
                agent.kill()
            await agent.wait()


@dataclass(slots=True)
class Memory:
    """How much more memory processes have than before, at most."""

    before: dict[str, int]
    peak: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, processes: dict[str, Running]) -> Memory:
        return cls({name: each.rss or 0 for name, each in processes.items()})

    async def watch(self, processes: dict[str, Running]) -> None:
        while True:
            for name, each in processes.items():
                self.peak[name] = max(self.peak.get(name, 0), (each.rss or 0) - self.before[name])
            await asyncio.sleep(POLL)


async def measured(
    work: Transferring, port: str, which: str, file: Path, rounds: int
) -> tuple[list[float], list[float], Memory]:
    """Seconds of transfers, seconds of plain copies, in turn, and memory. The first of each is not counted."""
    memory = Memory.of(work.processes)
    watching = asyncio.create_task(memory.watch(work.processes))
    try:
        both = [(await work.transfer(which), await copied(port, which, file)) for _ in range(rounds + 1)]
    finally:
        watching.cancel()
    return [ours for ours, _ in both[1:]], [plain for _, plain in both[1:]], memory


async def small_calls(url: str, seconds: float, meanwhile: Callable[[], Coroutine[Any, Any, Any]] | None) -> float:
    """The p99 of small calls in an office of this Server, in seconds."""
    async with office(url, "small") as small:
        await burst([small], in_flight=1, seconds=0.2, result=result_of(SMALL))
        async with _repeated(meanwhile) if meanwhile else nullcontext():
            found = await burst([small], in_flight=1, seconds=seconds, result=result_of(SMALL))
    return quantiles(found.seconds, n=100, method="inclusive")[98]


@asynccontextmanager
async def _repeated(work: Callable[[], Coroutine[Any, Any, Any]]) -> AsyncIterator[None]:
    """Does the work again and again in this block, which ends with the last one."""
    is_over = False

    async def repeat() -> None:
        while not is_over:
            await work()

    going = asyncio.create_task(repeat())
    try:
        yield
    finally:
        is_over = True
        await going


async def throughput(rounds: int, size: int) -> tuple[list[Row], dict[str, float | None]]:
    rows: list[Row] = []
    goals: dict[str, float | None] = {}
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "file"
        file.write_bytes(os.urandom(size))
        command = (sys.executable, "-m", "benchmarks.transfers", "--be-copier", file)
        async with running(*command, says=READY) as copier, transferring(file, Path(place) / "ours") as (_, work):
            port, grown = copier.said.removeprefix(READY), 0
            for which in (PUT, FETCH):
                seconds, plain, memory = await measured(work, port, which, file, rounds)
                share = ratio(median(plain), median(seconds))
                peaks = {f"{name} + MiB": per(peak, 1, MIB) for name, peak in memory.peak.items()}
                rows += [
                    {"what": f"{which}, {COPY}", "MB/s": per(size, median(plain), MB)},
                    {"what": which, "MB/s": per(size, median(seconds), MB), "times plain": share, **peaks},
                ]
                goals[f"transfers.{which}"] = share
                grown = max(grown, *memory.peak.values())
    return rows, goals | {"transfers.memory": per(grown, 1, MIB)}


async def beside(rounds: int, size: int, seconds: float) -> tuple[list[Row], dict[str, float | None]]:
    """Small calls while the file goes through the same Server, and through another, in turn."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "file"
        file.write_bytes(os.urandom(size))
        async with transferring(file, Path(place) / "ours") as (url, work), hub() as (other, _):
            quiet = await small_calls(url, seconds, None)
            rows.append({"what": "small calls, all is quiet", "p99 ms": per(quiet, 1, 1e-3)})
            worst = 0.0
            for which in (PUT, FETCH):
                transfer = partial(work.transfer, which)
                both = [
                    (await small_calls(other, seconds, transfer), await small_calls(url, seconds, transfer))
                    for _ in range(rounds)
                ]
                times = median(same / apart for apart, same in both)
                worst = max(worst, times)
                apart, same = (median(some) for some in zip(*both, strict=True))
                rows += [
                    {"what": f"small calls, {which} through another Server", **_p99(apart, quiet, 1.0)},
                    {"what": f"small calls, {which} through the same Server", **_p99(same, quiet, times)},
                ]
    return rows, {"transfers.beside": per(worst, 1)}


def _p99(seconds: float, quiet: float, times: float) -> Row:
    return {"p99 ms": per(seconds, 1, 1e-3), "times quiet": ratio(seconds, quiet), "times other": per(times, 1)}


async def measure(rounds: int, size: int, seconds: float) -> tuple[list[Row], dict[str, float | None]]:
    rows, goals = await throughput(rounds, size)
    more, further = await beside(rounds, size, seconds)
    return rows + more, goals | further


def main() -> None:
    parser = options("A file of 100 MB to a computer and back, beside a plain copy over one websocket.", rounds=5)
    parser.add_argument("--be-computer", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--be-agent", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--be-copier", nargs=1, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if given := chosen.be_computer:
        uvloop.run(be_computer(given[0], Path(given[1]), Path(given[2])))
    elif given := chosen.be_agent:
        uvloop.run(be_agent(given[0], Path(given[1]), Path(given[2])))
    elif given := chosen.be_copier:
        uvloop.run(be_copier(Path(given[0])))
    else:
        size, rounds, seconds = (SIZE_QUICK, 1, CALLS_QUICK) if chosen.quick else (SIZE, chosen.rounds, CALLS)
        rows, goals = uvloop.run(measure(rounds, size, seconds))
        report(rows, chosen)
        save("transfers", chosen.title, rows, goals)


if __name__ == "__main__":
    main()
