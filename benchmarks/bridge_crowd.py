"""Many MCP clients of one bridge, each calling at a steady rate; some of them do not read what they are sent.

The clients are plain HTTP connections of 2026-07-28, so that the machine measures the bridge and not the clients. A
slow one has all its calls on one connection. In every second round it reads no answers: the load is the same in all
rounds, and the difference is what the others wait for it.
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
class _Round:
    """Seconds of each answered call, and the number of those without an answer."""

    seconds: list[float] = field(default_factory=list)
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Crowd:
    clients: int
    rate: float
    slow: int
    seconds: float
    rounds: int

    def __str__(self) -> str:
        return f"{self.clients} clients, {self.rate:g}/s each, {self.slow} do not read"

    async def measured(self, url: str, tool: str, large: str) -> CrowdFound:
        """Calls `tool`; the slow ones call `large`, which says a text again."""
        await self._round(url, tool, large, does_read=True)  # the connections of everything between are warm then
        pairs = [
            (await self._round(url, tool, large, does_read=True), await self._round(url, tool, large, does_read=False))
            for _ in range(self.rounds)
        ]
        beside = sorted(seconds for _, stopped in pairs for seconds in stopped.seconds)
        waited = [median(stopped.seconds) / median(read.seconds) for read, stopped in pairs if stopped.seconds]
        lost = sum(stopped.lost for _, stopped in pairs)
        p99 = beside[int(len(beside) * 0.99)] if beside else 0.0
        return CrowdFound(len(beside) + lost, lost, median(waited) if waited else None, median(beside), p99)

    async def _round(self, url: str, tool: str, large: str, *, does_read: bool) -> _Round:
        found = _Round()
        readers = self.clients - self.slow
        begin = asyncio.get_running_loop().time()
        calling = [self._calls(url, tool, begin + number / readers / self.rate, found) for number in range(readers)]
        slow = [self._slow_client(url, large, does_read=does_read) for _ in range(self.slow)]
        await asyncio.gather(*calling, *slow)
        return found

    async def _calls(self, url: str, tool: str, begin: float, found: _Round) -> None:
        """One client: it calls at its rate, whether or not the call before is answered."""
        loop = asyncio.get_running_loop()
        client = _Connections(url)
        tasks = []
        for number in range(int(self.seconds * self.rate)):
            await asyncio.sleep(max(0.0, begin + number / self.rate - loop.time()))
            tasks.append(asyncio.create_task(self._one(client, tool, found)))
        await asyncio.gather(*tasks)
        client.close()

    async def _one(self, client: _Connections, tool: str, found: _Round) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            async with asyncio.timeout(_LONGEST):
                answer = await client.call(tool, PARAMS)
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            found.lost += 1
            return
        if answer.get("result", {}).get("isError", True):
            found.lost += 1
        else:
            found.seconds.append(loop.time() - begun)

    async def _slow_client(self, url: str, tool: str, *, does_read: bool) -> None:
        reader, writer = await asyncio.open_connection(*_place(url), limit=1024)
        reading = asyncio.create_task(_read_all(reader)) if does_read else None
        for _ in range(int(self.seconds * self.rate)):
            writer.write(_request(url, tool, {"text": _LARGE}))
            await asyncio.sleep(1 / self.rate)
        writer.transport.abort()
        if reading:
            reading.cancel()


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
