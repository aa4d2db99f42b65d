"""The streams of a connection, with a limit on the requests of the server that are not answered yet.

The SDK starts a task for each request that a server sends to us. A server that sends requests and never reads the
answers would fill the memory with tasks that wait for its pipe. So a server has at most `MOST_UNANSWERED` requests
that wait for an answer; those beyond are ignored, and so is one under the id of another that waits. A request ends
with its answer, or when the server cancels it: then it gets none.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse, RequestId

__all__ = ["with_limited_requests"]

MOST_UNANSWERED = 64
_CANCELLED = "notifications/cancelled"


def with_limited_requests(read: Any, write: Any) -> tuple[Any, Any]:
    """Return both streams of a connection, with the limit on unanswered requests."""
    unanswered: set[RequestId] = set()
    return _IncomingMessages(read, unanswered), _OutgoingMessages(write, unanswered)


class _WatchedStream:
    def __init__(self, stream: Any, unanswered: set[RequestId]) -> None:
        self._stream = stream
        self._unanswered = unanswered

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stream.__aexit__(kind, error, traceback)


class _IncomingMessages(_WatchedStream):
    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        while True:
            item: SessionMessage | Exception = await self._stream.__anext__()
            if not isinstance(item, SessionMessage) or self._admits(item.message):
                return item

    def _admits(self, message: object) -> bool:
        if isinstance(message, JSONRPCNotification) and message.method == _CANCELLED:
            cancelled = cancelled_request_id_from_params(message.params)
            self._unanswered.discard(-1 if cancelled is None else coerce_request_id(cancelled))
        if not isinstance(message, JSONRPCRequest):
            return True
        number = coerce_request_id(message.id)
        if number in self._unanswered or len(self._unanswered) >= MOST_UNANSWERED:
            return False
        self._unanswered.add(number)
        return True


class _OutgoingMessages(_WatchedStream):
    async def send(self, item: SessionMessage) -> None:
        await self._stream.send(item)
        if isinstance(item.message, JSONRPCResponse | JSONRPCError) and item.message.id is not None:
            self._unanswered.discard(coerce_request_id(item.message.id))
