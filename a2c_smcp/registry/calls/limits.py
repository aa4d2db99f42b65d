"""How long and how many at once: a call kept within a time and behind a gate.

The time covers the wait at the gate. A thread cannot be stopped: a sync tool that is too late runs on unheard, and
keeps its place behind the gate until it ends.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, TypeVar

from a2c_smcp.errors import CallTimeout, RateLimited
from a2c_smcp.loops import start_in_thread, start_in_thread_async
from a2c_smcp.registry.calls.methods import Arguments, AsyncCall, Entrance, SyncCall, in_own_thread, settled

__all__ = ["Bounds", "Gate", "Limit", "QueueFull", "ToolTimeout", "bounded", "bounded_async"]

Begun = TypeVar("Begun")


class ToolTimeout(CallTimeout, TimeoutError):
    """The tool did not answer within the time that the registry gives it."""


@dataclass(frozen=True, slots=True)
class Bounds:
    tool: str
    timeout: float | None
    gate: Gate | None

    def __bool__(self) -> bool:
        return self.timeout is not None or self.gate is not None

    def exceeded(self) -> ToolTimeout:
        return ToolTimeout(f"{self.tool!r} within {self.timeout:g} s", toolId=self.tool, timeout=self.timeout)


def bounded(call: SyncCall, bounds: Bounds) -> SyncCall:
    """A sync call. With a timeout it runs in a thread of its own, so that there is somebody left to answer."""
    gate, timeout = bounds.gate, bounds.timeout
    inside = call if gate is None else _then_leaving(call, gate)

    def in_turn(arguments: Arguments) -> Any:
        if gate is not None:
            gate.enter()
        return inside(arguments)

    def in_time(arguments: Arguments) -> Any:
        deadline = time.monotonic() + (timeout or 0)
        try:
            if gate is not None:
                gate.enter(timeout)
            outcome = _started(start_in_thread, inside, arguments, gate)
            outcome.exception(deadline - time.monotonic())
        except TimeoutError:
            raise bounds.exceeded() from None
        return outcome.result()

    return in_turn if timeout is None else in_time


def bounded_async(entrance: Entrance, bounds: Bounds) -> AsyncCall:
    """A call from async code: an async tool in the caller's loop, a sync one in a thread."""
    acall = _behind(bounds.gate, entrance)
    return acall if bounds.timeout is None else _in_time(acall, bounds)


def _behind(gate: Gate | None, entrance: Entrance) -> AsyncCall:
    if entrance.acall is not None:
        return entrance.acall if gate is None else _in_turn(entrance.acall, gate)
    assert entrance.call is not None
    return partial(in_own_thread, entrance.call) if gate is None else _in_turn_in_thread(entrance.call, gate)


def _in_turn(acall: AsyncCall, gate: Gate) -> AsyncCall:
    async def call(arguments: Arguments) -> Any:
        await gate.enter_async()
        try:
            return await acall(arguments)
        finally:
            gate.leave()

    return call


def _in_turn_in_thread(call: SyncCall, gate: Gate) -> AsyncCall:
    inside = _then_leaving(call, gate)

    async def in_thread(arguments: Arguments) -> Any:
        await gate.enter_async()
        return await settled(_started(start_in_thread_async, inside, arguments, gate))

    return in_thread


def _in_time(acall: AsyncCall, bounds: Bounds) -> AsyncCall:
    async def call(arguments: Arguments) -> Any:
        try:
            async with asyncio.timeout(bounds.timeout) as time_given:
                return await acall(arguments)
        except TimeoutError:
            if time_given.expired():
                raise bounds.exceeded() from None
            raise

    return call


def _then_leaving(call: SyncCall, gate: Gate) -> SyncCall:
    def inside(arguments: Arguments) -> Any:
        try:
            return call(arguments)
        finally:
            gate.leave()

    return inside


def _started(
    start: Callable[[SyncCall, Arguments], Begun], call: SyncCall, arguments: Arguments, gate: Gate | None
) -> Begun:
    """Whoever cannot begin leaves at once."""
    try:
        return start(call, arguments)
    except RuntimeError:
        if gate is not None:
            gate.leave()
        raise


class QueueFull(RateLimited):
    """As many calls of the tool as may wait are waiting already."""

    title = "Too many calls of this tool are waiting"


@dataclass(frozen=True, slots=True)
class Limit:
    """Calls of one tool that run at once, and those that may wait in line; more are refused (429)."""

    at_once: int
    waiting: int = 100

    def __post_init__(self) -> None:
        if self.at_once < 1 or self.waiting < 0:
            raise ValueError("Limit needs at least one call at once, and a line that is not negative")


class Gate:
    """First come, first served. Whoever went in must `leave`, from whatever thread."""

    def __init__(self, name: str, limit: Limit) -> None:
        self._name, self._limit = name, limit
        self._lock = Lock()
        self._inside = 0
        self._line: deque[Future[None]] = deque()

    def enter(self, timeout: float | None = None) -> None:
        """Raises `QueueFull`, or `TimeoutError` if its turn does not come in time."""
        if (turn := self._come()) is not None:
            try:
                turn.result(timeout)
            except BaseException:
                self._give_up(turn)
                raise

    async def enter_async(self) -> None:
        if (turn := self._come()) is not None:
            try:
                await asyncio.wrap_future(turn)
            except BaseException:
                self._give_up(turn)
                raise

    def leave(self) -> None:
        """The place goes to the first in line who still wants it."""
        with self._lock:
            while self._line:
                turn = self._line.popleft()
                if turn.set_running_or_notify_cancel():
                    break
            else:
                self._inside -= 1
                return
        turn.set_result(None)

    def _come(self) -> Future[None] | None:
        with self._lock:
            if self._inside < self._limit.at_once:
                self._inside += 1
                return None
            if len(self._line) >= self._limit.waiting:
                raise QueueFull(repr(self._name), toolId=self._name, at_once=self._limit.at_once)
            turn: Future[None] = Future()
            self._line.append(turn)
            return turn

    def _give_up(self, turn: Future[None]) -> None:
        """A place that came too late is passed on."""
        if not turn.cancel():
            self.leave()
        with self._lock, suppress(ValueError):
            self._line.remove(turn)
