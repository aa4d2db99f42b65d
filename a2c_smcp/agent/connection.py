"""An agent's presence at a Server: its connection, dialled again when it is lost; its seats, taken again on each."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any

from a2c_smcp import smcp
from a2c_smcp.agent.retries import Resend, RetriedRequest
from a2c_smcp.connection import PATIENCE, Connection, ConnectionLost, Reconnect, join, leave
from a2c_smcp.endpoint import Endpoint
from a2c_smcp.errors import BadRequest, CallTimeout, Forbidden, NotAuthenticated, SMCPError, Unavailable

__all__ = ["AgentConnection", "not_connected"]

logger = logging.getLogger(__name__)

_FINAL = (NotAuthenticated, BadRequest)
_FAREWELL = 1.0


class AgentConnection:
    """Opened and closed once. Between the two it comes back by itself.

    `on_notice` is called for each `notify:*` in the order of their coming, `on_lost` when the connection is lost,
    `on_seated` whenever a seat has been taken, `on_seat_lost` when one could not be taken again, `on_refused` when the
    Server refuses it for good. `awaited_until` says which computers are expected back (`retries.Presence`).
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
        awaited_until: Callable[[object, object], float],
    ) -> None:
        self.name = name
        self.seats: dict[str, None] = {}
        self.is_guarded = False
        self.awaited_until = awaited_until
        self._endpoint = endpoint
        self._reconnect = reconnect
        self._on_notice, self._on_lost, self._on_seated = on_notice, on_lost, on_seated
        self._on_seat_lost, self._on_refused = on_seat_lost, on_refused
        self._instance = secrets.token_urlsafe(32)
        self._connection: Connection | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._errands: set[asyncio.Task[None]] = set()
        self._ended: SMCPError | None = not_connected()
        self._news = _News()

    async def open(self) -> None:
        """Dials. Raises what the Server refuses it with, or `Unavailable`; after that it keeps coming back."""
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
        """Leaves, after what has to be said is said."""
        keeping, self._keeping = self._keeping, None
        if keeping is None:
            return
        try:
            await self._say_goodbye()
        finally:
            self._end(not_connected())
            self.seats.clear()
            for task in (keeping, *self._errands):
                task.cancel()
            await asyncio.gather(keeping, *self._errands, return_exceptions=True)

    async def _say_goodbye(self) -> None:
        if self._errands:
            await asyncio.wait(self._errands, timeout=_FAREWELL)
        if connection := self.current:
            leaving = (leave(connection, office, _FAREWELL) for office in self.seats)
            await asyncio.gather(*leaving, return_exceptions=True)

    @property
    def is_open(self) -> bool:
        return self._keeping is not None and not self._keeping.done()

    @property
    def current(self) -> Connection | None:
        """The one that is up, if there is one."""
        return None if self._connection is None or self._connection.lost.is_set() else self._connection

    async def take_seat(self, office: str) -> None:
        """Raises what the office refuses it with. Who stops waiting does not sit there."""
        try:
            while True:
                with suppress(ConnectionLost):
                    await join(await self.online(), "agent", self.name, office, self._instance)
                    break
        except (CallTimeout, asyncio.CancelledError):
            if office not in self.seats:
                self._tell_leave(office)
            raise
        self.seats[office] = None

    async def give_up_seat(self, office: str) -> None:
        """Without a connection it is said on the next one: there a Server gives back all seats at once (WIRE §4)."""
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
        again: Resend = Resend.SAFELY,
    ) -> Coroutine[Any, Any, Any]:
        """The answer. Raises the error that it carries, and `CallTimeout` when the time is over.

        A request whose connection is lost is sent again on the next, in the time that is left (WIRE §5), if it may be.
        """
        return RetriedRequest(self, event, data, then, again).answer(seconds)

    def tell(self, event: str, data: Mapping[str, Any], patience: float = PATIENCE) -> None:
        """Says something that has to be said, as soon as there is a connection, while the caller goes on."""

        async def errand() -> None:
            with suppress(SMCPError):
                await self.ask(event, data, patience)

        task = asyncio.create_task(errand())
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    # What requests need

    async def online(self) -> Connection:
        while self._connection is None or self._connection.lost.is_set():
            if self._ended:
                raise self._ended
            await self._news.after(self._news.count)
        return self._connection

    def news(self) -> int:
        return self._news.count

    async def after_news(self, seen: int, patience: float) -> None:
        await self._news.after(seen, patience)

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
            except Exception as error:  # whatever it is that a provider of credentials raises
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
        self._news.beat()
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
            regaining.cancel()
            await asyncio.gather(regaining, return_exceptions=True)

    async def _take_seats(self, connection: Connection, offices: Iterable[str]) -> dict[str, SMCPError]:
        """Those that would not have it back, and why."""
        refused: dict[str, SMCPError] = {}
        for office in list(offices):
            try:
                await join(connection, "agent", self.name, office, self._instance)
            except Forbidden as error:
                refused[office] = error
        return refused

    async def _regain(self, connection: Connection, offices: Iterable[str]) -> None:
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
                self._news.beat()

    def _end(self, error: SMCPError) -> None:
        self._ended, self._connection = error, None
        self._news.beat()


class _News:
    """Something happened that makes another try worth while. Whoever counts misses nothing."""

    def __init__(self) -> None:
        self.count = 0
        self._next = asyncio.Event()

    def beat(self) -> None:
        self.count += 1
        self._next.set()
        self._next = asyncio.Event()

    async def after(self, count: int, patience: float | None = None) -> None:
        if self.count == count:
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self._next.wait()


def not_connected() -> Unavailable:
    return Unavailable("this agent is not connected, connect() comes first")
