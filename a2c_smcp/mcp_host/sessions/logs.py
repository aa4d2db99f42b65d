"""Log messages of one MCP server: read, bounded in rate and size, and passed on.

A server may log without end. A message beyond `RATE` a second is dropped before anything of it is read, and counted;
the next one that passes is preceded by a message of ours with that count.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeGuard, get_args

from a2c_smcp.mcp_host.failures import in_brief
from a2c_smcp.mcp_host.message_limits import is_within
from a2c_smcp.mcp_host.rate import Rate

__all__ = ["LogLevel", "LogMessage", "OnLog", "ServerLog", "is_log_level"]

logger = logging.getLogger(__name__)

LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
RATE = 100
"""Messages a second, and at once."""
LARGEST = 16 * 1024
_LONGEST_LOGGER = 256


class LogMessage(NamedTuple):
    """A message of a server's log. `data` is any JSON value; a large one is replaced by a text that says so."""

    level: LogLevel
    logger: str | None
    data: Any


OnLog = Callable[[LogMessage], None]


def is_log_level(level: object) -> TypeGuard[LogLevel]:
    return level in get_args(LogLevel)


class ServerLog:
    """Reads `notifications/message`. `on_log` is called in the event loop; it must return at once."""

    def __init__(self, on_log: OnLog, clock: Callable[[], float] = time.monotonic) -> None:
        self.dropped = 0
        self._on_log = on_log
        self._rate = Rate(RATE, clock)
        self._unsaid = 0

    def add(self, params: Mapping[str, Any]) -> None:
        if not self._rate.allows():
            self.dropped += 1
            self._unsaid += 1
            return
        level = params.get("level")
        if not is_log_level(level):
            return
        if self._unsaid:
            unsaid, self._unsaid = self._unsaid, 0
            self._emit(LogMessage("warning", None, f"{unsaid} messages are left out: more than {RATE} a second"))
        name = params.get("logger")
        self._emit(LogMessage(level, name[:_LONGEST_LOGGER] if isinstance(name, str) else None, _bounded(params)))

    def _emit(self, message: LogMessage) -> None:
        try:
            self._on_log(message)
        except Exception:
            logger.exception("a callback for a log message failed")


def _bounded(params: Mapping[str, Any]) -> Any:
    data = params.get("data")
    if isinstance(data, str):
        return in_brief(data, LARGEST)
    return data if is_within({"data": data}, LARGEST) else f"a value of more than {LARGEST} bytes is left out"
