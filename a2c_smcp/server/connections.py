"""One authenticated session, and what the request that opened it says."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from a2c_smcp.protocol.events import Action, Event
from a2c_smcp.server.allowance import Allowance
from a2c_smcp.server.auth import Principal
from a2c_smcp.server.ways import Ways

if TYPE_CHECKING:
    from a2c_smcp.server.lane import Track

__all__ = ["Connection", "address_in", "headers_in"]

_LONG_WAY = 1.0


@dataclass(eq=False, slots=True)
class Connection:
    """One authenticated session. One that `is_over` has lost its seats for good and is about to end.

    Its seats change one after the other, under its `lock`. The `track` is the way to it over its websocket, if known.
    """

    sid: str
    principal: Principal
    version: str
    speaks_older_names: bool = False
    is_over: bool = False
    expiry: asyncio.TimerHandle | None = None
    events_ahead: int = 0
    behind_until: float = 0.0
    is_gone: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    track: Track | None = None
    ways: Ways = field(default_factory=Ways)
    allowance: Allowance | None = None

    @property
    def is_behind(self) -> bool:
        """Whether an event that came earlier has not been looked at yet: what comes later may not overtake it."""
        if self.lock.locked():
            return True
        return self.events_ahead > 0 and asyncio.get_running_loop().time() < self.behind_until

    async def until_seated(self, event: Event) -> None:
        """What is said right after joining is heard as if it were said from the seat."""
        if self.lock.locked() and event.action not in (Action.JOIN, Action.LEAVE):
            async with self.lock:
                pass

    def may_tell(self, size: int, copies: int, most: int) -> None:
        """Raises `TooLarge` or `RateLimited` if others may not be told so much, by this connection or now."""
        self.allowance = self.allowance or Allowance(most)
        self.allowance.spend(size, copies, asyncio.get_running_loop().time())

    def expect_event(self) -> None:
        """One is on the library's way. Some come to nothing, so it is not waited for without end."""
        self.events_ahead += 1
        self.behind_until = asyncio.get_running_loop().time() + _LONG_WAY

    def event_seen(self) -> None:
        """It has been looked at, and what follows may take any way."""
        self.events_ahead = max(0, self.events_ahead - 1)


def address_in(environ: dict[str, Any]) -> str | None:
    """Where a connection comes from; behind a proxy, that is the proxy."""
    client = environ.get("asgi.scope", {}).get("client")
    return client[0] if client else None


def headers_in(environ: dict[str, Any]) -> dict[str, str]:
    """The request's headers under lower-case names; outside of ASGI the library no longer knows `_` from `-`."""
    if scope := environ.get("asgi.scope"):
        return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    found = {name.removeprefix("HTTP_").lower(): value for name, value in environ.items() if name.startswith("HTTP_")}
    return found | {name.replace("_", "-"): value for name, value in found.items()}
