"""Requests that belong to a session of another node: they are asked there, and answered as that node answers."""

from __future__ import annotations

import asyncio
import io
import ssl
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from a2c_smcp.errors import BadRequest, SMCPError, Unavailable
from a2c_smcp.server import polling
from a2c_smcp.server.neighbours import Neighbours, Shared
from a2c_smcp.server.settings import Limits
from a2c_smcp.server.tunnel import Handing, tunnel
from a2c_smcp.server.wires import DIRECT, Message, Receive, Scope, Send

__all__ = ["Proxy"]

Fields = list[tuple[bytes, bytes]]

_NODE, _CLIENT = b"x-a2c-node", b"x-a2c-client"
_BETWEEN_NODES = frozenset({_NODE, _CLIENT})
_OF_ONE_HOP = frozenset(
    b"connection content-length expect keep-alive proxy-connection te trailer transfer-encoding upgrade".split()
)
_OF_A_WEBSOCKET = b"sec-websocket-"
_NOT_ADDED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
_CLOSE = b"1"

_DIAL = 2.0
_KEEP = 2.0  # less than any web server keeps a connection: a POST cannot be sent again on another
_FAILURES = (aiohttp.ClientError, OSError, TimeoutError, ValueError)


@dataclass(frozen=True, slots=True)
class _Onward:
    """A request as another node will see it. Over TLS, `trust` says whose certificate that node may show."""

    node: str
    url: str
    headers: Fields
    trust: ssl.SSLContext | None


