"""When a failed MCP server is started again: sooner at first, later each time, and not for ever."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from a2c_smcp.mcp_host.failures import AuthRequired, CommandNotFound, ServerFailure, SessionLost
from a2c_smcp.mcp_host.limits import Policy
from a2c_smcp.mcp_host.status import State

__all__ = ["Recovery", "Restarts"]


@dataclass(frozen=True, slots=True)
class Recovery:
    """What becomes of a server after a failure. Without a pause it is not started again by itself."""

    state: State
    pause: float | None


@dataclass(slots=True)
class Restarts:
    """The restarts of one server. Time is told, not asked for."""

    policy: Policy
    times: deque[float] = field(default_factory=deque)
    in_a_row: int = 0

    def after(self, failure: ServerFailure, *, ready_for: float, now: float) -> Recovery:
        if isinstance(failure, AuthRequired):
            return Recovery("auth_required", None)
        if isinstance(failure, CommandNotFound):
            return Recovery("failed", self.policy.failed_pause)
        if ready_for >= self.policy.restarts_within:
            self.in_a_row = 0
        while self.times and self.times[0] <= now - self.policy.restarts_within:
            self.times.popleft()
        if len(self.times) >= self.policy.restarts:
            self.times.clear()
            self.in_a_row = 0
            return Recovery("failed", self.policy.failed_pause)
        self.times.append(now)
        self.in_a_row += 1
        return Recovery("backoff", self._pause(failure))

    def _pause(self, failure: ServerFailure) -> float:
        if isinstance(failure, SessionLost) and self.in_a_row == 1:
            return 0.0
        pause: float = min(self.policy.first_pause * 2 ** (self.in_a_row - 1), self.policy.longest_pause)
        return pause * random.uniform(1 - self.policy.jitter, 1 + self.policy.jitter)  # noqa: S311  # no secret
