"""The operator's interface over HTTP: `/admin/api/…` for operators, `/admin/node/…` for other nodes.

Each route is a method and a path, and what answers it. An answer is a JSON object; `events` is a stream of server-sent
events. Nothing here is kept in caches. Nothing works with a cookie, so no web page can use it for its visitor.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qsl

import msgspec

from a2c_smcp.errors import BadRequest, NotAuthenticated, NotFound, SMCPError
from a2c_smcp.http.asgi import Receive, Scope, Send, header, until_disconnect
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.server.admin.access import AdminAccess
from a2c_smcp.server.admin.events import EventFilter, Facts
from a2c_smcp.server.admin.operations import KeyChange, Operations, RowsOfNodes, Who, offices_of
from a2c_smcp.server.admin.other_nodes import NODE_PATH
from a2c_smcp.server.admin.rows import Selection, SessionSeen, page_of
from a2c_smcp.server.cluster.peer_nodes import NODE_HEADER
from a2c_smcp.server.http_requests import NO_SUCH_PAGE, HttpResponse, refusal_response
from a2c_smcp.server.mounts import EXTENSION

__all__ = ["ADMIN_PATH", "AdminAPI", "send_response", "stream_response"]

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


class AdminAPI:
    """An ASGI application."""

    def __init__(self, operations: Operations, access: AdminAccess) -> None:
        self._operations = operations
        self._access = access
        self._routes: dict[tuple[str, str], Handler] = {
            ("GET", "offices"): self._offices,
            ("GET", "offices/*"): self._office,
            ("GET", "members"): self._members,
            ("DELETE", "members/*"): self._disconnect,
            ("POST", "members/*/disconnect"): self._disconnect,
            ("GET", "calls"): self._calls,
            ("GET", "calls/ended"): self._ended,
            ("GET", "refusals"): self._refusals,
            ("GET", "nodes"): self._nodes,
            ("GET", "keys"): self._keys,
            ("POST", "keys"): self._create_key,
            ("DELETE", "keys/*"): self._revoke_key,
            ("POST", "keys/*/expire"): self._expire_key,
            ("POST", "keys/*/rotate"): self._rotate_key,
        }
        self._node_routes: dict[tuple[str, str], Handler] = {
            ("GET", "members"): self._node_members,
            ("GET", "calls"): self._node_calls,
            ("GET", "history"): self._node_history,
            ("GET", "node"): self._node_row,
            ("GET", "credentials"): self._node_credentials,
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
        await self._access.check_header(header(scope, b"authorization"), address)
        scope["extensions"][EXTENSION]["trust"]()
        query = _query(scope)
        if what == "events" and scope["method"] == "GET":
            await self._stream(query, receive, send)
            return
        handler, rest = _route(self._routes, scope["method"], what)
        body = await _body(receive) if scope["method"] == "POST" else {}
        answer = await handler(AdminRequest(rest, query, body, Who(address)))
        status = 201 if isinstance(answer, KeyChange) and answer.key else 200
        await _send_json(send, answer, status)

    async def _answer_node(self, what: str, scope: Scope, receive: Receive, send: Send) -> None:
        if not await self._operations.others.knows(header(scope, NODE_HEADER).encode("latin-1")):
            raise NotFound(NO_SUCH_PAGE)
        scope["extensions"][EXTENSION]["trust"]()
        query = _query(scope)
        if what == "events":
            await self._stream_to_node(query, receive, send)
            return
        handler, rest = _route(self._node_routes, scope["method"], what)
        await _send_json(send, await handler(AdminRequest(rest, query, {}, Who(None))))

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            event = (await receive())["type"]
            if event == "lifespan.shutdown":
                await self._operations.close()
            await send({"type": f"{event}.complete"})
            if event == "lifespan.shutdown":
                return

    # Lists

    async def _offices(self, request: AdminRequest) -> Answer:
        return _listed("offices", await self._operations.offices(Selection.read(request.query, _MEMBER_FILTERS)))

    async def _office(self, request: AdminRequest) -> Answer:
        selection = Selection.read(request.query, ("search", "role", "name", "principal", "node"))
        rows, missing = await self._operations.all_members()
        rows = [row for row in rows if row.office == request.rest]
        if not rows:
            raise NotFound(f"office {request.rest!r} has no members")
        page = page_of(selection.choose(rows), selection, lambda row: row.place)
        return {"office": offices_of(rows)[0], **_listed("members", RowsOfNodes(page, missing))}

    async def _members(self, request: AdminRequest) -> Answer:
        return _listed("members", await self._operations.members(Selection.read(request.query, _MEMBER_FILTERS)))

    async def _calls(self, request: AdminRequest) -> Answer:
        return _listed("calls", await self._operations.calls(Selection.read(request.query, _CALL_FILTERS)))

    async def _ended(self, request: AdminRequest) -> Answer:
        return _listed("calls", await self._operations.ended(Selection.read(request.query, _ENDED_FILTERS)))

    async def _refusals(self, request: AdminRequest) -> Answer:
        return _listed("refusals", await self._operations.refusals(Selection.read(request.query, _REFUSAL_FILTERS)))

    async def _nodes(self, request: AdminRequest) -> Answer:
        rows, missing = await self._operations.nodes()
        return {"nodes": rows, "missing": missing}

    async def _keys(self, request: AdminRequest) -> Answer:
        rows, missing = await self._operations.all_keys()
        return {"keys": rows, "missing": missing}

    # Actions

    async def _disconnect(self, request: AdminRequest) -> Answer:
        seats = await self._operations.disconnect(request.rest, request.who)
        return {"disconnected": [msgspec.structs.asdict(row) for row in seats]}

    async def _create_key(self, request: AdminRequest) -> KeyChange:
        return await self._operations.create_key(dict(request.body), request.who)

    async def _revoke_key(self, request: AdminRequest) -> KeyChange:
        return await self._operations.revoke_key(request.rest, request.who)

    async def _expire_key(self, request: AdminRequest) -> KeyChange:
        return await self._operations.expire_key(request.rest, _moment(request.body), request.who)

    async def _rotate_key(self, request: AdminRequest) -> KeyChange:
        grace = request.body.get("grace", _GRACE)
        if not isinstance(grace, int | float) or isinstance(grace, bool) or not 0 <= grace <= _LONGEST_GRACE:
            raise BadRequest(f"grace: must be a number of seconds from 0 to {_LONGEST_GRACE}")
        return await self._operations.rotate_key(request.rest, grace, request.who)

    # For other nodes

    async def _node_members(self, request: AdminRequest) -> object:
        return self._operations.view.members()

    async def _node_calls(self, request: AdminRequest) -> object:
        return self._operations.view.calls()

    async def _node_history(self, request: AdminRequest) -> object:
        return self._operations.own_history()

    async def _node_row(self, request: AdminRequest) -> object:
        return self._operations.view.row()

    async def _node_credentials(self, request: AdminRequest) -> object:
        return self._operations.view.credentials()

    async def _node_disconnect(self, request: AdminRequest) -> object:
        try:
            self._operations.view.disconnect(request.query.get("id", ""))
        except NotFound:
            return False
        return True

    async def _node_session(self, request: AdminRequest) -> object:
        sessions = self._operations.sessions
        return sessions.seen(request.query.get("id", "")) if sessions else SessionSeen()

    async def _node_end_session(self, request: AdminRequest) -> object:
        if self._operations.sessions:
            self._operations.sessions.end_here(request.query.get("id", ""))
        return True

    async def _node_new_key(self, request: AdminRequest) -> object:
        kept, query = self._operations.new_keys, request.query
        return kept.take(query.get("session", ""), query.get("id", "")) if kept else None

    async def _node_reload(self, request: AdminRequest) -> object:
        self._operations.keys.reload()
        return self._operations.key_row(request.query.get("key", ""))

    # Events

    async def _stream(self, query: Mapping[str, str], receive: Receive, send: Send) -> None:
        async with self._operations.following(query) as reader:
            await stream_response(send, b"text/event-stream")
            await _until_gone(receive, reader.end, self._write_events(reader.batches(_QUIET), send))

    async def _stream_to_node(self, query: Mapping[str, str], receive: Receive, send: Send) -> None:
        source = self._operations.source
        reader = source.open(EventFilter(query))
        try:
            await stream_response(send, b"application/x-ndjson")
            await _until_gone(receive, reader.end, self._write_lines(reader.batches(_QUIET), send))
        finally:
            source.close(reader)

    async def _write_events(self, batches: AsyncIterator[Sequence[Facts]], send: Send) -> None:
        async for batch in batches:
            parts = [b"event: %s\ndata: %s\n\n" % (_name(facts), _encode(facts)) for facts in batch]
            await send(_part(b"".join(parts) or b": quiet\n\n"))
        await send(_part(b"", is_last=True))

    async def _write_lines(self, batches: AsyncIterator[Sequence[Facts]], send: Send) -> None:
        async for batch in batches:
            await send(_part(b"".join(_encode(facts) + b"\n" for facts in batch) or b"\n"))
        await send(_part(b"", is_last=True))


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


async def _until_gone(receive: Receive, end: Callable[[], None], writing: Coroutine[Any, Any, None]) -> None:
    """Writes a stream until it ends, or its reader is gone."""

    async def watch() -> None:
        await until_disconnect(receive)
        end()

    watching = asyncio.create_task(watch())
    try:
        await writing
    finally:
        await cancel_and_wait(watching)


async def _send_json(send: Send, answer: object, status: int = 200) -> None:
    kind = ((b"content-type", b"application/json"),)
    await send_response(send, HttpResponse(status, kind, _encode(answer)))


def _listed(name: str, listing: RowsOfNodes[Any]) -> dict[str, Any]:
    page = listing.page
    rows = [msgspec.structs.asdict(row) for row in page.rows]
    return {name: rows, "total": page.total, "next": page.next, "missing": listing.missing}


def _route(routes: Mapping[tuple[str, str], Handler], method: str, path: str) -> tuple[Handler, str]:
    """What answers this path, and the name in the place of `*`. Names may contain slashes. Raises `NotFound`."""
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


def _moment(body: Mapping[str, object]) -> float:
    """The time at which a key expires: now, unless the body says another. Raises `BadRequest`."""
    given = body.get("expires")
    if given is None:
        return time.time()
    seconds: float | None = None
    if isinstance(given, int | float) and not isinstance(given, bool):
        seconds = given
    else:
        with suppress(ValueError, OverflowError):
            moment = datetime.fromisoformat(str(given))
            seconds = moment.timestamp() if moment.tzinfo else None
    if seconds is None or not 0 <= seconds <= _LAST_MOMENT:
        raise BadRequest(
            "expires: must be a date and time with its zone, such as 2027-01-01T00:00:00Z, or seconds since 1970"
        )
    return seconds


def _name(facts: Facts) -> bytes:
    return str(facts["event"]).encode()


def _part(body: bytes, *, is_last: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": not is_last}


_encode = msgspec.json.Encoder().encode
_object = msgspec.json.Decoder(dict[str, object])
