"""Log messages of MCP servers: a bounded history for the owner, and tells for agents that ask (WIRE §9).

A server is asked for messages of the lowest level that anybody wants: the owner, or an agent. If nobody has said, it
sends what it sends by itself. What an agent asks for
lapses after fifteen minutes unless it asks again, and ends when it leaves the office. Messages are masked when they are
shown or told, so a secret that became known later is masked in older ones, too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, get_args

from a2c_smcp.computer.approval import Caller
from a2c_smcp.computer.secrets import Mask
from a2c_smcp.computer.tells import Tells
from a2c_smcp.errors import BadRequest
from a2c_smcp.mcp_host.sessions.logs import LogLevel, LogMessage
from a2c_smcp.protocol.codec import dumps

__all__ = ["LogLine", "ServerLogs"]

_LEVELS: dict[str, int] = {level: number for number, level in enumerate(get_args(LogLevel))}
_KEPT = 500
_KEPT_BYTES = 256 * 1024
_LAPSES = 15 * 60.0


class LogLine(NamedTuple):
    """A message of a server's log, for the owner. `at` is in seconds since the epoch."""

    at: float
    level: str
    logger: str | None
    text: str


@dataclass(slots=True)
class _Watch:
    """What an agent wants to be told, and until when. `caller` is the agent as it asked last."""

    level: int
    until: float
    caller: Caller


class _History:
    """The last messages of one server."""

    def __init__(self) -> None:
        self.lines: deque[LogLine] = deque()
        self._bytes = 0

    def add(self, line: LogLine) -> None:
        self.lines.append(line)
        self._bytes += len(line.text)
        while len(self.lines) > _KEPT or self._bytes > _KEPT_BYTES:
            self._bytes -= len(self.lines.popleft().text)


class ServerLogs:
    """The logs of all servers of a computer.

    `on_fewer` is called when an agent wants no more of them, `on_added` with the server of each message.
    """

    def __init__(self, tells: Tells, mask: Mask, clock: Callable[[], float] = time.monotonic) -> None:
        self.on_fewer: Callable[[], object] = lambda: None
        self.on_added: Callable[[str], None] = lambda server: None
        self._tells = tells
        self._mask = mask
        self._clock = clock
        self._histories: dict[str, _History] = {}
        self._owner: dict[str, int] = {}
        self._watches: dict[tuple[Caller, str | None], _Watch] = {}

    def add(self, name: str, message: LogMessage) -> None:
        """Keep a message, and tell the agents that want it."""
        text = message.data if isinstance(message.data, str) else dumps(message.data)
        self._histories.setdefault(name, _History()).add(LogLine(time.time(), message.level, message.logger, text))
        if self._watches:
            self._tell(name, message)
        self.on_added(name)

    def of(self, server: str, level: str = "debug") -> list[LogLine]:
        """The last messages of a server, of this level and above, oldest first."""
        least = number_of(level)
        history = self._histories.get(server)
        return [
            line._replace(text=self._mask.text(line.text, server), logger=self._masked(line.logger, server))
            for line in (history.lines if history else ())
            if _LEVELS[line.level] >= least
        ]

    def set_owners_level(self, server: str, level: str) -> None:
        self._owner[server] = number_of(level)

    def watch(self, caller: Caller, server: str | None, level: str) -> None:
        """Tell an agent the messages of a server, or of all, of this level and above."""
        self._watches[caller, server] = _Watch(number_of(level), self._clock() + _LAPSES, caller)

    def end(self, office: str, agent: str | None = None) -> None:
        """Stop telling an agent that has left, or all of an office."""
        self._drop(lambda caller: caller.office == office and agent in (None, caller.agent))

    def keep_only(self, office: str, agent: str) -> None:
        """Stop telling other agents of an office."""
        self._drop(lambda caller: caller.office == office and caller.agent != agent)

    def _drop(self, is_meant: Callable[[Caller], bool]) -> None:
        dropped = [key for key in self._watches if is_meant(key[0])]
        for key in dropped:
            del self._watches[key]
        if dropped:
            self.on_fewer()

    def level_for(self, server: str) -> str | None:
        """The lowest level that is wanted of a server; `None` if nobody has said."""
        self._forget_old()
        levels = [watch.level for (_, name), watch in self._watches.items() if name in (None, server)]
        levels += [self._owner[server]] if server in self._owner else []
        return get_args(LogLevel)[min(levels)] if levels else None

    def _tell(self, server: str, message: LogMessage) -> None:
        self._forget_old()
        number = _LEVELS[message.level]
        callers = {caller for (caller, name), watch in self._watches.items() if name in (None, server)}
        for caller in callers:
            watch = self._watch_of(caller, server)
            if number >= watch.level:
                data = self._mask.data(message.data, server=server)
                named = {"logger": self._masked(message.logger, server)} if message.logger else {}
                told = {"mcp_server": server, "level": message.level, "data": data, **named}
                self._tells.tell(watch.caller, "log", told)

    def _watch_of(self, caller: Caller, server: str) -> _Watch:
        """What an agent wants of a server: what it said about this server counts more than about all."""
        return self._watches.get((caller, server)) or self._watches[caller, None]

    def _masked(self, logger: str | None, server: str) -> str | None:
        return self._mask.text(logger, server) if logger else logger

    def _forget_old(self) -> None:
        now = self._clock()
        old = [key for key, watch in self._watches.items() if watch.until < now]
        for key in old:
            del self._watches[key]
        if old:
            self.on_fewer()


def number_of(level: str) -> int:
    """The rank of a level. Raises `BadRequest` for one that MCP does not have."""
    if level not in _LEVELS:
        raise BadRequest(f"level: must be one of {', '.join(_LEVELS)}", field="level")
    return _LEVELS[level]
