"""Requests that belong to a session of another node: they are asked there, and answered as that node answers."""

from __future__ import annotations

import asyncio
import io
import ssl
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from a2c_smcp.errors import BadRequest, SMCPError, Unavailable
from a2c_smcp.server.cluster.peer_nodes import Neighbours, Shared
from a2c_smcp.server.cluster.tunnel import End, dial, upgrade_request
from a2c_smcp.server.http_requests import MAX_UNAUTHENTICATED, Fields, Request, Response
from a2c_smcp.server.settings import Limits

__all__ = ["Onward", "Proxy"]

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
class Onward:
    """A request as another node will see it. Over TLS, `trust` says whose certificate that node may show."""

    node: str
    url: str
    headers: Fields
    trust: ssl.SSLContext | None

    async def dial(self) -> End:
        """Raises `Unavailable`."""
        try:
            return await dial(self.url, self.trust, _DIAL)
        except _FAILURES:
            raise self.is_silent() from None

    def request(self, ahead: bytes) -> bytes:
        """The bytes of an upgrade request, and those that came behind it."""
        return upgrade_request(self.url, self.headers) + ahead

    def is_silent(self) -> Unavailable:
        return Unavailable(f"node {self.node!r}, which has this session, does not answer")


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

    async def find(self, request: Request) -> tuple[Request, str | None]:
        """The request as its client made it, and the other node that it has to be passed on to, if any."""
        sid = request.parameter("sid")
        node = self._neighbours.owner(sid) if sid else None
        shown = {name: value for name, value in request.headers if name in _BETWEEN_NODES}
        if not shown:
            return request, node
        headers = [field for field in request.headers if field[0] not in _BETWEEN_NODES]
        request = replace(request, headers=headers)
        if await self._neighbours.knows(shown.get(_NODE, b"")):
            return replace(request, **_client_in(shown.get(_CLIENT, b""))), None
        return request, node

    async def respond(self, node: str, request: Request) -> Response:
        """Raises `BadRequest` if there is no such node, `Unavailable` if it does not answer."""
        onward = await self.onward(node, request)
        if request.method == "POST":
            return await self._post(onward, request)
        return await self._poll(onward, request)

    async def onward(self, node: str, request: Request) -> Onward:
        url = await self._neighbours.url_of(node)
        query = quote(request.query, safe=_PRINTABLE)
        secret = await self._neighbours.secret()
        headers = [*_lasting(request.headers), (_CLIENT, _client_of(request)), (_NODE, secret)]
        return Onward(node, f"{url}/socket.io/?{query}", headers, self._trust_for(url))

    def drain(self) -> None:
        """Polls would wait longer than this node does: whoever polls comes again elsewhere."""
        self._is_draining = True
        for poll in self._polls:
            poll.cancel()

    async def close(self) -> None:
        await self._neighbours.close()
        if self._session:
            await self._session.close()

    def _trust_for(self, url: str) -> ssl.SSLContext | None:
        if url.startswith("https:") and self._trust is None:
            self._trust = ssl.create_default_context()
        return self._trust if url.startswith("https:") else None

    # Polling

    async def _poll(self, onward: Onward, request: Request) -> Response:
        """If its client goes away it is cancelled, and the other node sees that its own client went away."""
        poll = asyncio.current_task()
        assert poll
        if self._is_draining:
            raise Unavailable("the server is shutting down")
        request.body.trust()  # the other node answers at once unless there is such a session, and counts that
        self._polls.add(poll)
        try:
            return await self._ask(onward, request.method, None)
        except asyncio.CancelledError:
            if not self._is_draining:
                raise
            raise Unavailable("the server is shutting down") from None
        finally:
            self._polls.discard(poll)

    async def _post(self, onward: Onward, request: Request) -> Response:
        """One that is refused here ends its session, as it does where the session is."""
        length = request.header(b"content-length")
        is_small = length.isdecimal() and int(length) <= MAX_UNAUTHENTICATED
        is_authenticated = not is_small and (await self._ask(onward, "HEAD", None)).status == HTTPStatus.OK
        limit = self._limits.max_transport if is_authenticated else MAX_UNAUTHENTICATED
        if is_authenticated:
            request.body.trust()
        try:
            body = await request.body.read(limit)
        except SMCPError:
            with suppress(Unavailable):
                await self._ask(onward, "POST", _CLOSE)
            raise
        return await self._ask(onward, "POST", body)

    async def _ask(self, onward: Onward, method: str, body: bytes | None) -> Response:
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
            raise onward.is_silent() from None
        kept = [field for field in _lasting(fields) if field[0] != b"date"]
        return Response(response.status, kept, answer)

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

    async def open(self, onward: Onward) -> aiohttp.ClientWebSocketResponse:
        """For a web server that does not give its connections away. Raises `BadRequest` or `Unavailable`."""
        try:
            return await self._open(onward)
        except aiohttp.WSServerHandshakeError as refusal:
            raise BadRequest(f"its node refuses the upgrade of this session with {refusal.status}") from None
        except _FAILURES:
            raise onward.is_silent() from None

    async def _open(self, onward: Onward) -> aiohttp.ClientWebSocketResponse:
        headers = [field for field in onward.headers if not field[0].startswith(_OF_A_WEBSOCKET)]
        return await self._http().ws_connect(
            URL(onward.url, encoded=True),
            headers=_text(headers),
            max_msg_size=self._limits.max_transport,
            ssl=onward.trust or True,
        )


def _lasting(headers: Fields) -> list[tuple[bytes, bytes]]:
    """Without what is said from one hop to the next."""
    fields = list(headers)
    named = {word.strip().lower() for name, value in fields if name == b"connection" for word in value.split(b",")}
    return [field for field in fields if field[0] not in _OF_ONE_HOP and field[0] not in named]


def _client_of(request: Request) -> bytes:
    host, port = request.client or ("-", 0)
    return f"{request.scheme} {host} {port}".encode()


def _client_in(value: bytes) -> dict[str, Any]:
    """What the request says of its client, as the node that was asked first has seen it."""
    match value.decode("latin-1").split(" "):
        case [scheme, host, port] if port.isdecimal():
            return {"scheme": scheme, "client": None if host == "-" else (host, int(port))}
    return {}


def _text(fields: Fields) -> CIMultiDict[str]:
    return CIMultiDict((name.decode("latin-1"), value.decode("utf-8", "replace")) for name, value in fields)
