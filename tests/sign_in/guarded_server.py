"""An MCP server on SDK 2.x that lets in who has a token of its authorization server, for itself and with the scopes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from tests.sign_in.authorization_server import AuthorizationServer
from tests.sign_in.served import served

RESOURCE_METADATA = "/.well-known/oauth-protected-resource"


class GuardedServer:
    """`needed` are the scopes by tool; `scopes` what every request needs. `resource` is what it says that it is.

    One that `is_open` lets everybody in.
    """

    def __init__(self, provider: AuthorizationServer | None = None) -> None:
        self.provider = provider or AuthorizationServer()
        self.url = ""
        self.scopes: tuple[str, ...] = ("basic",)
        self.needed: dict[str, str] = {"write": "files:write"}
        self.resource: str | None = None
        self.has_metadata = True
        self.challenges = True
        self.is_open = False
        self.authorization_servers: list[str] | None = None
        self.metadata_url = ""
        self.documents: dict[str, dict[str, Any]] = {}
        """More pages, by path."""
        self.requests: list[tuple[str, str | None]] = []
        """Methods of JSON-RPC with the token that came along."""
        self.refused: list[int] = []

    @property
    def mcp_url(self) -> str:
        return f"{self.url}/mcp"

    @property
    def sse_url(self) -> str:
        return f"{self.url}/sse"

    @property
    def tokens(self) -> set[str | None]:
        return {token for _, token in self.requests}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[GuardedServer]:
        async with served(self._app):
            yield self

    def _app(self, url: str) -> Any:
        self.url = url
        server = MCPServer("guarded")

        @server.tool()
        def add(a: int, b: int) -> int:
            return a + b

        @server.tool()
        def write(text: str) -> str:
            return f"written: {text}"

        @server.tool()
        def tell_headers(ctx: Context) -> dict[str, str]:
            """Tell everything that came along with the request, secrets too."""
            request = ctx.request_context.request
            return dict(request.headers) if request else {}

        app: Starlette = server.streamable_http_app()
        app.router.routes.extend(server.sse_app().routes)
        return self._guarding(app)

    def _guarding(self, app: Starlette) -> Any:
        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
            elif scope["path"] in self.documents:
                await JSONResponse(self.documents[scope["path"]])(scope, receive, send)
            elif scope["path"].startswith(RESOURCE_METADATA):
                await self._metadata(scope, receive, send)
            else:
                body, again = await _read(receive)
                refusal = self._refusal(scope, body)
                await (refusal or app)(scope, again, send)

        return serve

    async def _metadata(self, scope: Scope, receive: Receive, send: Send) -> None:
        about = scope["path"].removeprefix(RESOURCE_METADATA)
        if not self.has_metadata or about not in ("/mcp", "/sse"):
            await JSONResponse({}, 404)(scope, receive, send)
            return
        document = {
            "resource": self.resource or self.url + about,
            "authorization_servers": self.authorization_servers or [self.provider.issuer],
            "scopes_supported": list(self.scopes),
        }
        await JSONResponse(document)(scope, receive, send)

    def _refusal(self, scope: Scope, body: bytes) -> JSONResponse | None:
        headers = dict(scope["headers"])
        token = headers.get(b"authorization", b"").decode().removeprefix("Bearer ") or None
        message = json.loads(body) if body else {}
        self.requests.append((message.get("method", scope["method"]), token))
        if self.is_open:
            return None
        about = "/sse" if scope["path"].startswith(("/sse", "/messages")) else "/mcp"
        grant = self.provider.check(token, self.url + about) if token else None
        if grant is None:
            return self._refused(401, " ".join(self.scopes), about)
        missing = set(self.scopes)
        if message.get("method") == "tools/call" and (extra := self.needed.get(message["params"]["name"])):
            missing = {extra}
        if not missing <= set(grant.scope.split()):
            return self._refused(403, " ".join(sorted(missing)), about)
        return None

    def _refused(self, status: int, scope: str, about: str) -> JSONResponse:
        self.refused.append(status)
        error = 'error="insufficient_scope", ' if status == 403 else ""
        metadata = f'resource_metadata="{self.metadata_url or self.url + RESOURCE_METADATA + about}"'
        header = f'Bearer {error}scope="{scope}", {metadata}' if self.challenges else "Bearer"
        return JSONResponse({"error": "who are you?"}, status, {"WWW-Authenticate": header})


async def _read(receive: Receive) -> tuple[bytes, Receive]:
    """The body of a request, and how to read it once more."""
    messages: list[Message] = []
    body, more = b"", True
    while more:
        message = await receive()
        messages.append(message)
        body += message.get("body", b"")
        more = message.get("more_body", False)

    async def again() -> Message:
        return messages.pop(0) if messages else await receive()

    return body, again
