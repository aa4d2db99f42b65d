"""The body of an HTTP response of an MCP server: decompressed piece by piece, with a limit on the result.

It replaces the body that the HTTP library would decompress and join without a limit. An error answer to the request
(`message_limits`) replaces a body or an event that is over a limit; the rest of such a body is not read, the rest of
such an event is skipped.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing

import anyio
import httpx2

from a2c_smcp.mcp_host.message_limits import (
    LARGE,
    PEEK,
    cut_listing,
    has_too_many_values,
    over_bytes,
    over_values,
    refusal,
    refusal_of,
)

__all__ = ["ACCEPT_ENCODING", "BoundedBody"]

ACCEPT_ENCODING = "gzip"
"""The only encoding that is decompressed here."""

_PIECE = 64 * 1024  # the event loop has its turn after each
_GZIP_HEADER = 32 + zlib.MAX_WBITS
_BLANK_LINES = (b"\n\n", b"\n\r\n", b"\r\r")


class BoundedBody(httpx2.AsyncByteStream):
    """Of all bodies with the same `turn` only one at a time grows large; the others are not read meanwhile.

    `on_part` is called whenever bytes come, `on_lost` when the connection breaks in the middle of a body. It is not
    called for a broken stream of events: the reader of the stream opens it again.
    """

    def __init__(
        self,
        response: httpx2.Response,
        limit: int,
        turn: asyncio.Lock,
        *,
        on_part: Callable[[], None],
        on_lost: Callable[[httpx2.TransportError], None],
    ) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        self._body = response.stream
        self._request = response.request
        self._encoding = response.headers.pop("content-encoding", "identity").strip().lower()
        self._is_events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        self._limit = limit
        self._turn = turn
        self._has_turn = False
        self._on_part = on_part
        self._on_lost = on_lost

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async with aclosing(self._events() if self._is_events else self._whole()) as pieces:
                async for piece in pieces:
                    yield piece
        except httpx2.TransportError as error:
            if not self._is_events:
                self._on_lost(error)
            raise
        finally:
            self._end_turn()

    async def aclose(self) -> None:
        self._end_turn()  # a reader that stops in the middle does not end the iteration
        await self._body.aclose()

    async def _whole(self) -> AsyncGenerator[bytes, None]:
        body = bytearray()  # not a list of pieces: each of them may be a single byte
        try:
            async for piece in self._pieces():
                body += piece
                await self._await_turn(len(body))
                if len(body) > self._limit:
                    yield self._refusal(over_bytes(self._limit))
                    return
        except httpx2.DecodingError as error:
            yield self._refusal(_unreadable(error))
            return
        whole = _with_short_lists(bytes(body))
        yield self._refusal(over_values()) if has_too_many_values(whole.decode("latin-1")) else whole

    async def _events(self) -> AsyncGenerator[bytes, None]:
        events = _EventBuffer(self._limit, self._refusal)
        try:
            async for piece in self._pieces():
                for whole in events.feed(piece):
                    yield whole
                await self._await_turn(events.size)
        except httpx2.DecodingError as error:
            yield events.replaced(_unreadable(error))
            return
        yield events.rest()

    async def _pieces(self) -> AsyncIterator[bytes]:
        if self._encoding not in ("identity", "", "gzip", "x-gzip"):
            raise httpx2.DecodingError(f"the content encoding {self._encoding!r} was not asked for")
        gzip = zlib.decompressobj(_GZIP_HEADER) if "gzip" in self._encoding else None
        async for part in self._body:
            self._on_part()
            for piece in _decompressed(gzip, part) if gzip else (part,):
                yield piece
                await anyio.lowlevel.checkpoint()
            if gzip and gzip.eof:  # the decompressor would keep all later bytes, without a limit
                return

    async def _await_turn(self, held: int) -> None:
        """Wait for the turn while this body is large; give it back when less of it is held."""
        if held > LARGE and not self._has_turn:
            await self._turn.acquire()
            self._has_turn = True
        elif held <= LARGE:
            self._end_turn()

    def _end_turn(self) -> None:
        if self._has_turn:
            self._has_turn = False
            self._turn.release()

    def _refusal(self, said: str, beginning: str = "", end: str = "") -> bytes:
        """Answer the request that was posted; on a stream without one, the request that the message names."""
        try:
            return refusal_of(json.loads(self._request.content)["id"], said).encode()
        except (httpx2.RequestNotRead, ValueError, LookupError, TypeError):
            return refusal(said, beginning, end).encode()


class _EventBuffer:
    """Bytes in, whole server-sent events out. An event that is over a limit is skipped to its end."""

    def __init__(self, limit: int, replacement: Callable[[str, str, str], bytes]) -> None:
        self._limit = limit
        self._replacement = replacement
        self._held = bytearray()
        self._seen = b""  # a blank line may come in two pieces
        self._is_skipping = self._is_answered = False
        self._end = b""  # the last bytes of the event that is skipped

    @property
    def size(self) -> int:
        return len(self._held)

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._is_skipping:
            answer, data = self._skipped(data)
            yield answer
        window, before = self._seen + data, len(self._seen)
        self._seen = window[-2:]
        end = max((at + len(line) for line in _BLANK_LINES if (at := window.rfind(line)) >= 0), default=0)
        if end > before:
            yield self._released(data[: end - before])
            data = data[end - before :]
        self._held += data
        if self.size > self._limit:
            yield self._skip()

    def _skipped(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the answer in place of the event, if it ends here and has none yet, and the bytes after it."""
        window = self._seen + data
        end = min((at + len(line) for line in _BLANK_LINES if (at := window.find(line)) >= 0), default=0)
        self._end = (self._end + data[: max(end - len(self._seen), 0)] if end else self._end + data)[-PEEK:]
        if not end:
            self._seen = window[-2:]
            return b"", b""
        self._is_skipping, self._seen = False, b""
        answer = b"" if self._is_answered else self.replaced(over_bytes(self._limit), self._end)
        return answer, window[end:]

    def rest(self) -> bytes:
        whole = bytes(self._held)
        self._held.clear()
        return whole

    def _released(self, data: bytes) -> bytes:
        self._held += data
        whole = b"\n".join(_data_with_short_lists(self.rest()))
        return self.replaced(over_values(), whole) if has_too_many_values(whole.decode("latin-1")) else whole

    def _skip(self) -> bytes:
        self._is_skipping = True
        whole = self.rest()
        self._end = whole[-PEEK:]
        answer = self.replaced(over_bytes(self._limit), whole)
        self._is_answered = bool(answer)
        return answer

    def replaced(self, said: str, event: bytes = b"") -> bytes:
        """Return an event with an error answer instead of this one; empty if the request is not known."""
        beginning, end = event[:PEEK].decode("latin-1"), event[-PEEK:].decode("latin-1").rstrip()
        answer = self._replacement(said, beginning.partition("data:")[2], end)
        return b"event: message\ndata: " + answer + b"\n\n" if answer else b""


def _with_short_lists(message: bytes) -> bytes:
    return (cut_listing(message) if len(message) > LARGE else None) or message


def _data_with_short_lists(events: bytes) -> Iterator[bytes]:
    for line in events.split(b"\n"):
        name, colon, data = line.partition(b":")
        yield name + colon + _with_short_lists(data) if name == b"data" else line


def _unreadable(error: httpx2.DecodingError) -> str:
    return f"the server's answer cannot be read: {error}"


def _decompressed(gzip: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    try:
        while piece := gzip.decompress(data, _PIECE):
            yield piece
            data = gzip.unconsumed_tail
    except zlib.error as error:
        raise httpx2.DecodingError(str(error)) from error
