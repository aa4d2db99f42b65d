"""A Computer in an office for as long as a test needs it, and ways to look at its processes and to cut its line."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import socketio
from aiohttp import web

from a2c_smcp.computer.computer import Computer
from tests.peer import NAMESPACE, Peer
from tests.waiting import until

PATIENCE = 60.0
"""A bound against hanging, nothing that is measured."""


@asynccontextmanager
async def hosted(
    computer: Computer, url: str, office: str, folder: Path, **connection: Any
) -> AsyncIterator[list[str]]:
    """Runs it, joined. What it says about its connection is in the list."""
    said: list[str] = []
    connection = {"state_folder": folder, "on_connection": said.append, **connection}
    serving = asyncio.create_task(computer.run(url, office=office, **connection))
    try:
        await until(lambda: joins(said) > 0 or serving.done())
        if serving.done():
            serving.result()
        yield said
    finally:
        serving.cancel()
        await asyncio.wait([serving], timeout=PATIENCE)
    with suppress(asyncio.CancelledError):
        await serving


Host = Callable[..., Awaitable[list[str]]]


@pytest.fixture
async def host(shared_hub: Any, office: str, tmp_path: Path) -> AsyncIterator[Host]:
    """Runs a computer in the test's office until the test ends, these servers ready: `await host(computer, "good")`."""
    async with AsyncExitStack() as stack:

        async def enter(computer: Computer, *servers: str, url: str = "", **connection: Any) -> list[str]:
            said = await stack.enter_async_context(
                hosted(computer, url or shared_hub.url, office, tmp_path / "state", **connection)
            )
            await ready(computer, *servers)
            return said

        yield enter


def joins(said: list[str]) -> int:
    return sum(line.startswith("joined") for line in said)


async def ready(computer: Computer, *names: str) -> None:
    await until(lambda: all(computer.status()[name].state == "ready" for name in names))


def pids_with(marker: str) -> list[int]:
    """The processes whose environment holds the marker."""
    return _pids(lambda entry: marker.encode() in (entry / "environ").read_bytes())


def children() -> set[int]:
    """The processes that this one has started, those that have ended aside."""

    def is_child(entry: Path) -> bool:
        state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        return int(parent) == os.getpid() and state != "Z"

    return {*_pids(is_child)}


def _pids(is_wanted: Callable[[Path], bool]) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and is_wanted(entry):
                found.append(int(entry.name))
    return found


class Relay:
    """A line to the Server that can be cut, and on which what the Server sends can be held back.

    `held` is all that waits to be released.
    """

    def __init__(self, url: str) -> None:
        self._host, _, port = url.removeprefix("http://").partition(":")
        self._port = int(port)
        self._writers: list[asyncio.StreamWriter] = []
        self._pumps: set[asyncio.Task[None]] = set()
        self._is_open = True
        self._is_holding = False
        self.held = bytearray()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            self.cut()
            for pump in self._pumps:
                pump.cancel()
            await asyncio.gather(*self._pumps, return_exceptions=True)

    def cut(self) -> None:
        """Ends all connections without a word."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def close(self) -> None:
        """From now on nobody gets through."""
        self._is_open = False
        self.cut()

    def reopen(self) -> None:
        self._is_open = True

    def hold(self) -> None:
        """From now on nothing of the Server gets through on the newest connection."""
        self._is_holding = True

    def release(self) -> None:
        """What was held back arrives, in one write."""
        self._is_holding = False
        self._writers[-2].write(bytes(self.held))
        self.held.clear()

    async def _carry_back(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await there.read(65536):
                if self._is_holding:
                    self.held += data
                else:
                    writer.write(data)
                    await writer.drain()
        writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._is_open:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection(self._host, self._port)
        self._writers += [writer, back]
        self._pumps |= {asyncio.create_task(_pump(reader, back)), asyncio.create_task(self._carry_back(there, writer))}


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    sink.transport.abort()


async def joined_agent(url: str, office: str, **more: Any) -> Peer:
    agent = await Peer.connect(url, transports=["websocket"])
    await agent.join("agent", "planner", office, **more)
    return agent


class CarelessServer:
    """Lets everybody in, and passes on whatever it is given."""

    def __init__(self) -> None:
        self._io = socketio.AsyncServer(async_mode="aiohttp")
        self._computers: list[str] = []
        self._io.on("server:join_office", self._join, namespace=NAMESPACE)
        self._io.on("*", lambda *_: None, namespace=NAMESPACE)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        app = web.Application()
        self._io.attach(app)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await self._io.shutdown()
            await runner.cleanup()

    async def ask(self, event: str, data: Any) -> Any:
        return await self._io.call(event, data, to=self._computers[-1], namespace=NAMESPACE, timeout=PATIENCE)

    def _join(self, sid: str, data: Any) -> tuple[bool, None]:
        self._computers.append(sid)
        return True, None


def progress_in(agent: Peer, req_id: str) -> list[float]:
    told = [data for name, data in agent.heard if name == "notify:tell_progress"]
    return [data["progress"] for data in told if data["req_id"] == req_id]
