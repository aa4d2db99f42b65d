"""Requests of agents on their way to computers: where each goes, whether it fits, and how it is written.

What computers tell agents goes the other way, along the same path as answers.

A computer of this node gets the request on its connection, under an ack id of that connection. A computer of another
node gets it through that node, which owns the call from then on (duplicates, deadline, kept answer); this node keeps a
call of its own that waits for that node's answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import time

from msgspec import UNSET

from a2c_smcp.engine.packets import Json
from a2c_smcp.errors import ComputerLeft, NotInOffice, RateLimited, SMCPError, TooLarge, Unavailable
from a2c_smcp.errors import Outcome as Became
from a2c_smcp.loops import OwnedTasks
from a2c_smcp.mcp_events import TELL_LOG_EVENT, TELL_PROGRESS_EVENT
from a2c_smcp.protocol import offices
from a2c_smcp.protocol.codec import timeout_of
from a2c_smcp.protocol.events import EventSpec
from a2c_smcp.protocol.offices import SENT_BEFORE, Member, Office
from a2c_smcp.server.calls.call import Asker, Call, cancel_of
from a2c_smcp.server.calls.in_flight import Calls
from a2c_smcp.server.calls.routes import Route, make_route
from a2c_smcp.server.cluster.memory import Directory, NodeMessenger, node_of
from a2c_smcp.server.cluster.node_calls import NodeCalls, NodeRequest
from a2c_smcp.server.connections import Connection, Connections, event_packet
from a2c_smcp.server.envelope import HEAD_ROOM, Answer, BinaryAnswer, Envelope, Moved, Outcome, Refused
from a2c_smcp.server.freezes import Freezes
from a2c_smcp.server.observation.happened import Observation
from a2c_smcp.server.routing_fields import RecordedRequest, UnrecordedRequest, read_state
from a2c_smcp.server.settings import Limits, TellPace
from a2c_smcp.smcp import CANCEL_TOOL_CALL_NOTIFICATION
from a2c_smcp.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

# What a computer tells one agent (`server:tell_<x>`): whether it may, and how it is written to the agent.
#
# Order. A tell and the ack of a call leave a computer on one connection, and the agent hears them in this order. On
# one node both are written in the step of the event loop in which they came; if a tell has to wait behind an earlier
# event, acks wait behind it (`Hub.acked`). Between nodes both are messages of one `Outbox` to the node of the agent.
#
# Loss. A tell is written at most once. An agent that is away for a moment, within its grace, misses it, and asks for
# open questions after it has rejoined; a question that a computer has asked before it hears that request is in the
# answer, and later ones go to the new connection, because a node hears of the rejoin before it hears the request.
# Progress and logs that are too many, or that an agent reads too slowly, are dropped without a word. Other kinds are
# refused, so that the computer can tell them again. Tells use at most half of an agent's budget of unread bytes, so
# the ack of a call fits beside them: no tell disconnects an agent.

_LOSSY = frozenset({TELL_PROGRESS_EVENT, TELL_LOG_EVENT})
"""Tells that are dropped if they cannot be delivered, and acked like any other."""


class TellWriter:
    """Admits tells of this node's computers, and writes tells to this node's agents. It counts what is dropped."""

    def __init__(self, connections: Connections, metrics: Metrics, limits: Limits) -> None:
        self._connections = connections
        self._metrics = metrics
        self._limits = limits

    def admit(self, sender: Connection, event: EventSpec, req_id: str | None, size: int) -> None:
        """Counts a tell of a computer. Raises `RateLimited`, or `TooLarge` if it can never be sent."""
        sender.tell_pace = pace = sender.tell_pace or TellPace(self._limits)
        if not pace.admits(event.name, req_id, asyncio.get_running_loop().time()):
            self.count_dropped("rate")
            raise RateLimited("too many tells in a second, try again later")
        try:
            sender.spend_broadcast(size, 1, self._limits.told_bytes)
        except RateLimited:
            self.count_dropped("rate")
            raise
        self._metrics.count("a2c_tells_total")

    def write(self, sid: str, office_id: str, packet: bytes) -> None:
        """Writes a tell to the agent of an office, if it is there. Raises `RateLimited` if it reads too slowly."""
        connection = self._connections.get(sid)
        if connection is None or office_id not in connection.offices:
            self.count_dropped("away")
            return
        try:
            connection.channel.check_room(len(packet) + self._limits.unread_bytes // 2)
        except RateLimited:
            self.count_dropped("unread")
            raise RateLimited("the agent reads too slowly, try again later") from None
        connection.channel.send(packet)

    def count_dropped(self, reason: str) -> None:
        self._metrics.count("a2c_tells_dropped_total", reason)


_SERVER_MARGIN = 1.0  # WIRE §5: the Server waits a second longer than the MCP call, the agent another


class Relay:
    """Finds where requests go, and writes them. With `nodes`, computers may be on other nodes."""

    def __init__(
        self,
        directory: Directory,
        connections: Connections,
        background: OwnedTasks,
        metrics: Metrics,
        limits: Limits,
        nodes: NodeMessenger | None,
        observation: Observation,
        freezes: Freezes,
    ) -> None:
        self._directory = directory
        self._connections = connections
        self._background = background
        self._limits = limits
        self._tells = TellWriter(connections, metrics, limits)
        self._node_calls = None
        if nodes:
            self._node_calls = NodeCalls(nodes, self._node_answered, self._node_tells, self._device_of, background)
        elsewhere = self._is_elsewhere, self._check_reporter
        self.calls = Calls(self._deliver, self._withdraw, *elsewhere, connections, limits, observation, freezes)
        metrics.watch("a2c_calls_in_flight", self.calls.__len__)
        self._from_nodes = metrics.counter("a2c_node_calls_total")

    # What agents ask

    def find(self, event: EventSpec, seats: Sequence[Member], around: Sequence[Office], envelope: Envelope) -> Route:
        """The route of a request of a connection with these seats and offices. Raises what refuses it."""
        forward = offices.forward(event, seats, around, envelope.fields)
        return make_route(event, around, forward.caller, forward.target)

    def begin(self, route: Route, envelope: Envelope, asker: Asker, number: int | None) -> None:
        """Passes on a request whose fields were checked. Raises what refuses it."""
        fields = envelope.fields
        timeout = timeout_of(route.event, fields, self._limits.max_timeout)
        seconds = self._seconds(timeout, extends=fields.get("extend") is True)
        sent_before = fields.get(SENT_BEFORE) is True
        self.calls.begin(route, envelope, fields.get("req_id", ""), seconds, sent_before, asker, number)

    def begin_known(
        self,
        route: Route,
        request: UnrecordedRequest | RecordedRequest,
        body: Json,
        asker: Asker,
        number: int | None,
    ) -> bool:
        """Passes on a request whose route is known. Returns `False` if its fields have to be checked first."""
        timeout = None if request.timeout is UNSET else request.timeout
        is_timed = timeout is None or 1 <= timeout <= self._limits.max_timeout
        if request.seat is not UNSET or not is_timed or not route.is_sound(request):
            return False
        req_id = "" if request.req_id is UNSET else request.req_id
        envelope = Envelope(body, recorded=request) if type(request) is RecordedRequest else Envelope(body)
        seconds = self._seconds(timeout, extends=request.extend is True)
        self.calls.begin(route, envelope, req_id, seconds, request.sent_before is True, asker, number)
        return True

    def _seconds(self, timeout: int | None, *, extends: bool) -> float:
        if timeout is None:
            return self._limits.request_timeout
        # If it may be extended, the computer keeps the deadline: here it is the longest silence (WIRE §9).
        return (self._limits.max_timeout if extends else timeout) + _SERVER_MARGIN

    # What computers tell

    def tell(self, event: EventSpec, sender: Connection, agent: Member, req_id: str | None, packet: bytes) -> None:
        """Writes a tell to an agent, or to its node. Raises what refuses it, unless it may be lost."""
        try:
            self._tells.admit(sender, event, req_id, len(packet))
            node = self._node_calls.elsewhere(agent.sid) if self._node_calls else None
            if self._node_calls and node:
                self._node_calls.tell(node, agent, packet)
            else:
                self._tells.write(agent.sid, agent.office_id, packet)
        except (RateLimited, Unavailable):
            if event.name not in _LOSSY:
                raise

    def note_state(self, sender: Connection, agent: Member, req_id: str | None, body: Json) -> None:
        """Keep the state of a call that its computer has told its agent, for operators. A sealed one is unknown."""
        call = self.calls.in_flight(agent, req_id or "")
        if call and call.target_sid == sender.sid and (state := read_state(body)):
            call.note(state, time())

    def _device_of(self, sid: str) -> str | None:
        connection = self._connections.get(sid)
        return connection.principal.device if connection else None

    def _node_tells(self, sid: str, office_id: str, packet: bytes) -> None:
        """A computer of another node tells an agent of this one."""
        with suppress(RateLimited):  # it was counted, and its node has acked it
            self._tells.write(sid, office_id, packet)

    # What other nodes ask

    def message_received(self, message: bytes) -> None:
        """Handles a message that another node has put into the inbox of this one."""
        for request in self._node_calls.receive(message) if self._node_calls else ():
            try:
                self._serve(request)
            except SMCPError as error:
                request.asker.reply(request.number, request.event, Refused(error))
            except Exception:
                logger.exception("%s of another node failed", request.event.name)
                request.asker.reply(request.number, request.event, Refused(SMCPError()))

    def _serve(self, request: NodeRequest) -> None:
        """Begins a call of another node's agent, if this node agrees that it is the agent of its office."""
        office = self._directory.cached_office(request.caller.office_id)
        if office and _is_agent_of(office, request.caller):
            self._take(request)
        else:
            self._background.spawn(self._take_if_seated(request))

    async def _take_if_seated(self, request: NodeRequest) -> None:
        """Asks the store who the agent is: one of the two nodes has not heard of it yet."""
        office_id = request.caller.office_id
        try:
            if not _is_agent_of(await self._directory.office(office_id), request.caller):
                raise NotInOffice(repr(office_id))
            self._take(request)
        except SMCPError as error:
            if isinstance(error, Unavailable):
                error.outcome = "not_run"
            request.asker.reply(request.number, request.event, Refused(error))

    def _take(self, request: NodeRequest) -> None:
        """Begins the call here: the node of the computer owns it."""
        seats = self._directory.cached_seats(request.target)
        if seats is None:
            raise Unavailable("this node has lost touch with the others", outcome="not_run")
        target = next((seat for seat in seats if seat.office_id == request.caller.office_id), None)
        if target is None:
            request.asker.reply(request.number, request.event, Moved.GONE)
            return
        self._from_nodes.value += 1
        self.calls.begin(
            Route(request.event, request.caller, target),
            request.envelope,
            request.req_id,
            request.timeout,
            request.sent_before,
            request.asker,
            request.number,
        )

    # What happens to other nodes and the store

    def node_returned(self, node: str) -> None:
        """Sends again what a node was asked before it was out of reach."""
        if self._node_calls:
            self._node_calls.forget(node)
            self.calls.send_again(lambda sid: node_of(sid) == node)

    def store_lost(self) -> None:
        """Tool calls on other nodes wait until the store is back. All other requests fail, and may be repeated."""
        if self._node_calls:
            self._node_calls.forget_all()
            self.calls.fail_requests(self._is_elsewhere, Unavailable("the nodes cannot reach each other"))

    def store_is_back(self) -> None:
        self.calls.send_again(self._is_elsewhere)

    def _check_reporter(self, call: Call, then: Callable[[], None]) -> None:
        if self._node_calls:
            self._background.spawn(self._node_calls.check_reporter(call, then))

    # How a call is written

    def _is_elsewhere(self, sid: str) -> bool:
        return bool(self._node_calls and self._node_calls.elsewhere(sid))

    def _deliver(self, call: Call, is_again: bool) -> bool:
        size, envelope = call.size, call.envelope
        check_size(size + len(call.event.name), self._limits)
        connection = self._connections.get(call.target_sid)
        if connection is None:
            return self._ask_node(call, is_again)
        assert envelope
        channel = connection.channel
        channel.check_room(size)
        number = connection.last_ack + 1
        connection.last_ack = call.ack = number
        connection.pending[number] = call
        call.callee = connection
        if not envelope.attachments:
            channel.send(b"42/smcp,%d[%s," % (number, call.event.json_name), envelope.body, b"]")
        else:
            head = b"45%d-/smcp,%d[%s," % (len(envelope.attachments), number, call.event.json_name)
            channel.send_attached(b"".join((head, envelope.body, b"]")), envelope.attachments)
        return True

    def _ask_node(self, call: Call, is_again: bool) -> bool:
        node = self._node_calls.elsewhere(call.target_sid) if self._node_calls else None
        if not (self._node_calls and node):
            return False
        left = call.until - asyncio.get_running_loop().time()
        self._node_calls.ask(node, call, left, sent_before=is_again or call.sent_before)
        return True

    def _withdraw(self, call: Call) -> bool:
        """Cancel a tool call at its computer. `False` if it is not connected here."""
        connection = self._connections.get(call.target_sid)
        if connection:
            connection.channel.send(event_packet(CANCEL_TOOL_CALL_NOTIFICATION, cancel_of(call)))
        return connection is not None

    # What other nodes answer

    def _node_answered(self, call: Call, sid: str, outcome: Outcome) -> None:
        """The outcome of a call that was sent to a session of another node."""
        if isinstance(outcome, Answer | BinaryAnswer):
            self.calls.finish(call, outcome)
        elif call.outcome is None:
            self._node_failed(call, sid, outcome)

    def _node_failed(self, call: Call, sid: str, outcome: Refused | Moved) -> None:
        """Ends a call, or sends it again.

        Right after the store's return a node that is not heard of, or not ready, may be on its way back: the call is
        sent again until it is there, or ends with the computer's seat. A computer with an instance has its grace to
        come back; one without does not come back. If the call was sent elsewhere since (`is_moved`), what refuses it
        at the node where its computer no longer is does not matter.
        """
        is_moved = call.target_sid != sid
        became = _became(outcome)
        if self._node_calls and self._node_calls.is_settling and _may_pass(outcome):
            if not is_moved:
                self.calls.send_later(call, was_sent=became != "not_run")
            elif became == "not_run":
                call.sent -= 1
        elif isinstance(outcome, Refused):
            if not is_moved:
                self.calls.finish(call, call.refused(outcome.error))
        elif outcome is not Moved.GONE and call.target.instance is None:
            if not is_moved:
                self.calls.finish(call, _left(call, became))
        else:
            self._background.spawn(self._look_again(call, sid, became))

    async def _look_again(self, call: Call, sid: str, became: Became) -> None:
        """Finds out where the computer is now. If it is not back yet, its return or that of its node sends the call."""
        target = call.target
        try:
            holder = (await self._directory.office(target.office_id)).computers.get(target.name)
        except SMCPError as error:
            error.outcome = became
            if call.target_sid == sid and not (self._node_calls and self._node_calls.is_cut_off):
                self.calls.finish(call, call.refused(error))
            return
        if holder and holder.sid == target.sid:
            return
        if holder is None or target.instance is None or holder.instance != target.instance:
            if call.target_sid == sid:
                self.calls.finish(call, _left(call, became))
        else:
            self.calls.move(target.sid, holder.sid)


