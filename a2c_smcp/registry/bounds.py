"""How long and how many at once: a call kept within a time and behind a gate.

The time covers the wait at the gate. A thread cannot be stopped: a sync tool that is too late runs on unheard, and
keeps its place behind the gate until it ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from a2c_smcp.errors import CallTimeout
from a2c_smcp.loops import start_in_thread, start_in_thread_async
from a2c_smcp.registry.entrances import Arguments, AsyncCall, Entrance, SyncCall, in_own_thread, settled
from a2c_smcp.registry.gates import Gate

__all__ = ["Bounds", "ToolTimeout", "bounded", "bounded_async"]

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
