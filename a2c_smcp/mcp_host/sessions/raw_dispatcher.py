"""The dispatcher under the SDK's client session: parameters, results and requests of the server stay as they are.

The session of the SDK negotiates, and stamps requests with headers and `_meta`. It would also rewrite parameters
(dropping nulls), validate results and strip what it does not know, and do the same to requests of the server. So the
parameters of a raw request pass the session in a context variable and replace those that it made; a raw result passes
it as an exception; and requests of the server that `OnRequest` knows are answered before the session sees them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.abc
import mcp_types as types
from mcp.shared.dispatcher import CallOptions, DispatchContext, OnNotify, OnNotifyIntercept, OnRequest
from mcp.shared.inbound import mcp_param_headers
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.transport_context import TransportContext

from a2c_smcp.mcp_host.sessions.limited_requests import with_limited_requests
from a2c_smcp.mcp_host.sessions.logs import LogLevel
from a2c_smcp.mcp_host.transports.direct_requests import DirectSender

__all__ = ["TASKS_EXTENSION", "AnswerRequest", "OnNotification", "RawAnswer", "RawDispatcher", "raw_params"]

OnNotification = Callable[[str, Mapping[str, Any]], None]
AnswerRequest = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]] | None]
"""Answers a request of the server, by method and parameters; `None` leaves it to the SDK."""

TASKS_EXTENSION = "io.modelcontextprotocol/tasks"
CAPABILITIES: Mapping[str, Any] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {},
    "roots": {},
    "tasks": {
        "list": {},
        "cancel": {},
        "requests": {"elicitation": {"create": {}}, "sampling": {"createMessage": {}}},
    },
}
"""What is declared at `initialize`, to servers of older revisions."""
_LISTED = frozenset({"tools/list", "resources/list"})
raw_params: ContextVar[dict[str, Any] | None] = ContextVar("raw_params", default=None)
"""The parameters of the request that this task sends next."""


class RawAnswer(Exception):
    """Carries a result past the SDK, which would validate and strip it."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw


class RawDispatcher(JSONRPCDispatcher[TransportContext]):
    """`on_notification` gets notifications at once and in order."""

    def __init__(
        self,
        read: Any,
        write: Any,
        on_notification: OnNotification,
        answer_request: AnswerRequest,
        direct: DirectSender | None,
    ) -> None:
        super().__init__(*with_limited_requests(read, write), on_stream_exception=_ignore)
        self.direct = direct
        if direct is not None:
            direct.on_notification = on_notification
        self.ended = anyio.Event()
        self._header_arguments: Mapping[str, Mapping[tuple[str, ...], str]] = {}
        self._log_level: dict[str, LogLevel] = {}
        self._meta: Mapping[str, Any] = {}
        self._on_notification = on_notification
        self._answer_request = answer_request

    def set_header_arguments(self, arguments: Mapping[str, Mapping[tuple[str, ...], str]]) -> None:
        """Set, for each tool, the arguments that are sent as HTTP headers too."""
        self._header_arguments = arguments
        if self.direct is not None:
            self.direct.header_arguments = arguments

    def set_log_level(self, level: LogLevel | None) -> None:
        """Set the level that every raw request asks for (2026-07-28)."""
        self._log_level = {types.LOG_LEVEL_META_KEY: level} if level else {}
        self._set_common_meta()

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None, **private: Any
    ) -> dict[str, Any]:
        raw = raw_params.get()
        raw_params.set(None)  # tasks that the SDK starts from here inherit the context
        params = self._as_sent(method, params or {}, raw)
        if opts is not None and method == "tools/call":
            headers = mcp_param_headers(self._header_arguments.get(params["name"], {}), params.get("arguments") or {})
            opts.setdefault("headers", {}).update(headers)
        if self.direct is not None:
            opts = {"request_id": next(self.direct.ids), **(opts or {})}
        if method == "tools/list":  # its `_meta` holds only what all requests have
            self._meta = params.get("_meta") or {}
            self._set_common_meta()
        answer = await super().send_raw_request(method, params, opts, **private)
        if raw is not None or method in _LISTED:
            raise RawAnswer(answer)
        return answer

    def _as_sent(self, method: str, stamped: Mapping[str, Any], raw: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Return the parameters to send, given those that the SDK has made and those of a raw request."""
        if raw is not None:
            meta = {**(stamped.get("_meta") or {}), **self._log_level, **raw.get("_meta", {})}
            return {**raw, "_meta": meta}
        return {**stamped, "capabilities": CAPABILITIES} if method == "initialize" else stamped

    def _set_common_meta(self) -> None:
        if self.direct is not None:
            self.direct.common_meta = {**self._meta, **self._log_level}

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        def intercept(method: str, params: Mapping[str, Any] | None) -> bool:
            if on_notify_intercept is None or not on_notify_intercept(method, params):
                self._on_notification(method, params or {})
            return True

        async def answer(
            context: DispatchContext[TransportContext], method: str, params: Mapping[str, Any] | None
        ) -> dict[str, Any]:
            answering = self._answer_request(method, dict(params or {}))
            return await (on_request(context, method, params) if answering is None else answering)

        try:
            await super().run(answer, on_notify, intercept, task_status=task_status)
        finally:
            self.ended.set()


async def _ignore(_: Exception) -> None:
    """Ignore a fault in one message; the request it may have answered has its own deadline."""
