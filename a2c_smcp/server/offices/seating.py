"""Apply committed office changes on this node: who hears notices, what happens to calls, what others are told.

The directory says in which order offices change, on whatever node that was decided. A change is applied here as a
whole, in the step of the event loop in which it is heard: nothing in it waits. For a join of this node that is while
the join is handled, so the newcomer's gate is closed and everything sent to it here follows its ack.

A seat with an instance is kept for a while after its connection was lost. Such a connection is `absent`: its calls
wait, and a timer gives its seats up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence

from a2c_smcp.errors import NotAuthenticated, SMCPError, Unavailable
from a2c_smcp.loops import OwnedTasks
from a2c_smcp.protocol.offices import Change, Member, Office
from a2c_smcp.server import audit
from a2c_smcp.server.calls.relay import Relay
from a2c_smcp.server.connections import Connection, Connections
from a2c_smcp.server.directory import Directory
from a2c_smcp.server.directory.listener import Listener
from a2c_smcp.server.directory.mirror import Turn
from a2c_smcp.server.offices.commits import Offices
from a2c_smcp.server.offices.notices import Notices, Told, encode, read_notice
from a2c_smcp.server.settings import Limits
from a2c_smcp.smcp import CANCEL_TOOL_CALL_NOTIFICATION

__all__ = ["Seating"]

logger = logging.getLogger(__name__)

_TRY_AGAIN = 1.0


class Seating(Listener):
    """Seats are taken and given up here. `dismiss` ends a connection that has lost its seats for good."""

    def __init__(
        self,
        directory: Directory,
        connections: Connections,
        relay: Relay,
        notices: Notices,
        background: OwnedTasks,
        limits: Limits,
        dismiss: Callable[[Connection], None],
    ) -> None:
        self._directory = directory
        self._connections = connections
        self._relay = relay
        self._calls = relay.calls
        self._notices = notices
        self._background = background
        self._limits = limits
        self._dismiss = dismiss
        self._offices = Offices(directory)
        self._absent: dict[str, asyncio.TimerHandle] = {}

    # What members do

    async def join(self, connection: Connection, newcomer: Member) -> None:
        if connection.is_over or connection.is_gone:
            raise NotAuthenticated("this connection has ended")
        await self._tell_pending(connection)
        allows, most = connection.principal.allows, self._limits.seats_per_connection
        await self._offices.join(newcomer, lambda seat: allows(seat.role, seat.name, seat.office_id), most)

    async def leave(self, connection: Connection, office_id: str) -> None:
        await self._tell_pending(connection)
        await self._offices.leave(connection.sid, office_id)

    def lose(self, connection: Connection) -> None:
        """A connection has ended: from now on its seats wait for it. `disconnected` has to follow."""
        self._wait_for(connection.sid, self._limits.resume_grace)

    async def disconnected(self, connection: Connection, *, is_clean: bool) -> None:
        """Seats with an instance are kept for a while after an unexpected end, all others are given up at once.

        Raises `Unavailable` while the store is out of reach: then the seats are given up when their time is over.
        """
        sid = connection.sid
        await self._tell_pending(connection)
        self._notices.forget(sid)
        for seat in await self._directory.seats(sid):
            if is_clean or seat.instance is None:
                await self._offices.leave(sid, seat.office_id, is_lost=not is_clean)
        if not await self._directory.seats(sid) and (timer := self._absent.pop(sid, None)):
            timer.cancel()

    async def _tell_pending(self, connection: Connection) -> None:
        if pending := self._notices.take_pending(connection.sid):
            await self._notices.spread(*pending)

    def _wait_for(self, sid: str, seconds: float) -> None:
        self._absent[sid] = self._background.later(seconds, lambda: self._give_up(sid))

    async def _give_up(self, sid: str) -> None:
        """Nobody came back for these seats. While the store is out of reach, they cannot be given to anybody anyway."""
        self._absent.pop(sid, None)
        try:
            await self._offices.vacate(sid)
        except Unavailable:
            self._wait_for(sid, _TRY_AGAIN)

    def close(self) -> None:
        for timer in self._absent.values():
            timer.cancel()
        self._absent.clear()

    # What the directory tells

    def turned(self, turn: Turn) -> None:
        try:
            self._forget_routes(turn.office)
            self._apply(turn.change)
        except Exception:
            logger.exception("a change of an office was not carried out in full")

    def announced(self, office_id: str, text: str) -> None:
        notice, fields = read_notice(office_id, text)
        if notice.event == CANCEL_TOOL_CALL_NOTIFICATION:
            self._cancel(notice, fields)
        self._notices.tell(notice)

    def _cancel(self, notice: Told, fields: dict[str, object]) -> None:
        """A call to a computer of this node may be an agent's on another."""
        office = self._directory.office_at_hand(notice.office_id)
        if office and office.agent and office.agent.name == fields.get("agent", fields.get("robot_id")):
            self._calls.cancel([office.agent], str(fields["req_id"]), notice.body)

    def posted(self, message: bytes) -> None:
        self._relay.posted(message)

    def inherited(self, sids: Collection[str]) -> None:
        for sid in sids:
            self._wait_for(sid, self._limits.resume_grace)

    def returned(self, node: str) -> None:
        self._relay.node_returned(node)

    def back(self) -> None:
        self._relay.store_is_back()
        self._background.spawn(self._make_good())

    async def _make_good(self) -> None:
        """What computers of this node have said meanwhile is said again, and what those of others may have said."""
        await self._notices.spread_again()
        for seat in [seat for each in self._connections for seat in self._directory.seats_at_hand(each.sid) or ()]:
            office = self._directory.office_at_hand(seat.office_id) if seat.role == "agent" else None
            for computer in office.computers.values() if office else ():
                if not self._connections.get(computer.sid):
                    self._notices.tell_anything(computer)

    def lost(self, error: Exception) -> None:
        self._relay.store_lost()

    def displaced(self, member: Member, why: SMCPError) -> None:
        """It is let go; when it comes back for its seat, it is told who has that."""
        audit.record("displaced", office=member.office_id, role=member.role, name=member.name, reason=str(why))
        if connection := self._connections.get(member.sid):
            self._dismiss(connection)

    async def survivors(self, members: Sequence[Member]) -> Collection[Member]:
        return [member for member in members if self._is_seated(member)]

    def _is_seated(self, member: Member) -> bool:
        """Here, or away for a while: without an instance it would not come back."""
        is_away = member.instance is not None and member.sid in self._absent
        return is_away or self._connections.get(member.sid) is not None

    # How a change is applied

    def _forget_routes(self, office: Office) -> None:
        """Routes hold the office as it was, which may be large. Only its agent has some."""
        if office.agent and (connection := self._connections.get(office.agent.sid)):
            connection.routes.clear()

    def _apply(self, change: Change) -> None:
        """Of an agent that was lost, answers are kept."""
        stays = {(seat.office_id, seat.role, seat.name) for seat in change.enters}
        for seat in change.leaves:
            if (seat.office_id, seat.role, seat.name) not in stays:
                self._let_go(seat, is_lost=change.is_lost)
            if connection := self._connections.get(seat.sid):
                connection.routes.clear()
                self._connections.leave(seat.office_id, connection)
        if change.replaces and change.enters:
            self._replace(change.replaces, by=change.enters[0].sid)
        for seat in change.enters:
            if connection := self._connections.get(seat.sid):
                connection.routes.clear()
                self._connections.enter(seat.office_id, connection)
                audit.record("joined", office=seat.office_id, role=seat.role, name=seat.name, principal=seat.owner)
        for notice in change.notices:
            self._notices.tell(encode(notice))

    def _let_go(self, seat: Member, *, is_lost: bool) -> None:
        self._notices.spread_soon(self._notices.take_pending(seat.sid))
        if seat.role == "computer":
            self._calls.computer_left(seat)
        elif not is_lost:
            self._calls.agent_left(seat)
        audit.record("left", office=seat.office_id, role=seat.role, name=seat.name)

    def _replace(self, ghost: str, by: str) -> None:
        """The seats of an older connection belong to another one now. If the older one is still open, it is ended."""
        if timer := self._absent.pop(ghost, None):
            timer.cancel()
        self._notices.spread_soon(self._notices.take_pending(ghost))
        for call in self._calls.move(ghost, by):
            assert call.cancel is not None
            if connection := self._connections.get(by):
                self._notices.remind(connection, call.cancel)
            elif self._connections.get(call.caller.sid):
                # The computer is on another node: the node of the agent tells the office again.
                office_id, agent = call.caller.office_id, call.caller.sid
                self._notices.spread_soon([Told(CANCEL_TOOL_CALL_NOTIFICATION, office_id, call.cancel, agent)])
        if connection := self._connections.get(ghost):
            self._dismiss(connection)
