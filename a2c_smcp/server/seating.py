"""Taking seats and giving them up, and what follows on this node whenever an office has changed, by whomever."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from a2c_smcp.errors import NotAuthenticated, SMCPError, Unavailable
from a2c_smcp.protocol.offices import Change, Member, Notice
from a2c_smcp.server import audit
from a2c_smcp.server.bus import Bus
from a2c_smcp.server.calls import Calls
from a2c_smcp.server.connections import Connection
from a2c_smcp.server.directory import Directory
from a2c_smcp.server.directory.listener import Listener
from a2c_smcp.server.directory.mirror import Turn
from a2c_smcp.server.eager import begin
from a2c_smcp.server.notices import Notices, office_room, older_room, read_notice
from a2c_smcp.server.offices import Offices
from a2c_smcp.smcp import CANCEL_TOOL_CALL_NOTIFICATION

if TYPE_CHECKING:
    from a2c_smcp.server.namespace import SMCPNamespace

__all__ = ["Seating"]

logger = logging.getLogger(__name__)

_TRY_AGAIN = 1.0


class Seating(Listener):
    """The directory says in which order offices change; here that becomes rooms, notices and the fate of calls.

    A seat with an instance is kept for a while after its connection was lost.
    """

    def __init__(self, namespace: SMCPNamespace, directory: Directory, calls: Calls, notices: Notices) -> None:
        self.directory = directory
        self.bus: Bus | None = None
        self._namespace = namespace
        self._offices = Offices(directory)
        self._calls = calls
        self._notices = notices
        self._absent: dict[str, asyncio.TimerHandle] = {}
        self._turns: deque[Change | Notice | asyncio.Future[None]] = deque()
        self._applying: asyncio.Task[None] | None = None
        self._is_applying = False
        directory.listener = self

    # What members do

    async def join(self, speaker: Connection, newcomer: Member) -> None:
        allows, most = speaker.principal.allows, self._namespace.limits.seats_per_connection
        async with speaker.lock:
            if speaker.is_over or speaker.is_gone:
                raise NotAuthenticated("this connection has ended")
            await self._offices.join(newcomer, lambda seat: allows(seat.role, seat.name, seat.office_id), most)
            await self._until_applied()

    async def leave(self, speaker: Connection, office_id: str) -> None:
        async with speaker.lock:
            await self._offices.leave(speaker.sid, office_id)
            await self._until_applied()

    async def disconnected(self, speaker: Connection, *, is_clean: bool) -> None:
        """Seats with an instance are kept for a while after an unexpected end, all others are given up at once."""
        sid = speaker.sid
        self._wait_for(sid, self._namespace.limits.resume_grace)
        async with speaker.lock:
            await self._notices.flush(sid)
            self._notices.forget(sid)
            for seat in await self.directory.seats(sid):
                if is_clean or seat.instance is None:
                    await self._offices.leave(sid, seat.office_id, is_lost=not is_clean)
            await self._until_applied()
            if not await self.directory.seats(sid) and (timer := self._absent.pop(sid, None)):
                timer.cancel()

    def _wait_for(self, sid: str, seconds: float) -> None:
        self._absent[sid] = self._namespace.background.later(seconds, lambda: self._give_up(sid))

    async def _give_up(self, sid: str) -> None:
        """Nobody came back for these seats. While the store is out of reach, they cannot be given to anybody anyway."""
        self._absent.pop(sid, None)
        try:
            await self._offices.vacate(sid)
        except Unavailable:
            self._wait_for(sid, _TRY_AGAIN)
            return
        await self._until_applied()

    def close(self) -> None:
        for timer in self._absent.values():
            timer.cancel()
        self._absent.clear()

    # What the directory tells

    def turned(self, turn: Turn) -> None:
        self._turns.append(turn.change)
        self._go_on()

    def announced(self, office_id: str, text: str) -> None:
        notice = read_notice(office_id, text)
        self._turns.append(notice)
        if notice.event == CANCEL_TOOL_CALL_NOTIFICATION:
            self._cancel(office_id, notice.data)
        self._go_on()

    def _cancel(self, office_id: str, data: dict[str, Any]) -> None:
        """A call to a computer of this node may be an agent's on another."""
        office = self.directory.office_at_hand(office_id)
        if office and office.agent and office.agent.name == data.get("agent", data.get("robot_id")):
            self._calls.cancel([office.agent], data)

    def posted(self, message: bytes) -> None:
        if self.bus:
            self.bus.hear(message)

    def inherited(self, sids: Collection[str]) -> None:
        for sid in sids:
            self._wait_for(sid, self._namespace.limits.resume_grace)

    def returned(self, node: str) -> None:
        self._namespace.requests.send_again(node)

    def back(self) -> None:
        self._namespace.requests.store_is_back()
        self._namespace.background.spawn(self._make_good())

    async def _make_good(self) -> None:
        """What computers of this node have said meanwhile is said again, and what those of others may have said."""
        await self._notices.spread_again()
        for seat in self._namespace.seats_here():
            office = self.directory.office_at_hand(seat.office_id) if seat.role == "agent" else None
            for computer in office.computers.values() if office else ():
                if not self._namespace.connection(computer.sid):
                    await self._notices.announce_anything(computer)

    def lost(self, error: Exception) -> None:
        self._namespace.requests.store_lost()

    def displaced(self, member: Member, why: SMCPError) -> None:
        """It is let go; when it comes back for its seat, it is told who has that."""
        audit.record("displaced", office=member.office_id, role=member.role, name=member.name, reason=str(why))
        self._namespace.background.spawn(self._namespace.dismiss(member.sid))

    async def survivors(self, members: Sequence[Member]) -> Collection[Member]:
        return [member for member in members if self._is_seated(member)]

    def _is_seated(self, member: Member) -> bool:
        """Here, or away for a while: without an instance it would not come back."""
        is_away = member.instance is not None and member.sid in self._absent
        return is_away or self._namespace.connection(member.sid) is not None

    # What follows

    def _go_on(self) -> None:
        if not self._is_applying:
            self._applying = begin(self._apply_turns())

    async def _until_applied(self) -> None:
        """Until everything is carried out that has been committed so far."""
        if self._is_applying:
            applied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._turns.append(applied)
            await applied

    async def _apply_turns(self) -> None:
        self._is_applying = True
        try:
            while self._turns:
                turn = self._turns.popleft()
                if isinstance(turn, asyncio.Future):
                    if not turn.done():
                        turn.set_result(None)
                else:
                    await self._apply_safely(turn)
        finally:
            self._is_applying = False

    async def _apply_safely(self, turn: Change | Notice) -> None:
        try:
            await (self._apply(turn) if isinstance(turn, Change) else self._notices.announce(turn))
        except Exception:
            logger.exception("a change of an office was not carried out in full")

    async def _apply(self, change: Change) -> None:
        """Who hears what, what becomes of calls, what others are told. Of an agent that was lost, answers are kept."""
        for seat in (*change.leaves, *change.enters):
            if connection := self._namespace.connection(seat.sid):
                connection.ways.clear()
        stays = {(seat.office_id, seat.role, seat.name) for seat in change.enters}
        for seat in change.leaves:
            if (seat.office_id, seat.role, seat.name) not in stays:
                await self._let_go(seat, is_lost=change.is_lost)
            await self._namespace.leave_room(seat.sid, office_room(seat.office_id))
            await self._namespace.leave_room(seat.sid, older_room(seat.office_id))
        if change.replaces and change.enters:
            await self._replace(change.replaces, by=change.enters[0].sid)
        for seat in change.enters:
            await self._enter_rooms(seat)
        for notice in change.notices:
            await self._notices.announce(notice)

    async def _let_go(self, seat: Member, *, is_lost: bool) -> None:
        await self._notices.flush(seat.sid)
        if seat.role == "computer":
            self._calls.computer_left(seat)
        elif not is_lost:
            self._calls.agent_left(seat)
        audit.record("left", office=seat.office_id, role=seat.role, name=seat.name)

    async def _enter_rooms(self, seat: Member) -> None:
        connection = self._namespace.connection(seat.sid)
        if connection is None:
            return
        await self._namespace.enter_room(seat.sid, office_room(seat.office_id))
        if connection.speaks_older_names:
            await self._namespace.enter_room(seat.sid, older_room(seat.office_id))
        audit.record("joined", office=seat.office_id, role=seat.role, name=seat.name, principal=seat.owner)

    async def _remind(self, computer: str, agent: Member, cancel: dict[str, Any]) -> None:
        """Of a cancel that it has missed. If it is on another node, the node of the agent tells the office again."""
        if self._namespace.connection(computer):
            self._notices.remind(computer, cancel)
        elif self._namespace.connection(agent.sid):
            notice = Notice(CANCEL_TOOL_CALL_NOTIFICATION, agent.office_id, cancel, agent.sid)
            self._namespace.background.spawn(self._notices.spread(notice))

    async def _replace(self, ghost: str, by: str) -> None:
        """The seats of an older connection are somebody else's now. If it is still open, it is ended."""
        if timer := self._absent.pop(ghost, None):
            timer.cancel()
        await self._notices.flush(ghost)
        for agent, missed in self._calls.move(ghost, by):
            await self._remind(by, agent, missed)
        if connection := self._namespace.connection(ghost):
            connection.is_over = True
            self._namespace.background.spawn(self._namespace.dismiss(ghost))
