"""After a standstill of this process: receive all that the Server has sent before any call begins.

A process that was stopped for a while (SIGSTOP, a debugger, an overloaded machine) finds calls in its buffers whose
agents were told long ago that they took too long. The cancels of these calls are behind them: in the same buffer, in
the kernel's, or still at the Server, which could not write more. If such a call began, its tool would run although its
agent has given up.

A standstill is noticed by a clock that ticks four times a second: the last tick was more than a second ago. The clock
is also read when a call arrives, since that may be handled before the timer. The Server is then asked something that
changes nothing. Packets of a connection keep their order, so everything that the Server had sent before, cancels
included, is here when its answer is. Calls that arrive meanwhile wait for the answer and begin then, unless they were
cancelled; what is read together from the connection is handled together, cancels before calls begin. If the connection
is lost instead, the waiting calls do not begin at all, and the Server sends those again that are still wanted. Another
standstill while the answer is awaited asks again; only the last answer counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from a2c_smcp.errors import CallTimeout, Unavailable
from a2c_smcp.loops import cancel_and_wait

__all__ = ["StandstillGuard"]

_TICK = 0.25
_STANDSTILL = 1.0


class StandstillGuard:
    """For one connection. `ask` asks the Server something that changes nothing, and returns with the answer."""

    def __init__(self, ask: Callable[[], Awaitable[None]]) -> None:
        self._ask = ask
        self._clock = asyncio.get_running_loop().time
        self._last_tick = self._clock()
        self._asking: asyncio.Future[None] | None = None

    async def watch(self) -> None:
        """Watch the clock until cancelled."""
        try:
            while True:
                await asyncio.sleep(_TICK)
                self._tick()
        finally:
            if self._asking:
                await cancel_and_wait(self._asking)

    def must_wait(self) -> bool:
        """Whether a call may not begin yet."""
        self._tick()
        return self._asking is not None

    async def wait(self, timeout: float) -> float:
        """Wait until a call may begin. Returns the rest of its timeout. Raises `CallTimeout` or `Unavailable`."""
        if not self.must_wait():
            return timeout
        deadline = self._clock() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                await self._answered()
        except TimeoutError:
            raise CallTimeout(f"it could not begin within {timeout:g} s", outcome="not_run") from None
        return max(deadline - self._clock(), 0.001)

    async def _answered(self) -> None:
        while asking := self._asking:
            await asyncio.wait([asking])
            if _has_failed(asking) and self._asking is None:
                raise Unavailable("the connection was lost before the call could begin", outcome="not_run")

    def _tick(self) -> None:
        now = self._clock()
        if now - self._last_tick > _STANDSTILL:
            before, self._asking = self._asking, asyncio.ensure_future(self._ask())
            self._asking.add_done_callback(self._ended)
            if before:
                before.cancel()
        self._last_tick = now

    def _ended(self, asking: asyncio.Future[None]) -> None:
        if asking is self._asking:
            self._asking = None
        _has_failed(asking)  # marks the exception as retrieved


def _has_failed(asking: asyncio.Future[None]) -> bool:
    return asking.cancelled() or asking.exception() is not None
