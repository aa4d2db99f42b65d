"""Calls between nodes. Each node has an inbox, a channel of the shared store; requests and answers are messages to it.

Payloads and answers travel as the JSON they came as, with attachments behind it. A node is gone if no process listens
to its inbox. Pub/sub does not keep messages, so all that was sent while either node was unreachable may be lost. Then
nothing is answered or refused here: the calls stay as they are, and are sent again, marked as such, when this node or
the other one is back. The node that owns a call joins the two.

Order: changes of offices, notices and calls leave a node over one connection to the store and reach another node over
one, so they cannot overtake each other. Only a large message may wait (`Outbox`).
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import NamedTuple, TypeAlias

import msgspec

from a2c_smcp.engine.packets import Json
from a2c_smcp.errors import SMCPError, Unavailable
from a2c_smcp.loops import OwnedTasks
from a2c_smcp.protocol.codec import dumps, loads
from a2c_smcp.protocol.events import EventSpec, lookup
from a2c_smcp.protocol.offices import Member
from a2c_smcp.server.calls.call import Call
from a2c_smcp.server.cluster.memory import NodeMessenger, node_of
from a2c_smcp.server.envelope import Answer, BinaryAnswer, Closing, Envelope, Moved, Outcome, Refused

logger = logging.getLogger(__name__)

# Messages to other nodes: gathered, and no more of them unread than the store holds for a subscriber.
#
# Valkey and Redis disconnect a subscriber for which more than 32 MB wait. Small messages never come to that. A large
# one asks for a receipt, and other messages to the same node wait in order until it has come.

_SIZES = struct.Struct(">II")
_LARGE = 256 * 1024
_WINDOW = 4 * 1024 * 1024
_STUCK = 5.0  # a receipt that takes longer was lost

OnPosted: TypeAlias = Callable[[Sequence[int | Call], int | Exception], None]
"""Called with messages (requests by number, answers by their call), and how many processes read them, or the error."""


@dataclass(slots=True)
class _Batch:
    parts: list[Json] = field(default_factory=list)
    sent: list[int | Call] = field(default_factory=list)
    size: int = 0

    @property
    def is_large(self) -> bool:
        return self.size >= _LARGE


@dataclass(slots=True)
class _Flow:
    """Towards one node: how many bytes have no receipt yet, and what waits for it."""

    unread: int = 0
    waiting: deque[_Batch] = field(default_factory=deque)
    timer: asyncio.TimerHandle | None = None

    def has_room_for(self, batch: _Batch) -> bool:
        return self.unread == 0 or self.unread + batch.size <= _WINDOW


class Outbox:
    """Publishes all messages to one node in one turn of the event loop together.

    `asks_receipt` is the message that asks for a receipt; it goes before a large batch.
    """

    def __init__(self, directory: NodeMessenger, on_posted: OnPosted, asks_receipt: bytes) -> None:
        self._directory = directory
        self._on_posted = on_posted
        self._asks_receipt = asks_receipt
        self._gathered: dict[str, _Batch] = {}
        self._flows: dict[str, _Flow] = {}

    def send(self, node: str, head: bytes, body: Json, sent: int | Call | None = None) -> None:
        batch = self._gathered.get(node)
        if batch is None or batch.size + len(body) > _LARGE:
            batch = self._next(node, batch)
        batch.parts += (_SIZES.pack(len(head), len(body)), head, body)
        batch.size += _SIZES.size + len(head) + len(body)
        if sent is not None:
            batch.sent.append(sent)

    def send_at_once(self, node: str, head: bytes) -> None:
        """Sends a message ahead of those that wait."""
        self._post(node, _Batch([frame(head)]))

    def receive_receipt(self, node: str, size: int) -> None:
        if flow := self._flows.get(node):
            flow.unread = max(0, flow.unread - size)
            self._post_waiting(node, flow)

    def forget(self, node: str) -> None:
        """Drops everything to a node that was out of reach: it has missed some of it, and all is sent again."""
        flow = self._flows.pop(node, None)
        if flow and flow.timer:
            flow.timer.cancel()

    def clear(self) -> None:
        """Drops everything to all nodes."""
        self._gathered.clear()
        for node in list(self._flows):
            self.forget(node)

    def _next(self, node: str, full: _Batch | None) -> _Batch:
        if full:
            self._enqueue(node, full)
        elif not self._gathered:
            asyncio.get_running_loop().call_soon(self._flush)
        batch = self._gathered[node] = _Batch()
        return batch

    def _flush(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for node, batch in gathered.items():
            self._enqueue(node, batch)

    def _enqueue(self, node: str, batch: _Batch) -> None:
        flow = self._flows.get(node)
        if flow is None and not batch.is_large:
            self._post(node, batch)
            return
        if flow is None:
            flow = self._flows[node] = _Flow()
        flow.waiting.append(batch)
        self._post_waiting(node, flow)

    def _post_waiting(self, node: str, flow: _Flow) -> None:
        while flow.waiting and flow.has_room_for(flow.waiting[0]):
            batch = flow.waiting.popleft()
            if batch.is_large:
                batch.parts.insert(0, self._asks_receipt)
                flow.unread += batch.size + len(self._asks_receipt)
            self._post(node, batch)
        if flow.timer:
            flow.timer.cancel()
        if flow.unread:
            flow.timer = asyncio.get_running_loop().call_later(_STUCK, self._give_up_receipts, node, flow)
        elif self._flows.get(node) is flow:
            del self._flows[node]

    def _give_up_receipts(self, node: str, flow: _Flow) -> None:
        flow.unread = 0
        self._post_waiting(node, flow)

    def _post(self, node: str, batch: _Batch) -> None:
        posted = partial(self._on_posted, batch.sent)
        try:
            self._directory.post(node, b"".join(batch.parts), posted)
        except Unavailable as error:
            posted(error)


def frame(head: bytes, body: Json = b"") -> bytes:
    return b"".join((_SIZES.pack(len(head), len(body)), head, body))


def frames(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The heads and bodies in a published message. All writers are nodes of this program, so it is not checked."""
    at = 0
    while at < len(data):
        head_size, body_size = _SIZES.unpack_from(data, at)
        head = at + _SIZES.size
        body = head + head_size
        at = body + body_size
        yield data[head:body], data[body:at]


