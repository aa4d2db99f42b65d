"""When an agent's request is sent again, and what is then known of its tool.

A request may outlive its connection. It can fail in three ways, and each leaves a different state (WIRE §5):

- The error says `not_run`: the tool has not begun, so the request may be sent again under its `req_id`. It is sent
  again only where waiting may help: 503 (the shared store is away, the Server shuts down), and 404 for a computer that
  is expected back. All other errors are raised.
- The connection is lost, or the error says `unknown`: the tool may have run. The request is sent again, marked
  `sent_before` and with the seat of its computer, to a Server that deduplicates: it joins the first call, answers
  with the kept result, passes the request on to this same computer if that deduplicates, or answers 410. To any other
  Server it is not sent again, and the caller gets an error with the outcome `unknown`.
- The timeout is over: the caller gets 408, with the outcome `not_run` only if the request was never sent.

Every error of a tool call has `details.outcome`. If the tool may have run once, a later `not_run` is ignored, because
it describes only the last attempt. So no tool runs twice, and none is reported as not run when it may have run.

`ReturningComputers` are those that were in the office when the connection was lost. When a Server restarts, agent and
computers reconnect in any order, so a 404 in the first seconds means "not back yet", and the request waits.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

from a2c_smcp.agent.desktops import Seat
from a2c_smcp.connection import Connection, ConnectionLost
from a2c_smcp.errors import CallTimeout, ComputerLeft, ComputerNotFound, SMCPError, Unavailable
from a2c_smcp.protocol.offices import SENT_BEFORE
from a2c_smcp.telemetry import conventions, tracing

logger = logging.getLogger(__name__)

AGENT_MARGIN = 2.0
"""Seconds that an agent waits beyond the timeout of a call, so that the Server answers first (WIRE §5)."""

_NEXT_TRY = 2.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
_RETURN_TIME = 5.0  # seconds; a Server keeps the seats of a lost client as long (WIRE §4)


class Resend(Enum):
    """When a request may be sent a second time."""

    NEVER = auto()
    """Its effect is unknown."""
    ALWAYS = auto()
    """It is idempotent."""
    DEDUPLICATED = auto()
    """It runs a tool: only to a Server that deduplicates, once the tool may have run."""


class ConnectionState(Protocol):
    """The agent's connection, as a request sees it."""

    is_deduplicated: bool
    """True if the Server never runs a call twice that is marked `sent_before`."""

    async def connected(self) -> Connection:
        """Wait for a connection and return it. Raises if the agent was closed or refused."""

    def version(self) -> int:
        """A number that grows whenever a failed request may succeed if it is sent again."""

    async def after_version(self, seen: int, timeout: float) -> None:
        """Wait until the version is larger than `seen`, at most `timeout` seconds."""

    def expected_until(self, computer: object, office: object) -> float:
        """Until when, on the loop's clock, a computer is expected back; 0 if it is not."""

    def seat_of(self, computer: object, office: object) -> str | None:
        """The identity of a computer's seat, if the Server has told it."""


