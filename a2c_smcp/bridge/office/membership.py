"""Keeps the agent of a bridge in its office, and knows why it is not there.

MCP clients start a bridge and forget it, so it never gives up: whatever the Server says (a wrong key, an office that
has another agent, nothing at all), it is tried again. `trouble` is the last refusal, until the office is joined. The
agent itself reconnects after a lost connection; only when that takes longer than `_PATIENCE` is it trouble, and calls
that wait are answered with it. A client that calls a tool meanwhile has the office tried at once (`poke`), and waits a
moment for it. It does not wait if the Server has refused the key in this attempt: another one would end like it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from a2c_smcp.agent import AsyncSMCPAgentClient, Reconnect
from a2c_smcp.errors import NotAuthenticated, NotAuthorised, Outcome, SMCPError, Unavailable
from a2c_smcp.loops import cancel_and_wait

__all__ = ["Membership"]

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_PATIENCE = 15.0
"""Seconds for which calls wait for a connection that was lost."""
_PAUSE_AFTER_REFUSAL = 15.0
"""Seconds until a key that was refused is tried again: the Server delays those who try often."""
_RECOVERS_WITHIN = 3.0
"""Seconds for which a call waits if the office is tried again because of it."""


class Membership:
    """`on_change` is called whenever `trouble` has changed, `on_return` when the agent is back after a reconnect."""

    def __init__(
        self,
        agent: AsyncSMCPAgentClient,
        office: str,
        on_change: Callable[[], None],
        on_return: Callable[[], None] = lambda: None,
    ) -> None:
        self.trouble: SMCPError | None = Unavailable("the bridge has not connected yet")
        self._agent, self._office = agent, office
        self._on_change, self._on_return = on_change, on_return
        self._pauses = Reconnect()
        self._tried = asyncio.Event()
        self._again = asyncio.Event()
        self._refused = asyncio.Event()
        self._changed = asyncio.Event()
        self._is_joining = False
        self._begun = self._ended = 0
        self._running: set[asyncio.Timeout] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._stop_listening: Callable[[], None] = lambda: None

    async def open(self, timeout: float) -> None:
        """Begin to join the office. Returns when that was tried once, at most after `timeout` seconds."""
        self._stop_listening = self._agent.listen(self)
        await self._begin(timeout)

    async def close(self) -> None:
        self._stop_listening()
        self._stop_timer()
        if self._keeping:
            await cancel_and_wait(self._keeping)
        await self._agent.disconnect()

    @property
    def is_busy(self) -> bool:
        """Whether work that needs the office is being done."""
        return bool(self._running)

    async def leave(self) -> None:
        """Leave the office until `enter` is called. The agent stays connected."""
        if self._keeping:
            await cancel_and_wait(self._keeping)
            self._keeping = None
        self._stop_timer()
        self.trouble = Unavailable("the office was left, because nobody used it")
        with suppress(SMCPError):
            await self._agent.leave_office(self._office)

    async def enter(self) -> None:
        """Join the office again after `leave`, and wait a moment for it. Raises the trouble."""
        if self._keeping is None:
            await self._begin(_RECOVERS_WITHIN)
        await self.recovered()

    async def _begin(self, timeout: float) -> None:
        self._tried.clear()
        self._keeping = asyncio.create_task(self._keep())
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._tried.wait()

    def poke(self) -> None:
        """Try again now, if it is not being tried."""
        self._again.set()

    async def guard(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do work that needs the office. Raises the trouble, also if it comes in the middle."""
        if self.trouble is not None:
            try:
                await self.recovered()
            except BaseException:
                work.close()
                raise
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._running.add(limit)
                return await work
        except TimeoutError:
            if limit.expired() and self.trouble:
                raise _with_outcome(self.trouble, "unknown") from None
            raise
        finally:
            self._running.discard(limit)

    async def recovered(self) -> None:
        """Wait a moment until the office is joined. Raises the trouble if that does not help."""
        if self.trouble is None:
            return
        self.poke()
        latest = self._begun
        with suppress(TimeoutError):
            async with asyncio.timeout(_RECOVERS_WITHIN):
                while self.trouble is not None and not (self._ended > latest and _is_final(self.trouble)):
                    await self._changed.wait()
        if self.trouble is not None:
            raise _with_outcome(self.trouble, "not_run")

    async def _keep(self) -> None:
        attempt = 0
        while True:
            self._again.clear()
            self._refused.clear()
            self._begun += 1
            try:
                await self._join()
            except SMCPError as error:
                self._set(error)
            except Exception as error:  # of a credentials provider
                logger.warning("the office cannot be joined", exc_info=True)
                self._set(Unavailable(f"the office cannot be joined: {type(error).__name__}"))
            else:
                attempt = 0
                self._set(None)
                self._tried.set()
                await self._refused.wait()
            self._tried.set()
            await self._pause(attempt)
            attempt += 1

    async def _join(self) -> None:
        """Join, and wait a moment for the computers' tools: a client that asks for them before finds nothing."""
        self._is_joining = True
        try:
            await self._agent.connect()
            if self._office not in self._agent.offices:
                await self._agent.join_office(self._office)
        finally:
            self._is_joining = False
            self._ended = self._begun

    async def _pause(self, attempt: int) -> None:
        is_refused = isinstance(self.trouble, NotAuthenticated)
        with suppress(TimeoutError):
            async with asyncio.timeout(_PAUSE_AFTER_REFUSAL if is_refused else self._pauses.delay(attempt)):
                await self._again.wait()

    def _set(self, trouble: SMCPError | None) -> None:
        before, self.trouble = self.trouble, trouble
        self._stop_timer()
        self._changed.set()
        self._changed = asyncio.Event()
        if (before and before.message) == (trouble and trouble.message):
            return
        for limit in self._running if trouble else ():
            limit.reschedule(asyncio.get_running_loop().time())
        self._on_change()

    def _stop_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    # Events of the agent (`AgentEvents`)

    def on_office_joined(self, office: str) -> None:
        if office == self._office and not self._is_joining:
            self._set(None)
            self._on_return()

    def on_disconnected(self) -> None:
        self._stop_timer()
        waiting = Unavailable(f"the connection to the Server was lost, and is not back after {_PATIENCE:g} s")
        self._timer = asyncio.get_running_loop().call_later(_PATIENCE, self._set, waiting)

    def on_office_lost(self, office: str, error: SMCPError) -> None:
        if office == self._office:
            self._set(error)

    def on_refused(self, error: SMCPError) -> None:
        self._set(error)
        self._refused.set()


def _is_final(trouble: SMCPError) -> bool:
    """Whether the next attempt can only succeed with another key."""
    return isinstance(trouble, NotAuthenticated | NotAuthorised)


def _with_outcome(trouble: SMCPError, outcome: Outcome) -> SMCPError:
    """The same error, which says of one call whether its tool has run."""
    copy = type(trouble)(trouble.reason, subject=trouble.subject, **trouble.details)
    copy.outcome = outcome
    return copy