_WATCH_INTERVAL = 0.25
_APART = "the nodes cannot reach each other"

OnOutcome: TypeAlias = Callable[[Call, str, Outcome], None]
"""Called with the outcome of a call that was sent to a session (by its sid) of another node."""

DeviceOf: TypeAlias = Callable[[str], str | None]
"""The device that a session of this node has proved, by its sid."""

OnTell: TypeAlias = Callable[[str, str, bytes], None]
"""Called with a tell of a computer of another node: sid and office of the agent here, and the packet."""


class _CallerSeat(msgspec.Struct, array_like=True):
    sid: str
    name: str
    office_id: str
    instance: str | None
    owner: str
    version: str


class _Request(msgspec.Struct, array_like=True, tag="?"):
    """A call. Behind the JSON of its payload are attachments of these sizes."""

    id: int
    node: str
    event: str
    req_id: str
    target: str
    timeout: float
    caller: _CallerSeat
    sent_before: bool = False
    attachments: tuple[int, ...] = ()


class _Answered(msgspec.Struct, array_like=True, tag="="):
    """An answer: its arguments as JSON, and behind it attachments of these sizes.

    `is_known`: the end of the call was reported, or will be, and `reporter` is the node that does it. Else the node
    that gets this does. `device` is the one that the computer has proved.
    """

    id: int
    is_binary: bool = False
    attachments: tuple[int, ...] = ()
    is_known: bool = False
    device: str | None = None
    reporter: str | None = None


class _RefusedCall(msgspec.Struct, array_like=True, tag="!"):
    """An error, as JSON."""

    id: int


class _Gone(msgspec.Struct, array_like=True, tag="-"):
    """The target has no seat there any more; or (`is_lost`) the node itself shuts down."""

    id: int
    is_lost: bool = False


class _Tell(msgspec.Struct, array_like=True, tag=">"):
    """A packet for an agent, by its session and office."""

    sid: str
    office_id: str


class _AskReceipt(msgspec.Struct, array_like=True, tag="#"):
    """Asks for a receipt of all that was published together with it."""

    node: str


class _Receipt(msgspec.Struct, array_like=True, tag="~"):
    node: str
    size: int


_Head: TypeAlias = _Request | _Answered | _RefusedCall | _Gone | _Tell | _AskReceipt | _Receipt

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Head).decode


class NodeRequest(NamedTuple):
    """A call that another node asks of a member of this one, which may have left meanwhile."""

    event: EventSpec
    caller: Member
    target: str
    envelope: Envelope
    req_id: str
    timeout: float
    sent_before: bool
    asker: NodeAsker
    number: int


