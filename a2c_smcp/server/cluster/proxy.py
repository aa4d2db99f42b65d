"""Requests for a session of another node: they are sent to that node, and answered as it answers.

A session id names its node. Behind a balancer that does not know this, any node may be asked, and passes the request
on: polls and posts over HTTP, and a websocket as a tunnel. In a tunnel bytes go through as they are, from the upgrade
request on: frames, close codes and slow readers are a matter between the two ends.

A request for a mounted application goes to the node that the application names, and its answer comes back in parts as
they arrive. If there is no whole answer, it matters for a call of a tool whether that node may have run it (`Lost`).

Only nodes that hold a lease are asked, and no node passes on what another one has passed on. A node that passes a
request on names the client it speaks for, and shows the secret that nodes share; without the secret both headers are
ignored.
"""

from __future__ import annotations

import asyncio
import io
import ssl
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace
from hmac import compare_digest
from http import HTTPStatus
from typing import Literal, cast
from urllib.parse import quote, urlsplit

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from a2c_smcp.errors import BadRequest, SMCPError, Unavailable
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.server.cluster.memory import SharedDirectory, node_of
from a2c_smcp.server.http_requests import MAX_UNAUTHENTICATED, Headers, HttpRequest, HttpResponse
from a2c_smcp.server.settings import Limits
from a2c_smcp.web import Scope, Send

# The other nodes of a shared directory: their URLs, and the secret by which nodes recognise one another.

NODE_HEADER = b"x-a2c-node"
"""The header of a request of another node with the secret that nodes share."""

NOT_RUN_HEADER = b"x-a2c-not-run"
"""The header of a refusal to another node: nothing was done, and the seat may be on a third node by now."""

_SCHEMES = ("http://", "https://")
_FRESH = 1.0
_BETWEEN = 0.1  # clients may invent session ids: however many, the store is not asked more often


