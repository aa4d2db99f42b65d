"""HTTP to MCP servers: the client for both HTTP transports, and the transport to a server behind streamable HTTP."""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from typing import Any
from urllib.parse import urljoin, urlsplit

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.streamable_http import streamable_http_client
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, JSONRPCRequest

from a2c_smcp.errors import kind_of
from a2c_smcp.mcp_host.config.servers import SSEParameters, StreamableParameters
from a2c_smcp.mcp_host.failures import AuthRequired, ServerFailure, ServerGone, SessionLost, StartFailed, TokenRefused
from a2c_smcp.mcp_host.limits import (
    LARGE,
    MAX_BYTES,
    PEEK,
    cut_listing,
    has_too_many_values,
    over_bytes,
    over_values,
    refusal,
    refusal_of,
)
from a2c_smcp.mcp_host.sign_in.account import Account, SessionAuth
from a2c_smcp.mcp_host.sign_in.addresses import certificates
from a2c_smcp.mcp_host.sign_in.flow import Challenge, reason_in, refused_answer
from a2c_smcp.mcp_host.transports.direct_posts import DirectPosts, can_post_to
from a2c_smcp.mcp_host.transports.direct_requests import DirectSender
from a2c_smcp.mcp_host.transports.messages import SessionMessage, from_line, lines_as_events, related_to, to_line
from a2c_smcp.mcp_host.transports.transport import OnFault

# The body of an HTTP response of an MCP server: decompressed piece by piece, with a limit on the result.
#
# It replaces the body that the HTTP library would decompress and join without a limit. An error answer to the request
# (`limits.py`) replaces a body or an event that is over a limit; the rest of such a body is not read, the rest of
# such an event is skipped.

ACCEPT_ENCODING = "gzip"
"""The only encoding that is decompressed here."""

_PIECE = 64 * 1024  # the event loop has its turn after each
_GZIP_HEADER = 32 + zlib.MAX_WBITS
_IN_QUESTIONS = (b"elicitation", b"sampling", b"roots")
_BLANK_LINES = (b"\n\n", b"\n\r\n", b"\r\r")


class BoundedBody(httpx2.AsyncByteStream):
    """Of all bodies with the same `turn` only one at a time grows large; the others are not read meanwhile.

    `on_part` is called whenever bytes come, `on_lost` when the connection breaks in the middle of a body. It is not
    called for a broken stream of events: the reader of the stream opens it again.
    """

    def __init__(
        self,
        response: httpx2.Response,
        limit: int,
        turn: asyncio.Lock,
        *,
        on_part: Callable[[], None],
        on_lost: Callable[[httpx2.TransportError], None],
    ) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        self._body = response.stream
        self._request = response.request
        self._encoding = response.headers.pop("content-encoding", "identity").strip().lower()
        self._is_events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        self._limit = limit
        self._turn = turn
        self._has_turn = False
        self._on_part = on_part
        self._on_lost = on_lost

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async with aclosing(self._events() if self._is_events else self._whole()) as pieces:
                async for piece in pieces:
                    yield piece
        except httpx2.TransportError as error:
            if not self._is_events:
                self._on_lost(error)
            raise
        finally:
            self._end_turn()

    async def aclose(self) -> None:
        self._end_turn()  # a reader that stops in the middle does not end the iteration
        await self._body.aclose()

    async def _whole(self) -> AsyncGenerator[bytes, None]:
        body = bytearray()  # not a list of pieces: each of them may be a single byte
        try:
            async for piece in self._pieces():
                body += piece
                await self._await_turn(len(body))
                if len(body) > self._limit:
                    yield self._refusal(over_bytes(self._limit))
                    return
        except httpx2.DecodingError as error:
            yield self._refusal(_unreadable(error))
            return
        whole = _with_short_lists(bytes(body))
        yield self._refusal(over_values()) if has_too_many_values(whole.decode("latin-1")) else whole

    async def _events(self) -> AsyncGenerator[bytes, None]:
        events = _EventBuffer(self._limit, self._refusal)
        try:
            async for piece in self._pieces():
                for whole in events.feed(piece):
                    yield self._with_call(whole)
                await self._await_turn(events.size)
        except httpx2.DecodingError as error:
            yield events.replaced(_unreadable(error))
            return
        yield self._with_call(events.rest())

    def _with_call(self, events: bytes) -> bytes:
        """Name the call in the questions that come in the response to it: no other can be meant."""
        if b'"method"' not in events or not any(word in events for word in _IN_QUESTIONS):
            return events
        try:
            token = json.loads(self._request.content)["params"]["_meta"]["progressToken"]
        except (httpx2.RequestNotRead, ValueError, LookupError, TypeError):
            return events
        return b"\n".join(related_to(token, line) for line in events.split(b"\n"))

    async def _pieces(self) -> AsyncIterator[bytes]:
        if self._encoding not in ("identity", "", "gzip", "x-gzip"):
            raise httpx2.DecodingError(f"the content encoding {self._encoding!r} was not asked for")
        gzip = zlib.decompressobj(_GZIP_HEADER) if "gzip" in self._encoding else None
        async for part in self._body:
            self._on_part()
            for piece in _decompressed(gzip, part) if gzip else (part,):
                yield piece
                await anyio.lowlevel.checkpoint()
            if gzip and gzip.eof:  # the decompressor would keep all later bytes, without a limit
                return

    async def _await_turn(self, held: int) -> None:
        """Wait for the turn while this body is large; give it back when less of it is held."""
        if held > LARGE and not self._has_turn:
            await self._turn.acquire()
            self._has_turn = True
        elif held <= LARGE:
            self._end_turn()

    def _end_turn(self) -> None:
        if self._has_turn:
            self._has_turn = False
            self._turn.release()

    def _refusal(self, reason: str, beginning: str = "", end: str = "") -> bytes:
        """Answer the request that was posted; on a stream without one, the request that the message names."""
        try:
            return refusal_of(json.loads(self._request.content)["id"], reason).encode()
        except (httpx2.RequestNotRead, ValueError, LookupError, TypeError):
            return refusal(reason, beginning, end).encode()


