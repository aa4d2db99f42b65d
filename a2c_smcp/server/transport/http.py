"""The program's own web server: HTTP/1.1 by httptools, one write a response, and limits on what a peer makes us hold.

A connection reads one request after the other. The head of each is bounded, and the whole has one deadline: 10 s, or
60 s for a body that an authenticated session posts (`RequestBody.trust`). A body is kept only if the application reads
it; else the request is answered without it, and the connection ends. Most are answered with one whole response, those
of mounted applications in parts (`ResponseStream`). Requests that come before an earlier one is
answered wait for it, up to a few. One that asks for a websocket gives the connection away: to a `WebSocket`, or to a
tunnel to another node.

No timers here: `HttpListener.end_late` is called by the timer of the sessions and ends what is late.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from math import inf
from time import monotonic
from typing import Protocol, cast
from urllib.parse import unquote_to_bytes

import httptools

from a2c_smcp.errors import BadRequest, CallTimeout, SMCPError, Unavailable
from a2c_smcp.server.cluster.proxy import ProxiedRequest
from a2c_smcp.server.http_requests import HttpRequest, HttpResponse, MountedRequest, refusal_response
from a2c_smcp.server.settings import Limits
from a2c_smcp.server.transport.admission import ArrivingBytes, Newcomers
from a2c_smcp.server.transport.exchange import CONTINUE, MAX_HELD, Exchange, ResponseStream, encoded
from a2c_smcp.server.transport.session_channel import Application, SocketOwner
from a2c_smcp.server.transport.websocket import upgrade_key

logger = logging.getLogger(__name__)

_MAX_HEAD = 32 * 1024
_MAX_AHEAD = 16
_LINGER = 1.0


class ConnectionTable(Protocol):
    """A listener, as its connections see it."""

    app: Application
    limits: Limits
    newcomers: Newcomers
    arriving: ArrivingBytes
    before_writes: Callable[[], None]

    def opened(self, http: HttpConnection, transport: asyncio.Transport) -> None: ...

    def closed(self, http: HttpConnection, transport: asyncio.Transport) -> None: ...

    def start_websocket(
        self, http: HttpConnection, transport: asyncio.Transport, owner: SocketOwner, key: str, ahead: bytes
    ) -> None:
        """Gives the connection to a websocket. `ahead` are bytes that came with the upgrade request."""

    async def carry(
        self, http: HttpConnection, transport: asyncio.Transport, proxied: ProxiedRequest, ahead: bytes
    ) -> None:
        """Carries the bytes of a websocket to another node until it ends. Raises `Unavailable`."""

    def run_stream(self, stream: ResponseStream) -> None:
        """Has a mounted application answer a request, in a task that the listener owns."""


class HttpConnection(asyncio.Protocol):
    """One connection of a peer."""

    __slots__ = (
        "_ahead", "_exchange", "_head", "_headers", "_is_blocked", "_is_closing", "_listener", "_parser", "_reading",
        "_request_began", "_stream", "_task", "_transport", "_url", "deadline", "is_reserved",
    )  # fmt: skip

    def __init__(self, listener: ConnectionTable) -> None:
        self._listener = listener
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head = 0
        self._reading: Exchange | None = None
        self._exchange: Exchange | None = None
        self._ahead: deque[Exchange] = deque()
        self._task: asyncio.Task[None] | None = None
        self._stream: ResponseStream | None = None
        self._is_blocked = self._is_closing = self.is_reserved = False
        self._request_began = 0.0
        self.deadline = inf

    # From the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._begin_request()
        self._listener.opened(self, self._transport)

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            return
        if self._reading is None:
            if not self._head and self._exchange is None:
                self._begin_request()
            self._head += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse("not HTTP")
        if self._reading is None and self._head > _MAX_HEAD:
            self._transport.abort()

    def pause_writing(self) -> None:
        """While a peer does not read its answers, its requests are not read."""
        self._is_blocked = True
        self.deadline = monotonic() + self._listener.limits.write_timeout
        if self._stream:
            self._stream.pause()
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_blocked = False
        if self._stream:
            self._stream.resume()
        if self._reading:
            self._begin_request()
        elif self._exchange:
            self.deadline = inf
        self._rest()
        self._read_on()

    def connection_lost(self, error: Exception | None) -> None:
        self._parser = None
        self._listener.closed(self, self._transport)
        for exchange in self._ahead:
            exchange.forget()
        self._ahead.clear()
        self._reading = None
        if self._task:
            self._task.cancel()
        self._end_stream()

    # From the parser

    def on_message_begin(self) -> None:
        self._url, self._headers = b"", []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        assert self._parser
        expects = any(name == b"expect" and value.lower() == b"100-continue" for name, value in self._headers)
        size = len(self._url) + sum(len(name) + len(value) for name, value in self._headers)
        exchange = self._reading = Exchange(
            self,
            size,
            keeps_alive=self._parser.should_keep_alive() and not self.is_reserved,
            expects=expects,
            may_chunk=self._parser.get_http_version() != "1.0",
        )
        exchange.request = self._request(exchange)
        self._head = 0
        if size > _MAX_HEAD:
            self._transport.abort()
            return
        if self._parser.should_upgrade():
            if (b"upgrade", b"websocket") in ((name, value.lower()) for name, value in self._headers):
                return
            exchange.keeps_alive = False  # an unknown upgrade: it is answered in plain HTTP, as the last request
        if self._exchange is None:
            self._start(exchange)
        elif len(self._ahead) < _MAX_AHEAD:
            self._ahead.append(exchange)
            self._check_ahead()
        else:
            self._transport.abort()

    def on_body(self, part: bytes) -> None:
        if self._reading and not (self._is_closing or self._transport.is_closing() or self._reading.fed(part)):
            self._transport.pause_reading()
        self._check_ahead()

    def on_message_complete(self) -> None:
        if self._reading:
            self._reading.ended()
        if self._reading is not self._exchange and self._parser and self._parser.should_upgrade():
            return
        self._reading = None
        if self._is_closing:
            self._transport.close()
        elif self._exchange and not self._is_blocked:
            self.deadline = inf
            self._read_on()

    # For an exchange

    def wants_body(self, exchange: Exchange) -> None:
        if exchange.expects:
            self._write(CONTINUE)
        self._read_on()

    def trust(self) -> None:
        self._listener.newcomers.discard(self._transport)
        if self.deadline < inf:
            self.deadline = self._request_began + self._listener.limits.request_read_timeout

    @property
    def arriving(self) -> ArrivingBytes:
        return self._listener.arriving

    # For the listener

    def is_late(self) -> None:
        """Its deadline has passed."""
        if self._reading and self._reading is self._exchange and not (self._is_blocked or self._is_closing):
            self.deadline = inf
            self._reading.ended(CallTimeout("the body of the request did not come"))
        else:
            self.abort()

    def shut(self) -> None:
        """Reads no more requests. One that is being answered has a moment."""
        self._is_closing = True
        if self._exchange is None:
            self._transport.close()

    def abort(self) -> None:
        with suppress(RuntimeError):  # of uvloop, for one that is closed
            self._transport.abort()

    # Answers

    def _begin_request(self) -> None:
        self._request_began = monotonic()
        self.deadline = self._request_began + self._listener.limits.handshake_timeout

    def _request(self, exchange: Exchange) -> HttpRequest:
        assert self._parser
        path, _, query = self._url.partition(b"?")
        if not path.startswith(b"/"):  # in absolute form, as to a proxy
            path = b"/" + path.partition(b"://")[2].partition(b"/")[2]
        peer = self._transport.get_extra_info("peername")
        return HttpRequest(
            self._parser.get_method().decode("latin-1"),
            unquote_to_bytes(path).decode(errors="replace").rstrip("/"),
            query.decode("latin-1"),
            tuple(self._headers),  # a copy: trailers are ignored
            "https" if self._transport.get_extra_info("sslcontext") else "http",
            (peer[0], peer[1]) if isinstance(peer, tuple) else None,
            exchange,
        )

    def _start(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._task = asyncio.get_running_loop().create_task(self._answer(exchange))

    async def _answer(self, exchange: Exchange) -> None:
        try:
            self._check_reserve(exchange.request)
            response = await self._listener.app.respond(exchange.request)
        except asyncio.CancelledError:
            exchange.forget()
            raise
        except SMCPError as error:
            response = refusal_response(error)
        except Exception:
            logger.exception("%s %s failed", exchange.request.method, exchange.request.path)
            response = refusal_response(SMCPError())
        self._task = None
        if not isinstance(response, MountedRequest):
            self.write_whole(response, exchange)
            return
        self._stream = ResponseStream(self, exchange, response, self._listener.limits.max_message)
        if self._is_blocked:
            self._stream.pause()
        self._listener.run_stream(self._stream)

    def _check_reserve(self, request: HttpRequest) -> None:
        """Raises `Unavailable` for a new client on a descriptor that is kept for operators."""
        if self.is_reserved and not request.may_use_reserve:
            raise Unavailable("this server has no file descriptor left for another client")

    def _end_stream(self) -> None:
        if self._stream:
            self._stream.gone()
            self._stream = None

    # For the stream of a response

    def keeps_alive(self, exchange: Exchange) -> bool:
        return exchange.keeps_alive and exchange.is_whole and not self._is_closing

    def write_part(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._write(data)

    def _write(self, data: bytes) -> None:
        self._listener.before_writes()
        self._transport.write(data)

    def write_whole(self, response: HttpResponse, exchange: Exchange) -> None:
        """One whole response, in one write: some clients close as soon as they have the head."""
        keeps_alive = self.keeps_alive(exchange)
        self._write(encoded(response, is_head=exchange.request.method == "HEAD", keeps_alive=keeps_alive))
        self.written(exchange, keeps_alive=keeps_alive)

    def written(self, exchange: Exchange, *, keeps_alive: bool) -> None:
        """The response is complete."""
        self._exchange = self._stream = None
        exchange.forget()
        if not keeps_alive or self._is_closing:
            self._close(is_whole=exchange.is_whole)
        elif self._ahead:
            following = self._ahead.popleft()
            if not (following.is_whole or self._is_blocked):
                self._begin_request()
            self._start(following)
        else:
            self._rest()

    def _rest(self) -> None:
        if self._exchange is None and not (self._is_blocked or self._is_closing):
            self.deadline = monotonic() + self._listener.limits.keep_alive

    def _close(self, *, is_whole: bool) -> None:
        """Ends the connection, later if its peer is still writing: it could not read the response."""
        self._is_closing = True
        self._ahead.clear()
        if is_whole:
            self._end()
        else:
            self.deadline = monotonic() + _LINGER
            self._read_on()

    def _end(self) -> None:
        """Ends the connection. What was written is still sent if its peer reads it in time."""
        self._is_closing = True
        self.deadline = monotonic() + self._listener.limits.write_timeout
        self._transport.close()

    def _check_ahead(self) -> None:
        """Ends the connection if requests that wait for an earlier one are too large together."""
        if self._ahead and sum(exchange.held for exchange in self._ahead) > MAX_HELD:
            self._transport.abort()

    def _read_on(self) -> None:
        if not (self._is_blocked or self._transport.is_closing()):
            self._transport.resume_reading()

    def _refuse(self, why: str) -> None:
        """Answers what cannot be read, also while another request is being answered."""
        self._parser = None
        if self._task:
            self._task.cancel()
        if self._stream and self._stream.has_begun:  # a refusal would look like a part of that response
            self._transport.abort()
            return
        self._end_stream()
        self._write(encoded(refusal_response(BadRequest(why)), is_head=False, keeps_alive=False))
        self._end()

    # Websockets

    def _upgrade(self, ahead: bytes) -> None:
        exchange, self._parser, self._reading = self._reading, None, None
        if exchange is None:  # an unknown upgrade, which is being answered
            return
        key = upgrade_key(self._headers)
        if key is None or self._exchange or exchange.request.method != "GET":
            self._refuse("not a websocket upgrade that is understood here")
            return
        self.deadline = inf
        self._transport.pause_reading()
        self._task = asyncio.get_running_loop().create_task(
            self._open(replace(exchange.request, is_upgrade=True), key, ahead)
        )

    async def _open(self, request: HttpRequest, key: str, ahead: bytes) -> None:
        try:
            self._check_reserve(request)
            outcome = await self._listener.app.upgrade(request)
            if isinstance(outcome, ProxiedRequest):
                await self._listener.carry(self, self._transport, outcome, ahead)
                return
        except SMCPError as error:
            outcome = refusal_response(error)
        except Exception:
            logger.exception("an upgrade failed")
            outcome = refusal_response(SMCPError())
        self._task = None
        if isinstance(outcome, HttpResponse):
            self._write(encoded(outcome, is_head=False, keeps_alive=False))
            self._end()
        else:
            self._listener.start_websocket(self, self._transport, outcome, key, ahead)
