"""One request of the program's own web server that a mounted ASGI application answers, in parts.

The request is read as every other one (`Exchange`): its body is kept only if the application reads it, up to the limit
of a message, or 64 KiB before authentication, and within the deadline. A body that fails (413, 408) is answered
here, in place of the application.

The response leaves as the application sends it. A response that is sent in one step leaves in one write, with its
length. Otherwise its head leaves at the end of the turn of the event loop, and its parts follow as chunks, or until the
connection is closed (HTTP/1.0). `send` waits while the peer does not read; a peer that reads nothing for too long is
cut by its connection.

The application runs in a task of the listener. If the peer goes away, it is told so (`http.disconnect`), and decides
itself when it ends; what it still sends is dropped. If it ends before its response does, the connection is cut: that is
how HTTP says that something is missing.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Protocol

from a2c_smcp.errors import SMCPError, Unavailable
from a2c_smcp.http.asgi import Message
from a2c_smcp.server.http_requests import MAX_UNAUTHENTICATED, Headers, HttpResponse, refusal_response
from a2c_smcp.server.mounts import MountedRequest
from a2c_smcp.server.transport.exchange import Exchange
from a2c_smcp.server.transport.responses import chunk, end_of_chunks, head, own_headers

__all__ = ["ResponseStream", "StreamedConnection"]

logger = logging.getLogger(__name__)

_NO_BODY = frozenset({204, 304})


class _PeerGone(Exception):
    """The peer is gone, in the middle of its request."""


class StreamedConnection(Protocol):
    """The connection that a response is written to."""

    def keeps_alive(self, exchange: Exchange) -> bool:
        """Whether the connection stays open after this response."""

    def write_part(self, data: bytes) -> None: ...

    def write_whole(self, response: HttpResponse, exchange: Exchange) -> None:
        """Writes a response that has not begun, and ends the exchange."""

    def written(self, exchange: Exchange, *, keeps_alive: bool) -> None:
        """The response is complete: ends the exchange."""

    def abort(self) -> None: ...


class ResponseStream:
    """The `receive` and `send` of one request."""

    def __init__(self, http: StreamedConnection, exchange: Exchange, mounted: MountedRequest, max_body: int) -> None:
        self._http = http
        self._exchange = exchange
        self._mounted = mounted
        self._max_body = max_body
        self._is_head_request = exchange.request.method == "HEAD"
        self._refusal: SMCPError | None = None
        self._is_body_read = False
        self._start: tuple[int, Headers] | None = None
        self._framing: _Framing | None = None
        self._is_over = asyncio.Event()
        self._may_write = asyncio.Event()
        self._may_write.set()

    @property
    def has_begun(self) -> bool:
        """Whether a part of the response was written."""
        return self._framing is not None

    async def run(self) -> None:
        """Has the application answer the request."""
        mounted, request = self._mounted, self._exchange.request
        try:
            await mounted.app(mounted.scope, self._receive, mounted.sending(self._send))
        except asyncio.CancelledError:
            self._refusal = Unavailable("the server is shutting down")
            raise
        except Exception:
            if not (self._is_over.is_set() or self._refusal):
                logger.exception("%s %s failed", request.method, request.path)
        finally:
            self._end()

    # From the connection

    def pause(self) -> None:
        """The peer does not read."""
        self._may_write.clear()

    def resume(self) -> None:
        self._may_write.set()

    def gone(self) -> None:
        """The peer is gone."""
        if not self._exchange.is_whole:
            self._exchange.ended(_PeerGone())
        self._finish()

    # For the application

    async def _receive(self) -> Message:
        if not (self._is_body_read or self._is_over.is_set()):
            self._is_body_read = True
            with suppress(_PeerGone):
                return {"type": "http.request", "body": await self._body(), "more_body": False}
        await self._is_over.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._is_over.is_set() or self._refusal:
            return
        if message["type"] == "http.response.start":
            self._begin(message)
        elif message["type"] == "http.response.body":
            self._take(bytes(message.get("body", b"")), is_last=not message.get("more_body", False))
            await self._may_write.wait()

    # The response

    async def _body(self) -> bytes:
        try:
            return await self._exchange.read(self._max_body if self._exchange.is_trusted else MAX_UNAUTHENTICATED)
        except SMCPError as error:
            self._refusal = error
            raise

    def _begin(self, message: Message) -> None:
        if self._start:
            raise RuntimeError("the response has begun already")
        self._start = message["status"], own_headers(message.get("headers", ()))
        asyncio.get_running_loop().call_soon(self._write_head)

    def _take(self, part: bytes, *, is_last: bool) -> None:
        if self._start is None:
            raise RuntimeError("the response has not begun: its body has no head")
        if self._framing is None:
            self._write_head(part, is_last=is_last)
        elif data := self._framing.part(part, is_last=is_last):
            self._http.write_part(data)
        if is_last:
            keeps_alive = self._framing is not None and self._framing.keeps_alive
            self._finish(keeps_alive=keeps_alive)

    def _write_head(self, part: bytes = b"", *, is_last: bool = False) -> None:
        """With the first part, or without one at the end of the turn in which the response began."""
        if self._is_over.is_set() or self._refusal or self._framing or self._start is None:
            return
        status, headers = self._start
        size = len(part) if is_last else None
        has_no_body = self._is_head_request or status in _NO_BODY
        keeps_alive = self._http.keeps_alive(self._exchange)
        self._framing = _Framing(
            headers, size, keeps_alive=keeps_alive, may_chunk=self._exchange.may_chunk, has_no_body=has_no_body
        )
        begin = head(status, (*headers, *self._framing.headers), keeps_alive=self._framing.keeps_alive)
        self._http.write_part(begin + self._framing.part(part, is_last=is_last))

    def _end(self) -> None:
        """The application has ended."""
        if self._is_over.is_set():
            return
        if self._framing:
            self._http.abort()
            self._finish()
            return
        exchange, error = self._exchange, self._refusal or SMCPError()
        self._is_over.set()
        self._http.write_whole(refusal_response(error), exchange)

    def _finish(self, *, keeps_alive: bool | None = None) -> None:
        """The response is complete, or nobody reads it."""
        if self._is_over.is_set():
            return
        self._is_over.set()
        self._may_write.set()
        if keeps_alive is None:
            self._exchange.forget()
        else:
            self._http.written(self._exchange, keeps_alive=keeps_alive)


class _Framing:
    """How the end of a body is known: by its length, by a last chunk, or by the end of the connection."""

    __slots__ = ("_has_no_body", "_in_chunks", "_left", "headers", "keeps_alive")

    def __init__(
        self, given: Headers, size: int | None, *, keeps_alive: bool, may_chunk: bool, has_no_body: bool
    ) -> None:
        """`size` is that of a response which comes in one part. One that the application gives counts more."""
        declared = next((int(value) for name, value in given if name == b"content-length"), None)
        self._has_no_body = has_no_body
        self._left = size if declared is None else declared
        is_open = self._left is None and not has_no_body
        self._in_chunks = is_open and may_chunk
        self.keeps_alive = keeps_alive and (self._in_chunks or not is_open)
        self.headers: Headers = ()
        if self._in_chunks:
            self.headers = ((b"transfer-encoding", b"chunked"),)
        elif declared is None and size is not None and not has_no_body:
            self.headers = ((b"content-length", b"%d" % size),)

    def part(self, data: bytes, *, is_last: bool) -> bytes:
        """The bytes of a part of the body. Raises `ValueError` if the body has not the length that it should have."""
        if self._has_no_body:
            return b""
        if self._in_chunks:
            return chunk(data) + end_of_chunks() if is_last else chunk(data)
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0 or (is_last and self._left):
                raise ValueError("the body of a response has another length than its head says")
        return data
