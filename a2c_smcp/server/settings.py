"""The settings of a Server. The default limits are those of WIRE §6."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import TypeAlias

from a2c_smcp.mcp_events import TELL_LOG_EVENT
from a2c_smcp.server.auth.authentication import AuthenticationProvider
from a2c_smcp.server.auth.grants import SignIn
from a2c_smcp.server.cluster.memory import Directory

MIB = 1024 * 1024

Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits for clients. Sizes are in bytes, times in seconds."""

    max_message: int = 4 * MIB
    max_timeout: int = 3600
    request_timeout: float = 25.0
    calls_per_agent: int = 512
    calls_per_computer: int = 512
    in_flight_bytes: int = 64 * MIB
    arriving_bytes: int = 32 * MIB
    seats_per_connection: int = 64
    updates_per_second: int = 20
    newer_updates_per_second: int = 50
    tells_per_call: int = 10
    tells_per_second: int = 200
    logs_per_second: int = 50
    told_bytes: int = 64 * MIB
    unread_bytes: int = 16 * MIB
    write_timeout: float = 10.0
    handshake_timeout: float = 10.0
    request_read_timeout: float = 60.0
    newcomers_per_address: int = 1024
    newcomers: int = 4096
    authentication_timeout: float = 5.0
    ping_interval: float = 10.0
    ping_timeout: float = 8.0
    keep_alive: float = 5.0
    close_timeout: float = 2.0
    resume_grace: float = 5.0
    cancel_grace: float = 1.0
    keep_time: float = 60.0
    max_kept: int = 1024
    max_kept_bytes: int = 64 * MIB
    drain_timeout: float = 10.0

    @property
    def half_open_time(self) -> float:
        """The time for which a lost connection may go unnoticed."""
        return self.ping_interval + self.ping_timeout + 2

    @property
    def max_transport(self) -> int:
        """The largest transport message: twice a message, so that one that is too large can be answered."""
        return 2 * self.max_message


@dataclass(frozen=True, slots=True)
class Workers:
    """The processes that share a port: nodes whose names are that of their parent and a number."""

    parent: str
    count: int

    def has(self, node: str) -> bool:
        """True if a node is one of them. A process that took the place of a dead one has a second number."""
        numbers = node.removeprefix(f"{self.parent}-").split("-") if node.startswith(f"{self.parent}-") else [""]
        return len(numbers) <= 2 and all(map(str.isdecimal, numbers)) and 1 <= int(numbers[0]) <= self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a Server, for `create_app`.

    `auth=None` admits every client. `directory=None` keeps offices in memory. With `trusted_hosts`, the Server answers
    only under these host names and loopback ones. `workers` are the processes that share its port, if there are
    several. For requests from `trusted_proxies`, `X-Forwarded-For` names the
    client. `origins` are the URLs at which clients reach it, such as `https://hub.example.com`; a key that is bound to
    a device is admitted only there. The program's own web server takes loopback names by default. With an `admin_key`
    or an `admin_keys_file` it serves the operator's interface at `/admin/api`; no client is admitted by these keys.
    `audit` is the audit file of this process; with `audit_arguments` it has the arguments of calls, else only a keyed
    hash of them. With `sign_in`, people sign in their MCP clients: see `console.sign_in`. That needs `auth`.
    What operators freeze is kept in the file `freezes`; without one in the store that nodes share, else until the
    process ends.
    """

    auth: AuthenticationProvider | None = None
    directory: Directory | None = None
    limits: Limits = field(default_factory=Limits)
    require_version: str | None = None
    cors_origins: tuple[str, ...] = ()
    trusted_hosts: frozenset[str] | None = None
    legacy_notices: bool = False
    metrics: bool = False
    workers: Workers | None = None
    audit: Path | None = None
    audit_arguments: bool = False
    trusted_proxies: tuple[Network, ...] = ()
    origins: tuple[str, ...] = ()
    admin_key: str | None = field(default=None, repr=False)
    admin_keys_file: Path | None = None
    sign_in: SignIn | None = None
    freezes: Path | None = None


# How often a computer may tell agents something (WIRE §9).

Kind: TypeAlias = tuple[str, str | None]
"""The event, and the `req_id` of the call that it is about. All logs are of one kind."""


class TellPace:
    """The tells of one connection in the last second.

    Kinds are counted apart, so that a question is not lost because its call has just reported progress. What is not
    admitted does not count. It remembers at most `limits.tells_per_second` entries, whatever a client sends.
    """

    __slots__ = ("_counts", "_limits", "_recent")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._recent: deque[tuple[float, Kind]] = deque()
        self._counts: Counter[Kind] = Counter()

    def admits(self, event: str, req_id: str | None, now: float) -> bool:
        """True if one more tell is permitted now. If so, it is counted."""
        self._forget_until(now - 1)
        limits = self._limits
        if event == TELL_LOG_EVENT:
            req_id, most = None, limits.logs_per_second
        else:
            most = limits.tells_per_second if req_id is None else limits.tells_per_call
        kind = event, req_id
        if len(self._recent) >= limits.tells_per_second or self._counts[kind] >= most:
            return False
        self._recent.append((now, kind))
        self._counts[kind] += 1
        return True

    def _forget_until(self, past: float) -> None:
        recent, counts = self._recent, self._counts
        while recent and recent[0][0] <= past:
            _, kind = recent.popleft()
            counts[kind] -= 1
            if not counts[kind]:
                del counts[kind]
