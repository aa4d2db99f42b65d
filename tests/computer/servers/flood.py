"""An MCP server that sends too much: `flood.py stdio` or `flood.py http PORT`, at /mcp and at /sse.

At /many and /many-events, as JSON or as events, it lists 100,000 tools.

The argument `kind` of its one tool says what: an answer that is only too long, one that never ends, one that a few
bytes of gzip become, one that goes on behind the end of its gzip, one that is no gzip, one of too many small values, or
a harmless one.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from collections.abc import Iterator
from typing import Any

MEBIBYTE = b"a" * 1024 * 1024
TOOL = {"name": "flood", "inputSchema": {"type": "object"}}
MANY = 1_000_000


def parts(kind: str, request_id: object) -> Iterator[bytes]:
    """The answer as JSON, piece by piece."""
    begin = f'{{"jsonrpc":"2.0","id":{json.dumps(request_id)},"result":'.encode()
    match kind:
        case "long":
            yield begin + b'{"content":[{"type":"text","text":"'
            yield from [MEBIBYTE] * 100
            yield b'"}]}}'
        case "id last":
            yield b'{"result":{"content":[{"type":"text","text":"'
            yield from [MEBIBYTE] * 20
            yield b'"}]},' + f'"id":{json.dumps(request_id)}}}'.encode()
        case "endless":
            yield begin + b'{"content":[{"type":"text","text":"'
            while True:
                yield MEBIBYTE
        case "values":
            yield begin + b'{"content":[],"structuredContent":{"x":[' + b"{}," * MANY + b"{}]}}}"
        case "result values":
            yield begin + b'{"content":[],"structuredContent":{"x":[' + b"0," * 270_000 + b"0]}}}"
        case "as large as may be":
            yield begin + b'{"content":[{"type":"text","text":"'
            yield from [MEBIBYTE] * 15
            yield b'"}]}}'
        case _:
            yield begin + b'{"content":[{"type":"text","text":"fine"}]}}'


def answered(request: dict[str, Any]) -> Iterator[bytes]:
    """The answer to any request."""
    about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "flood", "version": "1"}}
    known = {"initialize": {"protocolVersion": "2025-06-18", **about}, "tools/list": {"tools": [TOOL]}, "ping": {}}
    if request["method"] == "tools/call":
        yield from parts(request["params"]["arguments"]["kind"], request["id"])
    elif request["method"] in known:
        yield json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": known[request["method"]]}).encode()
    else:
        error = {"code": -32601, "message": "Method not found"}
        yield json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}).encode()


def stdio() -> None:
    for line in sys.stdin:
        if "id" in (request := json.loads(line)):
            for part in answered(request):
                sys.stdout.buffer.write(part)
            sys.stdout.buffer.write(b"\n")
            sys.stdout.buffer.flush()


class Web:
    """HTTP as far as an MCP client needs it: a connection for each request, bodies that end with it."""

    def __init__(self) -> None:
        self._events: asyncio.StreamWriter | None = None
        self._turn = asyncio.Lock()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            sizes = [int(line[15:]) for line in head.splitlines() if line.lower().startswith("content-length")]
            await self._answer(head.split()[:2], await reader.readexactly(sum(sizes)), writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, line: list[str], body: bytes, writer: asyncio.StreamWriter) -> None:
        match line:
            case ["GET", "/sse"]:
                self._events = writer
                await begin(writer, 200, "text/event-stream")
                await write(writer, b"event: endpoint\ndata: /messages\n\n")
                await asyncio.Event().wait()
            case ["POST", "/messages"] if self._events:
                await begin(writer, 202, "text/plain")
                writer.close()
                if "id" in (request := json.loads(body)):
                    async with self._turn:
                        await write_event(self._events, answered(request))
            case ["POST", "/mcp"]:
                await self._streamable(json.loads(body), writer)
            case ["POST", "/many" | "/many-events"]:
                await self._list_many(json.loads(body), writer, as_events=line[1] == "/many-events")
            case _:
                await begin(writer, 405, "text/plain")

    async def _streamable(self, request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if "id" not in request:
            await begin(writer, 202, "text/plain")
            return
        asked = request.get("params", {}).get("arguments") or {}
        if asked.get("kind") == "gzip":
            await begin(writer, 200, "application/json", "Content-Encoding: gzip\r\n")
            await write(writer, gzip.compress(b"".join(parts("long", request["id"])), compresslevel=1))
        elif asked.get("kind") == "behind gzip":
            await begin(writer, 200, "application/json", "Content-Encoding: gzip\r\n")
            await write(writer, gzip.compress(b"".join(parts("fine", request["id"]))))
            while True:
                await write(writer, MEBIBYTE)
        elif asked.get("kind") == "no gzip":
            kind = "text/event-stream" if asked.get("events") else "application/json"
            await begin(writer, 200, kind, "Content-Encoding: gzip\r\n")
            await write(writer, b"data: {}\n\n")
        elif asked.get("events"):
            await begin(writer, 200, "text/event-stream")
            await write_event(writer, answered(request))
        else:
            await begin(writer, 200, "application/json")
            for part in answered(request):
                await write(writer, part)

    async def _list_many(self, request: dict[str, Any], writer: asyncio.StreamWriter, *, as_events: bool) -> None:
        if request["method"] != "tools/list":
            await self._streamable(request, writer)
            return
        tools = [{**TOOL, "name": f"tool-{n}"} for n in range(100_000)]
        data = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": {"tools": tools}}).encode()
        await begin(writer, 200, "text/event-stream" if as_events else "application/json")
        await (write_event(writer, iter([data])) if as_events else write(writer, data))


async def begin(writer: asyncio.StreamWriter, status: int, kind: str, more: str = "") -> None:
    await write(writer, f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nConnection: close\r\n{more}\r\n".encode())


async def write_event(writer: asyncio.StreamWriter, data: Iterator[bytes]) -> None:
    await write(writer, b"event: message\ndata: ")
    for part in data:
        await write(writer, part)
    await write(writer, b"\n\n")


async def write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


async def http(port: int) -> None:
    async with await asyncio.start_server(Web().serve, "127.0.0.1", port) as server:
        await server.serve_forever()


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        stdio()
    else:
        asyncio.run(http(int(sys.argv[2])))