class _EventBuffer:
    """Bytes in, whole server-sent events out. An event that is over a limit is skipped to its end."""

    def __init__(self, limit: int, replacement: Callable[[str, str, str], bytes]) -> None:
        self._limit = limit
        self._replacement = replacement
        self._held = bytearray()
        self._seen = b""  # a blank line may come in two pieces
        self._is_skipping = self._is_answered = False
        self._end = b""  # the last bytes of the event that is skipped

    @property
    def size(self) -> int:
        return len(self._held)

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._is_skipping:
            answer, data = self._skipped(data)
            yield answer
        window, before = self._seen + data, len(self._seen)
        self._seen = window[-2:]
        end = max((at + len(line) for line in _BLANK_LINES if (at := window.rfind(line)) >= 0), default=0)
        if end > before:
            self._held += data[: end - before]
            whole = b"\n".join(_data_with_short_lists(self.rest()))
            yield self.replaced(over_values(), whole) if has_too_many_values(whole.decode("latin-1")) else whole
            data = data[end - before :]
        self._held += data
        if self.size > self._limit:
            yield self._skip()

    def _skipped(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the answer in place of the event, if it ends here and has none yet, and the bytes after it."""
        window = self._seen + data
        end = min((at + len(line) for line in _BLANK_LINES if (at := window.find(line)) >= 0), default=0)
        self._end = (self._end + data[: max(end - len(self._seen), 0)] if end else self._end + data)[-PEEK:]
        if not end:
            self._seen = window[-2:]
            return b"", b""
        self._is_skipping, self._seen = False, b""
        answer = b"" if self._is_answered else self.replaced(over_bytes(self._limit), self._end)
        return answer, window[end:]

    def rest(self) -> bytes:
        whole = bytes(self._held)
        self._held.clear()
        return whole

    def _skip(self) -> bytes:
        self._is_skipping = True
        whole = self.rest()
        self._end = whole[-PEEK:]
        answer = self.replaced(over_bytes(self._limit), whole)
        self._is_answered = bool(answer)
        return answer

    def replaced(self, said: str, event: bytes = b"") -> bytes:
        """Return an event with an error answer instead of this one; empty if the request is not known."""
        beginning, end = event[:PEEK].decode("latin-1"), event[-PEEK:].decode("latin-1").rstrip()
        answer = self._replacement(said, beginning.partition("data:")[2], end)
        return b"event: message\ndata: " + answer + b"\n\n" if answer else b""


def _with_short_lists(message: bytes) -> bytes:
    return (cut_listing(message) if len(message) > LARGE else None) or message


def _data_with_short_lists(events: bytes) -> Iterator[bytes]:
    for line in events.split(b"\n"):
        name, colon, data = line.partition(b":")
        yield name + colon + _with_short_lists(data) if name == b"data" else line


def _unreadable(error: httpx2.DecodingError) -> str:
    return f"the server's answer cannot be read: {error}"


def _decompressed(gzip: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    try:
        while piece := gzip.decompress(data, _PIECE):
            yield piece
            data = gzip.unconsumed_tail
    except zlib.error as error:
        raise httpx2.DecodingError(str(error)) from error


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

    @asynccontextmanager
    async def connect(self, on_fault: OnFault) -> AsyncGenerator[Any, None]:
        asked = self._parameters
        client = self._client = WatchedHTTPClient(
            on_fault,
            headers=asked.headers,
            timeout=asked.timeout_in_seconds,
            limit=self._limit,
            account=self._account,
        )
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(client)
            if can_post_to(self._url):
                posts = DirectPosts(
                    self._url,
                    client.headers,
                    asked.timeout_in_seconds,
                    self._account,
                    read=client.bound,
                    on_heard=client.heard,
                    on_lost=on_fault,
                )
                self.direct = await stack.enter_async_context(posts)
            streams = streamable_http_client(
                self._url, http_client=client, terminate_on_close=asked.terminate_on_close, max_sse_event_size=None
            )
            yield await stack.enter_async_context(streams)


def unreachable(error: httpx2.TransportError) -> ServerGone:
    return ServerGone(f"{kind_of(type(error))} {error}".strip())


def _without_secrets(url: httpx2.URL) -> str:
    return str(url.copy_with(userinfo=b"", query=None, fragment=None))


# The older transport over HTTP: one stream of events, and a URL to post messages to.
#
# The SDK's client ends the connection at an event of 1 MiB, and leaves a request unanswered when its post is refused;
# this one does not.

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
        problem = kind_of(type(error))
    if problem and isinstance(message.message, JSONRPCRequest):
        refusal = ErrorData(code=INTERNAL_ERROR, message=f"the request could not be posted: {problem}")
        with suppress(*_SESSION_ENDED):
            await to_session.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=message.message.id, error=refusal)))
