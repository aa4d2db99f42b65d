"""What each event does: ask the protocol, carry out what it decides.

A handler is a generator: it yields what it has to wait for, and returns the answer. So each is written once, whether
the directory knows the answer at once or has to ask for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeAlias

from a2c_smcp.errors import ComputerNotFound, Unavailable
from a2c_smcp.protocol import routing
from a2c_smcp.protocol.events import Action, Event
from a2c_smcp.protocol.offices import Member, Notice, Office, instance_digest
from a2c_smcp.server import acks
from a2c_smcp.server.calls.relay import Relay, check_size
from a2c_smcp.server.calls.routes import Route
from a2c_smcp.server.connections import Connection
from a2c_smcp.server.directory import Directory
from a2c_smcp.server.envelope import Envelope
from a2c_smcp.server.offices.notices import Notices, Told, encode_event
from a2c_smcp.server.offices.seating import Seating
from a2c_smcp.server.outcomes import NOTHING, Closing, Outcome
from a2c_smcp.server.settings import Limits

__all__ = ["Handlers", "Said", "Steps"]

_MANY = 16

Steps: TypeAlias = Generator[Awaitable[Any], Any, Outcome | None]
"""A handler under way: what it waits for, and in the end the answer; `None` if the call that it began will answer."""


class Said(NamedTuple):
    """An event that is sound, by the `name` that its sender used. Without a `number` it wants no ack."""

    connection: Connection
    name: str
    event: Event
    envelope: Envelope
    number: int | None


class Handlers:
    """One for each action of the event table."""

    def __init__(
        self,
        directory: Directory,
        relay: Relay,
        notices: Notices,
        seating: Seating,
        limits: Limits,
        *,
        is_shared: bool,
    ) -> None:
        self._directory = directory
        self._relay = relay
        self._notices = notices
        self._seating = seating
        self._limits = limits
        self._is_shared = is_shared
        self._by_action: dict[Action, Callable[[Said], Steps]] = {
            Action.JOIN: self._join,
            Action.LEAVE: self._leave,
            Action.LIST: self._list_room,
            Action.CANCEL: self._cancel,
            Action.BROADCAST: self._update,
            Action.FORWARD: self._request,
        }

    def begin(self, said: Said) -> Steps:
        return self._by_action[said.event.action](said)

    def _join(self, said: Said) -> Steps:
        connection, fields = said.connection, said.envelope.fields
        role, name, office_id, instance = fields["role"], fields["name"], fields["office_id"], fields.get("instance")
        owner = connection.principal.id
        connection.principal.check(role, name, office_id)
        if self._relay.calls.is_closing:
            raise Closing
        digest = instance_digest(owner, role, name, instance) if instance else None
        newcomer = Member(connection.sid, role, name, office_id, digest, owner, connection.version)
        connection.close_gate()
        yield self._seating.join(connection, newcomer)
        return acks.DONE

    def _leave(self, said: Said) -> Steps:
        yield self._seating.leave(said.connection, said.envelope.fields["office_id"])
        return acks.DONE

    def _list_room(self, said: Said) -> Steps:
        fields = said.envelope.fields
        office_id = fields["office_id"]
        known = self._directory.office_at_hand(office_id)
        if known and len(known.computers) > _MANY:
            yield asyncio.sleep(0)  # it takes long to write: one in a turn of the loop, and of how the office is then
        seats = yield from self._seats(said.connection)
        office = (yield self._newest(office_id)) if self._is_shared else (yield from self._office(office_id))
        return acks.answer(routing.list_room(said.event, seats, office, fields))

    def _cancel(self, said: Said) -> Steps:
        event, fields, seats = said.event, said.envelope.fields, (yield from self._seats(said.connection))
        offices = self._relay.calls.cancel(routing.seated(event, seats, fields), fields["req_id"], said.envelope.body)
        notices = self._encoded(said, routing.cancel(event, seats, fields, offices))
        yield from self._spread(notices)
        return NOTHING

    def _update(self, said: Said) -> Steps:
        seats = yield from self._seats(said.connection)
        (told,) = self._encoded(said, [routing.broadcast(said.event, seats, said.envelope.fields)])
        if due := self._notices.admit(said.connection.sid, said.event, told):
            yield from self._spread([due])
        return NOTHING

    def _request(self, said: Said) -> Steps:
        seats = yield from self._seats(said.connection)
        offices = []
        for seat in seats:
            offices.append((yield from self._office(seat.office_id)))  # noqa: PERF401, it may wait in between
        try:
            route = self._relay.find(said.event, seats, offices, said.envelope)
        except ComputerNotFound:
            if not self._is_shared:
                raise
            route = yield self._look_again(said, seats)
        said.connection.routes.keep(said.name, said.envelope.fields, route)
        self._relay.begin(route, said.envelope, said.connection, said.number)
        return None

    async def _look_again(self, said: Said, seats: Sequence[Member]) -> Route:
        """A computer may have joined on another node just now, and this one not have heard of it yet."""
        try:
            offices = [await self._directory.office(seat.office_id) for seat in seats]
        except Unavailable:
            offices = []
        return self._relay.find(said.event, seats, offices, said.envelope)

    def _seats(self, connection: Connection) -> Generator[Awaitable[Any], Any, Sequence[Member]]:
        """Those of a connection, without asking the store where that is not needed."""
        seats: Sequence[Member] | None = self._directory.seats_at_hand(connection.sid)
        if seats is None:
            seats = yield self._directory.seats(connection.sid)
        return seats

    def _office(self, office_id: str) -> Generator[Awaitable[Any], Any, Office]:
        office: Office = self._directory.office_at_hand(office_id) or (yield self._directory.office(office_id))
        return office

    async def _newest(self, office_id: str) -> Office:
        """What the store says: members may have joined on another node just now. Without it, what is at hand."""
        try:
            return await self._directory.office(office_id)
        except Unavailable:
            if office := self._directory.office_at_hand(office_id):
                return office
            raise

    def _spread(self, notices: Sequence[Told]) -> Generator[Awaitable[Any], Any, None]:
        if self._notices.is_shared:
            yield self._notices.spread(*notices)
        else:
            self._notices.spread_soon(notices)

    def _encoded(self, said: Said, notices: Sequence[Notice]) -> list[Told]:
        """As bytes, once for everybody, and while their sender can still be told that they cannot be sent."""
        told = [encode_event(notice, said.envelope) for notice in notices]
        size = max((len(notice.body) for notice in told), default=0)
        check_size(size + max((len(notice.event) for notice in told), default=0), self._limits)
        offices = [self._directory.office_at_hand(notice.office_id) for notice in told]
        copies = sum(len(office.members) for office in offices if office)
        said.connection.may_tell(size, copies, self._limits.told_bytes)
        return told
