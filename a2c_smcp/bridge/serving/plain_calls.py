"""Plain calls of tools over HTTP by clients of 2026-07-28, answered without the SDK's several tasks and models.

A call is plain if everything about it is as usual: the headers that MCP wants, once each, and equal to the body; a body
whose length they say; a tool that is listed now; no progress, logs, answers or headers for arguments; no tracing. All
other requests go on to the SDK as they came, also invalid ones: only the SDK refuses. A plain call is
answered by the same handler (`OfficeServer.call_tool`), and its result is sent as the SDK would send it.

One task of the web server waits for the answer. If that takes longer than `_SHORT_WAIT`, a second one waits for the
client to go, which cancels the call; after `_SILENCE` more, a stream is begun, and kept open by comments.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, MutableMapping
from typing import Any, Literal, NamedTuple, cast

import mcp_types as types
import msgspec
import orjson
from mcp import MCPError
from mcp.server import ServerRequestContext
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types.version import LATEST_MODERN_VERSION
from starlette.requests import Request as HTTPRequest

from a2c_smcp.bridge.serving.calls import OfficeServer
from a2c_smcp.protocol.codec import collector_paused
from a2c_smcp.registry.remote.rounds import Request
from a2c_smcp.registry.remote.sdk import HTTP_STATUS, Connection, RequestCheck, has_header_arguments
from a2c_smcp.telemetry import tracing
from a2c_smcp.web import ASGIApp, Receive, Scope, Send, until_disconnect

logger = logging.getLogger(__name__)

_METHOD = "tools/call"
_RESERVED = "io.modelcontextprotocol/"
_SHORT_WAIT = 0.05  # seconds: most calls end before, and need no second task
_SILENCE = 15.0
"""Seconds after which a proxy may close a connection on which nothing is sent."""
_MOST_KNOWN = 1024
"""Clients, combinations of headers and schemas that are remembered as usual."""
_EXPECTED = {(b"mcp-protocol-version", LATEST_MODERN_VERSION.encode()), (b"mcp-method", _METHOD.encode())}
_LOOKED_AT = (b"host", b"origin", b"content-type", b"accept")
_JSON = (b"content-type", b"application/json")
_STREAM = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
_VERSION = msgspec.json.encode(LATEST_MODERN_VERSION)


class _PlainParams(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    meta: dict[str, msgspec.Raw] = msgspec.field(name="_meta")
    arguments: dict[str, Any] = {}


class _PlainBody(msgspec.Struct, forbid_unknown_fields=True):
    jsonrpc: Literal["2.0"]
    id: int | str
    method: Literal["tools/call"]
    params: _PlainParams


_BODY = msgspec.json.Decoder(_PlainBody)


class _PlainClient(NamedTuple):
    """A client, with the attributes of the SDK's session."""

    client_capabilities: types.ClientCapabilities | None
    client_params: types.InitializeRequestParams | None


class _PlainCall(NamedTuple):
    id: int | str
    params: _PlainParams
    context: Request