class PeerNodes:
    """Asks the store when a node is looked for. While the store is out of reach, its last answer is used until the
    leases in it have ended."""

    def __init__(self, directory: SharedDirectory) -> None:
        self._directory = directory
        self._urls: dict[str, tuple[str, float]] = {}
        self._secret = b""
        self._seen_at = float("-inf")
        self._looking: asyncio.Task[None] | None = None

    def owner(self, sid: str) -> str | None:
        """The other node that a session id names, whether or not there is such a node."""
        node = node_of(sid)
        return node if node != self._directory.node else None

    async def url_of(self, node: str) -> str:
        """Raises `BadRequest` for a node without a lease: it has no sessions."""
        known = self._leased(node)
        if known is None or not self._is_fresh:
            try:
                await self._look()
            except Unavailable:
                if known is None:
                    raise
        known = self._leased(node)
        if known is None:
            raise BadRequest("no such session")
        if not known.startswith(_SCHEMES):
            raise Unavailable(f"node {node!r} has not said under which URL others reach it")
        return known

    async def others(self) -> dict[str, str]:
        """The URLs of the other nodes that hold a lease. Raises `Unavailable` if none is known."""
        try:
            if not self._is_fresh:
                await self._look()
        except Unavailable:
            if not self._urls:
                raise
        known = {node: self._leased(node) for node in self._urls if node != self._directory.node}
        return {node: url for node, url in known.items() if url}

    async def secret(self) -> bytes:
        """The secret that this node shows to others. Raises `Unavailable`."""
        if not self._secret:
            await self._look()
        return self._secret

    async def knows(self, secret: bytes) -> bool:
        """True if this is the secret, also after the store has lost the old one and has a new one."""
        if not self._is_secret(secret) and not self._is_fresh:
            with suppress(Unavailable):
                await self._look()
        return self._is_secret(secret)

    async def close(self) -> None:
        if self._looking:
            await cancel_and_wait(self._looking)

    @property
    def _is_fresh(self) -> bool:
        return time.monotonic() < self._seen_at + _FRESH

    def _leased(self, node: str) -> str | None:
        url, until = self._urls.get(node, ("", 0.0))
        return url if time.monotonic() < until else None

    def _is_secret(self, secret: bytes) -> bool:
        return bool(self._secret) and compare_digest(secret, self._secret)

    async def _look(self) -> None:
        """Asks the store, once for all that wait for the answer."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_now())
        await asyncio.shield(self._looking)

    async def _look_now(self) -> None:
        await asyncio.sleep(max(0.0, self._seen_at + _BETWEEN - time.monotonic()))
        asked = time.monotonic()
        nodes = await self._directory.nodes()
        self._secret = (await self._directory.secret()).encode()
        self._urls = {node.name: (node.url.rstrip("/"), asked + node.lease) for node in nodes}
        self._seen_at = asked


# Requests that are passed on.

_NODE, _CLIENT = NODE_HEADER, b"x-a2c-client"
_BETWEEN_NODES = frozenset({_NODE, _CLIENT})
_HOP_BY_HOP = frozenset(
    b"connection content-length expect keep-alive proxy-connection te trailer transfer-encoding upgrade".split()
)
_OF_A_WEBSOCKET = b"sec-websocket-"
_NOT_ADDED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
_CLOSE = b"1"
_PORTS = {"http": 80, "https": 443}

_DIAL = 2.0
_KEEP = 2.0  # less than any web server keeps a connection: a POST cannot be sent again on another
_FLUSH = 2.0
_SILENCE = 30.0  # streams of MCP are never silent for longer than 15 s
_FAILURES = (aiohttp.ClientError, OSError, TimeoutError, ValueError)


class Lost(Unavailable):
    """A node did not answer in full. `outcome` tells if it may have run the request.

    `may_go_on_with` is `None` if the answer has not begun, else `"event"` for a stream between two events of MCP.
    """

    may_go_on_with: Literal["event", "nothing"] | None = None


class Declined(Exception):
    """A node has refused a request, and has done nothing."""

    def __init__(self, response: HttpResponse) -> None:
        self.response = response


@dataclass(frozen=True, slots=True)
class ProxiedRequest:
    """A request as another node will see it. Over TLS, `trust` says which certificate that node may show."""

    node: str
    url: str
    headers: Headers
    trust: ssl.SSLContext | None

    async def dial(self) -> TunnelEnd:
        """The other end of a tunnel for a websocket. Raises `Unavailable`."""
        loop = asyncio.get_running_loop()
        try:
            parts = urlsplit(self.url)
            port = parts.port or _PORTS[parts.scheme]
            async with asyncio.timeout(_DIAL):
                _, end = await loop.create_connection(TunnelEnd, parts.hostname or "", port, ssl=self.trust)
        except _FAILURES:
            raise self.no_answer() from None
        return end

    def upgrade_request(self) -> bytes:
        """The bytes of an upgrade request."""
        parts = urlsplit(self.url)
        lines = [f"GET {parts.path}?{parts.query} HTTP/1.1".encode(), b"connection: Upgrade", b"upgrade: websocket"]
        return b"\r\n".join([*lines, *(b"%s: %s" % field for field in self.headers), b"", b""])

    def no_answer(self) -> Unavailable:
        return Unavailable(f"node {self.node!r}, which has this session, does not answer")


class _Passed:
    """The answer of a mounted application, as far as it has been passed on."""

    def __init__(self) -> None:
        self._has_begun = self._is_stream = False
        self._end = b"\n\n"

    @property
    def may_go_on_with(self) -> Literal["event", "nothing"] | None:
        """As of `Lost`."""
        if not self._has_begun:
            return None
        return "event" if self._is_stream and self._end.endswith((b"\n\n", b"\r\n\r\n")) else "nothing"

    async def carry(self, response: aiohttp.ClientResponse, send: Send) -> None:
        """Raises `Declined`, or what aiohttp does."""
        fields = [(name.lower(), value) for name, value in response.raw_headers]
        kept = [field for field in _end_to_end(fields) if field[0] not in (b"date", NOT_RUN_HEADER)]
        if NOT_RUN_HEADER in dict(fields):
            raise Declined(HttpResponse(response.status, kept, await response.read()))
        await send({"type": "http.response.start", "status": response.status, "headers": kept})
        self._has_begun, self._is_stream = True, response.content_type == "text/event-stream"
        async for part in response.content.iter_any():
            await send({"type": "http.response.body", "body": part, "more_body": True})
            self._end = (self._end + part)[-4:]
        await send({"type": "http.response.body", "body": b""})


class Proxy:
    """Passes requests on to the nodes that have their sessions."""

    def __init__(self, directory: SharedDirectory, limits: Limits) -> None:
        self.node = directory.node
        self._peers = PeerNodes(directory)
        self._limits = limits
        self._session: aiohttp.ClientSession | None = None
        self._trust: ssl.SSLContext | None = None
        self._polls: set[asyncio.Task[object]] = set()
        self._is_draining = False

    async def find(self, request: HttpRequest) -> tuple[HttpRequest, str | None]:
        """The request as its client made it, and the other node that has its session, if any."""
        sid = request.parameter("sid")
        node = self._peers.owner(sid) if sid else None
        request, is_passed_on = await self.as_made(request)
        return request, None if is_passed_on else node

    async def as_made(self, request: HttpRequest) -> tuple[HttpRequest, bool]:
        """The request as its client made it, and true if another node has passed it on."""
        shown = {name: value for name, value in request.headers if name in _BETWEEN_NODES}
        if not shown:
            return request, False
        headers = [field for field in request.headers if field[0] not in _BETWEEN_NODES]
        request = replace(request, headers=headers)
        if await self._peers.knows(shown.get(_NODE, b"")):
            return _with_client(request, shown.get(_CLIENT, b"")), True
        return request, False

    async def respond(self, node: str, request: HttpRequest) -> HttpResponse:
        """Raises `BadRequest` if there is no such node, `Unavailable` if it does not answer."""
        proxied = await self.proxied(node, request)
        if request.method == "POST":
            # A POST that is refused here ends its session, as it does on the node of the session.
            length = request.header(b"content-length")
            is_small = length.isdecimal() and int(length) <= MAX_UNAUTHENTICATED
            is_authenticated = not is_small and (await self._ask(proxied, "HEAD", None)).status == HTTPStatus.OK
            limit = self._limits.max_transport if is_authenticated else MAX_UNAUTHENTICATED
            if is_authenticated:
                request.body.trust()
            try:
                body = await request.body.read(limit)
            except SMCPError:
                with suppress(Unavailable):
                    await self._ask(proxied, "POST", _CLOSE)
                raise
            return await self._ask(proxied, "POST", body)
        return await self._poll(proxied, request)

    async def proxied(self, node: str, request: HttpRequest) -> ProxiedRequest:
        """The request as the other node will see it. Raises `BadRequest` or `Unavailable`."""
        place = f"/socket.io/?{quote(request.query, safe=_PRINTABLE)}"
        return await self._proxied(node, place, request.headers, request.scheme, request.client)

    async def _proxied(
        self, node: str, place: str, headers: Headers, scheme: str, client: tuple[str, int] | None
    ) -> ProxiedRequest:
        url = await self._peers.url_of(node)
        secret = await self.secret()
        host, port = client or ("-", 0)
        shown = [(_CLIENT, f"{scheme} {host} {port}".encode()), (_NODE, secret)]
        return ProxiedRequest(node, f"{url}{place}", [*_end_to_end(headers), *shown], self._trust_for(url))

    async def secret(self) -> bytes:
        """The secret that nodes share. Raises `Unavailable`."""
        return await self._peers.secret()

    async def relay(self, node: str, scope: Scope, body: bytes, send: Send) -> None:
        """Pass a request for a mounted application on, and its answer as it comes. Raises `Lost` or `Declined`."""
        passed = _Passed()
        try:
            place = quote(scope["path"], safe="/")
            proxied = await self._proxied(node, place, scope["headers"], scope["scheme"], scope["client"])
        except SMCPError as error:  # it has no lease, or the store does not say where it is
            raise Lost(error.about, outcome="not_run") from None
        try:
            async with self._request(proxied, scope["method"], body, _SILENCE) as response:
                await passed.carry(response, send)
        except _FAILURES as error:
            is_unsent = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
            lost = Lost(proxied.no_answer().about, outcome="not_run" if is_unsent else "unknown")
            lost.may_go_on_with = passed.may_go_on_with
            raise lost from None

    async def is_from_node(self, request: HttpRequest) -> bool:
        """True if another node asks for itself: it shows the secret."""
        shown = request.header(_NODE)
        return bool(shown) and await self._peers.knows(shown.encode("latin-1"))

    async def pages(self, path: str, wanted: Callable[[str], bool]) -> dict[str, bytes | None]:
        """Return the page at this path of each other node that is `wanted`; `None` for one that does not answer.

        Raises `Unavailable` if the store does not say which nodes there are.
        """
        urls = {node: url for node, url in (await self._peers.others()).items() if wanted(node)}
        pages = await asyncio.gather(*(self._page(node, f"{url}{path}") for node, url in urls.items()))
        return dict(zip(urls, pages, strict=True))

    async def _page(self, node: str, url: str) -> bytes | None:
        try:
            headers = [(_NODE, await self._peers.secret())]
            async with asyncio.timeout(_DIAL):
                answer = await self._ask(ProxiedRequest(node, url, headers, self._trust_for(url)), "GET", None)
        except (Unavailable, TimeoutError):
            return None
        return answer.body if answer.status == HTTPStatus.OK else None

    def drain(self) -> None:
        """Ends polls, which would wait longer than this node does: their clients poll again on another node."""
        self._is_draining = True
        for poll in self._polls:
            poll.cancel()

    async def close(self) -> None:
        await self._peers.close()
        if self._session:
            await self._session.close()

    def _trust_for(self, url: str) -> ssl.SSLContext | None:
        if url.startswith("https:") and self._trust is None:
            self._trust = ssl.create_default_context()
        return self._trust if url.startswith("https:") else None

    # Polling

    async def _poll(self, proxied: ProxiedRequest, request: HttpRequest) -> HttpResponse:
        """Pass a poll on. If its client goes away, the poll is cancelled, and the other node notices that."""
        poll = asyncio.current_task()
        assert poll
        if self._is_draining:
            raise Unavailable("the server is shutting down")
        request.body.trust()  # the other node answers at once if it has no such session, and counts that
        self._polls.add(poll)
        try:
            return await self._ask(proxied, request.method, None)
        except asyncio.CancelledError:
            if not self._is_draining:
                raise
            raise Unavailable("the server is shutting down") from None
        finally:
            self._polls.discard(poll)

    async def _ask(self, proxied: ProxiedRequest, method: str, body: bytes | None) -> HttpResponse:
        try:
            async with self._request(proxied, method, body) as response:
                answer = await response.read()
                fields = [(name.lower(), value) for name, value in response.raw_headers]
        except _FAILURES:
            raise proxied.no_answer() from None
        kept = [field for field in _end_to_end(fields) if field[0] != b"date"]
        return HttpResponse(response.status, kept, answer)

    def _request(
        self, proxied: ProxiedRequest, method: str, body: bytes | None, silence: float | None = None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """A poll is answered when its session has been silent for as long as a session may be."""
        patience = aiohttp.ClientTimeout(
            total=None, sock_connect=_DIAL, sock_read=silence or self._limits.half_open_time
        )
        return self._http().request(
            method,
            URL(proxied.url, encoded=True),
            headers=_text(proxied.headers),
            data=None if body is None else io.BytesIO(body),
            allow_redirects=False,
            ssl=proxied.trust or True,
            timeout=patience,
        )

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=_NOT_ADDED,
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_DIAL, sock_read=self._limits.half_open_time),
            )
        return self._session

    # Websockets

    async def open(self, proxied: ProxiedRequest) -> aiohttp.ClientWebSocketResponse:
        """A websocket to the other node, for web servers that keep their connections. Raises `BadRequest` or
        `Unavailable`."""
        headers = [field for field in proxied.headers if not field[0].startswith(_OF_A_WEBSOCKET)]
        try:
            return await self._http().ws_connect(
                URL(proxied.url, encoded=True),
                headers=_text(headers),
                max_msg_size=self._limits.max_transport,
                ssl=proxied.trust or True,
            )
        except aiohttp.WSServerHandshakeError as refusal:
            raise BadRequest(f"its node refuses the upgrade of this session with {refusal.status}") from None
        except _FAILURES:
            raise proxied.no_answer() from None


def _end_to_end(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The headers without those that concern one hop only."""
    fields = list(headers)
    named = {word.strip().lower() for name, value in fields if name == b"connection" for word in value.split(b",")}
    return [field for field in fields if field[0] not in _HOP_BY_HOP and field[0] not in named]


