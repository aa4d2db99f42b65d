"""Many MCP clients of one bridge, each calling at a steady rate; some of them do not read what they are sent.

The clients are plain HTTP connections of 2026-07-28, so that the machine measures the bridge and not the clients. A
slow one has all its calls on one connection. It reads the answers at first, and then no more: the load is the same in
both parts, and the difference is what the others wait for it.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from benchmarks.calling import PARAMS
from benchmarks.table import Row, median, per

__all__ = ["Crowd", "CrowdFound"]

VERSION = "2026-07-28"
ALONE = 4.0
"""Seconds in which all clients read."""
_LARGE = "x" * 20_000
_LONGEST = 60.0


@dataclass(frozen=True, slots=True)
class CrowdFound:
    """Calls without their answer, and how many times longer the p50 is while others do not read."""

    calls: int
    lost: int
    waited: float | None
    p50: float
    p99: float

    @property
    def row(self) -> Row:
        return {
            "p50 ms": per(self.p50, 1, 1e-3),
            "p99 ms": per(self.p99, 1, 1e-3),
            "answered": self.calls - self.lost,
            "lost": self.lost,
            "p50 beside slow readers": self.waited,
        }


@dataclass(slots=True)
class _Took:
    """Seconds of each answered call, and the number of those without an answer."""

    alone: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Crowd:
    clients: int
    rate: float
    slow: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.clients} clients, {self.rate:g}/s each, {self.slow} do not read"

    async def measured(self, url: str, tool: str, large: str) -> CrowdFound:
        """Calls `tool`; the slow ones call `large`, which says a text again."""
        took = _Took()
        readers = self.clients - self.slow
        begin = asyncio.get_running_loop().time()
        calling = [self._calls(url, tool, begin + number / readers / self.rate, took) for number in range(readers)]
        slow = [self._stops_reading(url, large) for _ in range(self.slow)]
        await asyncio.gather(*calling, *slow)
        every = sorted(took.alone + took.beside)
        waited = median(took.beside) / median(took.alone) if took.alone and took.beside else None
        p99 = every[int(len(every) * 0.99)] if every else 0.0
        return CrowdFound(len(every) + took.lost, took.lost, waited, median(every), p99)

    async def _calls(self, url: str, tool: str, begin: float, took: _Took) -> None:
        """One client: it calls at its rate, whether or not the call before is answered."""
        loop = asyncio.get_running_loop()
        client = _Connections(url)
        tasks = []
        for number in range(int((ALONE + self.seconds) * self.rate)):
            due = begin + number / self.rate
            await asyncio.sleep(max(0.0, due - loop.time()))
            into = took.alone if due < begin + ALONE else took.beside
            tasks.append(asyncio.create_task(self._one(client, tool, into, took)))
        await asyncio.gather(*tasks)
        client.close()

    async def _one(self, client: _Connections, tool: str, into: list[float], took: _Took) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            async with asyncio.timeout(_LONGEST):
                answer = await client.call(tool, PARAMS)
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            took.lost += 1
            return
        if answer.get("result", {}).get("isError", True):
            took.lost += 1
        else:
            into.append(loop.time() - begun)

    async def _stops_reading(self, url: str, tool: str) -> None:
        reader, writer = await asyncio.open_connection(*_place(url), limit=1024)
        reading = asyncio.create_task(_read_all(reader))
        for number in range(int((ALONE + self.seconds) * self.rate)):
            if number == int(ALONE * self.rate):
                reading.cancel()
            writer.write(_request(url, tool, {"text": _LARGE}))
            await asyncio.sleep(1 / self.rate)
        writer.transport.abort()


class _Connections:
    """The connections of one client, each used for one call at a time and then kept."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        reader, writer = self._free.pop() if self._free else await asyncio.open_connection(*_place(self._url))
        writer.write(_request(self._url, tool, arguments))
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.partition(b":")[2]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
        )
        answer: dict[str, Any] = json.loads(await reader.readexactly(length))
        self._free.append((reader, writer))
        return answer

    def close(self) -> None:
        for _, writer in self._free:
            writer.close()


async def _read_all(reader: asyncio.StreamReader) -> None:
    while await reader.read(65536):
        pass


def _place(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 80


def _request(url: str, tool: str, arguments: dict[str, Any]) -> bytes:
    parts = urlsplit(url)
    meta = {
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    headers = {
        "Host": parts.netloc,
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": VERSION,
        "Mcp-Method": "tools/call",
        "Mcp-Name": tool,
        "Content-Length": str(len(body)),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {parts.path} HTTP/1.1\r\n{lines}\r\n".encode() + body
