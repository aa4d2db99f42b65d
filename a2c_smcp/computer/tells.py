"""Sends tells on the current connection to each office, in order with the answers of calls (WIRE §9).

A tell is written at once, by the code that has something to tell. The answer of a call is written in the same way, so
progress never arrives after it. Nothing is queued: without a connection a tell is dropped, and a sender that must
not lose it (an open question) tells it again when `on_connected` is called.

**Whether the Server carries tells** is known from its acks, per connection. `{"delivered": true}`: it does, and so it
does with `false`, which says that the agent that is meant has left its seat. An error other than 400 comes from a
Server that does, too: there is no such agent now, or it cannot be reached; only this tell is lost. Any other ack, such
as the empty one of a published Server, or none within five seconds: it does not, nothing more is told on this
connection, and `on_not_carried` is called, once. A connection that is lost says nothing about its Server.

**Rates.** A Server takes 200 tells a second of a computer. 150 of them are for progress, states, logs and changes of
resources, of these 50 for logs. Progress and logs that are over are dropped and counted, the others are told later. So
there is always room for questions, which are few and bounded elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, get_args

from a2c_smcp.computer.consent.approval import Caller
from a2c_smcp.computer.secrets.mask import Mask
from a2c_smcp.connection import LOST
from a2c_smcp.errors import BadRequest, NotFound, SMCPError, TooLarge
from a2c_smcp.mcp_events import CallState
from a2c_smcp.mcp_host.limits import Rate
from a2c_smcp.mcp_host.sessions.server_info import LARGEST, LogLevel, LogMessage
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.protocol.structure import TOLD

logger = logging.getLogger(__name__)

TellKind: TypeAlias = Literal["progress", "state", "question", "question_ended", "log", "resource"]

_MOST, _MOST_LOGS = 150, 50
_PROGRESS_RATE, _PROGRESS_AT_ONCE = 5, 4
"""Reports of one call in a second, and at once. With the last one they are at most ten, which a Server takes."""
_STATE_LASTS = 0.1
"""Seconds from a change of the state to its tell: of a quick call none is told."""
_AGAIN = 1.0
_RATED = ("progress", "state", "log", "resource")
_REPEATED = ("state", "resource")


class Delivery(Enum):
    """The result of sending a tell.

    `UNDELIVERED`: there is no such agent now. `LATER`: the Server could not deliver it. `LOST`: the connection ended
    before its ack, or there is none.
    """

    DELIVERED = auto()
    UNDELIVERED = auto()
    LATER = auto()
    NOT_CARRIED = auto()
    LOST = auto()


OnDelivery: TypeAlias = Callable[[Delivery], None]


class TellLine(Protocol):
    """The part of `Connection` that tells use."""

    def post(self, event: str, data: dict[str, Any], then: Callable[[Any], None]) -> None: ...


class Tells:
    """The connections to the offices of one computer. Callbacks are called with the office.

    A Server that has not acked a tell after `ack_timeout` seconds does not carry tells. Each tell is masked as it
    leaves; what is of an MCP server is masked before, too, with the words that only this server was given. While it
    `is_silent`, no progress, logs and changes of resources leave: the computer is frozen.
    """

    def __init__(
        self, name: str, mask: Mask, *, ack_timeout: float = 5.0, is_silent: Callable[[], bool] = lambda: False
    ) -> None:
        self.dropped: Counter[TellKind] = Counter()
        self.on_connected: list[Callable[[str], None]] = []
        self.on_not_carried: list[Callable[[str], None]] = []
        self._name, self._mask = name, mask
        self._ack_timeout, self._is_silent = ack_timeout, is_silent
        self._lines: dict[str, _Line] = {}
        self._rate, self._log_rate = Rate(_MOST), Rate(_MOST_LOGS)

    @contextmanager
    def connected(self, office: str, connection: TellLine) -> Iterator[None]:
        """Inside the `with` block, tells of this office are sent on this connection."""
        line = self._lines[office] = _Line(
            connection, self._ack_timeout, lambda: _call_all(self.on_not_carried, office)
        )
        _call_all(self.on_connected, office)
        try:
            yield
        finally:
            line.close()
            if self._lines.get(office) is line:
                del self._lines[office]

    def are_carried(self, office: str) -> bool:
        """True if tells may arrive: as long as nothing else is known, also without a connection."""
        line = self._lines.get(office)
        return line is None or line.is_carrying

    def tell(self, to: Caller, kind: TellKind, data: dict[str, Any], then: OnDelivery = lambda _: None) -> None:
        """Send a tell now, or drop it. `then` is called with what became of it, unless it was dropped and counted."""
        line = self._lines.get(to.office)
        if line is None or (kind in _RATED and self._is_silent()):
            then(Delivery.LOST)
        elif not line.is_carrying:
            then(Delivery.NOT_CARRIED)
        elif not self._is_allowed(kind):
            if kind in _REPEATED:
                then(Delivery.LATER)
            else:
                self.dropped[kind] += 1
        else:
            masked = self._mask.data(data, TOLD)
            told = masked if to.seal is None else to.seal.notice(f"notify:tell_{kind}", masked)
            who = {"agent": to.agent, "seat": to.seat} if to.seat else {"agent": to.agent}
            line.send(f"server:tell_{kind}", {**who, "computer": self._name, **told}, then)

    def _is_allowed(self, kind: TellKind) -> bool:
        if kind not in _RATED:
            return True
        return (kind != "log" or self._log_rate.allows()) and self._rate.allows()


class _Line:
    """The tells of one connection."""

    def __init__(self, connection: TellLine, ack_timeout: float, on_not_carried: Callable[[], None]) -> None:
        self.is_carrying = True
        self._connection = connection
        self._ack_timeout = ack_timeout
        self._on_not_carried = on_not_carried
        self._timers: set[asyncio.TimerHandle] = set()

    def send(self, event: str, data: dict[str, Any], then: OnDelivery) -> None:
        timer = asyncio.get_running_loop().call_later(self._ack_timeout, lambda: settle(None))

        def settle(ack: Any) -> None:
            if timer in self._timers:
                self._timers.discard(timer)
                timer.cancel()
                then(self._judged(ack))

        self._timers.add(timer)
        try:
            self._connection.post(event, data, settle)
        except (BadRequest, TooLarge) as error:  # what cannot be sent says nothing about the Server
            logger.warning("%s was not sent: %s", event, error)
            settle(LOST)

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _judged(self, ack: Any) -> Delivery:
        if ack is LOST:
            return Delivery.LOST
        if isinstance(ack, dict) and isinstance(delivered := ack.get("delivered"), bool):
            return Delivery.DELIVERED if delivered else Delivery.UNDELIVERED
        error = SMCPError.from_wire(ack)
        if error is not None and not isinstance(error, BadRequest):
            return Delivery.UNDELIVERED if error.code == NotFound.code else Delivery.LATER
        if self.is_carrying:
            self.is_carrying = False
            logger.info("this Server does not carry tells: no progress, questions or logs go to agents")
            self._on_not_carried()
        return Delivery.NOT_CARRIED


def _call_all(listeners: list[Callable[[str], None]], office: str) -> None:
    for listener in list(listeners):
        listener(office)


class CallTells:
    """Tells an agent the state of one call, and its progress if that is wanted, too."""

    def __init__(self, tells: Tells, caller: Caller, req_id: str, *, progress: bool) -> None:
        def tell(kind: TellKind, told: dict[str, Any], then: OnDelivery) -> None:
            tells.tell(caller, kind, {"req_id": req_id, **told}, then)

        self._progress = _LatestTell(partial(tell, "progress")) if progress else None
        self._state = _LatestTell(partial(tell, "state"), _STATE_LASTS)

    def report(self, progress: float, total: float | None, message: str | None) -> None:
        if self._progress:
            self._progress.put({"progress": progress, "total": total, "message": message})

    def changed(self, state: CallState, reason: str) -> None:
        self._state.put({"state": state, "since": time.time(), "reason": reason or None})

    def end(self) -> None:
        """Tell the progress that waits. The answer of the call follows."""
        if self._progress:
            self._progress.end()
        self._state.drop()


class _LatestTell:
    """Tells of one kind about one call. The first waits for `delay` seconds, one that comes too soon for its turn.

    A newer one replaces it.
    """

    def __init__(self, tell: Callable[[dict[str, Any], OnDelivery], None], delay: float = 0.0) -> None:
        self._tell_now, self._delay = tell, delay
        self._rate = Rate(_PROGRESS_RATE, at_once=_PROGRESS_AT_ONCE)
        self._waiting: dict[str, Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False

    def put(self, told: dict[str, Any]) -> None:
        self._waiting = {key: value for key, value in told.items() if value is not None}
        if self._timer is None:
            self._send_in(self._delay)

    def end(self) -> None:
        """Tell what waits."""
        self.drop()
        self._tell()

    def drop(self) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()

    def _send_in(self, seconds: float) -> None:
        if seconds:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._send)
        else:
            self._send()

    def _send(self) -> None:
        self._timer = None
        if self._waiting and self._rate.allows():
            self._tell()
        elif self._waiting:
            self._send_in(1 / _PROGRESS_RATE)

    def _tell(self) -> None:
        told, self._waiting = self._waiting, None
        if told is not None:
            self._tell_now(told, lambda became: self._told(told, became))

    def _told(self, told: dict[str, Any], became: Delivery) -> None:
        if self._delay and became in (Delivery.LATER, Delivery.LOST) and not (self._waiting or self._is_over):
            self._waiting = told
            self._send_in(_AGAIN)


# Log messages of MCP servers: a bounded history for the owner, and tells for agents that ask (WIRE §9).
#
# A server is asked for messages of the lowest level that anybody wants: the owner, or an agent. If nobody has said,
# it sends what it sends by itself. What an agent asks for lapses after fifteen minutes unless it asks again, and ends
# when it leaves the office. Messages are masked when they are shown or told, so a secret that became known later is
# masked in older ones, too.

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
    """An agent's subscription to logs, with its end. `caller` is the agent as it asked last."""

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
        if isinstance(message.data, str) and len(message.data) > LARGEST:
            masked = self._mask.text(message.data, name)
            message = message._replace(data=masked if len(masked) <= LARGEST else f"{masked[:LARGEST]} …")
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

    def drop(self, matches: Callable[[Caller], bool]) -> None:
        """Stop telling these agents."""
        dropped = [key for key in self._watches if matches(key[0])]
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
            watch = self._watches.get((caller, server)) or self._watches[caller, None]
            if number >= watch.level:
                data = self._mask.data(message.data, server=server)
                named = {"logger": self._masked(message.logger, server)} if message.logger else {}
                told = {"mcp_server": server, "level": message.level, "data": data, **named}
                self._tells.tell(watch.caller, "log", told)

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
