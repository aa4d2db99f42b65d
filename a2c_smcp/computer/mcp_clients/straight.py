"""Requests written straight into a server's pipe, and their answers taken straight out of it.

The SDK wraps each in models, streams and tasks, which cost several times what the request does. It still owns the
connection: whatever is not an answer to one of these requests is its own.
"""

from __future__ import annotations

import json
from asyncio import StreamWriter
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from mcp_types import INTERNAL_ERROR

from a2c_smcp.computer.mcp_clients.failures import RequestRefused
from a2c_smcp.computer.mcp_clients.job import Job
from a2c_smcp.errors import BadRequest
from a2c_smcp.protocol.codec import dumps

__all__ = ["ODD_ANSWER", "Request", "Straight", "refusal"]

ODD_ANSWER = "the server's answer is not an MCP result"

_PROGRESS = "notifications/progress"
_ROOM = 64 * 1024  # bytes that may wait for a server to read them


class Request(NamedTuple):
    """As on MCP's wire."""

    method: str
    params: dict[str, Any]


class Straight:
    """`ids` are shared with the SDK, so that no two requests have the same. `stamp` belongs into every `_meta`.

    Progress comes this way too, to `on_progress`: it must not be overtaken by the answer.
    """

    def __init__(self, pipe: StreamWriter) -> None:
        self.ids = count(1)
        self.on_progress: Callable[[str, Mapping[str, Any]], None] | None = None
        self.stamp: Mapping[str, Any] = {}
        self._pipe = pipe
        self._waiting: dict[int, Job] = {}

    @property
    def has_room(self) -> bool:
        """Whether the server reads what it is sent. Where it does not, one had better wait."""
        return self._pipe.transport.get_write_buffer_size() < _ROOM

    def ask(self, request: Request, job: Job) -> None:
        """The answer is the job's outcome. When nobody waits for that any more, the server is told."""
        params, number = request.params, next(self.ids)
        if self.stamp:
            params = params | {"_meta": {**self.stamp, **params.get("_meta", {})}}
        self._write({"jsonrpc": "2.0", "id": number, "method": request.method, "params": params})
        self._waiting[number] = job
        job.on_close(partial(self._give_up, number))

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
            job.fail(refusal(error))
        elif isinstance(result := message.get("result"), dict):
            job.finish(result)
        else:
            job.fail(refusal(None))
        return True

    def _takes_progress(self, method: Any, params: Any) -> bool:
        if method != _PROGRESS or self.on_progress is None or not isinstance(params, dict):
            return False
        self.on_progress(method, params)
        return True

    def _give_up(self, number: int) -> None:
        if self._waiting.pop(number, None):
            params = {"requestId": number, "reason": "caller cancelled"}
            self._write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})

    def _write(self, message: dict[str, Any]) -> None:
        """ASCII: there are readers to whom other signs end a line."""
        text = _compact(message)
        if not text.isascii():
            text = json.dumps(message, separators=(",", ":"))
        self._pipe.write(text.encode() + b"\n")


def refusal(error: Any) -> RequestRefused:
    """What a server says with an error, if it can be understood."""
    code, text = (error.get("code"), error.get("message")) if isinstance(error, dict) else (None, None)
    if type(code) is not int or not isinstance(text, str):
        code, text = INTERNAL_ERROR, ODD_ANSWER
    return RequestRefused(text, mcp_code=code, mcp_message=text)


def _compact(message: dict[str, Any]) -> str:
    try:
        return dumps(message)
    except BadRequest:
        return json.dumps(message, separators=(",", ":"))  # as the SDK's way would, which writes NaN


def _number(answered: Any) -> int:
    """Some servers write numbers as text."""
    if isinstance(answered, str) and answered.isdecimal():
        return int(answered)
    return answered if type(answered) is int else 0
