"""The operator's interface over HTTP: `/admin/api/…` for operators, `/admin/node/…` for other nodes.

Each route is a method and a path, and what answers it. An answer is a JSON object; `events` is a stream of server-sent
events. Nothing here is kept in caches. Nothing works with a cookie, so no web page can use it for its visitor.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar
from urllib.parse import parse_qsl

import msgspec

from a2c_smcp.audit.observers import Facts
from a2c_smcp.errors import BadRequest, NotAuthenticated, NotAuthorised, NotFound, SMCPError
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.server.admin.events import EventFilter, EventReader
from a2c_smcp.server.admin.node_view import Selection, SessionSeen, page_of
from a2c_smcp.server.admin.operations import (
    NODE_PATH,
    FreezeChange,
    KeyChange,
    Missing,
    Operations,
    RowsOfNodes,
    Who,
    offices_of,
)
from a2c_smcp.server.auth.api_keys import OperatorKeys
from a2c_smcp.server.auth.authentication import AuthenticationProvider, Principal, credentials
from a2c_smcp.server.freezes import FreezeScope
from a2c_smcp.server.http_requests import EXTENSION, NO_SUCH_PAGE, HttpResponse, is_from_node, refusal_response
from a2c_smcp.web import Receive, Scope, Send, header, until_disconnect

# Who may use the operator's interface: holders of an admin key, which opens nothing else, and other nodes.

Result = TypeVar("Result")

_WRONG = "this is no admin key of this Server; a client's API key is not accepted here"
_HOW = "send an admin key of this Server as `Authorization: Bearer KEY`; a client's API key is not accepted here"
_EXPIRED = "this admin key has expired: ask another operator for a new one"
_BEARER = "bearer "


class Slowed(Protocol):
    """Waits for a check; if it fails too often for one address, the failure comes late (WIRE §6)."""

    def __call__(self, check: Awaitable[Result], address: str, /) -> Awaitable[Result]: ...


class AdminAccess:
    """Knows operators by their keys. Refusals are reported to `refused`, and slowed down."""

    def __init__(self, keys: OperatorKeys, slowed: Slowed, refused: Callable[[str | None, SMCPError], None]) -> None:
        self.keys = keys
        self._slowed = slowed
        self._refused = refused

    async def check_header(self, authorization: str, address: str | None) -> Principal:
        """The operator who sends this. Raises `NotAuthenticated`."""
        is_bearer = authorization[: len(_BEARER)].lower() == _BEARER
        key = authorization[len(_BEARER) :].strip() if is_bearer else ""
        return await self._slowed(self._check(key, address, _HOW), address or "")

    async def check_key(self, key: str, address: str | None) -> Principal:
        """The operator who signs in with this key. Raises `NotAuthenticated`."""
        return await self._slowed(self._check(key, address, _WRONG), address or "")

    async def check_change(self, operator: Principal, address: str | None) -> None:
        """Raises `NotAuthorised` for a viewer."""
        await self._slowed(self._check_change(operator, address), address or "")

    async def _check(self, key: str, address: str | None, why: str) -> Principal:
        operator = self.keys.holder_of(key)
        if operator is None or operator.expired:
            raise self._reported(NotAuthenticated(_EXPIRED if operator else why), address)
        return operator

    async def _check_change(self, operator: Principal, address: str | None) -> None:
        if "operator" not in (operator.roles or ()):
            about = f"{operator.id!r} is a viewer, who sees all and changes nothing: ask an operator"
            raise self._reported(NotAuthorised(about), address)

    def _reported(self, error: SMCPError, address: str | None) -> SMCPError:
        self._refused(address, error)
        return error


class AdminKeyRefused(AuthenticationProvider):
    """Refuses clients that present an admin key, and leaves all others to another provider.

    It says of clients and of operators if they may stay.
    """

    def __init__(self, provider: AuthenticationProvider, keys: OperatorKeys) -> None:
        self._provider, self._keys = provider, keys

    async def authenticate(
        self, sio: Any, environ: dict[str, Any], auth: object, headers: Mapping[str, str]
    ) -> bool | Principal:
        presented = [self._keys.holder_of(key) for key in credentials(auth, headers)]
        return False if any(presented) else await self._provider.authenticate(sio, environ, auth, headers)

    def current(self, principal: Principal) -> Principal | None:
        return (self._keys if principal.is_operator else self._provider).current(principal)

    def reload(self) -> None:
        self._provider.reload()
        if self._keys.file:
            self._keys.reload()

    def withhold(self, credential: str) -> None:
        self._provider.withhold(credential)
        self._keys.withhold(credential)


ADMIN_PATH = "/admin"
_API = f"{ADMIN_PATH}/api"
_QUIET = 10.0
_GRACE, _LONGEST_GRACE = 3600, 366 * 24 * 3600
_LAST_MOMENT = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
_NO_STORE = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))

_MEMBER_FILTERS = ("search", "office", "role", "name", "principal", "node")
_CALL_FILTERS = ("search", "office", "agent", "computer", "tool", "event", "principal", "node")
_ENDED_FILTERS = ("search", "office", "agent", "computer", "tool", "outcome", "principal", "node")
_REFUSAL_FILTERS = ("search", "office", "name", "principal", "event", "node")


class AdminRequest(NamedTuple):
    """A request that was authenticated. `rest` is the part of the path that names one thing."""

    rest: str
    query: dict[str, str]
    body: Mapping[str, object]
    who: Who


Answer: TypeAlias = Mapping[str, Any] | list[Any] | None
Handler: TypeAlias = Callable[[AdminRequest], Awaitable[Any]]
H = TypeVar("H")


class AdminAPI:
    """An ASGI application."""

    def __init__(self, operations: Operations, access: AdminAccess) -> None:
        self._operations = operations
        self._access = access
        ended, refused = operations.ended, operations.refusals
        self._routes: dict[tuple[str, str], Handler] = {
            ("GET", "offices"): partial(self._list, "offices", operations.offices, _MEMBER_FILTERS),
            ("GET", "offices/*"): self._office,
            ("GET", "members"): partial(self._list, "members", operations.members, _MEMBER_FILTERS),
            ("DELETE", "members/*"): self._disconnect,
            ("POST", "members/*/disconnect"): self._disconnect,
            ("GET", "calls"): partial(self._list, "calls", operations.calls, _CALL_FILTERS),
            ("GET", "calls/ended"): partial(self._list, "calls", ended, _ENDED_FILTERS),
            ("GET", "refusals"): partial(self._list, "refusals", refused, _REFUSAL_FILTERS),
            ("GET", "nodes"): partial(self._all, "nodes", operations.nodes),
            ("GET", "keys"): partial(self._all, "keys", operations.all_keys),
            ("GET", "grants"): self._grants,
            ("POST", "links"): self._new_link,
            ("GET", "freezes"): self._freezes,
            ("POST", "freeze"): self._freeze,
            ("POST", "thaw"): lambda it: operations.thaw(_scope(it.body), it.who),
            ("POST", "keys"): lambda it: operations.create_key(dict(it.body), it.who),
            ("DELETE", "keys/*"): lambda it: operations.revoke_key(it.rest, it.who),
            ("POST", "keys/*/expire"): lambda it: operations.expire_key(it.rest, _moment(it.body), it.who),
            ("POST", "keys/*/rotate"): self._rotate_key,
        }
        view = operations.view
        self._node_routes: dict[tuple[str, str], Callable[[Mapping[str, str]], object]] = {
            ("GET", "members"): lambda query: view.members(),
            ("GET", "calls"): lambda query: view.calls(),
            ("GET", "history"): lambda query: operations.own_history(),
            ("GET", "node"): lambda query: view.row(),
            ("GET", "key-uses"): lambda query: view.key_uses(),
            ("GET", "freezes"): lambda query: operations.view.hub.freezes.number,
            ("GET", "session"): self._node_session,
            ("POST", "disconnect"): self._node_disconnect,
            ("POST", "end-session"): self._node_end_session,
            ("POST", "new-key"): self._node_new_key,
            ("POST", "reload"): self._node_reload,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", "")).rstrip("/")
        try:
            if path.startswith(NODE_PATH):
                await self._answer_node(path.removeprefix(NODE_PATH).strip("/"), scope, receive, send)
            else:
                await self._answer_operator(path.removeprefix(_API).strip("/"), scope, receive, send)
        except SMCPError as error:
            headers = ((b"www-authenticate", b"Bearer"),) if isinstance(error, NotAuthenticated) else ()
            response = refusal_response(error)
            await send_response(send, response._replace(headers=(*response.headers, *headers)))

    async def _answer_operator(self, what: str, scope: Scope, receive: Receive, send: Send) -> None:
        address = scope["client"][0] if scope["client"] else None
        operator = await self._access.check_header(header(scope, b"authorization"), address)
        self._operations.view.hub.uses.note(operator.credential)
        scope["extensions"][EXTENSION]["trust"]()
        if scope["method"] != "GET":
            await self._access.check_change(operator, address)
        query = _query(scope)
        if what == "events" and scope["method"] == "GET":
            await self._stream(operator, query, receive, send)
            return
        handler, rest = _route(self._routes, scope["method"], what)
        body = await _body(receive) if scope["method"] == "POST" else {}
        answer = await handler(AdminRequest(rest, query, body, Who(address, operator.id)))
        status = 201 if isinstance(answer, KeyChange) and answer.key else 200
        await _send_json(send, answer, status)

    async def _answer_node(self, what: str, scope: Scope, receive: Receive, send: Send) -> None:
        if not is_from_node(scope):
            raise NotFound(NO_SUCH_PAGE)
        scope["extensions"][EXTENSION]["trust"]()
        query = _query(scope)
        if what == "events":
            source = self._operations.source
            reader = source.open(EventFilter(query))
            try:
                await _write_events(send, receive, reader, b"application/x-ndjson", _as_lines)
            finally:
                source.close(reader)
            return
        handler, _ = _route(self._node_routes, scope["method"], what)
        await _send_json(send, handler(query))

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        keeping = asyncio.create_task(self._operations.keep_uses())
        while True:
            event = (await receive())["type"]
            if event == "lifespan.shutdown":
                await cancel_and_wait(keeping)
                await self._operations.close()
            await send({"type": f"{event}.complete"})
            if event == "lifespan.shutdown":
                return

    # Lists

    async def _list(
        self,
        name: str,
        choose: Callable[[Selection], Awaitable[RowsOfNodes[Any]]],
        filters: Sequence[str],
        request: AdminRequest,
    ) -> Answer:
        return _listed(name, await choose(Selection.read(request.query, filters)))

    async def _all(
        self, name: str, read: Callable[[], Awaitable[tuple[list[Any], list[Missing]]]], request: AdminRequest
    ) -> Answer:
        rows, missing = await read()
        return {name: rows, "missing": missing}

    async def _office(self, request: AdminRequest) -> Answer:
        selection = Selection.read(request.query, ("search", "role", "name", "principal", "node"))
        rows, missing = await self._operations.all_members()
        rows = [row for row in rows if row.office == request.rest]
        if not rows:
            raise NotFound(f"office {request.rest!r} has no members")
        page = page_of(selection.choose(rows), selection, lambda row: row.place)
        return {"office": offices_of(rows)[0], **_listed("members", RowsOfNodes(page, missing))}

    async def _grants(self, request: AdminRequest) -> Answer:
        return {"grants": await self._operations.all_grants()}

    # Actions

    async def _new_link(self, request: AdminRequest) -> Answer:
        office, principal = (str(request.body.get(name, "")) for name in ("office", "principal"))
        return {"link": await self._operations.new_link(office, principal, request.who)}

    async def _freezes(self, request: AdminRequest) -> Answer:
        return {"freezes": self._operations.freezes()}

    async def _freeze(self, request: AdminRequest) -> FreezeChange:
        reason = request.body.get("reason", "")
        if not isinstance(reason, str):
            raise BadRequest("reason: must be text", field="reason")
        return await self._operations.freeze(_scope(request.body), reason, request.who)

    async def _disconnect(self, request: AdminRequest) -> Answer:
        seats = await self._operations.disconnect(request.rest, request.who)
        return {"disconnected": [msgspec.structs.asdict(row) for row in seats]}

    async def _rotate_key(self, request: AdminRequest) -> KeyChange:
        grace = request.body.get("grace", _GRACE)
        if not isinstance(grace, int | float) or isinstance(grace, bool) or not 0 <= grace <= _LONGEST_GRACE:
            raise BadRequest(f"grace: must be a number of seconds from 0 to {_LONGEST_GRACE}")
        return await self._operations.rotate_key(request.rest, grace, request.who)

    # For other nodes

    def _node_disconnect(self, query: Mapping[str, str]) -> object:
        try:
            self._operations.view.disconnect(query.get("id", ""))
        except NotFound:
            return False
        return True

    def _node_session(self, query: Mapping[str, str]) -> object:
        sessions = self._operations.sessions
        return sessions.seen(query.get("id", "")) if sessions else SessionSeen()

    def _node_end_session(self, query: Mapping[str, str]) -> object:
        if self._operations.sessions:
            self._operations.sessions.end_here(query.get("id", ""))
        return True

    def _node_new_key(self, query: Mapping[str, str]) -> object:
        held = self._operations.new_keys
        return held.take(query.get("session", ""), query.get("id", "")) if held else None

    def _node_reload(self, query: Mapping[str, str]) -> object:
        withheld, hub = query.get("withheld"), self._operations.view.hub
        if withheld:
            hub.withhold([withheld])
        else:
            hub.reload()
        return self._operations.key_row(query.get("key", ""))

    # Events

    async def _stream(self, operator: Principal, query: Mapping[str, str], receive: Receive, send: Send) -> None:
        async with self._operations.following(query) as reader:
            with self._operations.view.hub.visit(operator, reader.end):
                await _write_events(send, receive, reader, b"text/event-stream", _as_events)


def _as_events(batch: Sequence[Facts]) -> bytes:
    parts = (b"event: %s\ndata: %s\n\n" % (str(facts["event"]).encode(), _encode(facts)) for facts in batch)
    return b"".join(parts) or b": quiet\n\n"


def _as_lines(batch: Sequence[Facts]) -> bytes:
    return b"".join(_encode(facts) + b"\n" for facts in batch) or b"\n"


async def send_response(send: Send, response: HttpResponse) -> None:
    """Sends a whole response, which caches do not keep."""
    headers = [*response.headers, *_NO_STORE, (b"content-length", b"%d" % len(response.body))]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send(_part(response.body, is_last=True))


async def stream_response(send: Send, kind: bytes) -> None:
    """Begins a response that is sent in parts."""
    headers = [(b"content-type", kind), *_NO_STORE, (b"x-accel-buffering", b"no")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send(_part(b"\n"))


async def _write_events(
    send: Send, receive: Receive, reader: EventReader, kind: bytes, encode: Callable[[Sequence[Facts]], bytes]
) -> None:
    """Writes a stream until it ends, or its reader is gone."""

    async def watch() -> None:
        await until_disconnect(receive)
        reader.end()

    await stream_response(send, kind)
    watching = asyncio.create_task(watch())
    try:
        async for batch in reader.batches(_QUIET):
            await send(_part(encode(batch)))
        await send(_part(b"", is_last=True))
    finally:
        await cancel_and_wait(watching)


async def _send_json(send: Send, answer: object, status: int = 200) -> None:
    kind = ((b"content-type", b"application/json"),)
    await send_response(send, HttpResponse(status, kind, _encode(answer)))


def _listed(name: str, listing: RowsOfNodes[Any]) -> dict[str, Any]:
    page = listing.page
    rows = [msgspec.structs.asdict(row) for row in page.rows]
    return {name: rows, "total": page.total, "next": page.next, "missing": listing.missing}


def _route(routes: Mapping[tuple[str, str], H], method: str, path: str) -> tuple[H, str]:
    """Return the handler of a path, and the name in place of `*`, which may hold slashes. Raises `NotFound`."""
    if handler := routes.get((method, path)):
        return handler, ""
    for (allowed, pattern), handler in routes.items():
        before, star, after = pattern.partition("*")
        is_long = len(path) > len(before) + len(after)
        if star and allowed == method and is_long and path.startswith(before) and path.endswith(after):
            return handler, path[len(before) : len(path) - len(after)]
    known = sorted({f"{allowed} {_API}/{pattern}" for allowed, pattern in routes})
    raise NotFound(f"there is no {method} {path!r} here; there are {', '.join(known)} and GET {_API}/events")


def _query(scope: Scope) -> dict[str, str]:
    return dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))


async def _body(receive: Receive) -> Mapping[str, object]:
    """The JSON object of a request; empty if it has none. Raises `BadRequest`."""
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    if not body.strip():
        return {}
    try:
        return _object.decode(body)
    except msgspec.DecodeError as error:
        raise BadRequest(f"the body must be a JSON object: {error}") from None


def _scope(body: Mapping[str, object]) -> FreezeScope:
    """The scope of a freeze or thaw. Raises `BadRequest` for an empty body: nobody freezes all by mistake."""
    office, computer, is_all = body.get("office"), body.get("computer"), body.get("all", False)
    if not isinstance(office, str | None) or not isinstance(computer, str | None) or not isinstance(is_all, bool):
        raise BadRequest("office and computer must be text, all must be true or false")
    if is_all is (office is not None or computer is not None):
        raise BadRequest("name an office, or an office and a computer in it, or say all: true for the whole Server")
    return office, computer


def _moment(body: Mapping[str, object]) -> float:
    """The time at which a key expires: now, unless the body says another. Raises `BadRequest`."""
    expires = body.get("expires")
    if expires is None:
        return time.time()
    seconds: float | None = None
    if isinstance(expires, int | float) and not isinstance(expires, bool):
        seconds = expires
    else:
        with suppress(ValueError, OverflowError):
            moment = datetime.fromisoformat(str(expires))
            seconds = moment.timestamp() if moment.tzinfo else None
    if seconds is None or not 0 <= seconds <= _LAST_MOMENT:
        raise BadRequest(
            "expires: must be a date and time with its zone, such as 2027-01-01T00:00:00Z, or seconds since 1970"
        )
    return seconds


def _part(body: bytes, *, is_last: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": not is_last}


_encode = msgspec.json.Encoder().encode
_object = msgspec.json.Decoder(dict[str, object])
