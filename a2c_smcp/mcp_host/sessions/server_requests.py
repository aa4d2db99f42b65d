"""Requests that an MCP server sends to us: only so many of them may wait for their answers at a time.

The SDK starts a task for each. A server that asks without ever reading the answers would fill the memory with tasks
that wait for its pipe. What it asks beyond the limit is not answered.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCRequest, JSONRPCResponse

__all__ = ["MOST_UNANSWERED", "limit_requests"]

MOST_UNANSWERED = 64


def limit_requests(read: Any, write: Any) -> tuple[Any, Any]:
    """Both streams of a connection, with the limit."""
    unanswered = _Unanswered()
    return _Incoming(read, unanswered), _Outgoing(write, unanswered)


class _Unanswered:
    count = 0


class _Stream:
    def __init__(self, stream: Any, unanswered: _Unanswered) -> None:
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


class _Incoming(_Stream):
    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        while True:
            item: SessionMessage | Exception = await self._stream.__anext__()
            if not (isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCRequest)):
                return item
            if self._unanswered.count < MOST_UNANSWERED:
                self._unanswered.count += 1
                return item


class _Outgoing(_Stream):
    async def send(self, item: SessionMessage) -> None:
        await self._stream.send(item)
        if isinstance(item.message, JSONRPCResponse | JSONRPCError):
            self._unanswered.count -= 1
