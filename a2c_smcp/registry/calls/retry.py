"""When a failed call is made again, and after how long."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from a2c_smcp.errors import SMCPError
from a2c_smcp.loops import LoopIsRunning
from a2c_smcp.registry.calls.methods import Arguments, AsyncCall, SyncCall

__all__ = ["Retry", "retried", "retried_async"]

_WORTH_ANOTHER_TRY = (408, 429)


@dataclass(frozen=True, slots=True)
class Retry:
    """Only tools that are marked idempotent or read-only are ever called again.

    The pause before a new attempt is drawn between nothing and a bound, in seconds, that doubles from `first_pause`
    to `longest_pause`. An error that says the call itself is wrong (our 4xx, `LoopIsRunning`) is final, and so is one
    that says of a tool elsewhere that it may have run: another attempt would be another call (WIRE §5).
    """

    attempts: int = 3
    first_pause: float = 0.1
    longest_pause: float = 5.0
    on: type[Exception] | tuple[type[Exception], ...] = Exception

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.first_pause < 0 or self.longest_pause < 0:
            raise ValueError("Retry needs at least one attempt, and pauses that are not negative")

    def pauses(self) -> Iterator[float]:
        """One before each attempt but the first."""
        bound = self.first_pause
        for _ in range(self.attempts - 1):
            yield random.uniform(0, min(bound, self.longest_pause))  # noqa: S311  # spreads callers, guards nothing
            bound *= 2

    def is_final(self, error: Exception) -> bool:
        if isinstance(error, SMCPError) and error.details.get("outcome", "not_run") != "not_run":
            return True
        if isinstance(error, SMCPError) and 400 <= error.code < 500:
            return error.code not in _WORTH_ANOTHER_TRY
        return isinstance(error, LoopIsRunning) or not isinstance(error, self.on)


def retried(call: SyncCall, retry: Retry) -> SyncCall:
    def again(arguments: Arguments) -> Any:
        for pause in retry.pauses():
            try:
                return call(arguments)
            except Exception as error:
                if retry.is_final(error):
                    raise
            time.sleep(pause)
        return call(arguments)

    return again


def retried_async(acall: AsyncCall, retry: Retry) -> AsyncCall:
    async def again(arguments: Arguments) -> Any:
        for pause in retry.pauses():
            try:
                return await acall(arguments)
            except Exception as error:
                if retry.is_final(error):
                    raise
            await asyncio.sleep(pause)
        return await acall(arguments)

    return again
