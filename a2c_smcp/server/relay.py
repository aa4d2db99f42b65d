"""Requests of agents on their way to computers: where each goes, whether it fits, and how it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from a2c_smcp.errors import ComputerLeft, NotInOffice, SMCPError, TooLarge, Unavailable
from a2c_smcp.errors import Outcome as Became
from a2c_smcp.protocol import routing
from a2c_smcp.protocol.codec import timeout_of
from a2c_smcp.protocol.events import Event
from a2c_smcp.protocol.offices import Member, Office
from a2c_smcp.protocol.routing import Forward
from a2c_smcp.server.background import Background
from a2c_smcp.server.bus import GONE, LOST, UNHEARD, Bus, Outcome, Request
from a2c_smcp.server.calls import LATER, NOT_SENT, Calls, Closing, Reply
from a2c_smcp.server.connections import Connection
from a2c_smcp.server.directory import Directory
from a2c_smcp.server.directory.nodes import node_of
from a2c_smcp.server.metrics import Metrics
from a2c_smcp.server.packets import HEAD_ROOM, Payload, Rejected
from a2c_smcp.server.settings import Limits
from a2c_smcp.server.ways import Way

__all__ = ["CheckRoom", "Emit", "Post", "Relay", "check_size"]

_GRACE = 1.0  # WIRE §5: the Server waits a second longer than the MCP call, the agent another

CheckRoom: TypeAlias = Callable[[str, int], None]
"""Raises `RateLimited` if a message of this size does not fit among what a connection has not read yet."""

Post: TypeAlias = Callable[[Connection, str, Payload, Callable[..., None]], None]
"""Sends an event to a connection at once, as text, and gives its ack to a callback."""

Emit: TypeAlias = Callable[..., Awaitable[None]]


class Relay:
    """Decides and sends. `post` is the fast way, where there is one; `emit` is the library's."""

    def __init__(
        self,
        directory: Directory,
        emit: Emit,
        connection: Callable[[str], Connection | None],
        background: Background,
        metrics: Metrics,
        limits: Limits,
        check_room: CheckRoom,
    ) -> None:
        self.calls = Calls(self._deliver, self._is_here, self._is_reachable, background, limits)
        self.post: Post | None = None
        self.bus: Bus | None = None
        self._directory = directory
        self._connection = connection
        self._emit = emit
        self._background = background
        self._metrics = metrics
        self._limits = limits
        self._check_room = check_room

    async def request(self, sid: str, event: Event, data: dict[str, Any]) -> asyncio.Future[Any]:
        """What will be answered. Raises what refuses the request at once."""
        seats = await self.seats(sid)
        offices = [await self.office(seat.office_id) for seat in seats]
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.begin(event, routing.forward(event, seats, offices, data), partial(_settle, answered))
        return answered

    async def seats(self, sid: str) -> Sequence[Member]:
        """Those of a connection, without asking the store where that is not needed."""
        seats = self._directory.seats_at_hand(sid)
        return await self._directory.seats(sid) if seats is None else seats

    async def office(self, office_id: str) -> Office:
        return self._directory.office_at_hand(office_id) or await self._directory.office(office_id)

    def find(self, sid: str, event: Event, data: dict[str, Any]) -> Way | None:
        """Where a request goes, without waiting; `None` where the directory has to be waited for."""
        seats = self._directory.seats_at_hand(sid)
        if seats is None:
            return None
        offices: list[Office] = []
        for seat in seats:
            office = self._directory.office_at_hand(seat.office_id)
            if office is None:
                return None
            offices.append(office)
        forward = routing.forward(event, seats, offices, data)
        return Way(tuple(offices), forward.caller, forward.target)

    def begin(self, event: Event, forward: Forward, reply: Reply) -> None:
        """Passes on a request that is sound. What refuses it is raised."""
        timeout = timeout_of(event, forward.data, self._limits.max_timeout)
        self._metrics.count("calls_total")
        self.calls.begin(forward, timeout + _GRACE if timeout else self._limits.request_timeout, reply)

    def serve(self, request: Request, reply: Reply) -> None:
        """What another node asks of a member of this one, for an agent that this node has to know as well."""
        office = self._directory.office_at_hand(request.caller.office_id)
        if office and _is_agent_of(office, request.caller):
            self._take(request, reply)
        else:
            self._background.spawn(self._take_if_seated(request, reply))

    async def _take_if_seated(self, request: Request, reply: Reply) -> None:
        """One of the two nodes has not heard yet who the agent is: the store says."""
        office_id = request.caller.office_id
        try:
            if not _is_agent_of(await self._directory.office(office_id), request.caller):
                raise NotInOffice(repr(office_id))
            self._take(request, reply)
        except Unavailable as error:
            error.outcome = "not_run"
            reply(error)
        except SMCPError as error:
            reply(error)

    def _take(self, request: Request, reply: Reply) -> None:
        """The node of the computer owns the call."""
        seats = self._directory.seats_at_hand(request.target)
        if seats is None:
            raise Unavailable("this node has lost touch with the others", outcome="not_run")
        target = next((seat for seat in seats if seat.office_id == request.caller.office_id), None)
        if target is None:
            reply(GONE)
            return
        forward = Forward(request.event, request.caller, target, request.payload, request.sent_before)
        try:
            self.calls.begin(forward, request.timeout, partial(_tell_node, reply))
        except Closing:
            reply(LOST)

    def send_again(self, node: str) -> None:
        """What a node was asked before it was out of reach."""
        if self.bus:
            self.bus.forget(node)
            self.calls.send_again(lambda sid: node_of(sid) == node)

    def store_lost(self) -> None:
        """Tool calls on other nodes wait until the store is back. Who asks for anything else may ask again himself."""
        if self.bus:
            self.bus.forget_all()
            self.calls.fail_requests(self._is_elsewhere, Unavailable("the nodes cannot reach each other"))

    def store_is_back(self) -> None:
        self.calls.send_again(self._is_elsewhere)

    def _is_here(self, sid: str) -> bool:
        return self._connection(sid) is not None

    def _is_elsewhere(self, sid: str) -> bool:
        return bool(self.bus and self.bus.elsewhere(sid))

    def _is_reachable(self, sid: str) -> bool:
        return self._is_here(sid) or self._is_elsewhere(sid)

    def _deliver(self, sid: str, forward: Forward, timeout: float, is_again: bool, reply: Callable[..., None]) -> None:
        payload, connection = forward.data, self._connection(sid)
        size = payload.size if isinstance(payload, Payload) else 0
        check_size(size + len(forward.event), self._limits)
        if connection is None:
            self._ask(sid, forward, timeout, is_again, reply)
            return
        if connection.track:
            connection.track.check_room(size)
        else:
            self._check_room(sid, size)
        if self.post and isinstance(payload, Payload) and payload.json:
            self.post(connection, forward.event, payload, reply)
        else:
            self._background.spawn(self._emitted(sid, forward, reply))

    def _ask(self, sid: str, forward: Forward, timeout: float, is_again: bool, reply: Callable[..., None]) -> None:
        """The computer is on another node, where it may have moved from one session to the next since."""
        node = self.bus.elsewhere(sid) if self.bus else None
        if self.bus and node:
            repeated = forward._replace(sent_before=True) if is_again else forward
            self.bus.ask(node, sid, repeated, timeout, partial(self._heard, forward, reply))

    def _heard(self, forward: Forward, reply: Callable[..., None], outcome: Outcome) -> None:
        """A computer without an instance does not come back; any other has its grace to do so.

        A node that is not heard of, or not ready, right after the store's return is on its way back as well: the call
        is sent again until it is there, or ends with the computer's seat.
        """
        match outcome:
            case _ if self.bus and self.bus.is_settling and (outcome is UNHEARD or isinstance(outcome, Unavailable)):
                reply(LATER if isinstance(outcome, Unavailable) and outcome.outcome != "not_run" else NOT_SENT)
            case _ if self.bus and self.bus.is_settling and outcome is LOST:
                reply(LATER)
            case SMCPError():
                reply(Rejected(outcome))
            case tuple():
                reply(*outcome)
            case _ if outcome in (LOST, UNHEARD) and forward.target.instance is None:
                reply(Rejected(_left(forward, "unknown" if outcome is LOST else "not_run")))
            case _ if outcome in (GONE, LOST, UNHEARD):
                became: Became = "unknown" if outcome is LOST else "not_run"
                self._background.spawn(self._look_again(forward, became, reply))
            case _:
                reply(outcome)

    async def _look_again(self, forward: Forward, became: Became, reply: Callable[..., None]) -> None:
        """A computer that is not elsewhere yet is sent the call when its office changes, or when its node is back."""
        target = forward.target
        try:
            holder = (await self._directory.office(target.office_id)).computers.get(target.name)
        except SMCPError as error:
            error.outcome = became
            if not (self.bus and self.bus.is_cut_off):
                reply(Rejected(error))
            return
        if holder and holder.sid == target.sid:
            return
        if holder is None or target.instance is None or holder.instance != target.instance:
            reply(Rejected(_left(forward, became)))
        else:
            self.calls.move(target.sid, holder.sid)

    async def _emitted(self, sid: str, forward: Forward, reply: Callable[..., None]) -> None:
        await self._emit(forward.event, forward.data, to=sid, callback=reply)


def check_size(size: int, limits: Limits) -> None:
    """Whether a message still fits when it is passed on under another head: some clients break at the limit."""
    if size + HEAD_ROOM >= limits.max_message:
        raise TooLarge(f"{size} bytes and a head of up to {HEAD_ROOM}", size=size, limit=limits.max_message)


def _is_agent_of(office: Office, caller: Member) -> bool:
    """Whether the caller has this office, on the connection it called from or on one that it has resumed on since."""
    agent = office.agent
    if agent is None:
        return False
    return agent.sid == caller.sid or (agent.instance is not None and agent.instance == caller.instance)


def _left(forward: Forward, became: Became) -> ComputerLeft:
    return ComputerLeft(repr(forward.target.name), computer=forward.target.name, outcome=became)


def _tell_node(reply: Reply, outcome: Any) -> None:
    """The node that asked waits for the computer to be back on another one."""
    reply(LOST if isinstance(outcome, Closing) else outcome)


def _settle(answered: asyncio.Future[Any], outcome: Any) -> None:
    if not answered.done():
        answered.set_result(outcome)
