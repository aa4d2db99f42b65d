"""Every office of a Server as an MCP server at `/mcp/<office>`, for clients that have a key of that Server.

The Server authenticates each request before anything of it is read (`SMCPApp.authenticate`). The bridge is a client of
the Server like any other: it dials the Server's own listener with the key of the MCP client, so that the Server's rules
on offices, roles and names hold. Refusals are JSON-RPC errors, which MCP clients show, with the status of HTTP. A
client without a valid key is told where the metadata of RFC 9728 is, which MCP's authorization begins with. On several
nodes, a seat may be on another one (`other_nodes.py`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, urlsplit

from a2c_smcp import __version__
from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.bridge.bridge import Bridge
from a2c_smcp.bridge.office import BridgeOptions
from a2c_smcp.bridge.other_nodes import SESSION, Occupant, SeatsElsewhere
from a2c_smcp.bridge.serving.http import Answers, EndOfRequests, until_over
from a2c_smcp.device_events import Sealing
from a2c_smcp.endpoint import Credentials
from a2c_smcp.errors import (
    BadRequest,
    NotAuthenticated,
    NotAuthorised,
    NotFound,
    OfficeHasAgent,
    RateLimited,
    SMCPError,
    Unavailable,
)
from a2c_smcp.loops import OwnedTasks
from a2c_smcp.protocol.names import fault_in
from a2c_smcp.server.auth.authentication import Principal, agent_name
from a2c_smcp.server.auth.grants import GRANT
from a2c_smcp.server.cluster.proxy import NOT_RUN_HEADER, Proxy
from a2c_smcp.server.http_requests import CREDENTIALS, Lifespan, is_from_node, with_headers
from a2c_smcp.server.hub import Hub
from a2c_smcp.server.observation.happened import McpCallRefused, McpClientSeen
from a2c_smcp.web import ASGIApp, Message, Receive, Scope, Send, header

logger = logging.getLogger(__name__)

# Seats of MCP clients on a Server: one agent for each principal and office, which is in the office while it is used.
#
# A seat is used by each HTTP request, from its head to the end of its response, so an open stream counts. The first
# one connects the agent, with the credentials of that request, and joins the office. Requests that come meanwhile wait
# for the same attempt. If the office refuses, they are refused, and the seat leaves nothing behind.
#
# After a time without use (`idle`), and with no call in flight, the agent leaves the office for others. The MCP
# sessions stay: many clients would not begin a new one by themselves. The next request joins again. A seat without use
# for long (`keep`) is closed, and so is one whose credentials the Server no longer accepts: sessions end, and open
# streams with them.
#
# `_lock` orders joining, leaving and closing. A request takes it only if the agent is not in the office. A seat that
# is closed is first removed from the table, so no request gets hold of it; a new one may wait a moment for the
# office.

MCP_PATH = "/mcp"
"""The path of the application of a seat."""

_MOST_CLIENTS = 64
_LAST_ANSWERS = 1.0
"""Seconds for answers that are being written when the Server ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatOptions:
    """Times are in seconds. `bridge` makes the options of the bridge of an occupant.

    `e2e` and `origin` are those of its agents: see `AsyncSMCPAgentClient`. `on_seen` is told which clients use a seat,
    `on_refused` which requests, from which address, get none although their key is right, `on_call_refused` which tool
    calls are not sent. What else is refused, the Server sees itself.
    """

    idle: float = 60.0
    keep: float = 1800.0
    most_per_principal: int = 64
    bridge: Callable[[Occupant], BridgeOptions] = field(default=lambda occupant: BridgeOptions())
    e2e: Sealing = "off"
    origin: str | None = None
    on_seen: Callable[[McpClientSeen], None] = field(default=lambda seen: None)
    on_refused: Callable[[str | None, SMCPError, Principal], None] = field(default=lambda address, error, who: None)
    on_call_refused: Callable[[McpCallRefused], None] = field(default=lambda refused: None)


