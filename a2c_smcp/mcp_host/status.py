"""The states of a supervised MCP server, what callbacks are told of it, and which state follows a failure."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Literal, Protocol

from a2c_smcp.mcp_host.failures import (
    AuthRequired,
    CommandNotFound,
    CommandUnusable,
    Fault,
    NotSandboxed,
    ServerFailure,
    SessionLost,
)
from a2c_smcp.mcp_host.limits import HostLimits
from a2c_smcp.mcp_host.sessions.server_info import LogMessage
from a2c_smcp.mcp_host.sessions.subscriptions import OfferChange

State = Literal["disabled", "starting", "ready", "backoff", "auth_required", "failed", "stopped", "asleep"]


class OnChange(Protocol):
    """Called in the event loop for every change of a state; it must return at once."""

    def __call__(self, name: str, state: State, reason: str) -> None: ...


class OnServerEvent(Protocol):
    """Called in the event loop; it must return at once. `about` is the URI of a resource, where there is one."""

    def __call__(self, name: str, kind: OfferChange, about: str | None) -> None: ...


class OnServerLog(Protocol):
    """Called in the event loop for each log message of a server; it must return at once."""

    def __call__(self, name: str, message: LogMessage) -> None: ...


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The state of one MCP server, for people.

    `reason` says why it is in this state, `fault` what kind of failure that is; `starts` counts attempts to start it;
    `revision` is the MCP revision in use; `diagnostics` depends on the transport (pid, exit code, stderr, URL);
    `warnings` says which tools are left out, and why.
    """

    name: str
    state: State
    reason: str
    tools: int
    windows: int
    starts: int
    revision: str
    diagnostics: dict[str, object] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    fault: Fault = ""


@dataclass(frozen=True, slots=True)
class Recovery:
    """The state after a failure, and the seconds until the next start; `None` to start only on request."""

    state: State
    pause: float | None


@dataclass(slots=True)
class Restarts:
    """Decides when a failed server is started again: with growing pauses, and after too many failures much later."""

    policy: HostLimits
    times: deque[float] = field(default_factory=deque)
    in_a_row: int = 0

    def after(self, failure: ServerFailure, *, ready_for: float, now: float) -> Recovery:
        if isinstance(failure, AuthRequired):
            return Recovery("auth_required", None)
        if isinstance(failure, CommandNotFound | CommandUnusable | NotSandboxed):
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
