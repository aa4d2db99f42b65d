"""Streams of JSON lines: some servers send several messages as `application/json`, one on each line.

MCP wants `text/event-stream` for that. Such a body is given the form of events on its way, so that everything after it
need not know. Only a body without a length is looked at, and only its first line: a message by itself is an event, and
a message that goes on in the next line is a plain JSON body.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx2

__all__ = ["lines_as_events"]

_LONGEST = 256 * 1024
"""Bytes of a first line that are looked at."""


async def lines_as_events(response: httpx2.Response) -> None:
    """Give a body of JSON lines the form of events. Waits for the first line of a body that may be one."""
    headers, body = response.headers, response.stream
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    is_open = not {"content-length", "content-encoding"} & headers.keys()
    if kind != "application/json" or not is_open or not isinstance(body, httpx2.AsyncByteStream):
        return
    parts = aiter(body)
    begun = b""
    async for part in parts:
        begun += part
        if b"\n" in begun or len(begun) > _LONGEST:
            break
    line, end, _ = begun.partition(b"\n")
    if is_lines := bool(end) and _is_message(line):
        headers["content-type"] = "text/event-stream"
    response.stream = _GoingOn(body, begun, parts, is_lines=is_lines)


class _GoingOn(httpx2.AsyncByteStream):
    """A body whose beginning has been read."""

    def __init__(
        self, body: httpx2.AsyncByteStream, begun: bytes, parts: AsyncIterator[bytes], *, is_lines: bool
    ) -> None:
        self._body, self._begun, self._parts, self._is_lines = body, begun, parts, is_lines

    async def __aiter__(self) -> AsyncIterator[bytes]:
        events = _Events() if self._is_lines else None
        yield events.of(self._begun) if events else self._begun
        async for part in self._parts:
            yield events.of(part) if events else part
        if events:
            yield events.end()

    async def aclose(self) -> None:
        await self._body.aclose()


class _Events:
    """Bytes of lines in, bytes of events out. Nothing is held back."""

    def __init__(self) -> None:
        self._is_in_line = False

    def of(self, data: bytes) -> bytes:
        out = bytearray()
        for line in data.replace(b"\r", b"").splitlines(keepends=True):
            out += line if self._is_in_line else b"event: message\ndata: " + line
            self._is_in_line = not line.endswith(b"\n")
            if not self._is_in_line:
                out += b"\n"
        return bytes(out)

    def end(self) -> bytes:
        return b"\n\n" if self._is_in_line else b""


def _is_message(line: bytes) -> bool:
    try:
        message = json.loads(line)
    except ValueError:
        return False
    return isinstance(message, dict) and "jsonrpc" in message
