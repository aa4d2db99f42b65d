"""Sends tells on the current connection to each office, in order with the answers of calls (WIRE §9).

A tell is written at once, by the code that has something to tell. The answer of a call is written in the same way, so
progress never arrives after it. Nothing is queued: without a connection a tell is dropped, and a sender that must
not lose it (an open question) tells it again when `on_connected` is called.

**Whether the Server carries tells** is known from its acks, per connection. `{"delivered": true}`: it does. An error
other than 400 comes from a Server that does, too: there is no such agent now, or it cannot be reached; only this tell
is lost. Any other ack, such as the empty one of a published Server, or none within five seconds: it does not, nothing
more is told on this connection, and `on_not_carried` is called, once. A connection that is lost says nothing about
its Server.

**Rates.** A Server takes 200 tells a second of a computer. 150 of them are for progress, logs and changes of resources,
of these 50 for logs. Progress and logs that are over are dropped and counted, changes are told later. So there is
always room for questions, which are few and bounded elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import Any, Literal, Protocol, TypeAlias

from a2c_smcp.computer.approval import Caller
from a2c_smcp.connection import LOST
from a2c_smcp.errors import BadRequest, NotFound, SMCPError, TooLarge
from a2c_smcp.mcp_host.rate import Rate

__all__ = ["Delivery", "ProgressTells", "TellKind", "TellLine", "Tells"]

logger = logging.getLogger(__name__)

TellKind: TypeAlias = Literal["progress", "question", "question_ended", "log", "resource"]

_MOST, _MOST_LOGS = 150, 50
_PROGRESS_RATE, _PROGRESS_AT_ONCE = 5, 4
"""Reports of one call in a second, and at once. With the last one they are at most ten, which a Server takes."""
_RATED = ("progress", "log", "resource")
_REPEATED = ("resource",)


class Delivery(Enum):
    """What became of a tell.

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

    A Server that has not acked a tell after `ack_timeout` seconds does not carry tells.
    """

    def __init__(self, name: str, *, ack_timeout: float = 5.0) -> None:
        self.dropped: Counter[TellKind] = Counter()
        self.on_connected: list[Callable[[str], None]] = []
        self.on_not_carried: list[Callable[[str], None]] = []
        self._name = name
        self._ack_timeout = ack_timeout
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
        """Whether tells may arrive. True as long as nothing else is known, also without a connection."""
        line = self._lines.get(office)
        return line is None or line.is_carrying

    def tell(self, to: Caller, kind: TellKind, data: dict[str, Any], then: OnDelivery = lambda _: None) -> None:
        """Send a tell now, or drop it. `then` is called with what became of it, unless it was dropped and counted."""
        line = self._lines.get(to.office)
        if line is None:
            then(Delivery.LOST)
        elif not line.is_carrying:
            then(Delivery.NOT_CARRIED)
        elif not self._is_allowed(kind):
            if kind in _REPEATED:
                then(Delivery.LATER)
            else:
                self.dropped[kind] += 1
        else:
            told = data if to.seal is None else to.seal.notice(f"notify:tell_{kind}", data)
            line.send(f"server:tell_{kind}", {"agent": to.agent, "computer": self._name, **told}, then)

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
        if isinstance(ack, dict) and ack.get("delivered") is True:
            return Delivery.DELIVERED
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


class ProgressTells:
    """The progress of one call. A report that comes too soon waits; a newer one replaces it."""

    def __init__(self, tells: Tells, caller: Caller, req_id: str) -> None:
        self._tells = tells
        self._caller = caller
        self._req_id = req_id
        self._rate = Rate(_PROGRESS_RATE, at_once=_PROGRESS_AT_ONCE)
        self._waiting: dict[str, Any] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def report(self, progress: float, total: float | None, message: str | None) -> None:
        told = {"req_id": self._req_id, "progress": progress, "total": total, "message": message}
        self._waiting = {key: value for key, value in told.items() if value is not None}
        if self._timer is None:
            self._send()

    def end(self) -> None:
        """Tell what waits. The answer of the call follows."""
        if self._timer is not None:
            self._timer.cancel()
        self._tell()

    def _send(self) -> None:
        self._timer = None
        if self._waiting and self._rate.allows():
            self._tell()
        elif self._waiting:
            self._timer = asyncio.get_running_loop().call_later(1 / _PROGRESS_RATE, self._send)

    def _tell(self) -> None:
        told, self._waiting = self._waiting, None
        if told is not None:
            self._tells.tell(self._caller, "progress", told)