class NodeAsker:
    """A node that has sent a call, and is told the outcome by this one, which is called `here`.

    `device_of` gives the device of a session of this node.
    """

    __slots__ = ("_device_of", "_here", "_node", "_outbox")

    def __init__(self, outbox: Outbox, node: str, here: str, device_of: DeviceOf) -> None:
        self._outbox = outbox
        self._node = node
        self._here = here
        self._device_of = device_of

    def reply(self, number: int | None, event: EventSpec, outcome: Outcome, call: Call | None = None) -> None:
        assert number is not None
        if isinstance(outcome, Refused) and isinstance(outcome.error, Closing):
            outcome = Moved.LOST  # the computer may be back on another node
        match outcome:
            case Answer() | BinaryAnswer():
                assert call
                reporter, device = self._reporter(call), self._device_of(call.target_sid)
                attachments = outcome.attachments if isinstance(outcome, BinaryAnswer) else ()
                sizes = tuple(map(len, attachments))
                head = _Answered(number, bool(attachments), sizes, reporter is not None, device, reporter)
                reported = None if reporter else call
                self._outbox.send(self._node, _encode(head), _body(outcome.body, attachments), reported)
            case Refused(error=error):
                became = {"outcome": error.outcome} if event.is_call else {}
                self._outbox.send(self._node, _encode(_RefusedCall(number)), dumps(error.to_wire(**became)).encode())
            case Moved():
                self._outbox.send(self._node, _encode(_Gone(number, outcome is Moved.LOST)), b"")

    def _reporter(self, call: Call) -> str | None:
        """The node that reports the end of the call; `None` if it is the one that is told this."""
        if call.is_reported:
            return self._here
        if call.reporter is None and node_of(call.caller_sid) == self._node:
            call.reporter = self._node
            return None
        return call.reporter or node_of(call.caller_sid)


class _AskedCall(NamedTuple):
    node: str
    sid: str
    call: Call


