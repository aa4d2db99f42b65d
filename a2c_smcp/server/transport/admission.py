"""Limits on clients before authentication, on wrong keys, and on the bodies of requests while they arrive.

And on all connections together: the last file descriptors are kept for health pages and operators.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Protocol

from a2c_smcp.errors import BadRequest, CallTimeout, RateLimited, TooLarge
from a2c_smcp.server.http_requests import HttpRequest
from a2c_smcp.server.settings import Limits, Network
from a2c_smcp.web import Receive

logger = logging.getLogger(__name__)

_MINUTE = 60.0
_MOST_RESERVED = 64
_MOST_REFUSALS = 10
_DELAY = 1.0
_MOST_ADDRESSES = 4096


class Newcomer(Protocol):
    def abort(self) -> None: ...


class Newcomers:
    """Connections or sessions that are not authenticated. If there are too many, the oldest is ended.

    One without an address counts in all only. `count` is called for each one that is ended.
    """

    def __init__(self, per_address: int, in_all: int, count: Callable[[], None] = lambda: None) -> None:
        self._in_all = min(in_all, _open_files() // 2)
        self._per_address = min(per_address, max(1, self._in_all // 2))  # one address never drives out all others
        self._count = count
        self._all: dict[Newcomer, str] = {}
        self._by_address: dict[str, dict[Newcomer, None]] = {}

    def add(self, newcomer: Newcomer, address: str) -> None:
        """Aborts the oldest one if there are too many."""
        here = self._by_address.setdefault(_network(address), {}) if address else {}
        if len(here) >= self._per_address:
            self._abort(next(iter(here)))
        if len(self._all) >= self._in_all:
            self._abort(next(iter(self._all)))
        self._all[newcomer] = _network(address)
        if address:
            self._by_address.setdefault(_network(address), here)[newcomer] = None

    def discard(self, newcomer: Newcomer) -> None:
        """The newcomer is authenticated, or gone."""
        address = self._all.pop(newcomer, None)
        if address and (here := self._by_address.get(address)) is not None:
            here.pop(newcomer, None)
            if not here:
                del self._by_address[address]

    def _abort(self, newcomer: Newcomer) -> None:
        self.discard(newcomer)
        self._count()
        newcomer.abort()


class Descriptors:
    """Tells when file descriptors run out, in the log once a minute, and calls `count` for each connection then.

    A new descriptor has the lowest free number. So its number says how many are taken.
    """

    def __init__(self, count: Callable[[], None]) -> None:
        self._count = count
        self._logged_at, self._times = -inf, 0
        self.reserve = min(_MOST_RESERVED, _open_files() // 4)

    def is_reserved(self, descriptor: int) -> bool:
        """True if a new connection has one of the last descriptors, which are not for clients."""
        if is_last := descriptor >= (limit := _open_files()) - self.reserve:
            self.run_out(f"of {limit} all but {self.reserve} are taken")
        return is_last

    def run_out(self, why: str) -> None:
        self._count()
        self._times += 1
        if (now := monotonic()) >= self._logged_at + _MINUTE:
            self._logged_at = now
            logger.error(
                "file descriptors run out: %s; %d connections came too late so far (ulimit -n, LimitNOFILE=)",
                why,
                self._times,
            )


TOO_MANY_BYTES = "too many bytes of requests from this client are on their way"


class ArrivingBytes:
    """Counts what is held of bodies that have not arrived as a whole, by principal: slow ones would fill the memory."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: Counter[str] = Counter()

    def add(self, owner: str, size: int) -> bool:
        """True if the owner may have so many bytes more. They count in any case, until `remove`."""
        self._held[owner] += size
        return self._held[owner] <= self._limit

    def remove(self, owner: str, size: int) -> None:
        self._held[owner] -= size
        if not self._held[owner]:
            del self._held[owner]


class ArrivingBody:
    """The body of a request that another web server hands over in parts (`http_requests.RequestBody`)."""

    def __init__(self, receive: Receive, limits: Limits, arriving: ArrivingBytes | None = None) -> None:
        self._receive, self._limits = receive, limits
        self._arriving = arriving or ArrivingBytes(limits.arriving_bytes)
        self._patience = limits.handshake_timeout
        self._owner = ""

    def trust(self, owner: str = "") -> None:
        self._patience = self._limits.request_read_timeout
        self._owner = owner

    async def read(self, limit: int) -> bytes:
        try:
            async with asyncio.timeout(self._patience):
                return await self._read(limit)
        except TimeoutError:
            raise CallTimeout("the body of the request did not come") from None

    async def _read(self, limit: int) -> bytes:
        parts, size, is_more = [], 0, True
        try:
            while is_more:
                message = await self._receive()
                if message["type"] != "http.request":
                    raise BadRequest("the body of the request is incomplete")
                parts.append(message.get("body", b""))
                size, is_more = size + len(parts[-1]), message.get("more_body", False)
                if not self._arriving.add(self._owner, len(parts[-1])) and self._owner:
                    raise RateLimited(TOO_MANY_BYTES)
                if size > limit:
                    raise TooLarge(f"at most {limit} bytes are taken in one request", size=size, limit=limit)
            return b"".join(parts)
        finally:
            self._arriving.remove(self._owner, size)


def _open_files() -> int:
    """Return the limit of open files of this process."""
    with suppress(ImportError):  # on Windows
        import resource

        if (limit := resource.getrlimit(resource.RLIMIT_NOFILE)[0]) != resource.RLIM_INFINITY:
            return limit
    return sys.maxsize


class Refusals:
    """Counts refused CONNECTs by address, to slow down guessing of keys. A right key is never delayed."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[float, int]] = {}

    def delay(self, address: str, now: float) -> float:
        """Counts a refusal, and returns how long to wait before the client is told."""
        began, count = self._counts.pop(_network(address), (now, 0))
        if now - began > _MINUTE:
            began, count = now, 0
        while len(self._counts) >= _MOST_ADDRESSES:
            del self._counts[next(iter(self._counts))]
        self._counts[_network(address)] = began, count + 1
        return _DELAY if count >= _MOST_REFUSALS else 0.0


def client_address(request: HttpRequest, proxies: Sequence[Network]) -> tuple[str, int] | None:
    """The address of the client. For a request of a trusted proxy, the last one in X-Forwarded-For that is no such
    proxy."""
    if not (proxies and request.client and is_in(request.client[0], proxies)):
        return request.client
    named = [value.decode("latin-1") for name, value in request.headers if name == b"x-forwarded-for"]
    for hop in reversed(",".join(named).split(",")):
        host = hop.strip()
        host = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0] if "." in host else host
        if not is_in(host, proxies):
            return (host, 0) if _parsed(host) else request.client
    return request.client


def is_in(host: str, networks: Sequence[Network]) -> bool:
    address = _parsed(host)
    return address is not None and any(address in network for network in networks)


def _parsed(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _network(address: str) -> str:
    """The address that counts: for IPv6 its network, because one subscriber has a whole /64."""
    if ":" not in address or (parsed := _parsed(address)) is None or parsed.version == 4:
        return address
    return str(ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))
