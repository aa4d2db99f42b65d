"""Requests written straight into a server's pipe, and their answers taken straight out of it.

The SDK wraps each in models, streams and tasks, which cost several times what the request does. It still owns the
connection: whatever is not an answer to one of these requests is its own.
"""

from __future__ import annotations

import json
from asyncio import Event, StreamWriter, get_running_loop
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import msgspec
from mcp_types import INTERNAL_ERROR
from pydantic_core import to_jsonable_python

from a2c_smcp.errors import BadRequest
from a2c_smcp.mcp_host.failures import OversizedAnswer, RequestRefused
from a2c_smcp.mcp_host.message_limits import too_large
from a2c_smcp.mcp_host.transports.pending_request import PendingRequest
from a2c_smcp.protocol.codec import dumps

__all__ = ["ODD_ANSWER", "DirectRequests", "MCPRequest"]

ODD_ANSWER = "the server's answer is not an MCP result"

_PROGRESS = "notifications/progress"
_ROOM = 64 * 1024  # bytes that may wait for a server to read them, from where on `drain` waits


class _Answer(msgspec.Struct):
    """A result as nearly all are."""

    id: int
    result: dict[str, Any]
    error: None = None
    method: None = None


_ANSWER = msgspec.json.Decoder(_Answer)


class MCPRequest(NamedTuple):
    """As on MCP's wire."""

    method: str
    params: dict[str, Any]


class DirectRequests:
    """`ids` are shared with the SDK, so that no two requests have the same. `stamp` belongs into every `_meta`.

    Progress comes this way too, to `on_progress`: it must not be overtaken by the answer. What a server does not read
    waits here, in order, for `run`.
    """

    def __init__(self, pipe: StreamWriter) -> None:
        self.ids = count(1)
        self.on_progress: Callable[[str, Mapping[str, Any]], None] | None = None
        self.stamp: Mapping[str, Any] = {}
        self._pipe = pipe
        self._is_full = Event()
        self._is_gathering = False
        self._queue: dict[int, bytes] = {}
        self._waiting: dict[int, PendingRequest] = {}

    def ask(self, request: MCPRequest, job: PendingRequest) -> None:
        """The answer is the job's outcome. When nobody waits for that any more, the server is told.

        Raises `BadRequest` for what cannot be written.
        """
        params, number = request.params, next(self.ids)
        if self.stamp:
            params = params | {"_meta": {**self.stamp, **params.get("_meta", {})}}
        self._queue[number] = _line({"jsonrpc": "2.0", "id": number, "method": request.method, "params": params})
        self._waiting[number] = job
        job.on_close(partial(self._give_up, number))
        if not self._is_gathering:  # the first of a turn of the loop goes at once, the others together behind it
            self._is_gathering = True
            get_running_loop().call_soon(self._write_gathered)
            self._write_queue()

    async def run(self) -> None:
        """Writes what had to wait, whenever the server has read nearly all there was. Ends with the pipe."""
        with suppress(OSError):
            while await self._is_full.wait():
                await self._pipe.drain()
                self._is_full.clear()
                self._write_queue()

    def takes_all(self, lines: bytes) -> bool:
        """Whether these are the answers to some of these requests, each in a line, and nothing else."""
        if len(lines) > _ROOM or not lines.endswith(b"\n"):
            return False
        try:
            messages = [_ANSWER.decode(line) for line in lines[:-1].split(b"\n")]
        except (ValueError, RecursionError):
            return False
        if len({message.id for message in messages} & self._waiting.keys()) < len(messages):
            return False
        for message in messages:
            self._waiting.pop(message.id).finish(message.result)
        return True

    def takes(self, message: Any) -> bool:
        """Whether it is an answer to one of these requests, or progress."""
        if not isinstance(message, dict):
            return False
        if (method := message.get("method")) is not None:
            return self._takes_progress(method, message.get("params"))
        job = self._waiting.pop(_number(message.get("id")), None)
        if job is None:
            return False
        if (error := message.get("error")) is not None:
            job.fail(_refusal(error))
        elif isinstance(result := message.get("result"), dict):
            job.finish(result)
        else:
            job.fail(_refusal(None))
        return True

    def _takes_progress(self, method: Any, params: Any) -> bool:
        if method != _PROGRESS or self.on_progress is None or not isinstance(params, dict):
            return False
        self.on_progress(method, params)
        return True

    def _give_up(self, number: int) -> None:
        """What was never written need not be taken back."""
        if self._waiting.pop(number, None) is None or self._queue.pop(number, b""):
            return
        if not self._pipe.is_closing():
            params = {"requestId": number, "reason": "caller cancelled"}
            self._pipe.write(_line({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}))

    def _write_gathered(self) -> None:
        self._is_gathering = False
        if not self._pipe.is_closing():
            self._write_queue()

    def _write_queue(self) -> None:
        while self._queue and not self._is_full.is_set():
            self._pipe.write(self._next_lines())
            if self._pipe.transport.get_write_buffer_size() > _ROOM:
                self._is_full.set()

    def _next_lines(self) -> bytes:
        """At least one; no more than fit into the room."""
        lines, size = [], 0
        while self._queue and size <= _ROOM:
            lines.append(self._queue.pop(next(iter(self._queue))))
            size += len(lines[-1])
        return b"".join(lines)


def _refusal(error: Any) -> RequestRefused | OversizedAnswer:
    """What a server says with an error, as far as it can be understood."""
    code, text = (error.get("code"), error.get("message")) if isinstance(error, dict) else (None, None)
    if not isinstance(text, str):
        code, text = INTERNAL_ERROR, ODD_ANSWER
    return too_large(text) or RequestRefused(
        text, mcp_code=code if type(code) is int else INTERNAL_ERROR, mcp_message=text
    )


def _line(message: dict[str, Any]) -> bytes:
    """ASCII: there are readers to whom other signs end a line."""
    try:
        if (text := dumps(message)).isascii():
            return text.encode() + b"\n"
    except BadRequest:
        message = _plain(message)
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """Python values as the SDK would write them. Raises `BadRequest`."""
    try:
        plain: dict[str, Any] = to_jsonable_python(message, exclude_none=True, inf_nan_mode="null")
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"not JSON, {error}") from None
    return plain


def _number(answered: Any) -> int:
    """Some servers write numbers as text."""
    if isinstance(answered, str) and answered.isdecimal():
        return int(answered)
    return answered if type(answered) is int else 0
