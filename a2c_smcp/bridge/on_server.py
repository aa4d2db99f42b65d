"""Every office of a Server as an MCP server at `/mcp/<office>`, for clients that have a key of that Server.

The Server authenticates each request before anything of it is read (`SMCPApp.authenticate`). The bridge is a client of
the Server like any other: it dials the Server's own listener with the key of the MCP client, so that the Server's rules
on offices, roles and names hold. Refusals are JSON-RPC errors, which MCP clients show, with the status of HTTP. A
client without a valid key is told where the metadata of RFC 9728 is, which MCP's authorization begins with.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import Any
from urllib.parse import quote

from a2c_smcp.bridge.seats import MCP_PATH, ClientSeat, Occupant, SeatOptions, Seats
from a2c_smcp.bridge.serving.http import until_over
from a2c_smcp.errors import BadRequest, NotAuthenticated, NotAuthorised, NotFound, OfficeHasAgent, SMCPError
from a2c_smcp.http.asgi import Receive, Scope, Send, header
from a2c_smcp.protocol.names import fault_in
from a2c_smcp.server.auth.authentication import Principal
from a2c_smcp.server.mounts import with_headers

__all__ = ["PREFIXES", "OfficesAsMCPServers", "agent_name"]

AGENT = "bridge"
"""The name of the agent, where the key allows it."""

_METADATA_PATH = "/.well-known/oauth-protected-resource"
PREFIXES = (MCP_PATH, f"{_METADATA_PATH}{MCP_PATH}")
"""Where the application has to be mounted."""

_CREDENTIALS = (b"authorization", b"x-api-key", b"access_token")
_SESSION = b"mcp-session-id"
_FOR_WEB_PAGES = ((b"access-control-expose-headers", b"mcp-session-id, www-authenticate"),)
_CHECKED = frozenset({b"host", b"origin"})
_REFUSED = -32001  # beside those that MCP itself has
_WILDCARDS = frozenset("*?[")

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


class OfficesAsMCPServers:
    """An ASGI application. Its lifespan must be run, and its agents must reach the Server at `url`.

    `authenticate` says who has sent a request. `issuers` are the authorization servers whose tokens the Server accepts.
    """

    def __init__(
        self,
        authenticate: Callable[[Scope], Awaitable[Principal]],
        url: str,
        issuers: Sequence[str] = (),
        options: SeatOptions = SeatOptions(),  # noqa: B008  # frozen
    ) -> None:
        self._authenticate = authenticate
        self._issuers = tuple(issuers)
        self._seats = Seats(url, options)
        self._on_refused = options.on_refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if header(scope, b"origin"):
            send = with_headers(send, _FOR_WEB_PAGES)
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        try:
            if path.startswith(_METADATA_PATH):
                await self._tell_metadata(scope, _office_in(path.removeprefix(_METADATA_PATH)), send)
                return
            seat = await self._seat(scope, _office_in(path))
        except SMCPError as error:
            await _refuse(scope, error, send)
            return
        try:
            with seat.answering() if scope["method"] == "POST" else nullcontext():
                await seat.app(_inner(scope), until_over(receive, seat.is_over), send)
        finally:
            seat.release()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            event = (await receive())["type"]
            if event == "lifespan.shutdown":
                await self._seats.close()
            await send({"type": f"{event}.complete"})
            if event == "lifespan.shutdown":
                return

    async def _seat(self, scope: Scope, office: str) -> ClientSeat:
        """The seat of the sender of the request. Raises `SMCPError`."""
        principal = await self._authenticate(scope)
        try:
            name = agent_name(principal)
            principal.check("agent", name, office)
        except NotAuthorised as error:
            self._on_refused(scope["client"][0] if scope["client"] else None, error, principal)
            raise
        occupant = Occupant(principal.id, office, name)
        if not self._seats.has(occupant):
            session = header(scope, _SESSION)
            if not self._seats.keeps(occupant, session) if session else scope["method"] != "POST":
                raise NotFound("there is no such session, begin a new one")
        headers = {name.decode(): header(scope, name) for name in _CREDENTIALS if header(scope, name)}
        return await self._seats.use(occupant, headers)

    async def _tell_metadata(self, scope: Scope, office: str, send: Send) -> None:
        """What an MCP client has to know before it is authenticated (RFC 9728)."""
        metadata: dict[str, Any] = {
            "resource": f"{_base(scope)}{_path_of(office)}",
            "bearer_methods_supported": ["header"],
            "resource_name": f"Office {office}",
        }
        if self._issuers:
            metadata["authorization_servers"] = [*self._issuers]
        await _answer(send, 200, metadata, [])


def agent_name(principal: Principal) -> str:
    """The name of the agent: `bridge`, or the first one that the key names. Raises `NotAuthorised`."""
    if principal.allows_name(AGENT):
        return AGENT
    names = [name for name in sorted(principal.names or ()) if not _WILDCARDS & {*name}]
    if not names:
        raise NotAuthorised(f"{principal.id!r} may use names by pattern only, and {AGENT!r} is none of them")
    return names[0]


def _office_in(path: str) -> str:
    """The office that a path names. Raises `NotFound` or `BadRequest`."""
    office = path.removeprefix(MCP_PATH).removeprefix("/")
    if not office:
        raise NotFound(f"the office is missing: the path is {MCP_PATH}/OFFICE")
    if fault := fault_in(office):
        raise BadRequest(f"the name of the office {fault}")
    return office


def _path_of(office: str) -> str:
    return f"{MCP_PATH}/{quote(office, safe='')}"


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


async def _refuse(scope: Scope, error: SMCPError, send: Send) -> None:
    """Answers in the way of MCP: a JSON-RPC error, at the status of HTTP that fits."""
    message, headers = error.message, []
    if isinstance(error, NotAuthenticated):
        has_key = any(header(scope, name) for name in _CREDENTIALS)
        message = _WRONG_KEY if has_key else _NO_KEY
        headers = [(b"www-authenticate", _challenge(scope, has_key=has_key))]
    elif remedy := next((words for kind, words in _REMEDIES.items() if isinstance(error, kind)), ""):
        message = f"{error.message}. {remedy}"
    fault = {"code": _REFUSED, "message": message, "data": {"code": error.code, **error.details}}
    status = 400 if isinstance(error, BadRequest) else error.code
    await _answer(send, status, {"jsonrpc": "2.0", "id": None, "error": fault}, headers)


def _challenge(scope: Scope, *, has_key: bool) -> bytes:
    """What a client is told that has no valid key (RFC 6750, RFC 9728)."""
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    metadata = f'resource_metadata="{_base(scope)}{_METADATA_PATH}{quote(path)}"'
    return f'Bearer error="invalid_token", {metadata}'.encode() if has_key else f"Bearer {metadata}".encode()


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
