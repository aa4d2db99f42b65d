"""Requests that are written into a server's pipe, and answers that are read from it, without the SDK in between.

The SDK wraps each request in models, streams and tasks, which cost several times what the request does. It still owns
the connection: every message that is not an answer to one of these requests, progress or a log message goes to the SDK.
"""

from __future__ import annotations

import asyncio
import json
import logging
from abc import ABC, abstractmethod
from asyncio import Event, StreamWriter, get_running_loop
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import msgspec
from mcp_types import INTERNAL_ERROR
from pydantic_core import to_jsonable_python

from a2c_smcp.errors import BadRequest, CallTimeout, SMCPError
from a2c_smcp.mcp_host.failures import OversizedAnswer, RequestRefused
from a2c_smcp.mcp_host.limits import refused
from a2c_smcp.protocol.codec import dumps

logger = logging.getLogger(__name__)

# One request that an MCP server has not answered yet: its outcome, its deadline, and how it is cancelled.

OnProgress = Callable[[float, float | None, str | None], None]


class PendingRequest:
    """The caller awaits `outcome` and then calls `close`; the sender learns of that by `on_close`.

    `timeout` counts from the last progress of the server, `cap` from now. When either is over, the outcome is
    `CallTimeout`. While the server waits for the answer to a question, it has `patience` seconds in place of `timeout`.
    """

    def __init__(
        self,
        what: str,
        timeout: float,
        cap: float,
        on_progress: OnProgress | None = None,
        *,
        patience: float | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self.is_closed = False
        self._cancel: Callable[[], object] | None = None
        self._what = what
        self._timeout = timeout
        self._patience = timeout if patience is None else patience
        self._latest_end = self._loop.time() + cap
        self._on_progress = on_progress
        self._steps = 0
        self._timer = self._arm(timeout)

    def finish(self, result: dict[str, Any]) -> None:
        if not self.outcome.done():
            self.outcome.set_result(result)

    def fail(self, error: SMCPError) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(error)

    def close(self) -> None:
        """End the caller's wait: cancel the work that still goes on, at the server too."""
        self.is_closed = True
        self._timer.cancel()
        if self._cancel is not None:
            self._cancel()

    def on_close(self, cancel: Callable[[], object] | None) -> None:
        """Set the function that `close` calls."""
        self._cancel = cancel

    def progressed(self, progress: object, total: object, message: object) -> None:
        """Handle a progress notification: the timeout begins again, the cap stays."""
        if not isinstance(progress, int | float) or self.outcome.done():
            return
        self._steps = -1
        self.heard()
        self._report(
            float(progress),
            float(total) if isinstance(total, int | float) else None,
            message if isinstance(message, str) else None,
        )

    def heard(self, message: str | None = None) -> None:
        """Handle a sign of life: the timeout begins again. A message is reported, unless there is true progress."""
        if self.outcome.done() or self.is_closed:
            return
        self._restart_timer(self._timeout)
        if message is not None and self._steps >= 0:
            self._steps += 1
            self._report(self._steps, None, message)

    def waits_for_answer(self) -> None:
        """Handle a question of the server."""
        if not self.outcome.done() and not self.is_closed:
            self._restart_timer(self._patience)

    def resumed(self) -> PendingRequest:
        """Return one for further work for the same caller: the timeout begins again, the cap stays."""
        cap = self._latest_end - self._loop.time()
        return PendingRequest(self._what, self._timeout, cap, self._on_progress, patience=self._patience)

    def _report(self, progress: float, total: float | None, message: str | None) -> None:
        if self._on_progress is None:
            return
        try:
            self._on_progress(progress, total, message)
        except Exception:
            logger.exception("a progress callback failed")

    def _restart_timer(self, seconds: float) -> None:
        self._timer.cancel()
        self._timer = self._arm(seconds)

    def _arm(self, seconds: float) -> asyncio.TimerHandle:
        def expire() -> None:
            self.fail(CallTimeout(f"{self._what} took longer than {round(seconds, 1) or seconds:g} s"))

        return self._loop.call_at(min(self._loop.time() + seconds, self._latest_end), expire)


ODD_ANSWER = "the server's answer is not an MCP result"

_NOTIFICATIONS = frozenset({"notifications/progress", "notifications/message"})
_WRITE_BUFFER = 64 * 1024  # bytes that may wait for a server to read them; with more, `drain` waits


class _DirectAnswer(msgspec.Struct):
    """An answer of the usual shape."""

    id: int
    result: dict[str, Any]
    error: None = None
    method: None = None


_ANSWER = msgspec.json.Decoder(_DirectAnswer)


class MCPRequest(NamedTuple):
    """Method and parameters as MCP spells them."""

    method: str
    params: dict[str, Any]


Otherwise = Callable[[], object]
"""Sends a request by the SDK after all."""
HeadersOfCall = Callable[[str, Mapping[str, Any]], dict[str, str]]
"""Returns the HTTP headers that say the name of a tool, and those arguments that its server wants as headers too."""


class DirectSender(ABC):
    """Sends requests without the SDK. The SDK numbers its requests from `ids` too: no two have the same id.

    `common_meta` is added to the `_meta` of every request. `on_notification` gets progress and log messages.
    """

    is_traceable: bool
    """True if requests can be sent in a span of our own; the SDK has spans for the others."""

    def __init__(self) -> None:
        self.ids: Iterator[int] = count(1)
        self.on_notification: Callable[[str, Mapping[str, Any]], None] | None = None
        self.common_meta: Mapping[str, Any] = {}
        self.headers_of_call: HeadersOfCall = lambda tool, arguments: {}

    @abstractmethod
    def send(self, request: MCPRequest, pending: PendingRequest, otherwise: Otherwise) -> int | None:
        """Return the id of the request, which may be sent by `otherwise` later; `None` if it is not sent here.

        Raises `BadRequest` for values that are not JSON.
        """


class DirectRequests(DirectSender):
    """Requests over the pipe of one server.

    Progress and log messages do not come from the SDK: otherwise the answer could overtake them, and a flood of them
    would cost more. Requests that the server does not read yet wait in a queue, in order; `write_waiting` writes them.
    """

    is_traceable = True

    def __init__(self, pipe: StreamWriter) -> None:
        super().__init__()
        self._pipe = pipe
        self._is_full = Event()
        self._is_gathering = False
        self._queue: dict[int, bytes] = {}
        self._unanswered: dict[int, PendingRequest] = {}

    def send(self, request: MCPRequest, pending: PendingRequest, otherwise: Otherwise = lambda: None) -> int:
        """Send a request; the answer becomes the outcome of `pending`. Closing `pending` cancels it at the server.

        Return the id of the request. Raises `BadRequest` for values that are not JSON.
        """
        params, number = request.params, next(self.ids)
        if self.common_meta:
            params = params | {"_meta": {**self.common_meta, **params.get("_meta", {})}}
        self._queue[number] = written({"jsonrpc": "2.0", "id": number, "method": request.method, "params": params})
        self._unanswered[number] = pending
        pending.on_close(partial(self._cancel, number))
        if not self._is_gathering:  # in one turn of the loop the first is written at once, the others together
            self._is_gathering = True
            get_running_loop().call_soon(self._write_gathered)
            self._write_queue()
        return number

    async def write_waiting(self) -> None:
        """Write requests from the queue whenever the server has read most of the buffer. Ends with the pipe."""
        with suppress(OSError):
            while await self._is_full.wait():
                await self._pipe.drain()
                self._is_full.clear()
                self._write_queue()

    def handle_lines(self, lines: bytes) -> bool:
        """Handle lines that are all answers to these requests; return False for any others."""
        if len(lines) > _WRITE_BUFFER or not lines.endswith(b"\n"):
            return False
        try:
            messages = [_ANSWER.decode(line) for line in lines[:-1].split(b"\n")]
        except (ValueError, RecursionError):
            return False
        if len({message.id for message in messages} & self._unanswered.keys()) < len(messages):
            return False
        for message in messages:
            self._unanswered.pop(message.id).finish(message.result)
        return True

    def handle(self, message: Any) -> bool:
        """Handle an answer to one of these requests, progress or a log message; return False for any other."""
        if not isinstance(message, dict):
            return False
        if (method := message.get("method")) is not None:
            params = message.get("params")
            if method not in _NOTIFICATIONS or self.on_notification is None or not isinstance(params, dict):
                return False
            self.on_notification(method, params)
            return True
        number = message.get("id")
        if isinstance(number, str) and number.isdecimal():  # some servers write numbers as text
            number = int(number)
        pending = self._unanswered.pop(number, None) if type(number) is int else None
        if pending is None:
            return False
        settle(pending, message)
        return True

    def _cancel(self, number: int) -> None:
        """Cancel a request, at the server too, unless it was never written."""
        if self._unanswered.pop(number, None) is None or self._queue.pop(number, b""):
            return
        if not self._pipe.is_closing():
            params = {"requestId": number, "reason": "caller cancelled"}
            self._pipe.write(written({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}))

    def _write_gathered(self) -> None:
        self._is_gathering = False
        if not self._pipe.is_closing():
            self._write_queue()

    def _write_queue(self) -> None:
        while self._queue and not self._is_full.is_set():
            self._pipe.write(self._next_lines())
            if self._pipe.transport.get_write_buffer_size() > _WRITE_BUFFER:
                self._is_full.set()

    def _next_lines(self) -> bytes:
        """Return at least one line, and no more than fill the buffer."""
        lines, size = [], 0
        while self._queue and size <= _WRITE_BUFFER:
            lines.append(self._queue.pop(next(iter(self._queue))))
            size += len(lines[-1])
        return b"".join(lines)


def settle(pending: PendingRequest, message: Mapping[str, Any]) -> None:
    """Make the answer to a request its outcome."""
    if (error := message.get("error")) is not None:
        pending.fail(_refusal(error))
    elif isinstance(result := message.get("result"), dict):
        pending.finish(result)
    else:
        pending.fail(_refusal(None))


def _refusal(error: Any) -> RequestRefused | OversizedAnswer:
    """Return the failure that an error answer stands for, however odd it is."""
    if not isinstance(error, dict) or not isinstance(text := error.get("message"), str):
        return refused(INTERNAL_ERROR, ODD_ANSWER)
    code = error.get("code")
    return refused(code if type(code) is int else INTERNAL_ERROR, text, error.get("data"))


def written(message: dict[str, Any]) -> bytes:
    """Return a message as a line. It is ASCII only: some readers end a line at other characters too."""
    try:
        if (text := dumps(message)).isascii():
            return text.encode() + b"\n"
    except BadRequest:
        message = as_json(message)
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def as_json(message: dict[str, Any]) -> dict[str, Any]:
    """Return the message with other Python values as JSON; nulls stay. Raises `BadRequest`."""
    try:
        plain: dict[str, Any] = to_jsonable_python(message, inf_nan_mode="null")
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"not JSON, {error}") from None
    return plain
