"""The way of a stdio bridge through a Server that serves the office to MCP clients itself, at `/mcp/<office>`.

Its client then shares the seat of its key with all others of that key: those that have the URL, other windows, other
machines. The Server says whether it does (`is_open`). Messages pass as they are, by the SDK's transport; what only HTTP
has is added: headers, and in older revisions that nothing is sent before the session is known.

A wire ends when the Server is gone, does not admit the key any more or has lost the session. Requests that it has
certainly not taken are told in `Link.not_taken`, so that they are sent again at the next bridge.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from ssl import SSLContext
from typing import Any
from urllib.parse import quote, urlsplit

import anyio
import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
    find_invalid_x_mcp_header,
    mcp_param_headers,
    x_mcp_header_map,
)
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CONNECTION_CLOSED,
    PROTOCOL_VERSION_META_KEY,
    JSONRPCError,
    JSONRPCRequest,
    JSONRPCResponse,
)
from mcp_types.version import LATEST_MODERN_VERSION

from a2c_smcp.bridge.serving.moving_session import LISTEN, Link, Message, RequestId
from a2c_smcp.connection import Unreachable
from a2c_smcp.endpoint import Credentials, Endpoint, cause_of
from a2c_smcp.errors import Forbidden, NotAuthenticated, NotAuthorised, OfficeHasAgent, SMCPError
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.mcp_host.sign_in.addresses import certificates

_SESSION = "mcp-session-id"
_ANSWERED_WITHIN = 10.0
_SILENT_AT_MOST = 60.0
"""Seconds without a byte after which a stream is lost: the Server sends a comment four times as often."""
_DELETE_WITHIN = 2.0
_PROBE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "server/discover",
    "params": {"_meta": {PROTOCOL_VERSION_META_KEY: LATEST_MODERN_VERSION, CLIENT_CAPABILITIES_META_KEY: {}}},
}
_OF_PROBE = {
    "accept": "application/json, text/event-stream",
    MCP_PROTOCOL_VERSION_HEADER: LATEST_MODERN_VERSION,
    MCP_METHOD_HEADER: "server/discover",
}


class ServerWay:
    """The way to one office. `ssl` and `proxy` are those of the bridge."""

    def __init__(self, url: str, office: str, ssl: SSLContext | None = None, proxy: str | None = None) -> None:
        self._endpoint = Endpoint(url=url)
        path = urlsplit(url).path.rstrip("/").removesuffix("/socket.io")
        self.url = f"{self._endpoint.origin}{path}/mcp/{quote(office, safe='')}"
        self._ssl, self._proxy = ssl, proxy
        self._was_open = False

    async def is_open(self, credentials: Credentials) -> bool:
        """True if the Server serves MCP clients of these credentials.

        False also if it refuses them: the own bridge is told the same, or proves its device. Raises `SMCPError` if the
        office cannot be used now.
        """
        async with self.client(credentials) as http:
            try:
                answer = await http.post(self.url, json=_PROBE, headers=_OF_PROBE, timeout=_ANSWERED_WITHIN)
                told = answer.json()
            except httpx2.TransportError as error:
                if not self._was_open and (not isinstance(error, httpx2.ConnectError) or "[SSL" in str(error)):
                    return False  # the own bridge says what is wrong with the URL or the certificates
                raise Unreachable(f"{self._endpoint.shown_url} cannot be reached, {cause_of(error)}") from None
            except (httpx2.HTTPError, ValueError):
                return False
        match told:
            case {"result": {"_meta": {"io.modelcontextprotocol/serverInfo": {"name": "a2c-smcp"}}}}:
                self._was_open = True
                return True
            case {"error": {"message": str(message), "data": {"code": int(code), **details}}}:
                refusal = SMCPError.from_wire({"code": code, "message": message, "details": details})
                if refusal and not isinstance(refusal, NotAuthenticated | NotAuthorised):
                    raise OfficeHasAgent(message) if type(refusal) is Forbidden else refusal
        return False

    def client(self, credentials: Credentials, wire: _Wire | None = None) -> httpx2.AsyncClient:
        key = {"authorization": f"Bearer {credentials.token}"} if credentials.token else {}
        return _HTTPClient(
            wire,
            headers={**key, **credentials.headers},
            verify=self._ssl or certificates(),
            proxy=self._proxy,
            trust_env=not self._endpoint.is_local,
            timeout=httpx2.Timeout(_ANSWERED_WITHIN, read=_SILENT_AT_MOST, pool=None),
        )

    @asynccontextmanager
    async def link(self, credentials: Credentials) -> AsyncGenerator[Link, None]:
        wire = _Wire()
        running = asyncio.create_task(wire.run(self, credentials))
        try:
            yield Link(wire.incoming, wire, not_taken=wire.not_taken)
        finally:
            wire.end()
            await cancel_and_wait(running)
            wire.incoming.close()


class _Wire:
    """One connection of the client with the Server; for `MovingSession` its outgoing stream."""

    def __init__(self) -> None:
        self._to_client, self.incoming = anyio.create_memory_object_stream[Any](0)
        self.is_over = False
        self.not_taken: set[RequestId] = set()
        self._write: Any = None
        self._is_ready = asyncio.Event()
        self._initialize: RequestId | None = None
        self._version: str | None = None
        self._listening: set[RequestId] = set()
        self._header_arguments: dict[str, Mapping[tuple[str, ...], str]] = {}

    async def run(self, way: ServerWay, credentials: Credentials) -> None:
        try:
            async with (
                way.client(credentials, self) as http,
                streamable_http_client(way.url, http_client=http, max_sse_event_size=None) as (read, write),
            ):
                self._write = write
                self._is_ready.set()
                async for item in read:
                    if not isinstance(item, Exception) and not self._ends_with(item.message):
                        await self._to_client.send(item)
                    if self.is_over:
                        break
        except* (httpx2.HTTPError, anyio.ClosedResourceError, anyio.BrokenResourceError):
            pass  # the body of an answer broke off, or nobody reads any more
        finally:
            self.end()

    async def send(self, item: SessionMessage) -> None:
        """Raises `ClosedResourceError` if the wire is over."""
        await self._is_ready.wait()
        if self.is_over:
            raise anyio.ClosedResourceError
        message = item.message
        if isinstance(message, JSONRPCRequest) and message.method == "initialize":
            self._initialize = message.id
            self._is_ready.clear()
        elif isinstance(message, JSONRPCRequest) and message.method == LISTEN:
            self._listening.add(message.id)
        await self._write.send(SessionMessage(message, ClientMessageMetadata(headers=self._headers(message))))

    def end(self) -> None:
        self.is_over = True
        self._is_ready.set()
        self._to_client.close()

    def _ends_with(self, message: Message) -> bool:
        """True if this message says that the Server is gone. Notes what later headers need."""
        if isinstance(message, JSONRPCError) and message.error.code == CONNECTION_CLOSED:
            self.end()  # of the SDK: a stream broke off
        elif isinstance(message, JSONRPCResponse) and message.id in self._listening:
            self.end()  # the Server ends streams when it is stopped
        elif isinstance(message, JSONRPCResponse):
            if message.id == self._initialize:
                self._version = message.result.get("protocolVersion")
            for tool in message.result.get("tools") or ():
                if find_invalid_x_mcp_header(tool["inputSchema"]) is None:
                    self._header_arguments[tool["name"]] = x_mcp_header_map(tool["inputSchema"])
        if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id == self._initialize:
            self._is_ready.set()
        return self.is_over

    def _headers(self, message: Message) -> dict[str, str]:
        params: dict[str, Any] = getattr(message, "params", None) or {}
        version = (params.get("_meta") or {}).get(PROTOCOL_VERSION_META_KEY)
        if not isinstance(message, JSONRPCRequest) or not isinstance(version, str):
            return {MCP_PROTOCOL_VERSION_HEADER: self._version} if self._version else {}
        headers = {MCP_PROTOCOL_VERSION_HEADER: version, MCP_METHOD_HEADER: message.method}
        if isinstance(name := params.get(NAME_BEARING_METHODS.get(message.method, "")), str):
            headers[MCP_NAME_HEADER] = encode_header_value(name)
        if message.method == "tools/call":
            arguments = params.get("arguments")
            mapped = self._header_arguments.get(str(name), {})
            headers |= mcp_param_headers(mapped, arguments if isinstance(arguments, Mapping) else {})
        return headers


class _HTTPClient(httpx2.AsyncClient):
    """Ends the wire where the SDK's transport would answer with an error of its own, or try again."""

    def __init__(self, wire: _Wire | None, **options: Any) -> None:
        super().__init__(**options)
        self._wire = wire

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if self._wire is None:
            return await super().send(request, **options)
        if request.method == "DELETE":
            request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), _DELETE_WITHIN)
        try:
            response = await super().send(request, **options)
        except httpx2.TransportError as error:
            self._end(request, is_taken=not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout))
            return httpx2.Response(503, request=request)
        status = response.status_code
        if status in (401, 403) or (status == 404 and _SESSION in request.headers):
            self._end(request, is_taken=False)
        return response

    def _end(self, request: httpx2.Request, *, is_taken: bool) -> None:
        assert self._wire
        if not is_taken and request.method == "POST":
            with suppress(ValueError, LookupError):
                self._wire.not_taken.add(json.loads(request.content)["id"])
        self._wire.end()
