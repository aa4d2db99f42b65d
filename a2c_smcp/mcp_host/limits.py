"""Every delay and limit of sessions with MCP servers and of their supervision, and how a rate is limited."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from a2c_smcp.mcp_host.message_limits import MAX_BYTES


@dataclass(frozen=True, slots=True)
class HostLimits:
    """Delays in seconds, limits in seconds, bytes or numbers.

    A server that is starting counts among those `starting_at_once` for `start_turn` seconds at the most. `desktop`
    holds for servers whose configuration does not set it. A server that fails `restarts` times within
    `restarts_within` seconds is `failed`, and started again after `failed_pause`; a call of a tool waits at most
    `restart_wait` for one that is restarted after a failure. A list is kept for `shortest_ttl` at least, also if its
    server allows less. `request_limit` bounds each request that is not a call of a tool. A server that nobody uses is
    stopped after `idle_stop` seconds, or after `on_call_idle` if it starts on call; a question with which it has ended
    a request counts as use for `question_limit` seconds.
    """

    starting_at_once: int = 8
    start_turn: float = 2.0
    start_limit: float = 30.0
    request_limit: float = inf
    probe_limit: float = 10.0
    farewell_limit: float = 3.0
    stop_limit: float = 4.8

    listing_limit: float = 10.0
    listing_pages: int = 100
    shortest_ttl: float = 10.0
    read_limit: float = 10.0
    notice_pause: float = 0.1
    listen_again: float = 1.0

    largest_message: int = MAX_BYTES

    call_cap: float = 3600.0
    calls_at_once: int = 32
    timeouts_in_a_row: int = 3
    health_limit: float = 5.0

    first_pause: float = 1.0
    longest_pause: float = 60.0
    jitter: float = 0.2
    restarts: int = 5
    restarts_within: float = 60.0
    failed_pause: float = 300.0
    restart_wait: float = 5.0

    sign_in_limit: float = 300.0
    subscription_limit: float = 900.0

    idle_stop: float | None = None
    on_call_idle: float = 600.0
    question_limit: float = 600.0
    desktop: Literal["subscribed", "any"] = "subscribed"

    def with_timeout(self, seconds: float) -> HostLimits:
        """Return the limits for a server whose configuration has this `timeout`, which may extend its start."""
        return replace(
            self,
            request_limit=seconds,
            start_limit=max(self.start_limit, seconds),
            probe_limit=min(self.probe_limit, seconds),
        )


class Rate:
    """At most `most` a second on average, and `at_once`, by default as many, at once."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic, *, at_once: int | None = None) -> None:
        self._most, self._at_once = most, at_once or most
        self._clock = clock
        self._left = float(self._at_once)
        self._at = clock()

    def allows(self) -> bool:
        """Count one more. Return False if it is too many."""
        now = self._clock()
        self._left = min(self._at_once, self._left + (now - self._at) * self._most)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