class Proxy:
    """Between this node and the others. Only nodes that hold a lease are asked, and none passes on what was passed on.

    A node says whom it speaks for, and shows the secret that nodes share. From anybody else both headers are nothing.
    """

    def __init__(self, directory: Shared, limits: Limits) -> None:
        self._neighbours = Neighbours(directory)
        self._limits = limits
        self._session: aiohttp.ClientSession | None = None
        self._trust: ssl.SSLContext | None = None
        self._polls: set[asyncio.Task[Any]] = set()
        self._is_draining = False

    async def look_at(self, scope: Scope, sid: str | None) -> tuple[Scope, str | None]:
        """The request as its client made it, and the other node that it has to be passed on to, if any."""
        node = self._neighbours.owner(sid) if sid else None
        shown = {name: value for name, value in scope["headers"] if name in _BETWEEN_NODES}
        if not shown:
            return scope, node
        scope = {**scope, "headers": [field for field in scope["headers"] if field[0] not in _BETWEEN_NODES]}
        if await self._neighbours.knows(shown.get(_NODE, b"")):
            return {**scope, **_client_in(shown.get(_CLIENT, b""))}, None
        return scope, node

    async def carry(self, node: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises `BadRequest` if there is no such node, `Unavailable` if it does not answer."""
        onward = await self._onward(node, scope)
        if scope["type"] == "websocket":
            await self._carry_websocket(onward, scope, receive, send)
        elif scope["method"] == "POST":
            await self._carry_post(onward, scope, receive, send)
        else:
            await polling.poll(partial(self._poll, onward), scope, receive, send)

    def drain(self) -> None:
        """Polls would wait longer than this node does: whoever polls comes again elsewhere."""
        self._is_draining = True
        for poll in self._polls:
            poll.cancel()

    async def close(self) -> None:
        await self._neighbours.close()
        if self._session:
            await self._session.close()

    async def _onward(self, node: str, scope: Scope) -> _Onward:
        url = await self._neighbours.url_of(node)
        query = quote(scope["query_string"].decode("latin-1"), safe=_PRINTABLE)
        headers = [*_lasting(scope["headers"]), (_CLIENT, _client_of(scope)), (_NODE, await self._neighbours.secret())]
        return _Onward(node, f"{url}/socket.io/?{query}", headers, self._trust_for(url))

    def _trust_for(self, url: str) -> ssl.SSLContext | None:
        if url.startswith("https:") and self._trust is None:
            self._trust = ssl.create_default_context()
        return self._trust if url.startswith("https:") else None

    # Polling

    async def _poll(self, onward: _Onward, scope: Scope, receive: Receive, send: Send) -> None:
        poll = asyncio.current_task()
        assert poll
        if self._is_draining:
            poll.cancel()
        self._polls.add(poll)
        try:
            await self._pass_on(onward, scope, receive, send)
        except asyncio.CancelledError:
            if not self._is_draining:
                raise
            raise Unavailable("the server is shutting down") from None
        finally:
            self._polls.discard(poll)

    async def _pass_on(self, onward: _Onward, scope: Scope, receive: Receive, send: Send) -> None:
        request = await receive()
        body = request["body"] if scope["method"] == "POST" else None
        status, headers, body = await self._ask(onward, scope["method"], body)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _carry_post(self, onward: _Onward, scope: Scope, receive: Receive, send: Send) -> None:
        """One that is refused ends its session, as it does where the session is."""
        limit, patience = self._limits.max_transport, self._limits.handshake_timeout
        try:
            await polling.post(partial(self._pass_on, onward), scope, receive, send, limit=limit, patience=patience)
        except Unavailable:
            raise
        except SMCPError:
            with suppress(Unavailable):
                await self._ask(onward, "POST", _CLOSE)
            raise

    async def _ask(self, onward: _Onward, method: str, body: bytes | None) -> tuple[int, Fields, bytes]:
        try:
            async with self._http().request(
                method,
                URL(onward.url, encoded=True),
                headers=_text(onward.headers),
                data=None if body is None else io.BytesIO(body),
                allow_redirects=False,
                ssl=onward.trust or True,
            ) as response:
                answer = await response.read()
                fields = [(name.lower(), value) for name, value in response.raw_headers]
        except _FAILURES:
            raise _silent(onward) from None
        kept = [field for field in _lasting(fields) if field[0] != b"date"]
        return response.status, [*kept, (b"content-length", str(len(answer)).encode())], answer

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            # A poll is answered when its session has been silent for as long as a session may be.
            patience = aiohttp.ClientTimeout(total=None, sock_connect=_DIAL, sock_read=self._limits.half_open_time)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=_NOT_ADDED,
                auto_decompress=False,
                timeout=patience,
            )
        return self._session

    # Websockets

    async def _carry_websocket(self, onward: _Onward, scope: Scope, receive: Receive, send: Send) -> None:
        """Through a tunnel if the web server can give the connection away, else message by message."""
        direct: Handing | None = scope.get("extensions", {}).get(DIRECT)
        try:
            if direct:
                await tunnel(direct, onward.url, onward.headers, trust=onward.trust, patience=_DIAL)
                return
            there = await self._open(onward)
        except aiohttp.WSServerHandshakeError as refusal:
            raise BadRequest(f"its node refuses the upgrade of this session with {refusal.status}") from None
        except _FAILURES:
            raise _silent(onward) from None
        await _exchange(there, receive, send)

    async def _open(self, onward: _Onward) -> aiohttp.ClientWebSocketResponse:
        headers = [field for field in onward.headers if not field[0].startswith(_OF_A_WEBSOCKET)]
        return await self._http().ws_connect(
            URL(onward.url, encoded=True),
            headers=_text(headers),
            max_msg_size=self._limits.max_transport,
            ssl=onward.trust or True,
        )


async def _exchange(there: aiohttp.ClientWebSocketResponse, receive: Receive, send: Send) -> None:
    """Messages both ways, each awaited until it is written, until either side closes."""
    await receive()
    await send({"type": "websocket.accept"})
    ways = [asyncio.ensure_future(way) for way in (_outward(there, receive), _inward(there, send))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        await there.close()


async def _outward(there: aiohttp.ClientWebSocketResponse, receive: Receive) -> None:
    while (message := await receive())["type"] == "websocket.receive":
        if (text := message.get("text")) is not None:
            await there.send_str(text)
        else:
            await there.send_bytes(message["bytes"])
    await there.close(code=message.get("code") or 1000)


async def _inward(there: aiohttp.ClientWebSocketResponse, send: Send) -> None:
    async for message in there:
        kind = "text" if message.type is aiohttp.WSMsgType.TEXT else "bytes"
        await send({"type": "websocket.send", kind: message.data})
    ending: Message = {"type": "websocket.close", "code": there.close_code or 1011}
    await send(ending)


def _lasting(headers: Iterable[tuple[bytes, bytes]]) -> Fields:
    """Without what is said from one hop to the next."""
    fields = list(headers)
    named = {word.strip().lower() for name, value in fields if name == b"connection" for word in value.split(b",")}
    return [field for field in fields if field[0] not in _OF_ONE_HOP and field[0] not in named]


def _client_of(scope: Scope) -> bytes:
    host, port = scope.get("client") or ("-", 0)
    return f"{scope['scheme']} {host} {port}".encode()


def _client_in(value: bytes) -> dict[str, Any]:
    """What the request's scope says of its client, as the node that was asked first has seen it."""
    match value.decode("latin-1").split(" "):
        case [scheme, host, port] if port.isdecimal():
            return {"scheme": scheme, "client": None if host == "-" else (host, int(port))}
    return {}


def _text(fields: Fields) -> CIMultiDict[str]:
    return CIMultiDict((name.decode("latin-1"), value.decode("utf-8", "replace")) for name, value in fields)


def _silent(onward: _Onward) -> Unavailable:
    return Unavailable(f"node {onward.node!r}, which has this session, does not answer")
