"""HTTP to MCP servers: the client for both HTTP transports, and the transport to a server behind streamable HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
from mcp.client import Transport
from mcp.client.streamable_http import streamable_http_client

from a2c_smcp.mcp_host.certificates import certificates
from a2c_smcp.mcp_host.config.servers import StreamableParameters
from a2c_smcp.mcp_host.failures import AuthRequired, ServerFailure, ServerGone, SessionLost, TokenRefused
from a2c_smcp.mcp_host.message_limits import MAX_BYTES
from a2c_smcp.mcp_host.sign_in.account import Account
from a2c_smcp.mcp_host.sign_in.challenge import Challenge
from a2c_smcp.mcp_host.sign_in.refused_request import refused_answer
from a2c_smcp.mcp_host.sign_in.session_auth import SessionAuth
from a2c_smcp.mcp_host.transports.direct_posts import DirectPosts, can_post_to
from a2c_smcp.mcp_host.transports.direct_requests import DirectSender
from a2c_smcp.mcp_host.transports.http_body import ACCEPT_ENCODING, BoundedBody
from a2c_smcp.mcp_host.transports.json_lines import lines_as_events
from a2c_smcp.mcp_host.transports.transport import OnFault

__all__ = ["HTTPTransport", "StreamableTransport", "WatchedHTTPClient", "unreachable"]

_SESSION_HEADER = "mcp-session-id"
_DELETE_LIMIT = 2.0  # seconds, for the request that ends a session


class WatchedHTTPClient(httpx2.AsyncClient):
    """Reports what the SDK ignores: lost sessions, refused credentials and failed connections go to `on_fault`.

    It bounds bodies by `limit` in a response hook, which the library calls before it reads any of them.
    `last_heard` is when the last bytes came. A single request that is refused for want of a right gets an error answer
    with the reason, and the session goes on.
    """

    def __init__(
        self,
        on_fault: OnFault,
        *,
        headers: dict[str, str] | None,
        timeout: float,
        limit: int = MAX_BYTES,
        account: Account | None = None,
    ) -> None:
        super().__init__(
            verify=certificates(),
            auth=SessionAuth(account) if account else None,
            headers={"Accept-Encoding": ACCEPT_ENCODING, **(headers or {})},
            timeout=httpx2.Timeout(timeout, read=None),
            event_hooks={"response": [self.bound]},
        )
        self._limit = limit
        self._turn = asyncio.Lock()
        self.last_heard = time.monotonic()
        self._on_fault = on_fault
        self._accepted = False
        self._account = account

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if request.method == "DELETE":
            request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), _DELETE_LIMIT)
        try:
            response = await super().send(request, **options)
        except httpx2.TransportError as error:
            if request.method != "DELETE":
                self._on_fault(unreachable(error))
            raise
        self.heard()
        if failure := self._refusal(request, response):
            self._on_fault(failure)
        elif response.status_code == httpx2.codes.FORBIDDEN and request.method == "POST":
            return await refused_answer(request, response, self._auth_failure(request, response))
        self._accepted = self._accepted or response.is_success
        return response

    async def bound(self, response: httpx2.Response) -> None:
        """Limit the body of a response, before any of it is read."""
        await lines_as_events(response)
        response.stream = BoundedBody(
            response,
            self._limit,
            self._turn,
            on_part=self.heard,
            on_lost=lambda error: self._on_fault(unreachable(error)),
        )

    def heard(self) -> None:
        self.last_heard = time.monotonic()

    def _refusal(self, request: httpx2.Request, response: httpx2.Response) -> ServerFailure | None:
        status = response.status_code
        if request.method == "DELETE":
            return None
        if status == httpx2.codes.UNAUTHORIZED or (status == httpx2.codes.FORBIDDEN and not self._accepted):
            return self._auth_failure(request, response)
        if status == httpx2.codes.NOT_FOUND and _SESSION_HEADER in request.headers:
            return SessionLost(_without_secrets(request.url))
        return None

    def _auth_failure(self, request: httpx2.Request, response: httpx2.Response) -> AuthRequired:
        about = f"HTTP {response.status_code} from {_without_secrets(request.url)}"
        challenge = Challenge.of(request, response)
        if challenge and self._account:
            return self._account.refusal(challenge, about)
        return (TokenRefused if response.status_code == httpx2.codes.FORBIDDEN else AuthRequired)(about)


class HTTPTransport:
    """The common part of the transports over HTTP."""

    warnings: Sequence[str] = ()
    told: Sequence[str] = ()

    def __init__(self, url: str, quiet_limit: float | None, limit: int, account: Account | None) -> None:
        self.quiet_limit = quiet_limit
        self._limit = limit
        self._account = account
        self.direct: DirectSender | None = None
        self._url = url
        self._client: WatchedHTTPClient | None = None

    @property
    def diagnostics(self) -> dict[str, object]:
        return {"url": _without_secrets(httpx2.URL(self._url))}

    def silence(self) -> float:
        return time.monotonic() - self._client.last_heard if self._client else 0.0

    def failure(self) -> ServerFailure:
        return ServerGone(f"{_without_secrets(httpx2.URL(self._url))} ended the connection")


class StreamableTransport(HTTPTransport):
    """The SDK's own transport with our HTTP client, which limits the size of an event; the SDK does not.

    Calls of tools are sent beside it (`direct_posts.py`).
    """

    def __init__(self, parameters: StreamableParameters, limit: int, account: Account | None = None) -> None:
        super().__init__(parameters.url, parameters.sse_read_timeout.total_seconds(), limit, account)
        self._parameters = parameters

    def connect(self, on_fault: OnFault) -> Transport:
        return self._connected(on_fault)

    @asynccontextmanager
    async def _connected(self, on_fault: OnFault) -> AsyncGenerator[Any, None]:
        asked = self._parameters
        client = self._client = WatchedHTTPClient(
            on_fault,
            headers=asked.headers,
            timeout=asked.timeout.total_seconds(),
            limit=self._limit,
            account=self._account,
        )
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(client)
            if can_post_to(self._url):
                posts = await stack.enter_async_context(self._posts(client, on_fault))
                self.direct = posts
            streams = streamable_http_client(
                self._url, http_client=client, terminate_on_close=asked.terminate_on_close, max_sse_event_size=None
            )
            yield await stack.enter_async_context(streams)

    def _posts(self, client: WatchedHTTPClient, on_fault: OnFault) -> DirectPosts:
        return DirectPosts(
            self._url,
            client.headers,
            self._parameters.timeout.total_seconds(),
            self._account,
            read=client.bound,
            on_heard=client.heard,
            on_lost=on_fault,
        )


def unreachable(error: httpx2.TransportError) -> ServerGone:
    return ServerGone(f"{type(error).__name__} {error}".strip())


def _without_secrets(url: httpx2.URL) -> str:
    return str(url.copy_with(userinfo=b"", query=None, fragment=None))
