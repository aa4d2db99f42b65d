"""Log messages of MCP servers, for the clients whose calls they belong to.

A computer does not say which call a message belongs to. So a client is sent the messages of an MCP server while it is
the only one that has calls running there: no client ever sees what was logged for another. Computers are asked for the
lowest level that a client has wanted of them; that stays until the bridge ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Hashable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, get_args

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.bridge.offers import Target
from a2c_smcp.errors import SMCPError
from a2c_smcp.mcp_events import LogLevel
from a2c_smcp.registry.remote.rounds import Round

__all__ = ["CallLogs"]

logger = logging.getLogger(__name__)

_LEVELS = get_args(LogLevel)
_SET_WITHIN = 3.0
_SETTLES_WITHIN = 1.0


@dataclass(eq=False, slots=True)
class _RunningCall:
    client: Hashable
    mcp_server: str | None
    round: Round


class CallLogs:
    """The running calls whose clients want messages."""

    def __init__(self, agent: AsyncSMCPAgentClient, office: str) -> None:
        self._agent, self._office = agent, office
        self._calls: dict[str, list[_RunningCall]] = {}
        self._levels: dict[str, int] = {}
        self._setting: dict[str, asyncio.Lock] = {}
        self._stop_listening: Callable[[], None] = lambda: None

    def open(self) -> None:
        self._stop_listening = self._agent.listen(self)

    def close(self) -> None:
        self._stop_listening()

    @asynccontextmanager
    async def of_call(
        self, client: Hashable, target: Target, mcp_server: str | None, level: LogLevel, round_: Round
    ) -> AsyncGenerator[None, None]:
        """Sends messages of this level and above to the client of a call that is made in this block."""
        await self._set_level(target.computer, _LEVELS.index(level))
        call = _RunningCall(client, mcp_server, round_)
        calls = self._calls.setdefault(target.computer, [])
        calls.append(call)
        try:
            yield
            with suppress(TimeoutError):
                async with asyncio.timeout(_SETTLES_WITHIN):
                    await self._agent.events_handled()  # what was logged before the answer is sent before it
        finally:
            calls.remove(call)

    def on_log(self, computer: str, log: dict[str, Any], office: str) -> None:
        if office != self._office or log.get("level") not in _LEVELS:
            return
        server, name = log.get("mcp_server"), log.get("logger")
        calls = [call for call in self._calls.get(computer, ()) if call.mcp_server in (None, server)]
        if len({call.client for call in calls}) == 1:
            calls[-1].round.log(log["level"], log.get("data"), name if isinstance(name, str) else None)

    async def _set_level(self, computer: str, level: int) -> None:
        if self._levels.get(computer, len(_LEVELS)) <= level:
            return
        async with self._setting.setdefault(computer, asyncio.Lock()):
            if self._levels.get(computer, len(_LEVELS)) <= level:
                return
            try:
                async with asyncio.timeout(_SET_WITHIN):
                    await self._agent.set_log_level(computer, _LEVELS[level], office=self._office)
            except (SMCPError, TimeoutError) as error:
                logger.info("%s: its logs are not passed on: %s", computer, error)
            self._levels[computer] = level