class NodeCalls:
    """Sends calls to other nodes, and receives theirs."""

    def __init__(
        self,
        directory: NodeMessenger,
        on_outcome: OnOutcome,
        on_tell: OnTell,
        device_of: DeviceOf,
        background: OwnedTasks,
    ) -> None:
        self._node = directory.node
        self._directory = directory
        self._on_outcome = on_outcome
        self._on_tell = on_tell
        self._background = background
        self._numbers = count(1)
        self._asked: dict[int, _AskedCall] = {}
        self._device_of = device_of
        self._outbox = Outbox(directory, self._on_posted, frame(_encode(_AskReceipt(self._node))))
        self._askers: dict[str, NodeAsker] = {}
        self._is_watched = False

    def ask(self, node: str, call: Call, timeout: float, *, sent_before: bool) -> None:
        """Sends a call to the node of its target. `on_outcome` is told its outcome, once. Raises `Unavailable`."""
        self._directory.check()
        envelope, seat, number = call.envelope, call.caller, next(self._numbers)
        assert envelope
        caller = _CallerSeat(call.caller_sid, seat.name, seat.office_id, seat.instance, seat.owner, seat.version)
        sizes = tuple(map(len, envelope.attachments))
        head = _Request(
            number, self._node, call.event.name, call.req_id, call.target_sid, timeout, caller, sent_before, sizes
        )
        self._asked[number] = _AskedCall(node, call.target_sid, call)
        self._outbox.send(node, _encode(head), _body(envelope.body, envelope.attachments), number)
        if not self._is_watched:
            self._is_watched = True
            self._background.spawn(self._watch())

    async def check_reporter(self, call: Call, then: Callable[[], None]) -> None:
        """Forget the node that reports a call, if it was killed: perhaps before it could read the answer."""
        with suppress(Unavailable):
            if call.reporter and await self._directory.absent({call.reporter}):
                call.reporter = None
        then()

    def tell(self, node: str, agent: Member, packet: bytes) -> None:
        """Sends a packet to an agent of another node, in order with answers. Raises `Unavailable`."""
        self._directory.check()
        self._outbox.send(node, _encode(_Tell(agent.sid, agent.office_id)), packet)

    def receive(self, data: bytes) -> Iterator[NodeRequest]:
        """Handles a message that came into the inbox, and yields the calls in it."""
        for head, body in frames(data):
            try:
                request = self._take(_decode(head), body, len(data))
            except Exception:
                logger.exception("a message of another node was not understood")
            else:
                if request:
                    yield request

    def forget(self, node: str) -> None:
        """The node was out of reach: messages to it were lost, and calls to it will be sent again."""
        self._outbox.forget(node)
        for number in [number for number, asked in self._asked.items() if asked.node == node]:
            del self._asked[number]

    def forget_all(self) -> None:
        """The store is out of reach: no call will be answered until it is sent again."""
        self._outbox.clear()
        self._asked.clear()

    @property
    def is_settling(self) -> bool:
        """True if the store was unreachable a moment ago, so that other nodes may not be back yet."""
        return self._directory.is_settling

    @property
    def is_cut_off(self) -> bool:
        """True if the store is unreachable. Calls are then sent again when it is back."""
        try:
            self._directory.check()
        except Unavailable:
            return True
        return False

    def elsewhere(self, sid: str) -> str | None:
        """The node that a session is on, if it is another one."""
        node = node_of(sid)
        return None if node == self._node else node

    def _take(self, head: _Head, body: bytes, size: int) -> NodeRequest | None:
        match head:
            case _Request():
                return self._request(head, body)
            case _Answered():
                json, attachments = _parts(body, head.attachments)
                self._settle(head.id, BinaryAnswer(json, attachments) if attachments else Answer(json), head)
            case _RefusedCall():
                self._settle(head.id, Refused(SMCPError.from_wire(loads(str(body, "utf-8"))) or SMCPError()))
            case _Gone():
                self._settle(head.id, Moved.LOST if head.is_lost else Moved.GONE)
            case _Tell():
                self._on_tell(head.sid, head.office_id, body)
            case _AskReceipt():
                self._outbox.send_at_once(head.node, _encode(_Receipt(self._node, size)))
            case _Receipt():
                self._outbox.receive_receipt(head.node, head.size)
        return None

    def _request(self, head: _Request, body: bytes) -> NodeRequest:
        seat = head.caller
        caller = Member(seat.sid, "agent", seat.name, seat.office_id, seat.instance, seat.owner, seat.version)
        json, attachments = _parts(body, head.attachments)
        envelope = Envelope(json, attachments)
        asker = self._askers.get(head.node)
        if asker is None:
            asker = self._askers[head.node] = NodeAsker(self._outbox, head.node, self._node, self._device_of)
        return NodeRequest(
            lookup(head.event),
            caller,
            head.target,
            envelope,
            head.req_id,
            head.timeout,
            head.sent_before,
            asker,
            head.id,
        )

    def _settle(self, number: int, outcome: Outcome, answered: _Answered | None = None) -> None:
        asked = self._asked.pop(number, None)
        if asked is None:
            return
        call = asked.call
        if answered:
            # This node may have been told before, in answer to its first sending, which was lost on the way here.
            is_ours = answered.reporter in (None, self._node) and call.sent > 1
            call.is_reported = answered.is_known and not is_ours
            call.reports_here = not call.is_reported
            call.computer_device = answered.device
        self._on_outcome(call, asked.sid, outcome)

    def _on_posted(self, sent: Sequence[int | Call], listeners: int | Exception) -> None:
        """While the store is out of reach no call is settled: calls are sent again when it is back.

        A call whose answer did not arrive was not reported there: its agent may ask again through another node.
        """
        if isinstance(listeners, int) and listeners:
            return
        for message in sent:
            if isinstance(message, Call):
                message.reporter = None
            elif isinstance(listeners, int):
                self._settle(message, Moved.UNHEARD)
            elif not self.is_cut_off:
                self._settle(message, Refused(Unavailable(_APART, outcome="not_run")))

    async def _watch(self) -> None:
        """Checks regularly, while calls wait for answers, whether their nodes are still there."""
        try:
            while self._asked:
                await asyncio.sleep(_WATCH_INTERVAL)
                asked = {number: waiting.node for number, waiting in self._asked.items()}
                with suppress(Unavailable):
                    absent = await self._directory.absent(set(asked.values()))
                    for number in [number for number, node in asked.items() if node in absent]:
                        self._settle(number, Moved.LOST)
        finally:
            self._is_watched = False  # the next call begins it again


def _body(json: Json, attachments: Sequence[bytes]) -> Json:
    return b"".join((json, *attachments)) if attachments else json


def _parts(body: bytes, sizes: Sequence[int]) -> tuple[bytes, tuple[bytes, ...]]:
    end = len(body) - sum(sizes)
    attachments, at = [], end
    for size in sizes:
        attachments.append(body[at : at + size])
        at += size
    return body[:end], tuple(attachments)
