"""The Servers of the cluster demo, each in a process that ends with the demo, and a load balancer before them."""

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
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.mcp_host.processes.guard import GuardedProcess, ProcessGuard
from a2c_smcp.server.run import address_of

__all__ = ["LoadBalancer", "NodeProcess", "running_nodes"]

_START = 30.0
_OPTIONS = ("--port", "0", "--log-level", "warning")
_LAST_LINES = 20


@dataclass
class NodeProcess:
    """A Server in a process. Its last log lines are kept for the error message if it fails."""

    name: str
    url: str
    child: GuardedProcess
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))

    @property
    def pid(self) -> int:
        return self.child.pid

    async def kill(self) -> None:
        """Kill it like `kill -9`."""
        os.kill(self.child.pid, signal.SIGKILL)
        await self.child.exited.wait()


@asynccontextmanager
async def running_nodes(guard: ProcessGuard, redis: str, key: str, *names: str) -> AsyncIterator[list[NodeProcess]]:
    """Run Servers that share a store and accept one key."""
    theirs = {name: value for name, value in os.environ.items() if not name.startswith("A2C_")}
    environ = {**theirs, "A2C_SERVER_REDIS": redis, "A2C_SERVER_API_KEY": key}
    children = await asyncio.gather(*(_launch(guard, name, environ) for name in names))
    listening: list[asyncio.Task[None]] = []
    try:
        nodes = [NodeProcess(name, "", child) for name, child in zip(names, children, strict=True)]
        listening = [asyncio.create_task(_keep_log(node)) for node in nodes]
        await asyncio.gather(*map(_read_url, nodes))
        yield nodes
    finally:
        await asyncio.gather(*(child.end(grace=0, term=5, limit=8) for child in children))
        await cancel_and_wait(*listening)


async def _launch(guard: ProcessGuard, name: str, environ: dict[str, str]) -> GuardedProcess:
    words = [sys.executable, "-P", "-m", "a2c_smcp", "server", "--node", name, *_OPTIONS]
    return await guard.launch(sys.executable, words, environ, os.getcwd())  # noqa: PTH109, as a word


async def _read_url(node: NodeProcess) -> None:
    """Read from its output where the node listens."""
    async with asyncio.timeout(_START):
        line = (await node.child.stdout.readline()).decode()
    if not line.startswith("listening on "):
        raise DemoFailed(f"node {node.name!r} did not start: {' '.join(node.lines)}")
    node.url = line.split()[2]


async def _keep_log(node: NodeProcess) -> None:
    while line := await node.child.stderr.readline():
        node.lines.append(line.decode("utf-8", "replace").rstrip())


_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_DIAL = 2.0
_CHUNK = 65536


class LoadBalancer:
    """Passes TCP connections to the nodes in turn, without sticky sessions. Skips nodes that do not accept."""

    def __init__(self, urls: Iterable[str]) -> None:
        self._turns = deque(urls)
        self._connections: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """Listen, and yield the URL."""
        listening = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        try:
            yield f"http://{address_of(listening.sockets[0])}"
        finally:
            listening.close()
            await cancel_and_wait(*self._connections)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._relay((reader, writer)))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _relay(self, client: _Connection) -> None:
        node = await self._next_node()
        if node is None:
            client[1].close()
            return
        copies = [asyncio.create_task(_copy(*copy)) for copy in ((client[0], node[1]), (node[0], client[1]))]
        try:
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for copy in copies:
                copy.cancel()
            for _, writer in (client, node):
                writer.close()

    async def _next_node(self) -> _Connection | None:
        for _ in range(len(self._turns)):
            self._turns.rotate(-1)
            parts = urlsplit(self._turns[-1])
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(_DIAL):
                    return await asyncio.open_connection(parts.hostname, parts.port)
        return None


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
