"""HTTP to MCP servers: a client that notices what the SDK passes over in silence."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2

from a2c_smcp.computer.mcp_clients.failures import AuthRequired, ServerFailure, ServerGone, SessionLost
from a2c_smcp.computer.mcp_clients.links import OnFault
from a2c_smcp.computer.mcp_clients.straight import Straight

__all__ = ["HTTPLink", "WatchedClient", "unreachable"]

_SESSION_HEADER = "mcp-session-id"
_FAREWELL = 2.0


class WatchedClient(httpx2.AsyncClient):
    """Tells `on_fault` of lost sessions, refused credentials and failed connections; remembers when it last heard."""

    def __init__(self, on_fault: OnFault, *, headers: dict[str, str] | None, timeout: float) -> None:
        super().__init__(headers=headers, timeout=httpx2.Timeout(timeout, read=None))
        self.last_heard = time.monotonic()
        self._on_fault = on_fault
        self._accepted = False

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if request.method == "DELETE":
            request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), _FAREWELL)
        try:
            response = await super().send(request, **options)
        except httpx2.TransportError as error:
            if request.method != "DELETE":
                self._on_fault(unreachable(error))
            raise
        self.last_heard = time.monotonic()
        if failure := self._refusal(request, response):
            self._on_fault(failure)
        self._accepted = self._accepted or response.is_success
        response.stream = _Heard(response, self)
        return response

    def lost(self, error: httpx2.TransportError) -> None:
        self._on_fault(unreachable(error))

    def _refusal(self, request: httpx2.Request, response: httpx2.Response) -> ServerFailure | None:
        status = response.status_code
        if request.method == "DELETE":
            return None
        if status == httpx2.codes.UNAUTHORIZED or (status == httpx2.codes.FORBIDDEN and not self._accepted):
            return AuthRequired(f"HTTP {status} from {_without_secrets(request.url)}")
        if status == httpx2.codes.NOT_FOUND and _SESSION_HEADER in request.headers:
            return SessionLost(_without_secrets(request.url))
        return None


class _Heard(httpx2.AsyncByteStream):
    """A response body that says when bytes come. A broken stream of events is opened again by its reader."""

    def __init__(self, response: httpx2.Response, client: WatchedClient) -> None:
        self._body: Any = response.stream
        self._is_events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        self._client = client

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._body:
                self._client.last_heard = time.monotonic()
                yield part
        except httpx2.TransportError as error:
            if not self._is_events:
                self._client.lost(error)
            raise

    async def aclose(self) -> None:
        await self._body.aclose()


class HTTPLink:
    """What links over HTTP have in common."""

    def __init__(self, url: str, quiet_limit: float | None) -> None:
        self.quiet_limit = quiet_limit
        self.straight: Straight | None = None
        self._url = url
        self._client: WatchedClient | None = None

    @property
    def diagnostics(self) -> dict[str, object]:
        return {"url": _without_secrets(httpx2.URL(self._url))}

    def silence(self) -> float:
        return time.monotonic() - self._client.last_heard if self._client else 0.0

    def failure(self) -> ServerFailure:
        return ServerGone(f"{_without_secrets(httpx2.URL(self._url))} ended the connection")


def unreachable(error: httpx2.TransportError) -> ServerGone:
    return ServerGone(f"{type(error).__name__} {error}".strip())


def _without_secrets(url: httpx2.URL) -> str:
    return str(url.copy_with(userinfo=b"", query=None, fragment=None))
