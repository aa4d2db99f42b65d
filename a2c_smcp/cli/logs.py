"""Logging of the programs, on stderr: lines for people, or JSON for machines."""

from __future__ import annotations

import atexit
import io
import json
import logging
import os
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any, Literal, TextIO, TypeAlias

from a2c_smcp.protocol.escaping import escaped
from a2c_smcp.telemetry import tracing

logger = logging.getLogger(__name__)

_MOST_WAITING = 1024 * 1024
_LAST_WRITES = 1.0
_FULL_PAUSE = 0.05

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
"""The values of --log-level."""


class JSONLines(logging.Formatter):
    """Formats a record as one JSON object on one line."""

    def __init__(self, node: str = "") -> None:
        super().__init__()
        self._node = {"node": node} if node else {}

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            **self._node,
            "logger": record.name,
            **_fields(record),
            **tracing.log_fields(),
        }
        if traceback := record.exc_text or (self.formatException(record.exc_info) if record.exc_info else ""):
            line["traceback"] = traceback
        return escaped(json.dumps(line, ensure_ascii=False))


def set_up(level: LogLevel, *, as_json: bool = False, node: str = "") -> None:
    """Configure logging for this process. A `node` is named in each line.

    Libraries show what peers send: they speak only of errors.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONLines(node) if as_json else _Lines(node))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    for name in ("asyncio", "mcp", "httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.ERROR)


def queue_stderr() -> None:
    """Have stderr written by a thread from now on, so that a program goes on when nobody reads what it says."""
    stream = sys.stderr
    if not isinstance(stream, QueuedStream) and hasattr(stream, "buffer"):
        sys.stderr = QueuedStream(stream)
        atexit.register(write_the_rest)


def write_the_rest() -> None:
    """Wait, for a second at most, until stderr has everything. Who calls `os._exit` calls this before."""
    if isinstance(sys.stderr, QueuedStream):
        sys.stderr.drain(_LAST_WRITES)
    else:
        sys.stderr.flush()


class QueuedStream(io.TextIOBase):
    """A text stream that a thread writes. Nobody who writes to it waits, and its order is kept.

    When a mebibyte waits, all further lines are dropped until the queue is empty; then a line says how many, at the
    place where they are missing. `dropped` counts them all. The thread writes to the unbuffered file, without a lock
    that the end of the interpreter would wait for.
    """

    def __init__(self, stream: Any) -> None:
        self.dropped = 0
        self._stream = stream
        self._raw = getattr(stream.buffer, "raw", stream.buffer)
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = self._missing = 0
        self._changed = threading.Condition()
        stream.flush()
        threading.Thread(target=self._write_all, name="a2c-stderr", daemon=True).start()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a class attribute in typeshed
        return str(self._stream.encoding)

    def isatty(self) -> bool:
        return bool(self._stream.isatty())

    def fileno(self) -> int:
        return int(self._stream.fileno())

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        encoded = text.replace("\n", os.linesep).encode(self.encoding, "backslashreplace")
        with self._changed:
            if self._missing or self._waiting_bytes + len(encoded) > _MOST_WAITING:
                self._missing += max(text.count("\n"), 1)
                self.dropped += max(text.count("\n"), 1)
            elif encoded:
                self._waiting.append(encoded)
                self._waiting_bytes += len(encoded)
                self._changed.notify_all()
        return len(text)

    def drain(self, limit: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, limit)

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
            with suppress(OSError):  # such as a reader that has ended
                self._write(memoryview(self._waiting[0]))
            with self._changed:
                self._waiting_bytes -= len(self._waiting.popleft())
                if self._missing and not self._waiting:
                    words = f"{self._missing} lines are missing here: nobody read what this program writes to stderr"
                    self._missing = 0
                    self.write(f"{as_json_line(logger, logging.WARNING, words) or words}\n")
                self._changed.notify_all()

    def _write(self, left: memoryview) -> None:
        while left:
            written = self._raw.write(left)
            if written is None:  # another process has made the file non-blocking, and it is full
                time.sleep(_FULL_PAUSE)
            else:
                left = left[written:]


def as_json_line(logger: logging.Logger, level: int, message: str, **facts: object) -> str | None:
    """The message and its facts as a JSON line if this process logs JSON; otherwise `None`."""
    formatter = next((handler.formatter for handler in logging.getLogger().handlers), None)
    if not isinstance(formatter, JSONLines):
        return None
    record = logger.makeRecord(logger.name, level, "", 0, message, (), None)
    if facts:
        record.facts = {"event": "notice", "message": message, **facts}
    return formatter.format(record)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """The message of a record. The report of an observer has its facts in fields of their own."""
    facts = getattr(record, "facts", None)
    return {"message": facts["event"], **facts} if isinstance(facts, dict) else {"message": record.getMessage()}


class _Lines(logging.Formatter):
    """Formats a record as a line for people, with control characters escaped."""

    def __init__(self, node: str) -> None:
        """The name of a node can be put into a format: it has letters, digits, `-` and `_` only."""
        super().__init__(f"%(asctime)s %(levelname)-7s {f'[{node}] ' if node else ''}%(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return escaped(super().format(record), keep="\n\t")


def is_terminal(stream: TextIO) -> bool:
    """True for a terminal. On Windows NUL says that it is one, too."""
    is_file = os.name == "nt" and isinstance(getattr(stream.buffer, "raw", None), io.FileIO)
    return stream.isatty() and not is_file