def _with_client(request: HttpRequest, client: bytes) -> HttpRequest:
    """The request with its client as the node that passed it on has seen it."""
    match client.decode("latin-1").split(" "):
        case [scheme, host, port] if port.isdecimal():
            return replace(request, scheme=scheme, client=None if host == "-" else (host, int(port)))
    return request


def _text(fields: Headers) -> CIMultiDict[str]:
    return CIMultiDict((name.decode("latin-1"), value.decode("utf-8", "replace")) for name, value in fields)


# Tunnels


class TunnelEnd(asyncio.Protocol):
    """One end: bytes that are read here are written at the other end, no faster than it takes them."""

    transport: asyncio.Transport
    other: asyncio.Transport

    def __init__(self) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.other.write(data)

    def pause_writing(self) -> None:
        if not self.other.is_closing():
            self.other.pause_reading()

    def resume_writing(self) -> None:
        if not self.other.is_closing():
            self.other.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(None)


async def tunnel(client: asyncio.Transport, there: TunnelEnd, ahead: bytes) -> None:
    """Carries bytes both ways until either end is gone. `ahead` is the upgrade request, and bytes behind it."""
    if client.is_closing():
        there.transport.abort()
        return
    here = TunnelEnd()
    here.transport = client
    here.other, there.other = there.transport, client
    client.set_protocol(here)
    there.transport.write(ahead)
    client.resume_reading()
    await _until_over(here, there)


async def _until_over(*ends: TunnelEnd) -> None:
    """Wait until one end is gone, and a moment longer for bytes on their way to the other."""
    waits = [end.over for end in ends]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.transport.close()
        await asyncio.wait(waits, timeout=_FLUSH)
    finally:
        for end in ends:
            with suppress(RuntimeError):  # of uvloop, for one that is closed
                end.transport.abort()
