"""Dialling a Server that is away, silent or ends during the dial; how soon clients reconnect."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer.computer import Computer
from a2c_smcp.connection import Connection
from a2c_smcp.endpoint import Endpoint, Reconnect
from a2c_smcp.errors import Unavailable
from tests.agent.test_reconnect import separate_server
from tests.computer.hosted import hosted, joins
from tests.ports import free_port
from tests.waiting import until

Record = Callable[[str, object], None]
APART = 5.0
BACK = 10.0
EACH = 2  # a dial tries a websocket, and polling when that hangs
STEP = 97  # bytes, a prime: the cuts fall into heads and bodies alike


def test_attempts_are_never_more_than_five_seconds_apart_however_many_have_failed() -> None:
    pauses = [Reconnect().delay(attempt) for attempt in range(5000)]
    assert max(pauses) <= APART
    assert len({round(pause, 6) for pause in pauses[100:]}) > 1000, "those who were lost together do not meet again"
    assert Reconnect().pause(0, spent=60) == 0, "a connection that has lasted is dialled again at once"
    assert Reconnect().pause(5000, spent=APART) == 0, "what a dial has cost is no longer waited for"


@pytest.mark.covers("back-soon")
async def test_after_an_outage_of_ten_seconds_all_clients_are_back_within_ten(
    office: str, tmp_path: Path, record_testsuite_property: Record
) -> None:
    port, many = free_port(), 50
    url = f"http://127.0.0.1:{port}"
    agents = [AsyncSMCPAgentClient(f"agent-{number}", url=url) for number in range(many)]
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(separate_server(port))
        for agent in agents:
            await stack.enter_async_context(agent)
        said = await stack.enter_async_context(hosted(Computer("laptop"), url, office, tmp_path))
        first.kill()
        await until(lambda: not any(agent.is_connected for agent in agents))
        await asyncio.sleep(10)  # how long the Server is away
        await stack.enter_async_context(separate_server(port))
        begun, took = time.monotonic(), []

        async def back(agent: AsyncSMCPAgentClient) -> None:
            await until(lambda: agent.is_connected)
            took.append(time.monotonic() - begun)

        await asyncio.gather(*map(back, agents), until(lambda: joins(said) == 2, BACK))
        took.sort()
        record_testsuite_property("back after an outage, seconds: median", round(took[many // 2], 2))
        record_testsuite_property("back after an outage, seconds: 95 %", round(took[int(many * 0.95)], 2))
        record_testsuite_property("back after an outage, seconds: last", round(took[-1], 2))
        assert took[-1] <= BACK


@pytest.mark.covers("back-soon")
async def test_a_server_that_accepts_and_never_answers_is_dialled_again(tmp_path: Path) -> None:
    said: list[str] = []
    async with silent() as (url, dials):
        running = Computer("laptop").run(url, office="desk", state_folder=tmp_path, on_connection=said.append)
        serving = asyncio.create_task(running)
        with pytest.raises(Unavailable, match=f"{url} cannot be reached, timed out$"):
            await asyncio.wait_for(AsyncSMCPAgentClient("planner", url=url).connect(), APART + 2)
        await until(lambda: len(dials) > 2 * EACH, APART)
        serving.cancel()
    assert said == [f"not connected: 503 Server unavailable: {url} cannot be reached, timed out; trying again"]


@asynccontextmanager
async def silent() -> AsyncIterator[tuple[str, list[float]]]:
    dials: list[float] = []
    writers: list[asyncio.StreamWriter] = []

    def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dials.append(time.monotonic())
        writers.append(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", dials
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()


class Ration:
    """Between a client and its Server: so many bytes from the Server get through, then it ends or goes silent."""

    def __init__(self, url: str, size: int, *, hangs_up: bool) -> None:
        self._host, _, port = url.removeprefix("http://").partition(":")
        self._port = int(port)
        self._left = size
        self._hangs_up = hangs_up
        self.is_used_up = asyncio.Event()
        self._pumps: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            self._cut()
            for pump in self._pumps:
                pump.cancel()
            await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        if self.is_used_up.is_set():
            if self._hangs_up:
                writer.transport.abort()
            return
        there, back = await asyncio.open_connection(self._host, self._port)
        self._writers.append(back)
        pumps = (self._pump(reader, back, None), self._pump(there, writer, self._take))
        self._pumps |= {asyncio.create_task(pump) for pump in pumps}

    def _take(self, data: bytes) -> bytes:
        passed, self._left = data[: self._left], max(0, self._left - len(data))
        return passed

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, take: Any) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                sink.write(take(data) if take else data)
                await sink.drain()
                if take and not self._left:
                    self.is_used_up.set()
                    if self._hangs_up:
                        self._cut()
                    return

    def _cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


@pytest.fixture
async def complaints() -> list[str]:
    """What asyncio logs about things that were not closed."""
    found: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: found.append(context["message"]))
    return found


async def bytes_of_a_dial(url: str) -> int:
    """How much a Server says until a connection is open."""
    plenty = 10**6
    ration = Ration(url, plenty, hangs_up=True)
    async with ration.open() as through, Connection(Endpoint(url=through), lambda *_: None):
        return plenty - ration._left


@pytest.mark.covers("back-soon")
@pytest.mark.parametrize("hangs_up", [True, False], ids=["hangs up", "goes silent"])
async def test_a_dial_that_ends_at_any_byte_ends_at_once_and_leaves_nothing_open(
    shared_hub: Any, complaints: list[str], hangs_up: bool
) -> None:
    """A Server that goes silent is given up by the client."""
    tasks, total = asyncio.all_tasks(), await bytes_of_a_dial(shared_hub.url)
    for size in range(1, total, STEP):
        ration = Ration(shared_hub.url, size, hangs_up=hangs_up)
        async with ration.open() as url:
            dial = asyncio.create_task(dialled(url))
            await asyncio.wait_for(ration.is_used_up.wait(), 20)
            if not hangs_up:
                await asyncio.sleep(0)
                dial.cancel()
            with suppress(asyncio.CancelledError, Unavailable):
                await asyncio.wait_for(dial, 3)
    await until(lambda: asyncio.all_tasks() <= tasks)
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []


async def dialled(url: str) -> None:
    async with Connection(Endpoint(url=url), lambda *_: None) as connection:
        await connection.lost.wait()


@pytest.mark.covers("back-soon")
async def test_a_connection_whose_server_went_silent_leaves_nothing_open(serve: Any, complaints: list[str]) -> None:
    hub = await serve(limits={"ping_interval": 0.2, "ping_timeout": 0.2})
    ration = Ration(hub.url, await bytes_of_a_dial(hub.url), hangs_up=False)
    async with ration.open() as url:
        await asyncio.wait_for(dialled(url), 5)
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []


async def test_a_client_adds_no_handler_to_a_logger_and_writes_nothing_to_the_terminal(shared_hub: Any) -> None:
    program = f"""
import asyncio, logging
from a2c_smcp.agent import AsyncSMCPAgentClient
async def main():
    async with AsyncSMCPAgentClient("quiet", url={shared_hub.url!r}):
        named = [logging.getLogger(name) for name in logging.root.manager.loggerDict]
        print([(each.name, each.handlers) for each in named if each.handlers])
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 20)
    assert (out.decode().strip(), err.decode()) == ("[]", "")
