"""A log of calls, one line of JSON each, and tools that answer from such a log."""

from __future__ import annotations

import builtins
import json
import os
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

from pydantic_core import PydanticSerializationError, to_jsonable_python

from a2c_smcp.errors import NotFound, SMCPError, ToolForbidden, ToolNotFound
from a2c_smcp.registry.calls.hooks import Hook, ToolCall

__all__ = ["NotRecorded", "RecordedError", "Recorder", "ReplayedTool", "replay"]


_NO_TOOL = (ToolForbidden.code, ToolNotFound.code)


class NotRecorded(NotFound, LookupError):
    """The log has no call of this tool with these arguments."""

    title = "No such call in the log"


class RecordedError(Exception):
    """A recorded error whose class is not known here. Its message has the name of the class."""


class Recorder(Hook):
    """A hook that appends each call to a file, readable by its owner only: time, name, outcome, duration, sizes.

    It also writes arguments and results, which a replay needs; `values=False` leaves them out.
    """

    def __init__(self, path: str | os.PathLike[str], *, values: bool = True) -> None:
        self._values = values
        self._open: dict[ToolCall, dict[str, Any]] = {}
        self._path = path
        self._append("")

    def before(self, call: ToolCall) -> None:
        """Keeps a copy of the arguments before the tool can change them."""
        line: dict[str, Any] = {"at": datetime.now(UTC).isoformat(), "name": call.name}
        self._open[call] = line | {"arguments": _plain(call.reveal().arguments)} if self._values else line

    def after(self, call: ToolCall) -> None:
        self._write(call, {"result": _plain(call.reveal().result)} if self._values else {})

    def error(self, call: ToolCall) -> None:
        self._write(call, {"error": _error(call, with_message=self._values)})

    def _write(self, call: ToolCall, ending: dict[str, Any]) -> None:
        line = self._open.pop(call) | {
            "outcome": call.outcome,
            "duration": call.duration,
            "cost": _plain(call.cost),
            "arguments_size": call.arguments_size,
            "result_size": call.result_size,
            **ending,
        }
        text = json.dumps({key: value for key, value in line.items() if key == "result" or value is not None})
        self._append(f"{text}\n")

    def _append(self, text: str) -> None:
        """One write per line: lines of several processes do not mix."""
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, text.encode())
        finally:
            os.close(file)


class ReplayedTool:
    """A tool that answers as in the log: equal arguments get their recorded answers, in their order.

    The last answer is repeated. `call` raises `NotRecorded` for other arguments.
    """

    def __init__(
        self,
        name: str,
        lines: Iterable[Mapping[str, Any]],
        *,
        description: str = "",
        input_schema: dict[str, Any] | None = None,
    ) -> None:
        self.name, self.description, self.input_schema = name, description, input_schema or {}
        self._answers: dict[str, deque[Mapping[str, Any]]] = {}
        self._lock = Lock()
        for line in lines:
            self._answers.setdefault(_key(line["arguments"]), deque()).append(line)

    def call(self, arguments: dict[str, Any]) -> Any:
        with self._lock:
            answers = self._answers.get(_key(_plain(arguments)))
            if answers is None:
                raise NotRecorded(repr(self.name), toolId=self.name)
            line = answers.popleft() if len(answers) > 1 else answers[0]
        if "error" in line:
            raise _as_exception(line["error"])
        return line["result"]


def replay(path: str | os.PathLike[str], like: Mapping[str, Mapping[str, Any]] | None = None) -> list[ReplayedTool]:
    """The tools of a log, to register in place of the real ones. `like` describes them, as `describe()` returns it.

    It skips calls without values, cancelled calls, a last line that was cut off, and names that had no tool.
    """
    known = like or {}
    lines: dict[str, list[dict[str, Any]]] = {}
    for text in Path(path).read_text("utf-8").splitlines():
        with suppress(ValueError):
            line = json.loads(text)
            if "arguments" in line and line["outcome"] != "cancelled":
                lines.setdefault(line["name"], []).append(line)
    return [
        ReplayedTool(name, calls, **known.get(name, {}))
        for name, calls in lines.items()
        if name in known or not all(_had_no_tool(call) for call in calls)
    ]


def _had_no_tool(line: Mapping[str, Any]) -> bool:
    return line["outcome"] == "refused" and line["error"]["code"] in _NO_TOOL


def _error(call: ToolCall, *, with_message: bool) -> dict[str, Any]:
    error = call.reveal().error
    named = {"type": call.error_type, "code": call.error_code}
    if not with_message:
        return named
    if isinstance(error, SMCPError):
        return named | {"message": error.message, "details": _plain(error.details)}
    return named | {"message": str(error.args[0] if error and len(error.args) == 1 else error)}


def _as_exception(error: Mapping[str, Any]) -> Exception:
    """Our errors and Python's own as they were; others as `RecordedError`."""
    if known := SMCPError.from_wire({"error": error}):
        return known
    kind = getattr(builtins, str(error["type"]), None)
    with suppress(TypeError):  # some of Python's own need more than a message
        if isinstance(kind, type) and issubclass(kind, Exception):
            return kind(error["message"])
    return RecordedError(f"{error['type']}: {error['message']}")


def _key(arguments: Any) -> str:
    return json.dumps(arguments, sort_keys=True)


def _plain(value: Any) -> Any:
    try:
        return to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="null", fallback=str)
    except (PydanticSerializationError, ValueError):
        return str(value)
