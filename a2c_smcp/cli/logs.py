"""Logging of the programs, on stderr: lines for people, or JSON for machines."""

from __future__ import annotations

import json
import logging
import sys
from enum import StrEnum

from a2c_smcp.protocol.visible import escaped
from a2c_smcp.telemetry import tracing

__all__ = ["JSONLines", "LogLevel", "as_json_line", "set_up"]


class LogLevel(StrEnum):
    """What --log-level takes."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


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
    handler.setFormatter(JSONLines(node) if as_json else _lines(node))
    logging.basicConfig(level=level.value.upper(), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    for name in ("asyncio", "mcp", "httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.ERROR)


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
    """What a record says. What an observer reports has its facts in fields of their own."""
    facts = getattr(record, "facts", None)
    return {"message": facts["event"], **facts} if isinstance(facts, dict) else {"message": record.getMessage()}


class _Lines(logging.Formatter):
    """Formats a record as a line for people, with control characters escaped."""

    def format(self, record: logging.LogRecord) -> str:
        return escaped(super().format(record), keep="\n\t")


def _lines(node: str) -> logging.Formatter:
    """The name of a node can be put into a format: it has letters, digits, `-` and `_` only."""
    return _Lines(f"%(asctime)s %(levelname)-7s {f'[{node}] ' if node else ''}%(message)s")
