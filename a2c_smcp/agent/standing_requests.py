"""Values that are kept current over the network, and requests that are sent again before they lapse.

Log levels and subscriptions lapse after 15 minutes, with the agent's seat, and when the computer restarts (WIRE §9).
They are therefore sent again every `RENEWAL` seconds, whenever a seat was taken again, and when a computer has
entered. A computer that has just entered may refuse it because its MCP server is still starting: what was refused is
sent again when that computer announces a change.

A request belongs to the seat of the computer that it was made to (WIRE §4). It carries that seat, so that the Server
gives it to no other computer of the name, and tells of such a computer are not for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from a2c_smcp.agent.desktops import Seat
from a2c_smcp.endpoint import Reconnect
from a2c_smcp.errors import CallTimeout, Frozen, RateLimited, SMCPError, Unavailable

logger = logging.getLogger(__name__)

# Keeps values current that are fetched over the network: one fetch at a time for each, no change missed.

Key = TypeVar("Key", bound=Hashable)


class Refresher(Generic[Key]):
    """Fetches each requested key, one fetch of a key at a time.

    A key that is requested during its fetch is fetched once more. A fetch that fails is repeated after a pause. So the
    last successful fetch of a key always began after its last request.
    """

    def __init__(self, fetch: Callable[[Key], Awaitable[None]], pauses: Reconnect) -> None:
        self._fetch = fetch
        self._pauses = pauses
        self._requested: set[Key] = set()
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._tried: dict[Key, asyncio.Event] = {}
        self._is_open = False

    def open(self) -> None:
        self._is_open = True

    def request(self, key: Key) -> None:
        """Fetch this key, again if it is being fetched. Ignored after `close`."""
        self._requested.add(key)
        if key not in self._tasks and self._is_open:
            self._tried[key] = asyncio.Event()
            self._tasks[key] = asyncio.create_task(self._work(key, self._tried[key]))

    def drop(self, key: Key) -> None:
        """Stop fetching a key."""
        self._requested.discard(key)
        if task := self._tasks.pop(key, None):
            self._tried.pop(key).set()
            task.cancel()

    async def settle(self, keys: Iterable[Key], timeout: float) -> None:
        """Wait until each of these keys was tried once, at most `timeout` seconds."""
        tried = [self._tried[key].wait() for key in keys if key in self._tried]
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await asyncio.gather(*tried)

    async def close(self) -> None:
        self._is_open = False
        self._requested.clear()
        tasks = list(self._tasks.values())
        for key in list(self._tasks):
            self.drop(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, key: Key, tried: asyncio.Event) -> None:
        attempt = 0
        while key in self._requested:
            self._requested.discard(key)
            try:
                await self._fetch(key)
                attempt = 0
            except Frozen as error:  # it is requested again when the computer is released
                logger.info("%s is not fetched: %s", key, error)
            except Exception as error:  # what was fetched may be anything
                is_ours = isinstance(error, SMCPError)
                logger.warning("%s cannot be fetched: %s", key, error, exc_info=not is_ours)
                self._requested.add(key)
                tried.set()
                await asyncio.sleep(self._pauses.delay(attempt))
                attempt += 1
        tried.set()
        if self._tasks.get(key) is asyncio.current_task():
            del self._tasks[key], self._tried[key]


RENEWAL = 600.0
"""Seconds until a request is sent again."""

SeatOf: TypeAlias = Callable[[object, object], str | None]
"""The identity of the seat of a computer in an office, if the Server has told it."""

_PASSING = (CallTimeout, RateLimited, Unavailable)
"""Errors after which it is tried again soon. All others stay until something changes on the computer."""


class LogSource(NamedTuple):
    """An MCP server of a computer, or all of them. Without an office, of a computer of this name in any office."""

    office: str | None
    computer: str
    mcp_server: str | None

    def __str__(self) -> str:
        return f"log level of {self.mcp_server or 'all servers'} on {self.computer}"


class Subscription(NamedTuple):
    """A resource of an MCP server."""

    office: str | None
    computer: str
    mcp_server: str
    uri: str

    def __str__(self) -> str:
        return f"subscription to {self.uri} of {self.mcp_server} on {self.computer}"


Target = TypeVar("Target", bound=LogSource | Subscription)
Wish = TypeVar("Wish")


class StandingRequests(Generic[Target, Wish]):
    """The requests that were made, kept in force until they are stopped. `send` makes one."""

    def __init__(
        self,
        send: Callable[[Target, Wish, Mapping[str, str]], Awaitable[None]],
        seat_of: SeatOf,
        pauses: Reconnect,
        renewal: float = RENEWAL,
    ) -> None:
        self._send = send
        self._seat_of = seat_of
        self._renewal = renewal
        self._wishes: dict[Target, Wish] = {}
        self._seats: dict[Target, str | None] = {}
        self._refused: set[Target] = set()
        self._renewals = Refresher(self._renew, pauses)
        self._timer: asyncio.TimerHandle | None = None

    def open(self) -> None:
        self._renewals.open()

    async def close(self) -> None:
        self._wishes.clear()
        self._seats.clear()
        self._refused.clear()
        if self._timer:
            self._timer.cancel()
            self._timer = None
        await self._renewals.close()

    async def set(self, target: Target, wish: Wish) -> None:
        """Raises the computer's refusal. Then nothing has changed.

        It counts before it is sent: what the computer tells may be read before its ack is returned here.
        """
        was_there, before = target in self._wishes, self._wishes.get(target)
        seat, seat_before = self._seat_of(target.computer, target.office), self._seats.get(target)
        self._wishes[target], self._seats[target] = wish, seat
        try:
            await self._send(target, wish, _addressed(seat))
        except BaseException:
            if not was_there:
                self.stop(target)
            elif before is not None:
                self._wishes[target], self._seats[target] = before, seat_before
            raise
        self._refused.discard(target)
        if self._timer is None and self._wishes:
            self._start_timer()

    def change(self, target: Target, wish: Wish) -> None:
        """Change what is known of a request here. It stays the same for the computer."""
        if target in self._wishes:
            self._wishes[target] = wish

    def stop(self, target: Target) -> None:
        """Stop a request. Later notices about it are dropped, unless another request covers them."""
        self._wishes.pop(target, None)
        self._seats.pop(target, None)
        self._refused.discard(target)
        self._renewals.drop(target)

    def leave(self, office: str) -> None:
        """The office was left, and will not be entered again by itself."""
        for target in [each for each in self._wishes if each.office == office]:
            self.stop(target)

    def all(self) -> list[tuple[Target, Wish]]:
        return [*self._wishes.items()]

    def at(self, seat: Seat) -> list[tuple[Target, Wish]]:
        """The requests to this computer."""
        return [(target, wish) for target, wish in self._wishes.items() if self._is_at(target, seat)]

    def on_seated(self, office: str) -> None:
        for target in self._wishes:
            if target.office in (None, office):
                self._renewals.request(target)

    def on_enter(self, seat: Seat) -> None:
        for target, _ in self.at(seat):
            self._renewals.request(target)

    def on_change(self, seat: Seat) -> None:
        """Something has changed on a computer: what it has refused may be possible now."""
        for target in [each for each in self._refused if self._is_at(each, seat)]:
            self._renewals.request(target)

    def _start_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._renewal, self._renew_all)

    def _renew_all(self) -> None:
        self._timer = None
        for target in self._wishes:
            self._renewals.request(target)
        if self._wishes:
            self._start_timer()

    async def _renew(self, target: Target) -> None:
        if target not in self._wishes:
            return
        self._refused.discard(target)
        seat = self._seats[target] = self._seats[target] or self._seat_of(target.computer, target.office)
        try:
            await self._send(target, self._wishes[target], _addressed(seat))
        except SMCPError as error:
            if isinstance(error, _PASSING):
                raise
            logger.info("%s was not renewed: %s", target, error)
            if target in self._wishes:
                self._refused.add(target)

    def _is_at(self, target: Target, seat: Seat) -> bool:
        if target.computer != seat.computer or target.office not in (None, seat.office):
            return False
        return self._seats[target] in (None, self._seat_of(seat.computer, seat.office))


def _addressed(seat: str | None) -> dict[str, str]:
    return {"seat": seat} if seat else {}