@dataclass(slots=True)
class RetriedRequest:
    """One request, from its first sending to its answer. `then` converts the answer before any later event is read."""

    state: ConnectionState
    event: str
    data: Mapping[str, Any]
    then: Callable[[Any], Any] | None
    resend: Resend
    may_have_run: bool = False
    _seat: str | None = None
    _is_sent: bool = False
    _first_connection: Connection | None = None
    _has_lost_connection: bool = False
    _sendings: int = 0
    _last_error: SMCPError | None = None

    async def answer(self, seconds: float) -> Any:
        """Return the answer. Raises the error that it carries, or `CallTimeout` after so many seconds."""
        deadline = asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout_at(deadline):
                return await self._send_until_answered(deadline)
        except TimeoutError:
            last = f", the last error was: {self._last_error}" if self._last_error else ""
            late = CallTimeout(f"{self.event} was not answered within {seconds:g} s{last}")
            raise self._with_outcome(late) from None
        except SMCPError as error:
            raise self._with_outcome(error) from None

    async def _send_until_answered(self, deadline: float) -> Any:
        while True:
            began = time.monotonic()
            connection, seen = await self.state.connected(), self.state.version()
            tracing.record_wait(conventions.connection_wait, began, self.event)
            try:
                if not self._sendings:
                    return await self._ask(connection, deadline)
                with tracing.span(conventions.resend, None, self.event, self._sendings):
                    return await self._ask(connection, deadline)
            except SMCPError as error:
                pause = self._pause_after(error, is_outdated=self.state.version() != seen)
                if pause is None:
                    if isinstance(error, ConnectionLost) and self.resend is Resend.DEDUPLICATED:
                        about = "it is unknown whether the tool has run, and this Server could run it a second time"
                        raise ConnectionLost(about) from None
                    raise
                self._last_error = error
            if pause > 0:
                logger.info("%s waits: %s", self.event, self._last_error)
                began = time.monotonic()
                await self.state.after_version(seen, pause)
                tracing.record_wait(conventions.connection_wait, began, self.event)

    async def _ask(self, connection: Connection, deadline: float) -> Any:
        self._is_sent = True
        self._first_connection = self._first_connection or connection
        self._has_lost_connection = connection is not self._first_connection
        if not self.may_have_run:
            self._seat = self.state.seat_of(self.data.get("computer"), self.data.get("office_id"))
        data = self._data(deadline - asyncio.get_running_loop().time()) if self._sendings else self.data
        self._sendings += 1
        try:
            answer = await connection.ask(self.event, data, None, self.then)
            if error := SMCPError.from_wire(answer):
                raise error
        except SMCPError as error:
            self._is_sent = False
            self.may_have_run = self.may_have_run or error.outcome != "not_run"
            raise
        return answer

    def _data(self, left: float) -> Mapping[str, Any]:
        """The payload with the remaining time, marked if the tool may have run.

        With `extend`, the timeout is the longest silence of the tool, which stays the same.
        """
        is_limited = "timeout" in self.data and not self.data.get("extend")
        more: dict[str, Any] = {"timeout": max(1, math.floor(left - AGENT_MARGIN))} if is_limited else {}
        if self.may_have_run and self.resend is Resend.DEDUPLICATED:
            more |= {SENT_BEFORE: True, **({"seat": self._seat} if self._seat else {})}
        return {**self.data, **more}

    def _pause_after(self, error: SMCPError, *, is_outdated: bool) -> float | None:
        """Seconds to wait before the next sending, or `None` if the error is final.

        An error `is_outdated` if the version grew after the sending: the computer may have entered since then.
        """
        if not self._may_repeat():
            return None
        if isinstance(error, ConnectionLost):
            return 0.0
        if isinstance(error, Unavailable):
            longest: float = min(_FIRST_PAUSE * 2 ** min(self._sendings - 1, 10), _LONGEST_PAUSE)
            return longest * random.uniform(0.5, 1.0)  # noqa: S311, not a secret
        if isinstance(error, ComputerNotFound | ComputerLeft) and self._has_lost_connection:
            return _NEXT_TRY
        if isinstance(error, ComputerNotFound) and is_outdated:
            return 0.0
        if isinstance(error, ComputerNotFound):
            until = self.state.expected_until(self.data.get("computer"), self.data.get("office_id"))
            left = until - asyncio.get_running_loop().time()
            return min(left, _NEXT_TRY) if left > 0 else None
        return None

    def _may_repeat(self) -> bool:
        if self.resend is Resend.DEDUPLICATED:
            return not self.may_have_run or self.state.is_deduplicated
        return self.resend is Resend.ALWAYS

    def _with_outcome(self, error: SMCPError) -> SMCPError:
        if self.resend is Resend.DEDUPLICATED and error.outcome != "done":
            error.outcome = "unknown" if self.may_have_run or self._is_sent else "not_run"
        return error


class ReturningComputers:
    """Computers that are expected back after a reconnect: their tools stay known, and calls to them wait."""

    def __init__(self) -> None:
        self._lost: set[Seat] = set()
        self._until: dict[Seat, float] = {}
        self._ends: dict[str, asyncio.TimerHandle] = {}

    def lose(self, seats: Iterable[Seat]) -> None:
        """The connection is lost, and these computers were there."""
        self._lost.update(seats)

    def expect(self, office: str, when_over: Callable[[], None]) -> None:
        """Connected again: the lost computers of this office have `_RETURN_TIME`, then `when_over` is called."""
        seats = {seat for seat in self._lost if seat.office == office}
        self._lost -= seats
        if not seats:
            return
        loop = asyncio.get_running_loop()
        self._until |= dict.fromkeys(seats, loop.time() + _RETURN_TIME)
        if end := self._ends.get(office):
            end.cancel()
        self._ends[office] = loop.call_later(_RETURN_TIME, self._end, office, when_over)

    def until(self, seat: Seat) -> float:
        """Until when it is expected, on the loop's clock; 0 if it is not."""
        return self._until.get(seat, 0.0)

    def discard(self, seat: Seat) -> None:
        """The computer is back, or has left."""
        self._lost.discard(seat)
        self._until.pop(seat, None)

    def clear(self) -> None:
        self._lost.clear()
        self._until.clear()
        for end in self._ends.values():
            end.cancel()
        self._ends.clear()

    def _end(self, office: str, when_over: Callable[[], None]) -> None:
        del self._ends[office]
        missing = [seat for seat in self._until if seat.office == office]
        for seat in missing:
            del self._until[seat]
        if missing:
            when_over()
