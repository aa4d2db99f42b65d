"""One HTTP request of the program's own web server from its head to its response, with the body that comes in parts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from email.utils import formatdate
from http import HTTPStatus
from time import time
from typing import Protocol

from a2c_smcp.errors import RateLimited, SMCPError, TooLarge, Unavailable
from a2c_smcp.server.http_requests import (
    MAX_UNAUTHENTICATED,
    Headers,
    HttpRequest,
    HttpResponse,
    MountedRequest,
    refusal_response,
)
from a2c_smcp.server.transport.admission import TOO_MANY_BYTES, ArrivingBytes
from a2c_smcp.web import Message

logger = logging.getLogger(__name__)

MAX_HELD = 64 * 1024
"""Bytes of a body that are kept before it is read."""


class ExchangeConnection(Protocol):
    """The connection that a request comes over, and its response is written to."""

    @property
    def arriving(self) -> ArrivingBytes:
        """Bytes of bodies that are not whole yet, of all connections."""

    def trust(self) -> None:
        """The request belongs to an authenticated session."""

    def wants_body(self, exchange: Exchange) -> None:
        """Continues to read."""

    def keeps_alive(self, exchange: Exchange) -> bool:
        """True if the connection stays open after this response."""

    def write_part(self, data: bytes) -> None: ...

    def write_whole(self, response: HttpResponse, exchange: Exchange) -> None:
        """Writes a response that has not begun, and ends the exchange."""

    def written(self, exchange: Exchange, *, keeps_alive: bool) -> None:
        """The response is complete: ends the exchange."""

    def abort(self) -> None: ...


class Exchange:
    """One request from its head to its response."""

    __slots__ = (
        "_error", "_head_size", "_http", "_limit", "_owner", "_parts", "_size", "_waiter", "expects", "is_trusted",
        "is_whole", "keeps_alive", "may_chunk", "request",
    )  # fmt: skip

    def __init__(
        self, http: ExchangeConnection, head_size: int, *, keeps_alive: bool, expects: bool, may_chunk: bool = True
    ) -> None:
        self.is_whole = self.is_trusted = False
        self.keeps_alive = keeps_alive
        self.expects = expects
        self.may_chunk = may_chunk
        self.request: HttpRequest
        self._http = http
        self._head_size = head_size
        self._parts: list[bytes] = []
        self._size = 0
        self._limit = 0
        self._owner = ""
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None

    @property
    def held(self) -> int:
        """Bytes of the request so far."""
        return self._head_size + self._size

    def trust(self, owner: str = "") -> None:
        self.is_trusted = True
        self._http.trust()
        if owner and not (self.is_whole or self._error or self._owner):
            self._owner = owner
            self._count(self._size)

    async def read(self, limit: int) -> bytes:
        if self._error:
            raise self._error
        if not self.is_whole:
            self._limit = limit
            self._waiter = asyncio.get_running_loop().create_future()
            self._http.wants_body(self)
            self._check()
            await self._waiter
        if self._size > limit:
            raise TooLarge(f"at most {limit} bytes are taken in one request", size=self._size, limit=limit)
        whole = b"".join(self._parts)
        self._parts.clear()
        return whole

    def fed(self, part: bytes) -> bool:
        """Add a part of the body; True while more may be read. Parts are kept until the body is read."""
        if self._error:
            return self._waiter is not None
        self._size += len(part)
        self._parts.append(part)
        if self._owner:
            self._count(len(part))
        if self._waiter:
            self._check()
        return self._waiter is not None or self._size <= MAX_HELD

    def ended(self, error: Exception | None = None) -> None:
        """The body is whole, or has failed."""
        self._release()
        self.is_whole, self._error = error is None, error
        if self._waiter and not self._waiter.done():
            if error:
                self._waiter.set_exception(error)
            else:
                self._waiter.set_result(None)

    def forget(self) -> None:
        """Frees the body: a request and its exchange refer to each other, so only the garbage collector would."""
        self._release()
        self._parts.clear()
        del self.request

    def _count(self, size: int) -> None:
        if not self._http.arriving.add(self._owner, size):
            self._parts.clear()
            self.ended(RateLimited(TOO_MANY_BYTES))

    def _release(self) -> None:
        if self._owner:
            self._http.arriving.remove(self._owner, self._size)
            self._owner = ""

    def _check(self) -> None:
        if self._size > self._limit:
            self._parts.clear()
            if self._waiter and not self._waiter.done():
                self._waiter.set_result(None)


# Responses of the program's own web server as bytes: whole ones, and the heads and parts of streamed ones.

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_REASONS = {status.value: status.phrase for status in HTTPStatus}
_OF_THE_CONNECTION = frozenset({b"connection", b"date", b"keep-alive", b"transfer-encoding", b"upgrade"})


def encoded(response: HttpResponse, *, is_head: bool, keeps_alive: bool) -> bytes:
    """A whole response. `is_head`: the request was a HEAD, whose response has no body."""
    size = (b"content-length", b"%d" % len(response.body))
    begin = head(response.status, (*response.headers, size), keeps_alive=keeps_alive)
    return begin if is_head else begin + response.body


def head(status: int, headers: Iterable[tuple[bytes, bytes]], *, keeps_alive: bool) -> bytes:
    lines = [
        b"HTTP/1.1 %d %s" % (status, _REASONS.get(status, "").encode()),
        b"date: %s" % formatdate(int(time()), usegmt=True).encode(),
        *(b"%s: %s" % field for field in headers),
    ]
    if not keeps_alive:
        lines.append(b"connection: close")
    return b"\r\n".join([*lines, b"", b""])


def own_headers(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers that an application may choose. Raises `ValueError` for one that would end its line."""
    kept = [(bytes(name).lower(), bytes(value)) for name, value in headers]
    if any(mark in field for pair in kept for field in pair for mark in (b"\r", b"\n", b"\0")):
        raise ValueError("a header of a response has a line break")
    return [pair for pair in kept if pair[0] not in _OF_THE_CONNECTION]