class Seats:
    """All seats. The agents connect to the Server at `url`."""

    def __init__(self, url: str, options: SeatOptions) -> None:
        self._url = url
        self._options = options
        self._seats: dict[Occupant, ClientSeat] = {}
        self._background = OwnedTasks()

    def has(self, occupant: Occupant) -> bool:
        return occupant in self._seats

    def is_in_office(self, occupant: Occupant) -> bool:
        return occupant in self._seats and self._seats[occupant].is_joined

    async def use(self, occupant: Occupant, headers: Mapping[str, str], state_key: bytes | None = None) -> ClientSeat:
        """The seat, joined and in use until `ClientSeat.release`. `headers` are the credentials of the request.

        Raises the refusal of the Server, or `RateLimited`.
        """
        seat = self._seats.get(occupant)
        if seat is None:
            if sum(other.principal == occupant.principal for other in self._seats) >= self._options.most_per_principal:
                most = self._options.most_per_principal
                raise RateLimited(f"{occupant.principal!r} uses {most} offices already, which is the most")
            seat = self._seats[occupant] = ClientSeat(occupant, self._url, self._options, self._close_soon, state_key)
        await seat.use(headers)
        return seat

    async def close(self) -> None:
        """Ends all seats. Answers that are being written have a moment."""
        seats, self._seats = [*self._seats.values()], {}
        await asyncio.gather(*(seat.close(_LAST_ANSWERS) for seat in seats))
        await self._background.close()

    def _close_soon(self, seat: ClientSeat) -> None:
        if self._seats.get(seat.occupant) is seat:
            del self._seats[seat.occupant]
            self._background.spawn(seat.close())


