"""The logs that an agent wants from MCP servers: levels are set on computers, and set again before they lapse.

A level lapses after 15 minutes, with the agent's seat, and when the computer restarts (WIRE §9). It is therefore sent
again every `_RENEWAL` seconds, whenever a seat was taken again, and when a computer has entered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from a2c_smcp.agent.refresh import Refresher
from a2c_smcp.agent.types import Seat
from a2c_smcp.endpoint import Reconnect
from a2c_smcp.errors import BadRequest, NotFound
from a2c_smcp.mcp_events import LogLevel

__all__ = ["LogLevels", "LogSource"]

logger = logging.getLogger(__name__)

_RENEWAL = 600.0  # seconds


class LogSource(NamedTuple):
    """An MCP server of a computer, or all of them. Without an office, the computer of this name in any office."""

    office: str | None
    computer: str
    mcp_server: str | None

    def __str__(self) -> str:
        return f"log level of {self.mcp_server or 'all servers'} on {self.computer}"

    def is_at(self, seat: Seat) -> bool:
        return self.computer == seat.computer and self.office in (None, seat.office)


class LogLevels:
    """The levels that were set, kept in force until they are stopped."""

    def __init__(self, send: Callable[[LogSource, LogLevel], Awaitable[None]], pauses: Reconnect) -> None:
        self._send = send
        self._levels: dict[LogSource, LogLevel] = {}
        self._renewals = Refresher(self._renew, pauses)
        self._timer: asyncio.TimerHandle | None = None

    def open(self) -> None:
        self._renewals.open()

    async def close(self) -> None:
        self._levels.clear()
        if self._timer:
            self._timer.cancel()
            self._timer = None
        await self._renewals.close()

    async def set(self, source: LogSource, level: LogLevel) -> None:
        """Raises the computer's refusal. Then nothing has changed."""
        await self._send(source, level)
        self._levels[source] = level
        if self._timer is None:
            self._start_timer()

    def stop(self, source: LogSource) -> None:
        """Logs that still come are dropped, unless another level covers them."""
        self._levels.pop(source, None)
        self._renewals.drop(source)

    def is_wanted(self, seat: Seat) -> bool:
        return any(source.is_at(seat) for source in self._levels)

    def on_seated(self, office: str) -> None:
        for source in self._levels:
            if source.office in (None, office):
                self._renewals.request(source)

    def on_enter(self, seat: Seat) -> None:
        for source in self._levels:
            if source.is_at(seat):
                self._renewals.request(source)

    def _start_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_RENEWAL, self._renew_all)

    def _renew_all(self) -> None:
        self._timer = None
        for source in self._levels:
            self._renewals.request(source)
        if self._levels:
            self._start_timer()

    async def _renew(self, source: LogSource) -> None:
        level = self._levels.get(source)
        if level is None:
            return
        try:
            await self._send(source, level)
        except (BadRequest, NotFound) as error:  # it is renewed when the computer enters, and later
            logger.info("%s was not set again: %s", source, error)
