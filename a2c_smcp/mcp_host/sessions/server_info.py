"""The description that an MCP server gives of itself, and the messages of its log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeGuard, get_args

from a2c_smcp.mcp_host.failures import if_short
from a2c_smcp.mcp_host.limits import Rate, is_within

logger = logging.getLogger(__name__)

_LARGEST = 64 * 1024
"""Bytes of the capabilities, of the icons, and characters of the instructions."""
_LONGEST_NAME = 1024
_USED = ("tools", "resources", "prompts", "completions", "logging")
"""The capabilities that this package uses."""


@dataclass(frozen=True, slots=True)
class AboutServer:
    """The capabilities, title and instructions of a server, as MCP spells them. Empty before its first start."""

    capabilities: dict[str, Any] = field(default_factory=dict)
    title: str = ""
    version: str = ""
    instructions: str = ""
    icons: list[dict[str, Any]] = field(default_factory=list)

    def declares(self, capability: str) -> bool:
        """True if a capability is declared; `resources.subscribe` is one inside of another, as is an extension."""
        outer, _, inner = capability.partition(".")
        declared = self.capabilities.get(outer)
        if not inner:
            return declared is not None
        return isinstance(declared, dict) and declared.get(inner) not in (None, False)


def about_server(capabilities: dict[str, Any], info: dict[str, Any], instructions: str | None) -> AboutServer:
    """Return a description within limits. `info` is MCP's `Implementation`.

    A part that is too large is left out as a whole: a mask would not recognise half a secret.
    """
    icons = info.get("icons")
    return AboutServer(
        capabilities if is_within(capabilities, _LARGEST) else {name: {} for name in _USED if name in capabilities},
        title=_short(info.get("title") or info.get("name"), _LONGEST_NAME),
        version=_short(info.get("version"), _LONGEST_NAME),
        instructions=_short(instructions, _LARGEST),
        icons=icons if isinstance(icons, list) and is_within({"icons": icons}, _LARGEST) else [],
    )


def _short(text: object, most: int) -> str:
    return text if isinstance(text, str) and len(text) <= most else ""


# Log messages of one MCP server: read, bounded in rate and size, and passed on.
#
# A server may log without end. A message beyond `RATE` a second is dropped before anything of it is read, and counted;
# the next one that passes is preceded by a message of ours with that count.

LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
RATE = 100
"""Messages a second, and at once."""
LARGEST = 16 * 1024
_LONGEST_TEXT = 16 * LARGEST
_LONGEST_LOGGER = 256


class LogMessage(NamedTuple):
    """A message of a server's log, not masked. `data` is any JSON value; a large one is replaced by a text about that.

    A text may be longer than `LARGEST`: it has to be masked before it is cut.
    """

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
        self._emit(LogMessage(level, _short(name, _LONGEST_LOGGER) or None, _bounded(params)))

    def _emit(self, message: LogMessage) -> None:
        try:
            self._on_log(message)
        except Exception:
            logger.exception("a callback for a log message failed")


def _bounded(params: Mapping[str, Any]) -> Any:
    data = params.get("data")
    if isinstance(data, str):
        return if_short(data, _LONGEST_TEXT)
    return data if is_within({"data": data}, LARGEST) else f"a value of more than {LARGEST} bytes is left out"
