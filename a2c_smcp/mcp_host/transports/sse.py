"""The older transport over HTTP: one stream of events, and a URL to post messages to.

The SDK's client ends the connection at an event of 1 MiB, and leaves a request unanswered when its post is refused;
this one does not.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from urllib.parse import urljoin, urlsplit

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, JSONRPCRequest

from a2c_smcp.mcp_host.config.servers import SSEParameters
from a2c_smcp.mcp_host.failures import StartFailed
from a2c_smcp.mcp_host.sign_in.account import Account
from a2c_smcp.mcp_host.sign_in.flow import reason_in
from a2c_smcp.mcp_host.transports.http import HTTPTransport, WatchedHTTPClient, unreachable
from a2c_smcp.mcp_host.transports.messages import SessionMessage, from_line, to_line
from a2c_smcp.mcp_host.transports.transport import OnFault

_Incoming = MemoryObjectReceiveStream[SessionMessage | Exception]
_Outgoing = MemoryObjectSendStream[SessionMessage]
_ToSession = MemoryObjectSendStream[SessionMessage | Exception]
_ACCEPT = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
_SESSION_ENDED = (anyio.BrokenResourceError, anyio.ClosedResourceError)


class SSETransport(HTTPTransport):
    """Messages arrive on the stream, in order; a task per message posts ours."""

    def __init__(self, parameters: SSEParameters, limit: int, account: Account | None = None) -> None:
        super().__init__(parameters.url, parameters.sse_read_timeout, limit, account)
        self._parameters = parameters

    @asynccontextmanager
    async def connect(self, on_fault: OnFault) -> AsyncGenerator[tuple[_Incoming, _Outgoing], None]:
        asked = self._parameters
        client = self._client = WatchedHTTPClient(
            on_fault, headers=asked.headers, timeout=asked.timeout, limit=self._limit, account=self._account
        )
        to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)
        with to_session, incoming, outgoing, from_session:
            async with client, AsyncExitStack() as stack:
                try:
                    with anyio.fail_after(asked.timeout):
                        response = await stack.enter_async_context(_opened(client, self._url))
                        events = httpx2.EventSource(response, max_event_size=None).__aiter__()
                        endpoint = await _endpoint(events, self._url)
                except TimeoutError:
                    raise StartFailed(f"it did not begin its stream of events within {asked.timeout:g} s") from None
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._read, events, to_session)
                    tasks.start_soon(self._post_all, client, endpoint, from_session, to_session)
                    try:
                        yield incoming, outgoing
                    finally:
                        tasks.cancel_scope.cancel()

    async def _read(self, events: AsyncIterator[httpx2.ServerSentEvent], to_session: _ToSession) -> None:
        with to_session, suppress(httpx2.TransportError, httpx2.SSEError, *_SESSION_ENDED):
            async for event in events:
                if event.event == "message" and event.data:
                    with suppress(ValueError):
                        for message in from_line(event.data):
                            await to_session.send(message)

    async def _post_all(
        self,
        client: WatchedHTTPClient,
        endpoint: str,
        from_session: MemoryObjectReceiveStream[SessionMessage],
        to_session: _ToSession,
    ) -> None:
        with from_session:
            async with anyio.create_task_group() as posts:
                async for message in from_session:
                    posts.start_soon(_post, client, endpoint, message, to_session)


@asynccontextmanager
async def _opened(client: WatchedHTTPClient, url: str) -> AsyncGenerator[httpx2.Response, None]:
    try:
        async with client.stream("GET", url, headers=_ACCEPT, follow_redirects=False) as response:
            if response.status_code != httpx2.codes.OK:
                raise StartFailed(f"HTTP {response.status_code} instead of a stream of events")
            yield response
    except httpx2.TransportError as error:
        raise unreachable(error) from error


async def _endpoint(events: AsyncIterator[httpx2.ServerSentEvent], url: str) -> str:
    try:
        async for event in events:
            if event.event == "endpoint":
                endpoint = urljoin(url, event.data)
                if urlsplit(endpoint)[:2] != urlsplit(url)[:2]:
                    raise StartFailed("it wants messages to be posted to another origin")
                return endpoint
    except httpx2.SSEError as error:
        raise StartFailed(f"no stream of events: {error}") from error
    raise StartFailed("its stream of events ended before it began")


async def _post(client: WatchedHTTPClient, endpoint: str, message: SessionMessage, to_session: _ToSession) -> None:
    """Post a message. A request that cannot be posted gets an error answer here; the server would send none."""
    try:
        response = await client.post(
            endpoint, content=to_line(message), headers={"Content-Type": "application/json"}, follow_redirects=False
        )
        problem = "" if response.is_success else reason_in(response) or f"HTTP {response.status_code}"
    except httpx2.RequestError as error:
        problem = type(error).__name__
    if problem and isinstance(message.message, JSONRPCRequest):
        refusal = ErrorData(code=INTERNAL_ERROR, message=f"the request could not be posted: {problem}")
        with suppress(*_SESSION_ENDED):
            await to_session.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=message.message.id, error=refusal)))
