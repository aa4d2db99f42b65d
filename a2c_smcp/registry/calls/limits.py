"""How long a call may take, and how many calls of one tool run at the same time.

A call takes a slot, or waits in line for one; threads and event loops wait in the same line, first come, first served.
The timeout covers the wait. A slot that was taken is given back exactly once:

- An async tool gives it back when its call ends, also when a timeout cancels it.
- A sync tool gives it back in the thread in which it ran. A thread cannot be stopped: after a timeout the caller goes
  on, and the tool keeps its slot until it really ends.
- A caller that gives up waiting cancels its place in line. If the slot was handed to it at that very moment, the cancel
  fails, and it passes the slot on.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, TypeVar

from a2c_smcp.errors import CallTimeout, RateLimited
from a2c_smcp.loops import start_in_thread, start_in_thread_async
from a2c_smcp.registry.calls.methods import Arguments, AsyncCall, SyncCall, ToolMethods, call_in_thread, result_of
from a2c_smcp.registry.rules import Limit

__all__ = ["CallLimits", "CallSlots", "QueueFull", "ToolTimeout", "limited", "limited_async"]

Started = TypeVar("Started")


class ToolTimeout(CallTimeout, TimeoutError):
    """The tool did not answer within the timeout of the registry."""


class QueueFull(RateLimited):
    """As many calls of the tool wait as its `Limit` allows."""

    title = "Too many calls of this tool are waiting"


class CallSlots:
    """The slots of one tool and the line of calls that wait for one."""

    def __init__(self, tool: str, limit: Limit) -> None:
        self._tool, self._limit = tool, limit
        self._lock = Lock()
        self._taken = 0
        self._line: deque[Future[None]] = deque()

    def take(self, timeout: float | None = None) -> None:
        """Raises `QueueFull`, or `TimeoutError` if no slot becomes free in time."""
        if (turn := self._take_or_queue()) is not None:
            with self._passed_on_failure(turn):
                turn.result(timeout)

    async def take_async(self) -> None:
        """Raises `QueueFull`."""
        if (turn := self._take_or_queue()) is not None:
            with self._passed_on_failure(turn):
                await asyncio.wrap_future(turn)

    def give_back(self) -> None:
        """From any thread. The slot goes to the first call in line that still waits."""
        with self._lock:
            while self._line:
                turn = self._line.popleft()
                if turn.set_running_or_notify_cancel():
                    break
            else:
                self._taken -= 1
                return
        turn.set_result(None)

    def _take_or_queue(self) -> Future[None] | None:
        """`None` if a slot was free, else what to wait for."""
        with self._lock:
            if self._taken < self._limit.at_once:
                self._taken += 1
                return None
            if len(self._line) >= self._limit.waiting:
                raise QueueFull(repr(self._tool), toolId=self._tool, at_once=self._limit.at_once)
            turn: Future[None] = Future()
            self._line.append(turn)
            return turn

    @contextmanager
    def _passed_on_failure(self, turn: Future[None]) -> Iterator[None]:
        try:
            yield
        except BaseException:
            if not turn.cancel():
                self.give_back()
            with self._lock, suppress(ValueError):
                self._line.remove(turn)
            raise


@dataclass(frozen=True, slots=True)
class CallLimits:
    """The timeout of one tool in seconds, and its slots."""

    tool: str
    timeout: float | None
    slots: CallSlots | None

    def __bool__(self) -> bool:
        return self.timeout is not None or self.slots is not None

    def exceeded(self) -> ToolTimeout:
        return ToolTimeout(f"{self.tool!r} within {self.timeout:g} s", toolId=self.tool, timeout=self.timeout)


def limited(call: SyncCall, limits: CallLimits) -> SyncCall:
    """With a timeout the call runs in a thread of its own, so that the caller's thread can stop waiting."""
    slots, timeout = limits.slots, limits.timeout
    inside = call if slots is None else _then_giving_back(call, slots)

    def without_timeout(arguments: Arguments) -> Any:
        if slots is not None:
            slots.take()
        return inside(arguments)

    def with_timeout(arguments: Arguments) -> Any:
        deadline = time.monotonic() + (timeout or 0)
        try:
            if slots is not None:
                slots.take(timeout)
            outcome = _started(start_in_thread, inside, arguments, slots)
            outcome.exception(deadline - time.monotonic())
        except TimeoutError:
            raise limits.exceeded() from None
        return outcome.result()

    return without_timeout if timeout is None else with_timeout


def limited_async(methods: ToolMethods, limits: CallLimits) -> AsyncCall:
    """An async tool runs in the caller's loop, a sync one in a thread."""
    acall = _with_slot(methods, limits.slots)
    return acall if limits.timeout is None else _with_timeout(acall, limits)


def _with_slot(methods: ToolMethods, slots: CallSlots | None) -> AsyncCall:
    if methods.acall is not None:
        return methods.acall if slots is None else _with_slot_in_loop(methods.acall, slots)
    assert methods.call is not None
    return partial(call_in_thread, methods.call) if slots is None else _with_slot_in_thread(methods.call, slots)


def _with_slot_in_loop(acall: AsyncCall, slots: CallSlots) -> AsyncCall:
    async def call(arguments: Arguments) -> Any:
        await slots.take_async()
        try:
            return await acall(arguments)
        finally:
            slots.give_back()

    return call


def _with_slot_in_thread(call: SyncCall, slots: CallSlots) -> AsyncCall:
    inside = _then_giving_back(call, slots)

    async def in_thread(arguments: Arguments) -> Any:
        await slots.take_async()
        return await result_of(_started(start_in_thread_async, inside, arguments, slots))

    return in_thread


def _with_timeout(acall: AsyncCall, limits: CallLimits) -> AsyncCall:
    async def call(arguments: Arguments) -> Any:
        try:
            async with asyncio.timeout(limits.timeout) as timeout:
                return await acall(arguments)
        except TimeoutError:
            if timeout.expired():
                raise limits.exceeded() from None
            raise

    return call


def _then_giving_back(call: SyncCall, slots: CallSlots) -> SyncCall:
    def inside(arguments: Arguments) -> Any:
        try:
            return call(arguments)
        finally:
            slots.give_back()

    return inside


def _started(
    start: Callable[[SyncCall, Arguments], Started], call: SyncCall, arguments: Arguments, slots: CallSlots | None
) -> Started:
    """Gives the slot back if no thread can be started."""
    try:
        return start(call, arguments)
    except RuntimeError:
        if slots is not None:
            slots.give_back()
        raise
