"""An agent's connection to a Server, and its seats: redialled when it is lost, seats taken again on each connection.

One task (`_keep`) owns the connection: it dials, takes the seats, waits until the connection is lost, and begins again.
It ends when the agent is closed, or when the Server refuses the agent for good (a revoked key, a malformed name).
Every other failure is followed by another dial.

`seats` is what the agent wants; the Server may hold others for a moment. A seat is added only after the Server has
accepted the join, and removed before the leave is sent. If a join is given up half way, a leave follows it, so that no
seat stays that nobody wants. An office that refuses the agent after a reconnect stays in `seats` and is tried again
(`_regain`) for as long as this connection lasts.

Requests do not belong to a connection: they wait in `connected` for the one that is up (`retries.py`). `_Version`
counts new connections and computers that entered. A request that compares the count before and after its sending
cannot miss a change that happened between.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any

from a2c_smcp import smcp
from a2c_smcp.agent.retries import Resend, RetriedRequest
from a2c_smcp.connection import PATIENCE, Connection, ConnectionLost, join, leave
from a2c_smcp.endpoint import Endpoint, Reconnect
from a2c_smcp.errors import BadRequest, CallTimeout, Forbidden, NotAuthenticated, SMCPError, Unavailable
from a2c_smcp.loops import OwnedTasks, cancel_and_wait

logger = logging.getLogger(__name__)

_FINAL = (NotAuthenticated, BadRequest)
_LEAVE_TIMEOUT = 1.0


class AgentConnection:
    """A connection that reconnects by itself between `open` and `close`.

    `on_notice` is called for each `notify:*` in the order in which they came, `on_lost` when the connection is lost,
    `on_seated` whenever a seat has been taken, `on_seat_lost` when one could not be taken again, `on_refused` when the
    Server refuses the agent for good. `expected_until` says until when a computer is expected back, `seat_of`
    which seat it has.
    """

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        *,
        reconnect: Reconnect,
        on_notice: Callable[[str, dict[str, Any]], None],
        on_lost: Callable[[], None],
        on_seated: Callable[[str], None],
        on_seat_lost: Callable[[str, SMCPError], None],
        on_refused: Callable[[SMCPError], None],
        expected_until: Callable[[object, object], float],
        seat_of: Callable[[object, object], str | None],
        instance: str | None = None,
    ) -> None:
        self.name = name
        self.seats: dict[str, None] = {}
        self.is_deduplicated = False
        self.expected_until, self.seat_of = expected_until, seat_of
        self._endpoint = endpoint
        self._reconnect = reconnect
        self._on_notice, self._on_lost, self._on_seated = on_notice, on_lost, on_seated
        self._on_seat_lost, self._on_refused = on_seat_lost, on_refused
        self._instance = instance or secrets.token_urlsafe(32)
        self._connection: Connection | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._background = OwnedTasks()
        self._ended: SMCPError | None = not_connected()
        self._version = _Version()

    async def open(self) -> None:
        """Connect. Raises the Server's refusal, or `Unavailable`. Once connected, it reconnects by itself."""
        if self.is_open:
            return
        self._ended = None
        is_open: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        keeping = self._keeping = asyncio.create_task(self._keep(is_open))
        try:
            await asyncio.wait({is_open, keeping}, return_when=asyncio.FIRST_COMPLETED)
            if not is_open.done():
                raise (None if keeping.cancelled() else keeping.exception()) or not_connected()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Leave all offices and disconnect. Messages of `tell` that are waiting are sent first."""
        keeping, self._keeping = self._keeping, None
        if keeping is None:
            return
        try:
            await self._background.finish(_LEAVE_TIMEOUT)
            if connection := self.current:
                leaving = (leave(connection, office, _LEAVE_TIMEOUT) for office in self.seats)
                await asyncio.gather(*leaving, return_exceptions=True)
        finally:
            self._end(not_connected())
            self.seats.clear()
            keeping.cancel()
            await asyncio.gather(keeping, self._background.close(), return_exceptions=True)

    @property
    def is_open(self) -> bool:
        return self._keeping is not None and not self._keeping.done()

    @property
    def current(self) -> Connection | None:
        """The connection that is up, if there is one."""
        return None if self._connection is None or self._connection.lost.is_set() else self._connection

    async def take_seat(self, office: str) -> None:
        """Join an office. Raises its refusal. A join that is given up is followed by a leave."""
        try:
            while True:
                with suppress(ConnectionLost):
                    await join(await self.connected(), "agent", self.name, office, self._instance)
                    break
        except (CallTimeout, asyncio.CancelledError):
            if office not in self.seats:
                self._tell_leave(office)
            raise
        self.seats[office] = None

    async def give_up_seat(self, office: str) -> None:
        """Leave an office. Without a connection, leave on the next one: it gets all seats back at once (WIRE §4)."""
        self.seats.pop(office, None)
        if connection := self.current:
            with suppress(ConnectionLost):
                await leave(connection, office)
                return
        self._tell_leave(office)

    def _tell_leave(self, office: str) -> None:
        self.tell(smcp.LEAVE_OFFICE_EVENT, {"office_id": office})

    def ask(
        self,
        event: str,
        data: Mapping[str, Any],
        seconds: float,
        *,
        then: Callable[[Any], Any] | None = None,
        resend: Resend = Resend.ALWAYS,
    ) -> Coroutine[Any, Any, Any]:
        """Return the answer. Raises the error that it carries, or `CallTimeout` after so many seconds.

        If the connection is lost, the request is sent again on the next one where `resend` allows it (WIRE §5).
        """
        return RetriedRequest(self, event, data, then, resend).answer(seconds)

    def tell(self, event: str, data: Mapping[str, Any], timeout: float = PATIENCE) -> None:
        """Send in the background, as soon as there is a connection. Errors are ignored."""

        async def send() -> None:
            with suppress(SMCPError):
                await self.ask(event, data, timeout)

        self._background.spawn(send())

    # The connection as a request sees it (`retries.ConnectionState`)

    async def connected(self) -> Connection:
        while self._connection is None or self._connection.lost.is_set():
            if self._ended:
                raise self._ended
            await self._version.after(self._version.count)
        return self._connection

    def version(self) -> int:
        return self._version.count

    async def after_version(self, seen: int, timeout: float) -> None:
        await self._version.after(seen, timeout)

    async def _keep(self, is_open: asyncio.Future[None]) -> None:
        attempt, clock = 0, asyncio.get_running_loop().time
        while True:
            begun = clock()
            try:
                async with Connection(self._endpoint, self._on_event) as connection:
                    refused = await self._take_seats(connection, self.seats)
                    attempt = 0
                    await self._stay(connection, refused, is_open)
                    self._on_lost()
            except Exception as error:  # a credentials provider may raise anything
                if not is_open.done():
                    raise
                is_ours = isinstance(error, SMCPError)
                logger.warning("%s has no connection: %s", self.name, error, exc_info=not is_ours)
                if isinstance(error, _FINAL):
                    self._end(error)
                    self._on_refused(error)
                    return
            finally:
                self._connection = None
            await asyncio.sleep(self._reconnect.pause(attempt, clock() - begun))
            attempt += 1

    async def _stay(
        self, connection: Connection, refused: Mapping[str, SMCPError], is_open: asyncio.Future[None]
    ) -> None:
        self._connection = connection
        self._version.grow()
        if not is_open.done():
            is_open.set_result(None)
        for office in self.seats:
            if office not in refused:
                self._on_seated(office)
        for office, error in refused.items():
            self._on_seat_lost(office, error)
        regaining = asyncio.create_task(self._regain(connection, refused))
        try:
            await connection.lost.wait()
        finally:
            await cancel_and_wait(regaining)

    async def _take_seats(self, connection: Connection, offices: Iterable[str]) -> dict[str, SMCPError]:
        """Join these offices. Return those that refused, with their errors."""
        refused: dict[str, SMCPError] = {}
        for office in list(offices):
            try:
                await join(connection, "agent", self.name, office, self._instance)
            except Forbidden as error:
                refused[office] = error
        return refused

    async def _regain(self, connection: Connection, offices: Iterable[str]) -> None:
        """Try again to join offices that refused, until all accept."""
        attempt = 0
        while offices := [office for office in offices if office in self.seats]:
            await asyncio.sleep(self._reconnect.delay(attempt))
            attempt += 1
            with suppress(SMCPError):
                still = await self._take_seats(connection, offices)
                for office in set(offices) - set(still):
                    self._on_seated(office)
                offices = list(still)

    def _on_event(self, event: str, data: Any) -> None:
        if isinstance(data, dict) and event.startswith("notify:"):
            self._on_notice(event, data)
            if event == smcp.ENTER_OFFICE_NOTIFICATION:
                self._version.grow()

    def _end(self, error: SMCPError) -> None:
        self._ended, self._connection = error, None
        self._version.grow()


class _Version:
    """Counts changes after which a failed request may succeed."""

    def __init__(self) -> None:
        self.count = 0
        self._next = asyncio.Event()

    def grow(self) -> None:
        self.count += 1
        self._next.set()
        self._next = asyncio.Event()

    async def after(self, count: int, timeout: float | None = None) -> None:
        if self.count == count:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._next.wait()


def not_connected() -> Unavailable:
    return Unavailable("this agent is not connected, call connect() first")
