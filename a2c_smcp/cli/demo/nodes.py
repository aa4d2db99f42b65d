"""The nodes of the demo: Servers in processes of their own, which may be killed, and do not outlive it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from a2c_smcp.cli.demo.steps import DemoFailed
from a2c_smcp.mcp_host.processes.guard import GuardedProcess, ProcessGuard
from a2c_smcp.server.run import address_of

__all__ = ["Front", "NodeProcess", "running_nodes"]

_START = 30.0
_OPTIONS = ("--port", "0", "--log-level", "warning")
_LAST_WORDS = 20


@dataclass
class NodeProcess:
    """One of them. What it logs is kept, for when something goes wrong."""

    name: str
    url: str
    child: GuardedProcess
    words: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_WORDS))

    @property
    def pid(self) -> int:
        return self.child.pid

    async def kill(self) -> None:
        """As by `kill -9`."""
        os.kill(self.child.pid, signal.SIGKILL)
        await self.child.exited.wait()


@asynccontextmanager
async def running_nodes(guard: ProcessGuard, redis: str, key: str, *names: str) -> AsyncIterator[list[NodeProcess]]:
    """Nodes that share a store and take one key, while they are needed."""
    theirs = {name: value for name, value in os.environ.items() if not name.startswith("A2C_")}
    environ = {**theirs, "A2C_SERVER_REDIS": redis, "A2C_SERVER_API_KEY": key}
    children = await asyncio.gather(*(_launch(guard, name, environ) for name in names))
    listening: list[asyncio.Task[None]] = []
    try:
        nodes = [NodeProcess(name, "", child) for name, child in zip(names, children, strict=True)]
        listening = [asyncio.create_task(_hear(node)) for node in nodes]
        await asyncio.gather(*map(_find, nodes))
        yield nodes
    finally:
        await asyncio.gather(*(child.end(grace=0, term=5, limit=8) for child in children))
        for task in listening:
            task.cancel()
        await asyncio.gather(*listening, return_exceptions=True)


async def _launch(guard: ProcessGuard, name: str, environ: dict[str, str]) -> GuardedProcess:
    words = [sys.executable, "-P", "-m", "a2c_smcp", "server", "--node", name, *_OPTIONS]
    return await guard.launch(sys.executable, words, environ, os.getcwd())  # noqa: PTH109, as a word


async def _find(node: NodeProcess) -> None:
    """Learns where it listens."""
    async with asyncio.timeout(_START):
        line = (await node.child.stdout.readline()).decode()
    if not line.startswith("listening on "):
        raise DemoFailed(f"node {node.name!r} did not start: {' '.join(node.words)}")
    node.url = line.split()[2]


async def _hear(node: NodeProcess) -> None:
    while line := await node.child.stderr.readline():
        node.words.append(line.decode("utf-8", "replace").rstrip())


_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_DIAL = 2.0
_CHUNK = 65536


class Front:
    """A node that does not take a connection is passed over."""

    def __init__(self, urls: Iterable[str]) -> None:
        self._turns = deque(urls)
        self._carrying: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """Its URL, while it is open."""
        listening = await asyncio.start_server(self._welcome, "127.0.0.1", 0)
        try:
            yield f"http://{address_of(listening.sockets[0])}"
        finally:
            listening.close()
            for carrying in self._carrying:
                carrying.cancel()
            await asyncio.gather(*self._carrying, return_exceptions=True)

    def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        carrying = asyncio.create_task(self._carry((reader, writer)))
        self._carrying.add(carrying)
        carrying.add_done_callback(self._carrying.discard)

    async def _carry(self, client: _Connection) -> None:
        node = await self._next()
        if node is None:
            client[1].close()
            return
        ways = [asyncio.create_task(_pass(*way)) for way in ((client[0], node[1]), (node[0], client[1]))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for _, writer in (client, node):
                writer.close()

    async def _next(self) -> _Connection | None:
        for _ in range(len(self._turns)):
            self._turns.rotate(-1)
            parts = urlsplit(self._turns[-1])
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(_DIAL):
                    return await asyncio.open_connection(parts.hostname, parts.port)
        return None


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
