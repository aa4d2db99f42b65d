"""After a standstill of this process: hear all that the Server has sent before any call begins.

A process that was stopped for a while (SIGSTOP, a debugger, a machine without time for it) finds calls in its buffers
whose agents have been told long ago that they took too long. The cancels are behind them: in the same buffer, in the
kernel's, or still at the Server, which could not write more. What was read together is handled together, cancels
before calls begin. For the rest the Server is asked something: packets of a connection keep their order, so
everything that it had sent before, cancels included, is here when the answer is. Calls that came meanwhile begin
then, if nobody has cancelled them; if the connection is lost instead, they do not begin at all, and the Server sends
those again that are still wanted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from a2c_smcp.errors import CallTimeout, Unavailable

__all__ = ["CatchUp"]

_TICK = 0.25
_STANDSTILL = 1.0


class CatchUp:
    """For one connection; `ask` asks the Server something that changes nothing, and returns with the answer."""

    def __init__(self, ask: Callable[[], Awaitable[None]]) -> None:
        self._ask = ask
        self._clock = asyncio.get_running_loop().time
        self._last_tick = self._clock()
        self._asking: asyncio.Future[None] | None = None

    async def watch(self) -> None:
        """Looks at the clock, until cancelled."""
        try:
            while True:
                await asyncio.sleep(_TICK)
                self._tick()
        finally:
            if self._asking:
                self._asking.cancel()
                await asyncio.gather(self._asking, return_exceptions=True)

    def is_behind(self) -> bool:
        """Whether a call may not begin yet."""
        self._tick()
        return self._asking is not None

    async def before_a_call(self, timeout: float) -> float:
        """Returns when the call may begin, with the time that it has left. Raises `CallTimeout` or `Unavailable`."""
        if not self.is_behind():
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
        _has_failed(asking)


def _has_failed(asking: asyncio.Future[None]) -> bool:
    return asking.cancelled() or asking.exception() is not None
