"""One request of an agent from its first sending to its answer: when it is sent again, and what is known of its tool.

A request may outlive its connection. Three things can go wrong with it, and each leaves something else known (WIRE §5):

- An error says `not_run`: nothing has happened, and it may be sent again under its `req_id`. That is done where time
  alone may help: 503 (the shared store is away, the Server is going down), and 404 for a computer that is on its way
  back. All other errors are the caller's.
- The connection is lost, or an error says `unknown`: the tool may have run. It is sent again, marked `sent_before`, to
  a Server that knows what that means: it joins the first, or answers with what is kept, or passes it on to a computer
  that deduplicates, and otherwise says 410. To any other Server it is not sent again: the caller is told `unknown`.
- The time is over. The caller is told 408, with whether it was ever sent.

Whatever is raised for a tool call has `details.outcome`. Once it may have run, no later `not_run` is believed: that is
said of the last sending only.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Protocol

from a2c_smcp.connection import Connection, ConnectionLost
from a2c_smcp.errors import CallTimeout, ComputerLeft, ComputerNotFound, SMCPError, Unavailable
from a2c_smcp.protocol.routing import SENT_BEFORE

__all__ = ["GRACE", "Presence", "Resend", "RetriedRequest"]

logger = logging.getLogger(__name__)

GRACE = 2.0
"""An agent waits longer than the tool may run: the Server, which knows more, answers first (WIRE §5)."""

_LOOK_AGAIN = 2.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0


class Resend(Enum):
    """Whether a request may be sent a second time."""

    NEVER = auto()
    """Nobody knows what it does."""
    SAFELY = auto()
    """It does nothing that matters twice."""
    BY_RULE = auto()
    """It runs a tool."""


class Presence(Protocol):
    """What a request needs of the connection that it is asked in."""

    is_guarded: bool
    """Whether the Server keeps a call that is marked as sent before from running twice."""

    async def online(self) -> Connection:
        """The connection that is up, waited for. Raises when there will be none."""

    def news(self) -> int:
        """A number that grows with everything that makes another try worth while."""

    async def after_news(self, seen: int, patience: float) -> None:
        """Waits until there is more of it than was seen, but not for long."""

    def awaited_until(self, computer: object, office: object) -> float:
        """Until when, on the loop's clock, a computer is expected back that was there when the connection was lost."""


@dataclass(slots=True)
class RetriedRequest:
    """`then` makes something of the answer before any later event is looked at."""

    presence: Presence
    event: str
    data: Mapping[str, Any]
    then: Callable[[Any], Any] | None
    again: Resend
    may_have_run: bool = False
    _is_on_its_way: bool = False
    _first_connection: Connection | None = None
    _has_lost_connection: bool = False
    _tries: int = 0
    _last: SMCPError | None = field(default=None)

    async def answer(self, seconds: float) -> Any:
        """Raises the error that the answer carries, and `CallTimeout` when the time is over."""
        deadline = asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout_at(deadline):
                return await self._insist(deadline)
        except TimeoutError:
            raise self._judged(self._too_late(seconds)) from None
        except SMCPError as error:
            raise self._judged(error) from None

    async def _insist(self, deadline: float) -> Any:
        while True:
            connection, seen = await self.presence.online(), self.presence.news()
            try:
                return await self._ask(connection, deadline)
            except SMCPError as error:
                pause = self._pause_after(error, is_old=self.presence.news() != seen)
                if pause is None:
                    raise self._told(error) from None
                self._last = error
            if pause > 0:
                logger.info("%s waits: %s", self.event, self._last)
                await self.presence.after_news(seen, pause)

    async def _ask(self, connection: Connection, deadline: float) -> Any:
        self._is_on_its_way = True
        self._first_connection = self._first_connection or connection
        self._has_lost_connection = connection is not self._first_connection
        data = self._data(deadline - asyncio.get_running_loop().time()) if self._tries else self.data
        self._tries += 1
        try:
            answer = await connection.ask(self.event, data, None, self.then)
            if error := SMCPError.from_wire(answer):
                raise error
        except SMCPError as error:
            self._is_on_its_way = False
            self.may_have_run = self.may_have_run or error.outcome != "not_run"
            raise
        return answer

    def _data(self, left: float) -> Mapping[str, Any]:
        """With the time that is left, and marked if the tool may have run."""
        more: dict[str, Any] = {"timeout": max(1, math.floor(left - GRACE))} if "timeout" in self.data else {}
        if self.may_have_run and self.again is Resend.BY_RULE:
            more[SENT_BEFORE] = True
        return {**self.data, **more}

    def _pause_after(self, error: SMCPError, *, is_old: bool) -> float | None:
        """How long to wait before the next sending; `None` if there is none.

        An error `is_old` if there was news after the sending: the computer may have entered just behind it.
        """
        if self.again is Resend.NEVER or not self._may_repeat():
            return None
        if isinstance(error, ConnectionLost):
            return 0.0
        if isinstance(error, Unavailable):
            longest: float = min(_FIRST_PAUSE * 2 ** min(self._tries - 1, 10), _LONGEST_PAUSE)
            return longest * random.uniform(0.5, 1.0)  # noqa: S311, not a secret
        if isinstance(error, ComputerNotFound | ComputerLeft) and self._has_lost_connection:
            return _LOOK_AGAIN
        if isinstance(error, ComputerNotFound) and is_old:
            return 0.0
        if isinstance(error, ComputerNotFound):
            until = self.presence.awaited_until(self.data.get("computer"), self.data.get("office_id"))
            left = until - asyncio.get_running_loop().time()
            return min(left, _LOOK_AGAIN) if left > 0 else None
        return None

    def _may_repeat(self) -> bool:
        return self.again is Resend.SAFELY or not self.may_have_run or self.presence.is_guarded

    def _told(self, error: SMCPError) -> SMCPError:
        if isinstance(error, ConnectionLost) and self.again is Resend.BY_RULE:
            return ConnectionLost("whether the tool has run is not known, and this Server might run it a second time")
        return error

    def _too_late(self, seconds: float) -> CallTimeout:
        last = f", last it was told: {self._last}" if self._last else ""
        return CallTimeout(f"{self.event} was not answered within {seconds:g} s{last}")

    def _judged(self, error: SMCPError) -> SMCPError:
        if self.again is Resend.BY_RULE and error.outcome != "done":
            error.outcome = "unknown" if self.may_have_run or self._is_on_its_way else "not_run"
        return error