class PlainCalls:
    """An ASGI application before `app`, which is the SDK's."""

    def __init__(self, app: ASGIApp, server: OfficeServer, path: str, security: TransportSecuritySettings) -> None:
        self._app, self._server, self._path = app, server, path
        self._check = RequestCheck(security)
        self._usual: set[tuple[bytes | None, ...]] = set()
        self._clients: dict[tuple[bytes, bytes], _PlainClient] = {}
        self._schemas: dict[str, tuple[Mapping[str, Any], bool]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = await self._tool_in(scope) if scope["type"] == "http" else None
        if name is None or tracing.is_on():
            await self._app(scope, receive, send)
            return
        message = await receive()
        call = None if message.get("more_body") else self._call(scope, name, message.get("body", b""))
        if call is None:
            await self._app(scope, again(message, receive), send)
        else:
            await _Exchange(call, self._server, send).answer(receive)

    async def _tool_in(self, scope: Scope) -> str | None:
        """The tool that the headers name; `None` if they are not those of a plain call."""
        if scope["method"] != "POST" or scope["path"] != self._path:
            return None
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if len(headers) < len(scope["headers"]) or not _is_call(headers):
            return None
        return headers[b"mcp-name"].decode("latin-1") if await self._are_usual(scope, headers) else None

    async def _are_usual(self, scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
        """True if the SDK would accept a request with these headers."""
        known = tuple(map(headers.get, _LOOKED_AT))
        if known in self._usual:
            return True
        if not await self._check.admits_call(HTTPRequest(scope)):
            return False
        _make_room(self._usual)
        self._usual.add(known)
        return True

    def _call(self, scope: Scope, name: str, body: bytes) -> _PlainCall | None:
        """The call in a body; `None` if it is not a plain call of this tool."""
        try:
            with collector_paused(len(body)):
                request = _BODY.decode(body)
        except (ValueError, RecursionError):
            return None
        params = request.params
        if params.name != name or not self._is_offered(name):
            return None
        meta = {key: value for key, value in params.meta.items() if not key.startswith(_RESERVED)}
        client = self._client(params.meta, len(params.meta) - len(meta))
        if client is None or "progressToken" in meta:
            return None
        sent = {"name": name, "arguments": params.arguments, "_meta": {key: _value(meta[key]) for key in meta}}
        context: Request = ServerRequestContext(
            session=cast(Any, client),
            lifespan_context=None,
            protocol_version=LATEST_MODERN_VERSION,
            method=_METHOD,
            params=sent,
            request_id=request.id,
            request=HTTPRequest(scope),
        )
        return _PlainCall(request.id, params, context)

    def _client(self, meta: Mapping[str, msgspec.Raw], reserved: int) -> _PlainClient | None:
        """The client that a request describes; `None` if it says more than who it is, and what it can do."""
        version, capabilities = meta.get(types.PROTOCOL_VERSION_META_KEY), meta.get(types.CLIENT_CAPABILITIES_META_KEY)
        info = meta.get(types.CLIENT_INFO_META_KEY)
        if version is None or capabilities is None or bytes(version) != _VERSION:
            return None
        if reserved != 2 + (info is not None):
            return None
        key = bytes(capabilities), bytes(info or b"null")
        if (client := self._clients.get(key)) is None:
            sdk = Connection.from_envelope(LATEST_MODERN_VERSION, _value(key[1]), _value(key[0]))
            if sdk.client_capabilities is None or (info is not None and sdk.client_params is None):
                return None
            _make_room(self._clients)
            client = self._clients[key] = _PlainClient(sdk.client_capabilities, sdk.client_params)
        return client

    def _is_offered(self, name: str) -> bool:
        """True if a tool has this name, and none of its arguments is sent as a header."""
        schema = self._server.input_schema(name)
        if schema is None:
            return False
        known, is_plain = self._schemas.get(name, ({}, False))
        if known is not schema:
            is_plain = not has_header_arguments(schema)
            _make_room(self._schemas)
            self._schemas[name] = schema, is_plain
        return is_plain


class _Exchange:
    """One call, and its answer over HTTP."""

    def __init__(self, call: _PlainCall, server: OfficeServer, send: Send) -> None:
        self._call, self._server, self._send = call, server, send
        self._timer: asyncio.TimerHandle | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._stream: asyncio.Task[None] | None = None
        self._has_begun = self._is_gone = False

    async def answer(self, receive: Receive) -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task
        self._timer = loop.call_later(_SHORT_WAIT, self._watch, task, receive)
        try:
            status, answer = await self._answered()
        except asyncio.CancelledError:
            if self._is_gone and task.uncancel() == 0:
                return
            raise
        finally:
            self._timer.cancel()
            self._stop_watching()
        await self._write(status, answer)

    def _watch(self, task: asyncio.Task[Any], receive: Receive) -> None:
        """Cancel the task if the client goes, and keep the connection to it open."""

        def on_gone(leaving: asyncio.Task[None]) -> None:
            if leaving is self._leaving:
                self._is_gone = True
                task.cancel()

        loop = asyncio.get_running_loop()
        self._leaving = loop.create_task(until_disconnect(receive))
        self._leaving.add_done_callback(on_gone)
        self._timer = loop.call_later(_SILENCE, self._begin_stream)

    def _stop_watching(self) -> None:
        leaving, self._leaving = self._leaving, None
        for task in (leaving, self._stream):
            if task:
                task.cancel()

    async def _answered(self) -> tuple[int, bytes]:
        """Status and body of the answer."""
        call = self._call
        head = {"jsonrpc": "2.0", "id": call.id}
        try:
            result = await self._server.call_plainly(call.context, cast(Any, call.params))
            return 200, _json({**head, "result": result})
        except MCPError as error:
            fields = error.error.model_dump(by_alias=True, mode="json", exclude_none=True)
            return HTTP_STATUS.get(error.error.code, 200), _json({**head, "error": fields})

    async def _write(self, status: int, answer: bytes) -> None:
        if self._has_begun:
            body = b"event: message\r\ndata: " + answer + b"\r\n\r\n"
        else:
            body, length = answer, str(len(answer)).encode()
            headers = [_JSON, (b"content-length", length)]
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    def _begin_stream(self) -> None:
        self._stream = asyncio.ensure_future(self._keep_open())

    async def _keep_open(self) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": _STREAM})
        self._has_begun = True
        while True:
            await self._send({"type": "http.response.body", "body": b": ping\r\n\r\n", "more_body": True})
            await asyncio.sleep(_SILENCE)


def _is_call(headers: Mapping[bytes, bytes]) -> bool:
    """True for the headers of a call whose body has a length, without arguments as headers."""
    if b"mcp-name" not in headers or not headers.items() >= _EXPECTED:
        return False
    return b"content-length" in headers and b"mcp-param-" not in b" ".join(headers)


def again(message: MutableMapping[str, Any], receive: Receive) -> Receive:
    """`receive`, after a message that was received before."""
    waiting = [message]

    async def receive_again() -> MutableMapping[str, Any]:
        return waiting.pop() if waiting else await receive()

    return receive_again


def _make_room(known: set[Any] | dict[Any, Any]) -> None:
    if len(known) >= _MOST_KNOWN:
        known.clear()


def _value(raw: bytes | msgspec.Raw) -> Any:
    return msgspec.json.decode(raw)


def _json(message: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(message)
    except TypeError:  # a huge number, a lone surrogate
        return json.dumps(message, separators=(",", ":")).encode()
