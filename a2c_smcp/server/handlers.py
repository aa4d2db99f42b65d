"""The handlers of events: each asks the protocol, and carries out the decision.

A handler is a generator: it yields what it has to wait for, and returns the answer. So each is written once, for a
directory that knows the answer at once and for one that has to ask for it. `wait` gives what it yields a type.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar, cast

from a2c_smcp.errors import ComputerNotFound, Unavailable
from a2c_smcp.mcp_events import TELL_STATE_EVENT
from a2c_smcp.protocol import offices
from a2c_smcp.protocol.events import Action, EventSpec
from a2c_smcp.protocol.offices import Member, Notice, Office, instance_digest
from a2c_smcp.server.calls.relay import Relay, check_size
from a2c_smcp.server.calls.routes import Route
from a2c_smcp.server.cluster.memory import Directory
from a2c_smcp.server.connections import Connection, event_packet
from a2c_smcp.server.envelope import DONE, NOTHING, TOLD, UNTOLD, Closing, Envelope, Outcome, answer_with
from a2c_smcp.server.freezes import Freezes
from a2c_smcp.server.notices import EncodedNotice, Notices, encode_caused
from a2c_smcp.server.observation.happened import CancelAsked, Observation, Told, Updated
from a2c_smcp.server.seating import Seating
from a2c_smcp.server.settings import Limits

_MANY = 16

T = TypeVar("T")

Waiting: TypeAlias = Generator[Awaitable[object], object, T]
"""A part of a handler: it yields what it waits for, and returns a value."""

Steps: TypeAlias = Waiting[Outcome | None]
"""A handler under way. It returns the answer; `None` if the call that it began will answer."""


def wait(awaitable: Awaitable[T]) -> Waiting[T]:
    """Waits inside a handler."""
    return cast(T, (yield awaitable))


class ReceivedEvent(NamedTuple):
    """An event whose payload was checked, by the `name` that its sender used. Without a `number` it wants no ack."""

    connection: Connection
    name: str
    event: EventSpec
    envelope: Envelope
    number: int | None


@dataclass(eq=False)
class Handlers:
    """One handler for each action of the event table."""

    _directory: Directory
    _relay: Relay
    _notices: Notices
    _seating: Seating
    _limits: Limits
    _observation: Observation
    _freezes: Freezes
    is_shared: bool

    def __post_init__(self) -> None:
        self._by_action: dict[Action, Callable[[ReceivedEvent], Steps]] = {
            Action.JOIN: self._join,
            Action.LEAVE: self._leave,
            Action.LIST: self._list_room,
            Action.CANCEL: self._cancel,
            Action.BROADCAST: self._update,
            Action.TELL: self._tell,
            Action.FORWARD: self._request,
        }

    def begin(self, received: ReceivedEvent) -> Steps:
        return self._by_action[received.event.action](received)

    def _join(self, received: ReceivedEvent) -> Steps:
        connection, fields = received.connection, received.envelope.fields
        role, name, office_id, instance = fields["role"], fields["name"], fields["office_id"], fields.get("instance")
        owner = connection.principal.id
        connection.principal.check(role, name, office_id)
        if self._relay.calls.is_closing:
            raise Closing
        digest = instance_digest(owner, role, name, instance) if instance else None
        newcomer = Member(connection.sid, role, name, office_id, digest, owner, connection.version)
        connection.wants_seats = role == "computer" and fields.get("seats") is True
        connection.hold_packets()
        yield self._seating.join(connection, newcomer)
        return DONE

    def _leave(self, received: ReceivedEvent) -> Steps:
        yield self._seating.leave(received.connection, received.envelope.fields["office_id"])
        return DONE

    def _list_room(self, received: ReceivedEvent) -> Steps:
        fields = received.envelope.fields
        office_id = fields["office_id"]
        known = self._directory.cached_office(office_id)
        if known and len(known.computers) > _MANY:
            yield asyncio.sleep(0)  # a long list takes long to write: one in a turn of the loop
        seats = yield from self._seats(received.connection)
        office = yield from (wait(self._newest(office_id)) if self.is_shared else self._office(office_id))
        listed = offices.list_room(received.event, seats, office, fields)
        for row in listed["sessions"] if self._freezes.by_scope else ():
            if row["role"] == "computer" and self._freezes.of(office_id, row["name"]):
                row["frozen"] = True  # type: ignore[typeddict-unknown-key]
        return answer_with(listed)

    def _cancel(self, received: ReceivedEvent) -> Steps:
        event, fields, seats = received.event, received.envelope.fields, (yield from self._seats(received.connection))
        seated = offices.seated(event, seats, fields)
        office_ids = self._relay.calls.cancel(seated, fields["req_id"], received.envelope.body)
        notices = self._encoded(received, offices.cancel(event, seats, fields, office_ids))
        self._observation.report(CancelAsked(received.connection, fields["req_id"], frozenset(office_ids)))
        yield from self._broadcast(notices)
        return NOTHING

    def _update(self, received: ReceivedEvent) -> Steps:
        seats = yield from self._seats(received.connection)
        (notice,) = self._encoded(received, [offices.broadcast(received.event, seats, received.envelope.fields)])
        if due := self._notices.admit(received.connection.sid, received.event, notice):
            yield from self._broadcast([due])
        if self._observation.is_watched:
            self._observation.report_often(Updated(received.connection, received.event, notice.office_id))
        return NOTHING

    def _tell(self, received: ReceivedEvent) -> Steps:
        event, fields = received.event, received.envelope.fields
        seats = yield from self._seats(received.connection)
        (seat,) = offices.seated(event, seats, fields)
        notice, agent = offices.tell(event, seat, (yield from self._office(seat.office_id)), fields)
        encoded = encode_caused(notice, received.envelope)
        check_size(len(encoded.body) + len(encoded.event), self._limits)
        if agent is None:
            return UNTOLD
        packet = event_packet(encoded.event, encoded.body)
        self._relay.tell(event, received.connection, agent, fields.get("req_id"), packet)
        if event.name == TELL_STATE_EVENT:
            self._relay.note_state(received.connection, agent, fields.get("req_id"), received.envelope.body)
        if self._observation.is_watched:
            self._observation.report_often(Told(received.connection, event, agent, fields.get("req_id")))
        return TOLD

    def _request(self, received: ReceivedEvent) -> Steps:
        seats = yield from self._seats(received.connection)
        around = []
        for seat in seats:
            around.append((yield from self._office(seat.office_id)))  # noqa: PERF401, it may wait in between
        try:
            route = self._relay.find(received.event, seats, around, received.envelope)
        except ComputerNotFound:
            if not self.is_shared:
                raise
            route = yield from wait(self._look_again(received, seats))
        received.connection.routes.keep(received.name, received.envelope.fields, route)
        self._relay.begin(route, received.envelope, received.connection, received.number)
        return None

    async def _look_again(self, received: ReceivedEvent, seats: Sequence[Member]) -> Route:
        """Asks the store: a computer may have joined on another node, and this node has not heard of it yet."""
        try:
            around = [await self._directory.office(seat.office_id) for seat in seats]
        except Unavailable:
            around = []
        return self._relay.find(received.event, seats, around, received.envelope)

    def _seats(self, connection: Connection) -> Waiting[Sequence[Member]]:
        """The seats of a connection. The store is asked only if this node does not know them."""
        seats = self._directory.cached_seats(connection.sid)
        return (yield from wait(self._directory.seats(connection.sid))) if seats is None else seats

    def _office(self, office_id: str) -> Waiting[Office]:
        office = self._directory.cached_office(office_id)
        return office or (yield from wait(self._directory.office(office_id)))

    async def _newest(self, office_id: str) -> Office:
        """The office as the store has it: members may have joined on another node just now."""
        try:
            return await self._directory.office(office_id)
        except Unavailable:
            if office := self._directory.cached_office(office_id):
                return office
            raise

    def _broadcast(self, notices: Sequence[EncodedNotice]) -> Waiting[None]:
        if self._notices.is_shared:
            yield self._notices.broadcast(*notices)
        else:
            self._notices.broadcast_soon(notices)

    def _encoded(self, received: ReceivedEvent, notices: Sequence[Notice]) -> list[EncodedNotice]:
        """Encodes notices, once for all members. Raises what refuses them, while their sender can still be told."""
        encoded = [encode_caused(notice, received.envelope) for notice in notices]
        size = max((len(notice.body) for notice in encoded), default=0)
        check_size(size + max((len(notice.event) for notice in encoded), default=0), self._limits)
        audience = [self._directory.cached_office(notice.office_id) for notice in encoded]
        copies = sum(len(office.members) for office in audience if office)
        received.connection.spend_broadcast(size, copies, self._limits.told_bytes)
        return encoded
