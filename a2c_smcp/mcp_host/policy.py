"""How MCP servers are treated: every delay and limit of sessions and of their supervision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from a2c_smcp.mcp_host.message_limits import MAX_BYTES

__all__ = ["HostPolicy"]


@dataclass(frozen=True, slots=True)
class HostPolicy:
    """Delays in seconds, limits in seconds, bytes or numbers.

    A server that is starting counts among those `starting_at_once` for `start_turn` seconds at the most. `desktop`
    holds for servers whose configuration does not set it. A server that fails `restarts` times within
    `restarts_within` seconds is `failed`, and started again after `failed_pause`. A list is kept for `shortest_ttl` at
    least, also if its server allows less.
    """

    starting_at_once: int = 8
    start_turn: float = 2.0
    start_limit: float = 30.0
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

    sign_in_limit: float = 300.0
    subscription_limit: float = 900.0

    idle_stop: float | None = None
    desktop: Literal["subscribed", "any"] = "subscribed"