# One request of the program's own web server that a mounted ASGI application answers, in parts.
#
# The request is read as every other one (`Exchange`): its body is kept only if the application reads it, up to the
# limit of a message, or 64 KiB before authentication, and within the deadline. A body that fails (413, 408) is
# answered here, in place of the application.
#
# The response leaves as the application sends it. A response that is sent in one step leaves in one write, with its
# length. Otherwise its head leaves at the end of the turn of the event loop, and its parts follow as chunks, or until
# the connection is closed (HTTP/1.0). `send` waits while the peer does not read; a peer that reads nothing for too
# long is cut by its connection.
#
# The application runs in a task of the listener. If the peer goes away, it is told so (`http.disconnect`), and
# decides itself when it ends; what it still sends is dropped. If it ends before its response does, the connection is
# cut: that is how HTTP says that something is missing.

_NO_BODY = frozenset({204, 304})


class _PeerGone(Exception):
    """The peer is gone, in the middle of its request."""


class ResponseStream:
    """The `receive` and `send` of one request."""

    def __init__(self, http: ExchangeConnection, exchange: Exchange, mounted: MountedRequest, max_body: int) -> None:
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
        """True once a part of the response was written."""
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
        if self._refusal is None:  # else the answer is the refusal, and waits only for the end of the application
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
        """Write the head, with the first part, or alone at the end of the turn in which the response began."""
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
        """End the response: it is complete, or its reader is gone."""
        if self._is_over.is_set():
            return
        self._is_over.set()
        self._may_write.set()
        if keeps_alive is None:
            self._exchange.forget()
        else:
            self._http.written(self._exchange, keeps_alive=keeps_alive)


class _Framing:
    """The end of a body: its length, a last chunk, or the end of the connection."""

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
            part = b"%x\r\n%s\r\n" % (len(data), data) if data else b""  # an empty one would end the body
            return part + b"0\r\n\r\n" if is_last else part
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0 or (is_last and self._left):
                raise ValueError("the body of a response has another length than its head says")
        return data
