"""CallTurns of the calls whose questions could be taken for one another's, at one server of an older revision.

Such a server does not say which call it asks for (`server_requests`). So a call for which an agent may be asked runs
alone if its tool asks, or if nobody knows yet: a tool is *settled* when a call of it has ended and nothing was asked,
or it was said for which call.
Calls of settled tools take no turn, nor do calls for which nobody or only the owner is asked, unless their tool is
known to ask: then they run beside one another, never beside a call that runs alone.

A tool that is not known waits `_UNKNOWN_WAITS` seconds at the most, because the call that has the turn may wait for it;
after a call of the same tool, which will soon show whether it asks, `_SAME_WAITS`. A call
that ended without the server's answer keeps its turn for `LINGERS` seconds, in which its last question may come.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from a2c_smcp.errors import CallTimeout
from a2c_smcp.mcp_host.sessions.tool_request import Asking

LINGERS = 1.0
_UNKNOWN_WAITS, _SAME_WAITS = 5.0, 30.0


class CallTurns:
    """The turns at one server. `are_needed` is false when its revision says which call a question belongs to."""

    def __init__(self) -> None:
        self.are_needed = True
        self._asking: set[str] = set()
        self._settled: set[str] = set()
        self._gate = asyncio.Lock()
        self._has_turn = ""
        self._beside = 0
        self._none_beside = asyncio.Event()

    def asked(self, what: str) -> None:
        """Note that the server has asked during a request of this kind, and has not said for which."""
        self._asking.add(what)
        self._settled.discard(what)

    def answered(self, what: str) -> None:
        """Note that the server has answered a request of this kind, or has said for which it asks."""
        if what not in self._asking:
            self._settled.add(what)

    def is_settled(self, what: str) -> bool:
        return what in self._settled

    def concern(self, what: str, asking: Asking) -> bool:
        """True if a call of this tool, or another request of this kind, needs a turn."""
        return self.are_needed and (what in self._asking or (what not in self._settled and _is_for_agent(asking)))

    @asynccontextmanager
    async def turn(self, what: str, asking: Asking) -> AsyncGenerator[None, None]:
        """Wait for a turn, and have it in this block."""
        if not await self._pass(what):
            yield
        elif _is_for_agent(asking):
            async with self._alone():
                yield
        else:
            self._gate.release()
            self._beside += 1
            try:
                yield
            finally:
                self._beside -= 1
                self._none_beside.set()

    @asynccontextmanager
    async def _alone(self) -> AsyncGenerator[None, None]:
        """Give the gate back at the end."""
        lingers = 0.0
        try:
            while self._beside:
                self._none_beside.clear()
                await self._none_beside.wait()
            yield
        except (asyncio.CancelledError, CallTimeout):
            lingers = LINGERS
            raise
        finally:
            asyncio.get_running_loop().call_later(lingers, self._gate.release)

    async def _pass(self, what: str) -> bool:
        """Return with the gate; without it for what needs no turn now, or has waited long enough."""
        while self.are_needed and what not in self._settled:
            try:
                async with asyncio.timeout(self._longest_wait(what)):
                    await self._gate.acquire()
            except TimeoutError:
                if what not in self._asking:
                    return False
            else:
                if self.are_needed and what not in self._settled:
                    self._has_turn = what
                    return True
                self._gate.release()
        return False

    def _longest_wait(self, what: str) -> float | None:
        if what in self._asking:
            return None
        return _SAME_WAITS if self._has_turn == what else _UNKNOWN_WAITS


def _is_for_agent(asking: Asking) -> bool:
    """True if a question of the request goes to its agent."""
    return asking.on_input is not None and asking.on_unnamed is None
