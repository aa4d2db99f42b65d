"""When a failed call is made again, and after which pause."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from a2c_smcp.errors import SMCPError
from a2c_smcp.loops import LoopIsRunning

__all__ = ["Retry"]

_TRANSIENT_CODES = (408, 429)


@dataclass(frozen=True, slots=True)
class Retry:
    """Calls again after a failure. Only tools that are marked idempotent or read-only are ever called again.

    The pause before an attempt is random, between zero and a bound in seconds that doubles from `first_pause` to
    `longest_pause`. Two kinds of errors are final: those that say the call itself is wrong (4xx codes except 408 and
    429, `LoopIsRunning`), and those of a remote tool that may have run, since another attempt would be another call
    (WIRE §5).
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
            return error.code not in _TRANSIENT_CODES
        return isinstance(error, LoopIsRunning) or not isinstance(error, self.on)
