"""Seats: taken, given up, kept for a client that was lost, and taken over when it is back (resume).

A seat (`Member`) is one connection in one office under one name. The directory alone says who sits where. Two halves
meet here:

- `Offices` decides and commits. It reads a snapshot, asks the pure functions of `protocol/offices.py` for a change, and
  commits it by compare-and-swap; if another commit was faster, it begins again with a new snapshot.
- `Seating` is the directory's listener. It applies every change that was committed, on any node, to this node: which
  connections hear notices, what happens to calls, which notices are sent. A change is applied in the step of the event
  loop in which it is heard, and nothing in it waits. For a join of this node that is while the join is handled, so
  packets to the newcomer are held, and follow its ack.

A seat goes through these states:

    taken ── clean disconnect, leave, no instance ──► free
      │
      └── connection lost, seat has an instance ──► kept ── `resume_grace` is over ──► free
                                                     └── the client joins again ──► taken, by its new connection

A client with an `instance` is recognised by a digest of principal, role, name and secret. While its seats are kept
(`_absent` has a timer for each such sid), calls to it wait. When it joins on a new connection, the change `replaces`
the old one: its seats move, the timer is stopped, its calls move to the new connection and are sent again, and the old
connection is ended if it is still open. The timer and the join may race: the one that commits first wins, and the
other one finds the seat gone, or moved, and changes nothing. While a shared store is out of reach, the timer tries
again later: no other client could be given the seat meanwhile anyway.

Changes of one connection must not run at the same time: the directory compares offices, not connections. The hub's
inbox sees to that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from a2c_smcp.audit.observers import Observed
from a2c_smcp.errors import NotAuthenticated, NotInOffice, SMCPError, Unavailable
from a2c_smcp.loops import OwnedTasks
from a2c_smcp.protocol import offices
from a2c_smcp.protocol.events import OLDER_FIELDS
from a2c_smcp.protocol.offices import Change, Member, Office
from a2c_smcp.server.calls.relay import Relay
from a2c_smcp.server.cluster.memory import Directory, DirectoryListener
from a2c_smcp.server.connections import Connection, Connections
from a2c_smcp.server.freezes import Freeze, Freezes, FreezeScope, freeze_of
from a2c_smcp.server.notices import EncodedNotice, Notices, encode, read_notice
from a2c_smcp.server.observation.happened import Displaced, Joined, Left, Observation, TakenOver
from a2c_smcp.server.observation.recording import watch_offices
from a2c_smcp.server.settings import Limits
from a2c_smcp.smcp import CANCEL_TOOL_CALL_NOTIFICATION
from a2c_smcp.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

_TRIES = 100
_TRY_AGAIN = 1.0


class Offices:
    """The only writer of the directory. Each operation returns the change that it has committed.

    `on_commit` is told of it too, on this node only. `conflicts` counts changes that were decided again, because an
    office had changed meanwhile.
    """

    def __init__(self, directory: Directory, on_commit: Callable[[Change], None] = lambda change: None) -> None:
        self.conflicts = 0
        self._directory = directory
        self._on_commit = on_commit

    async def join(
        self,
        newcomer: Member,
        may_keep: Callable[[Member], bool] = lambda seat: True,
        most: int = offices.MAX_SEATS,
    ) -> Change:
        async def decide() -> Change:
            holder = await self._directory.holder(newcomer.instance) if newcomer.instance else None
            ghost = None if holder == newcomer.sid else holder
            around = {office.office_id: office for sid in (newcomer.sid, ghost) for office in await self._around(sid)}
            if newcomer.office_id not in around:
                around[newcomer.office_id] = await self._directory.office(newcomer.office_id)
            return offices.join(newcomer, around.values(), ghost, may_keep, most)

        return await self._commit(decide)

    async def leave(self, sid: str, office_id: str, *, is_lost: bool = False) -> Change:
        async def decide() -> Change:
            return offices.leave(sid, await self._directory.office(office_id), is_lost=is_lost)

        return await self._commit(decide)

    async def vacate(self, sid: str) -> Change:
        """Releases all seats of a dropped connection."""

        async def decide() -> Change:
            return offices.vacate(sid, await self._around(sid), is_lost=True)

        return await self._commit(decide)

    async def _around(self, sid: str | None) -> list[Office]:
        """The offices in which a connection has a seat."""
        seats = await self._directory.seats(sid) if sid else ()
        return [await self._directory.office(seat.office_id) for seat in seats]

    async def _commit(self, decide: Callable[[], Awaitable[Change]]) -> Change:
        for _ in range(_TRIES):
            change = await decide()
            if await self._directory.commit(change):
                self._on_commit(change)
                return change
            self.conflicts += 1
        raise Unavailable("too many want to change this office at once, try again")


class Seating(DirectoryListener):
    """Takes and releases seats, and applies changes. `dismiss` ends a connection that has lost its seats for good."""

    def __init__(
        self,
        directory: Directory,
        connections: Connections,
        relay: Relay,
        notices: Notices,
        background: OwnedTasks,
        limits: Limits,
        metrics: Metrics,
        dismiss: Callable[[Connection], None],
        observation: Observation,
        withhold: Callable[[Collection[str]], None],
        freezes: Freezes,
    ) -> None:
        self._withhold = withhold
        self._freezes = freezes
        freezes.on_change = self._freezes_changed
        self._directory = directory
        self._connections = connections
        self._relay = relay
        self._calls = relay.calls
        self._notices = notices
        self._background = background
        self._limits = limits
        self._dismiss = dismiss
        self._observation = observation
        self._offices = Offices(directory, self._report)
        self._absent: dict[str, asyncio.TimerHandle] = {}
        self._metrics = metrics
        watch_offices(metrics, connections, directory)
        metrics.watch("a2c_directory_conflicts_total", lambda: self._offices.conflicts)

    # What connections do

    async def join(self, connection: Connection, newcomer: Member) -> None:
        if connection.is_over or connection.is_gone:
            raise NotAuthenticated("this connection has ended")
        await self._send_pending(connection)
        allows, most = connection.principal.allows, self._limits.seats_per_connection
        await self._offices.join(newcomer, lambda seat: allows(seat.role, seat.name, seat.office_id), most)

    async def leave(self, connection: Connection, office_id: str) -> None:
        await self._send_pending(connection)
        await self._offices.leave(connection.sid, office_id)

    def lose(self, connection: Connection) -> None:
        """A connection has ended: from now on its seats wait for its client. `disconnected` has to follow."""
        self._keep_seats(connection.sid, self._limits.resume_grace)

    async def disconnected(self, connection: Connection, *, is_clean: bool) -> None:
        """Keeps seats with an instance for a while after an unexpected end, and releases all others at once.

        Raises `Unavailable` while the store is out of reach: then the seats are released when their time is over.
        """
        sid = connection.sid
        await self._send_pending(connection)
        self._notices.forget(sid)
        for seat in await self._directory.seats(sid):
            if is_clean or seat.instance is None:
                await self._offices.leave(sid, seat.office_id, is_lost=not is_clean)
        if not await self._directory.seats(sid) and (timer := self._absent.pop(sid, None)):
            timer.cancel()

    async def _send_pending(self, connection: Connection) -> None:
        if pending := self._notices.take_pending(connection.sid):
            await self._notices.broadcast(*pending)

    def _keep_seats(self, sid: str, seconds: float) -> None:
        self._absent[sid] = self._background.later(seconds, lambda: self._release_seats(sid))

    async def _release_seats(self, sid: str) -> None:
        """The client has not come back in time."""
        self._absent.pop(sid, None)
        try:
            await self._offices.vacate(sid)
        except Unavailable:
            self._keep_seats(sid, _TRY_AGAIN)

    def _report(self, change: Change) -> None:
        """Each committed change is reported once, by the node that has committed it."""
        left = {(seat.office_id, seat.role, seat.name): seat for seat in change.leaves}
        come: list[Observed] = []
        for seat in change.enters:
            before = left.pop((seat.office_id, seat.role, seat.name), None)
            connection = self._connections.get(seat.sid)
            if before is None:
                come.append(Joined(seat, connection))
            elif before.sid != seat.sid:
                come.append(TakenOver(seat, connection))
        gone = [Left(seat, change.is_lost, self._connections.get(seat.sid)) for seat in left.values()]
        for observed in (*gone, *come):
            self._observation.report(observed)

    def close(self) -> None:
        for timer in self._absent.values():
            timer.cancel()
        self._absent.clear()

    async def release(self, member: Member) -> None:
        """Free the seat of a member whose node is gone, before its lease has ended. It may be free already."""
        with suppress(NotInOffice):
            await self._offices.leave(member.sid, member.office_id, is_lost=True)

    # What the directory reports

    def office_changed(self, office: Office, change: Change) -> None:
        try:
            # Routes hold the office as it was, which may be large. Only its agent has some.
            if office.agent and (connection := self._connections.get(office.agent.sid)):
                connection.routes.clear()
            self._apply(office, change)
        except Exception:
            logger.exception("a change of an office was not carried out in full")

    def notice_announced(self, office_id: str, text: str) -> None:
        notice, fields = read_notice(office_id, text)
        if notice.event == CANCEL_TOOL_CALL_NOTIFICATION:  # of an agent on another node, perhaps, for a computer here
            office = self._directory.cached_office(office_id)
            if office and office.agent and office.agent.name == fields.get("agent", fields.get(OLDER_FIELDS["agent"])):
                self._calls.cancel([office.agent], str(fields["req_id"]), notice.body)
        self._notices.deliver(notice)

    def message_received(self, message: bytes) -> None:
        self._relay.message_received(message)

    def keys_withheld(self, credentials: Collection[str]) -> None:
        self._withhold(credentials)

    def freezes_read(self, text: str | None) -> None:
        self._freezes.read(text)

    def seats_inherited(self, sids: Collection[str]) -> None:
        for sid in sids:
            self._keep_seats(sid, self._limits.resume_grace)

    def node_returned(self, node: str) -> None:
        self._relay.node_returned(node)

    def reconnected(self) -> None:
        self._relay.store_is_back()
        self._background.spawn(self._repeat_notices())

    async def _repeat_notices(self) -> None:
        """Repeats updates of this node's computers, and tells its agents to read computers of other nodes again."""
        await self._notices.broadcast_missed()
        sids = [connection.sid for connection in self._connections]
        for seat in [seat for sid in sids for seat in self._directory.cached_seats(sid) or ()]:
            office = self._directory.cached_office(seat.office_id) if seat.role == "agent" else None
            for computer in office.computers.values() if office else ():
                if not self._connections.get(computer.sid):
                    self._notices.deliver_all_updates(computer)

    def store_lost(self, error: Exception) -> None:
        self._relay.store_lost()

    def store_asked(self, command: str, seconds: float, *, is_answered: bool) -> None:
        self._metrics.histogram("a2c_directory_request_duration_seconds", command).observe(seconds)
        if not is_answered:
            self._metrics.count("a2c_directory_errors_total", command)

    def seat_lost(self, member: Member, why: SMCPError) -> None:
        """Disconnect the member. If the client asks for the seat again, the error says who has it now."""
        self._observation.report(Displaced(member, why))
        if connection := self._connections.get(member.sid):
            self._dismiss(connection)

    async def survivors(self, members: Sequence[Member]) -> Collection[Member]:
        """Return members that are connected, or whose seat is kept: without an instance one would not come back."""
        return [
            member
            for member in members
            if (member.instance is not None and member.sid in self._absent) or self._connections.get(member.sid)
        ]

    def _freezes_changed(self, before: Mapping[FreezeScope, Freeze]) -> None:
        """Ends the calls in what is frozen, and tells agents and computers whose state has changed."""
        self._calls.end_frozen()
        for office_id in self._connections.office_ids():
            if office := self._directory.last_office(office_id):
                self._tell_frozen(office, before, office.computers.values())

    def _tell_frozen(self, office: Office, before: Mapping[FreezeScope, Freeze], members: Iterable[Member]) -> None:
        for seat in members:
            is_frozen = self._freezes.of(seat.office_id, seat.name) is not None
            if seat.role == "computer" and is_frozen != (freeze_of(before, seat.office_id, seat.name) is not None):
                self._notices.tell_frozen(seat, office, is_frozen=is_frozen)

    # How a change is applied

    def _apply(self, office: Office, change: Change) -> None:
        stays = {(seat.office_id, seat.role, seat.name) for seat in change.enters}
        for seat in change.leaves:
            if (seat.office_id, seat.role, seat.name) not in stays:
                self._left(seat, is_lost=change.is_lost)
            if connection := self._connections.get(seat.sid):
                connection.routes.clear()
                self._connections.leave(seat.office_id, connection)
        for seat in change.enters:
            self._meet(seat, office, is_back=change.replaces is not None)
        if change.replaces and change.enters:
            self._replace(change.replaces, by=change.enters[0].sid)
        for seat in change.enters:
            if connection := self._connections.get(seat.sid):
                connection.routes.clear()
                self._connections.enter(seat.office_id, connection)
        for notice in change.notices:
            self._notices.deliver(encode(notice))
        self._tell_frozen(office, {}, change.enters)

    def _meet(self, seat: Member, office: Office, *, is_back: bool) -> None:
        """Ends calls of an agent before this one; tells a computer, before calls that wait for it, whom it finds."""
        if seat.role == "agent":
            self._calls.agent_entered(seat, office)
        elif office.agent or is_back:
            self._notices.tell_present(seat, office)

    def _left(self, seat: Member, *, is_lost: bool) -> None:
        """Ends calls of a member. Those that an agent that was lost has begun go on: it may come back and ask again."""
        self._notices.broadcast_soon(self._notices.take_pending(seat.sid))
        if seat.role == "computer":
            self._calls.computer_left(seat)
        else:
            self._calls.agent_left(seat, is_lost=is_lost)

    def _replace(self, ghost: str, by: str) -> None:
        """Moves the calls of an older connection to the one that has its seats now, and ends the older one."""
        if timer := self._absent.pop(ghost, None):
            timer.cancel()
        self._notices.broadcast_soon(self._notices.take_pending(ghost))
        for call in self._calls.move(ghost, by):
            assert call.cancel is not None
            if connection := self._connections.get(by):
                self._notices.repeat_cancel(connection, call.cancel)
            elif self._connections.get(call.caller.sid) or call.outcome is not None:
                # The computer is on another node: the node of the agent broadcasts the cancel again. One of a call
                # that a freeze has ended is known to the earlier node of the computer only.
                office_id, agent = call.caller.office_id, call.caller.sid
                notice = EncodedNotice(CANCEL_TOOL_CALL_NOTIFICATION, office_id, call.cancel, agent)
                self._notices.broadcast_soon([notice])
        if connection := self._connections.get(ghost):
            self._dismiss(connection)