def check_size(size: int, limits: Limits) -> None:
    """Raises `TooLarge` if a message would be over the limit once it is passed on.

    The forwarded packet has a longer header; some clients fail on a packet over the limit.
    """
    if size + HEAD_ROOM >= limits.max_message:
        raise TooLarge(f"{size} bytes and a head of up to {HEAD_ROOM}", size=size, limit=limits.max_message)


def _is_agent_of(office: Office, caller: Member) -> bool:
    """True if the caller is the agent of this office, on the connection of the call or on one it resumed on since."""
    agent = office.agent
    if agent is None:
        return False
    return agent.sid == caller.sid or (agent.instance is not None and agent.instance == caller.instance)


def _left(call: Call, became: Became) -> Refused:
    return call.refused(ComputerLeft(repr(call.target.name), computer=call.target.name, outcome=became))


def _became(outcome: Refused | Moved) -> Became:
    """Return if the tool has run, as far as the outcome of the other node tells."""
    if isinstance(outcome, Refused):
        return outcome.error.outcome
    return "unknown" if outcome is Moved.LOST else "not_run"


def _may_pass(outcome: Refused | Moved) -> bool:
    """True if the node may be there, and ready, in a moment."""
    if isinstance(outcome, Refused):
        return isinstance(outcome.error, Unavailable)
    return outcome is not Moved.GONE