class ClientSeat:
    """One agent in one office, and the MCP server that its clients talk to. Its credentials are in memory only."""

    def __init__(
        self,
        occupant: Occupant,
        url: str,
        options: SeatOptions,
        close_soon: Callable[[ClientSeat], None],
        state_key: bytes | None,
    ) -> None:
        self.occupant = occupant
        self._is_on_one_of_many = state_key is not None
        self._is_over = False
        self._requests: set[EndOfRequests] = set()
        self._headers: Mapping[str, str] = {}
        self._dialled_with: Mapping[str, str] = {}
        sealing: dict[str, Any] = {"e2e": options.e2e, "origin": options.origin}
        agent = AsyncSMCPAgentClient(occupant.name, url=url, office=[], auth=self, event_handler=self, **sealing)
        self._clients: dict[str, None] = {}
        told: dict[str, Any] = {"on_client": self._on_client, "on_refused": self._on_call_refused}
        bridge_options = replace(options.bridge(occupant), state_key=state_key, **told)
        self._bridge = Bridge(agent, occupant.office, bridge_options)
        self.app: ASGIApp = self._bridge.http_app(MCP_PATH)
        self._lifespan = Lifespan(self.app)
        self._options = options
        self._close_soon = close_soon
        self.answers = Answers()
        self._users = 0
        self.is_joined = self._was_joined = False
        self._lock = asyncio.Lock()
        self._opened: AsyncExitStack | None = None
        self._joining: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._background = OwnedTasks()

    async def use(self, headers: Mapping[str, str]) -> None:
        """Joins the office unless it is joined. Raises its refusal; else `release` must follow."""
        self._users += 1
        self._stop_timer()
        self._headers = headers  # a token may have been renewed: the next dial takes the newest
        try:
            if not self.is_joined:
                if self._joining is None or self._joining.done():
                    self._joining = asyncio.create_task(self._join())
                await asyncio.shield(self._joining)
            if self._is_over:
                raise Unavailable("the access to this office has ended just now, try again")
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """The request is over."""
        self._users -= 1
        if not (self._users or self._is_over):
            self._after(self._options.idle if self.is_joined else 0.0, self._rest)

    @contextmanager
    def ending(self, request: EndOfRequests) -> Iterator[None]:
        """Encloses a request, which ends with this seat."""
        self._requests.add(request)
        if self._is_over:
            request.set()
        try:
            yield
        finally:
            self._requests.discard(request)

    async def end_session(self, scope: Scope) -> None:
        """End the MCP session of a request, with its calls and what they have asked people."""

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            """Nobody waits for the answer."""

        await self.app({**_inner(scope), "method": "DELETE"}, receive, send)

    async def close(self, patience: float = 0.0) -> None:
        """Leaves the office, and ends all sessions and streams. Answers may be completed within `patience` seconds."""
        self._stop_timer()
        await self.answers.finish(patience)
        self._is_over = True
        for request in list(self._requests):
            request.set()
        await self._background.close()
        async with self._lock:
            if self._opened:
                await self._opened.aclose()

    # For the agent

    def credentials(self) -> Credentials:
        self._dialled_with = self._headers
        return Credentials(headers=self._headers)

    def on_office_lost(self, office: str, error: Exception) -> None:
        if isinstance(error, NotAuthorised):  # the key is for other offices now
            self.on_refused(error)
        elif self._is_on_one_of_many and isinstance(error, OfficeHasAgent):  # a seat on another node, it may be
            self._close_soon(self)

    def on_refused(self, error: Exception) -> None:
        if isinstance(error, NotAuthenticated) and self._headers != self._dialled_with:
            self.is_joined = False  # a renewed token has come meanwhile: the next request joins with it
            return
        logger.info("the seat of %r in office %r ends: %s", self.occupant.principal, self.occupant.office, error)
        self._close_soon(self)

    # In and out

    async def _join(self) -> None:
        async with self._lock:
            if self._opened is None:
                self._opened = AsyncExitStack()
                await self._opened.enter_async_context(self._bridge)
                self._opened.push_async_callback(self._lifespan.stop)
                await self._lifespan.start()
            self._clients.clear()
            await self._bridge.enter(is_contested=self._is_on_one_of_many)
            self.is_joined = self._was_joined = True

    def _on_client(self, client: str) -> None:
        """For the operator: which clients use the seat, each once since it was taken. They have chosen their names."""
        if client in self._clients:
            return
        if len(self._clients) >= _MOST_CLIENTS:
            del self._clients[next(iter(self._clients))]
        self._clients[client] = None
        who = self.occupant
        self._options.on_seen(McpClientSeen(who.office, who.name, client, who.principal))

    def _on_call_refused(self, tool: str, error: SMCPError, address: str | None) -> None:
        who = self.occupant
        self._options.on_call_refused(McpCallRefused(who.office, who.name, who.principal, address, tool, error))

    async def _rest(self) -> None:
        """Leave the office if the seat has no users. A seat that was never in it has no sessions, and is closed."""
        async with self._lock:
            if self._users:
                return
            if self._bridge.is_busy:
                self._after(self._options.idle, self._rest)
                return
            self.is_joined = False
            await self._bridge.leave()
            if not self._users:
                self._after(self._options.keep if self._was_joined else 0.0, self._give_up)

    async def _give_up(self) -> None:
        if not self._users:
            self._close_soon(self)

    def _after(self, delay: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._stop_timer()
        self._timer = self._background.later(delay, work)

    def _stop_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None


_METADATA_PATH = "/.well-known/oauth-protected-resource"
PREFIXES = (MCP_PATH, f"{_METADATA_PATH}{MCP_PATH}")
"""The paths at which the application has to be mounted."""

_FOR_WEB_PAGES = ((b"access-control-expose-headers", b"mcp-session-id, www-authenticate"),)
_CHECKED = frozenset({b"host", b"origin"})
_REFUSED = -32001  # beside those that MCP itself has

_NO_KEY = (
    "This Server wants a key: have your MCP client send the header `Authorization: Bearer KEY`, "
    "with an API key of this Server (`a2c-smcp key` makes one for its keys file) or a token."
)
_WRONG_KEY = (
    "The key is not accepted: it is wrong, or it was revoked or has expired. Give your MCP client a valid key of this "
    "Server; `a2c-smcp key` makes one for its keys file."
)
_REMEDIES: dict[type[SMCPError], str] = {
    NotAuthorised: "Use a key for this office; the operator of the Server makes one with `a2c-smcp key --office`.",
    OfficeHasAgent: "An office holds one agent at a time: wait until it has left, or use another office.",
}


_PASSED_ON_AT_THE_END = 4.0
"""Seconds for answers of other nodes when the Server ends."""


class Admits(Protocol):
    """The Server, as far as it says who sends a request, for how long that one is admitted, and what other nodes do."""

    hub: Hub
    proxy: Proxy | None

    async def authenticate(self, scope: Scope) -> Principal: ...

    def visit(self, principal: Principal, end: Callable[[], None]) -> AbstractContextManager[None]: ...

    def credentials_of(self, scope: Scope, principal: Principal, office: str) -> dict[str, str]: ...

    @property
    def sign_in_url(self) -> str | None: ...


class _Sender(NamedTuple):
    """Who sends a request: `headers` are the credentials of its seat, `over` ends what is not admitted any more."""

    principal: Principal
    occupant: Occupant
    headers: dict[str, str]
    over: EndOfRequests


class OfficesAsMCPServers:
    """An ASGI application. Its lifespan must be run, and its agents must reach the Server at `url`.

    `issuers` are the authorization servers whose tokens the Server accepts.
    """

    def __init__(
        self,
        server: Admits,
        url: str,
        issuers: Sequence[str] = (),
        options: SeatOptions = SeatOptions(),  # noqa: B008  # frozen
    ) -> None:
        self._server = server
        self._public_url = server.sign_in_url
        self._issuers = (self._public_url,) if self._public_url else tuple(issuers)
        self._seats = Seats(url, options)
        self._nodes = SeatsElsewhere(server.hub, server.proxy) if server.proxy else None
        self._passed_on, self._passing_on = Answers(), set[EndOfRequests]()
        self._on_refused = options.on_refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if header(scope, b"origin"):
            send = with_headers(send, _FOR_WEB_PAGES)
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        over, answer = EndOfRequests(), send
        if is_from_node(scope):
            send = with_headers(send, ((NOT_RUN_HEADER, b"1"),))
        try:
            if path.startswith(_METADATA_PATH):
                await self._tell_metadata(scope, _office_in(path.removeprefix(_METADATA_PATH)), send)
                return
            office, principal = _office_in(path), await self._server.authenticate(scope)
            with self._server.visit(principal, over.set):
                occupant = self._occupant(scope, principal, office)
                sender = _Sender(principal, occupant, self._server.credentials_of(scope, principal, office), over)
                if self._is_here(scope, occupant):
                    await self._answer(scope, receive, answer, sender)
                else:
                    await self._answer_elsewhere(scope, receive, send, sender)
        except SMCPError as error:
            await self._refuse(scope, error, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            event = (await receive())["type"]
            if event == "lifespan.shutdown":
                await self._passed_on.finish(_PASSED_ON_AT_THE_END)
                for over in self._passing_on:
                    over.set()
                await self._seats.close()
            await send({"type": f"{event}.complete"})
            if event == "lifespan.shutdown":
                return

    def _occupant(self, scope: Scope, principal: Principal, office: str) -> Occupant:
        """Whose seat the sender of the request has. Raises `NotAuthorised`."""
        try:
            name = agent_name(principal)
            principal.check("agent", name, office)
        except NotAuthorised as error:
            self._on_refused(scope["client"][0] if scope["client"] else None, error, principal)
            raise
        return Occupant(principal.id, office, name)

    def _is_here(self, scope: Scope, occupant: Occupant) -> bool:
        """True for a request that this node has to answer, without a look at the others."""
        if self._nodes is None or is_from_node(scope):
            return True
        return self._seats.is_in_office(occupant) and not self._nodes.is_named_in(scope)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, sender: _Sender) -> None:
        """Answer by the seat on this node. Raises `SMCPError` if there is none for the request."""
        seat = await self._seat(scope, sender)
        if self._nodes:
            scope, send = self._nodes.as_own(scope, send)
        try:
            with seat.answers if scope["method"] == "POST" else nullcontext(), seat.ending(sender.over):
                await seat.app(_inner(scope), until_over(receive, sender.over), send)
            if header(scope, SESSION) and self._has_lost_grant(sender):
                await seat.end_session(scope)
        finally:
            seat.release()

    def _has_lost_grant(self, sender: _Sender) -> bool:
        """True if the sender's grant has ended. Other grants of the principal, for other clients, may keep the seat."""
        is_of_grant = sender.principal.credential.startswith(GRANT)
        return is_of_grant and sender.over.is_set and not self._server.hub.auth.current(sender.principal)

    async def _answer_elsewhere(self, scope: Scope, receive: Receive, send: Send, sender: _Sender) -> None:
        """Answer by the node that has the seat, or here if none has. Raises `SMCPError`."""
        assert self._nodes

        async def answer(receive: Receive) -> None:
            await self._answer(scope, receive, send, sender)

        self._passing_on.add(sender.over)
        try:
            with self._passed_on if scope["method"] == "POST" else nullcontext():
                await self._nodes.serve(scope, until_over(receive, sender.over), send, sender.occupant, answer)
        finally:
            self._passing_on.discard(sender.over)

    async def _seat(self, scope: Scope, sender: _Sender) -> ClientSeat:
        """The seat of the sender of the request, unless that is over meanwhile. Raises `SMCPError`."""
        occupant = sender.occupant
        if (header(scope, SESSION) or scope["method"] != "POST") and not self._seats.has(occupant):
            raise NotFound("there is no such session, begin a new one")
        is_new = self._nodes and not self._seats.has(occupant)
        state_key = await self._nodes.state_key(occupant) if self._nodes and is_new else None
        seat = await self._seats.use(occupant, sender.headers, state_key)
        if sender.over.is_set:
            seat.release()
            raise NotAuthenticated("the key was revoked or has expired just now")
        return seat

    async def _tell_metadata(self, scope: Scope, office: str, send: Send) -> None:
        """Answer with the metadata that an MCP client needs before it is authenticated (RFC 9728)."""
        metadata: dict[str, Any] = {
            "resource": f"{self._public_url or _base(scope)}{MCP_PATH}/{quote(office, safe='')}",
            "bearer_methods_supported": ["header"],
            "resource_name": f"Office {office}",
        }
        if self._issuers:
            metadata["authorization_servers"] = [*self._issuers]
        await _answer(send, 200, metadata, [])

    async def _refuse(self, scope: Scope, error: SMCPError, send: Send) -> None:
        """Answers in the way of MCP: a JSON-RPC error, at the status of HTTP that fits.

        Clients take 401 for a reason to sign in, and show nothing of it. So a wrong key is 403 where nobody can.
        """
        message, headers, status = error.message, list[tuple[bytes, bytes]](), error.code
        if isinstance(error, NotAuthenticated):
            has_key = any(header(scope, name) for name in CREDENTIALS)
            message = _WRONG_KEY if has_key else _NO_KEY
            if has_key and not self._issuers:
                status = NotAuthorised.code
            else:
                headers = [(b"www-authenticate", self._challenge(scope, has_key=has_key))]
        elif remedy := next((words for kind, words in _REMEDIES.items() if isinstance(error, kind)), ""):
            message = f"{error.about if isinstance(error, OfficeHasAgent) else error.message}. {remedy}"
        fault = {"code": _REFUSED, "message": message, "data": {"code": error.code, **error.details}}
        status = 400 if isinstance(error, BadRequest) else status
        await _answer(send, status, {"jsonrpc": "2.0", "id": None, "error": fault}, headers)

    def _challenge(self, scope: Scope, *, has_key: bool) -> bytes:
        """The challenge for a client without a valid key (RFC 6750, RFC 9728)."""
        if not self._issuers:
            return b"Bearer"
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        metadata = f'resource_metadata="{self._public_url or _base(scope)}{_METADATA_PATH}{quote(path)}"'
        return f'Bearer error="invalid_token", {metadata}'.encode() if has_key else f"Bearer {metadata}".encode()


def _office_in(path: str) -> str:
    """The office that a path names. Raises `NotFound` or `BadRequest`."""
    office = path.removeprefix(MCP_PATH).removeprefix("/").removesuffix("/")
    if not office:
        raise NotFound(f"the office is missing: give your MCP client the URL of this Server with {MCP_PATH}/OFFICE")
    if fault := fault_in(office):
        raise BadRequest(f"the name of the office {fault}")
    return office


def _inner(scope: Scope) -> Scope:
    """The request for the application of a seat. The Server has checked its host and origin."""
    headers = [field for field in scope["headers"] if field[0] not in _CHECKED]
    return {
        **scope,
        "path": MCP_PATH,
        "raw_path": MCP_PATH.encode(),
        "root_path": "",
        "headers": [*headers, (b"host", b"127.0.0.1")],
    }


# Refusals


async def _answer(send: Send, status: int, body: dict[str, Any], headers: list[tuple[bytes, bytes]]) -> None:
    kinds = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": [*kinds, *headers]})
    await send({"type": "http.response.body", "body": json.dumps(body, ensure_ascii=False).encode()})


def _base(scope: Scope) -> str:
    """The URL of the Server, as its client wrote it."""
    proto = header(scope, b"x-forwarded-proto").partition(",")[0].strip()
    scheme = proto if proto in ("http", "https") else scope["scheme"]
    host = header(scope, b"x-forwarded-host").partition(",")[0].strip() or header(scope, b"host")
    return f"{scheme}://{quote(host, safe=':[]')}{scope.get('root_path', '')}"


# The card of a Server (SEP-2127), for programs that look for MCP servers: it says how an office is reached, and has no
# name of one and no secret. MCP reserves the path behind the URL of an MCP server; crawlers ask for the other one.

CARD_PATH = "/.well-known/mcp/server-card.json"
_CARD_OF_OFFICE = "/server-card"
_CARD_HEADERS = [
    (b"content-type", b"application/mcp-server-card+json"),
    (b"access-control-allow-origin", b"*"),
    (b"cache-control", b"no-store"),  # it has the host that the client asked for
]


class ServerCard:
    """An ASGI application for `CARD_PATH`. It needs no key, and says whether MCP clients do."""

    def __init__(self, *, needs_key: bool) -> None:
        key = {"name": "Authorization", "description": "`Bearer` and a key of this Server", "isSecret": True}
        self._headers: dict[str, Any] = {"headers": [{**key, "isRequired": True}]} if needs_key else {}

    def beside(self, offices: ASGIApp) -> ASGIApp:
        """The application of all offices, each with the card at its own URL."""

        async def both(scope: Scope, receive: Receive, send: Send) -> None:
            is_card = scope["type"] == "http" and scope["method"] == "GET" and scope["path"].endswith(_CARD_OF_OFFICE)
            await (self if is_card else offices)(scope, receive, send)

        return both

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = json.dumps(self._card(_base(scope))).encode()
        await send({"type": "http.response.start", "status": 200, "headers": _CARD_HEADERS})
        await send({"type": "http.response.body", "body": body})

    def _card(self, base: str) -> dict[str, Any]:
        host = re.sub(r"[^A-Za-z0-9.-]+", "-", urlsplit(base).hostname or "")
        office = {"description": "The office whose computers are used", "isRequired": True}
        remote = {"type": "streamable-http", "url": f"{base}{MCP_PATH}/{{office}}", "variables": {"office": office}}
        return {
            "$schema": "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json",
            "name": f"{'.'.join(reversed(host.split('.')))}/a2c-smcp",
            "version": __version__,
            "title": "A2C Server",
            "description": "Tools, resources and prompts of the computers in an office",
            "remotes": [{**remote, **self._headers}],
        }
