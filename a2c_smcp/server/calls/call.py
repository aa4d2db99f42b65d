"""One request in flight: who waits for it, where it was sent, and how the same call is recognised when sent again."""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import Callable
from functools import cached_property
from hashlib import sha256
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from a2c_smcp.engine.packets import Json
from a2c_smcp.errors import BadRequest, CallTimeout, SMCPError
from a2c_smcp.mcp_events import CallState
from a2c_smcp.protocol.codec import dumps, loads_exactly
from a2c_smcp.protocol.events import EventSpec
from a2c_smcp.protocol.offices import Member
from a2c_smcp.protocol.results import CallResult
from a2c_smcp.server.envelope import Answer, BinaryAnswer, Envelope, Outcome, Refused
from a2c_smcp.server.routing_fields import raw_params

Key = tuple[str, str, str, str]
"""Office, instance or principal of the agent, name of the agent, `req_id`: equal for the same tool call (WIRE §5)."""

LARGE_CALL = 8 * 1024
"""The size from which on params are not parsed to compare them, and answered requests keep only their identity."""


class Asker(Protocol):
    """The receiver of an answer: a connection, or another node."""

    def reply(self, number: int | None, event: EventSpec, outcome: Outcome, call: Call | None = None) -> None:
        """Sends the outcome of the request that this asker knows by a number. `None` wants no answer.

        With a `call`, another node is told whether it has to report its end.
        """


class Callee(Protocol):
    """The receiver of a call: a connection of this node. It acks the call by its number there."""

    pending: dict[int, Call]


def key_of(agent: Member, req_id: str) -> Key:
    return (agent.office_id, agent.instance or agent.owner, agent.name, req_id)


def cancel_of(call: Call) -> bytes:
    """The notice that cancels a call at its computer."""
    return dumps({"agent": call.caller.name, "req_id": call.req_id}).encode()


class CallIdentity:
    """The identity of a call: it tells if two requests with one `req_id` are the same call (WIRE §5).

    It may be kept longer than the request.

    The same call has the same computer and tool, and params that are equal as JSON. A client that sends a call again
    sends the same bytes, as ours do, so digests of the bytes are compared first. Small params that differ as bytes are
    parsed, and compared without regard to white space and the order of keys. Large ones with other bytes are another
    call: parsing them would keep all other connections waiting. A sealed call cannot be compared: only the key that it
    was sealed to can.
    """

    def __init__(self, envelope: Envelope) -> None:
        fields, params = envelope.fields, raw_params(envelope.body)
        self._target = fields["computer"], fields.get("tool_name"), fields.get("kid")
        self._attached = tuple(sha256(data).digest() for data in envelope.attachments)
        self._digest = sha256(params).digest()
        self._params = bytes(params) if len(params) < LARGE_CALL else None

    @property
    def tool(self) -> str | None:
        return self._target[1]

    @property
    def size(self) -> int:
        """Bytes that keeping it takes, beyond a few."""
        return len(self._params or b"")

    def is_same(self, other: CallIdentity) -> bool:
        if self._target != other._target or self._attached != other._attached:
            return False
        return self._digest == other._digest or (self._canonical is not None and self._canonical == other._canonical)

    @cached_property
    def _canonical(self) -> str | None:
        """Small params with their keys sorted. JSON text is compared, because in Python `1 == True`."""
        if self._params is None:
            return None
        try:
            return json.dumps(loads_exactly(str(self._params, "utf-8")), sort_keys=True)
        except BadRequest:
            return None


class Call(msgspec.Struct, eq=False):
    """One request in flight. Once it has an `outcome` it is over, and perhaps kept for an agent that asks again.
    `result` is the outcome in one word, for those who are told of it, and `computer_device` the device of a computer
    on another node, if it is bound to one.

    `caller` and `target` are seats, `caller_sid` and `target_sid` the connections, which change when a client resumes.
    `asker` and `number` say who gets the answer; the other `waiters` sent the same tool call again and joined this one.
    `is_awaited` is false after the agent has reconnected and before it sends the call again. `cancel` is what the agent
    sent to cancel it. `until` is the deadline, by `time.monotonic`, which is also the event loop's clock. `bucket` is
    what `Deadlines.add` returned. `state` is the last one that its computer has told, and when.

    The end of a call is reported once, by one node: the one where the agent is, as far as the owner of the call knows
    when it answers. `reporter` is that node, if it was told so; `reports_here`: that is this node, wherever the agent
    has gone since. A call that `is_reported` needs no report by this node: it, or another one, has made it.

    `sent` counts how often it was written to its computer: an error of a call that was never written says `not_run`
    (WIRE §5), any other `unknown`, unless the node that refused it knows better. `notes` are those of its route.
    """

    event: EventSpec
    caller: Member
    target: Member
    envelope: Envelope | None
    req_id: str
    size: int
    key: Key | None
    timeout: float
    until: float
    caller_sid: str
    target_sid: str
    asker: Asker | None = None
    number: int | None = None
    sent_before: bool = False
    bucket: int = 0
    waiters: list[Waiter] | None = None
    outcome: Outcome | None = None
    sent: int = 0
    is_awaited: bool = True
    is_reported: bool = False
    reports_here: bool = False
    reporter: str | None = None
    cancel: Json | None = None
    callee: Callee | None = None
    ack: int = 0
    known_by: CallIdentity | None = None
    notes: dict[str, Any] | None = None
    result: CallResult | None = None
    computer_device: str | None = None
    state: tuple[CallState, float] | None = None

    @property
    def identity(self) -> CallIdentity:
        if self.known_by is None:
            assert self.envelope
            self.known_by = CallIdentity(self.envelope)
        return self.known_by

    def note(self, state: CallState, now: float) -> None:
        if self.state is None or self.state[0] != state:
            self.state = state, now

    def refused(self, error: SMCPError) -> Refused:
        """The error, with whether the tool has run as far as it is known here."""
        if self.event.is_call:
            if not self.sent:
                error.outcome = "not_run"
            elif self.sent > 1 or "outcome" not in error.details:
                error.outcome = "unknown"
        return Refused(error)

    def timed_out(self, timeout: float) -> Refused:
        return self.refused(CallTimeout(f"{self.target.name!r} did not answer within {timeout:g} s"))

    def shrink(self) -> int:
        """Forgets a large request once it is answered: its identity stays. Returns the bytes that are left."""
        self.cancel = self.callee = self.asker = None
        size = self.outcome.size if isinstance(self.outcome, Answer | BinaryAnswer) else 0
        if self.size < LARGE_CALL:
            return size + self.size
        size += self.identity.size
        self.envelope = None
        return size


class Waiter(msgspec.Struct, eq=False):
    """A tool call that came again while it is in flight: it waits for the same outcome, until its own deadline."""

    call: Call
    caller_sid: str
    asker: Asker
    number: int | None
    timeout: float
    until: float
    bucket: int = 0


Deliver: TypeAlias = Callable[[Call, bool], bool]
"""Writes a call to its target, perhaps again. Returns `False` if the target is away. Raises what refuses it."""

# Deadlines of calls, thousands of them on one timer, and whether the process stood still a moment ago.

T = TypeVar("T")

_PER_SECOND = 4
_TICK = 0.5
_STALL = 1.0
_CATCH_UP = 0.5


class Deadlines(Generic[T]):
    """Calls `expire` for every item that was not discarded in time, at most a quarter of a second late, never early.

    Items that are due within the same quarter of a second share a bucket, and one timer serves all buckets. A failure
    of one item does not affect the others. The caller keeps the bucket that `add` returns, and passes it to `discard`.
    """

    def __init__(self, expire: Callable[[T], None]) -> None:
        self._expire = expire
        self._buckets: dict[int, set[T]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._armed = 0

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def add(self, item: T, until: float) -> int:
        """`until` is in the event loop's time. Returns the item's bucket, for `discard`."""
        bucket = int(until * _PER_SECOND) + 1
        items = self._buckets.get(bucket)
        if items is not None:
            items.add(item)
        else:
            self._buckets[bucket] = {item}
            if self._timer is None or bucket < self._armed:
                self._arm(bucket)
        return bucket

    def discard(self, item: T, bucket: int) -> None:
        items = self._buckets.get(bucket)
        if items is not None:
            items.discard(item)
            if not items:
                del self._buckets[bucket]

    def _arm(self, bucket: int) -> None:
        if self._timer:
            self._timer.cancel()
        self._armed = bucket
        self._timer = asyncio.get_running_loop().call_at(bucket / _PER_SECOND, self._expire_due)

    def _expire_due(self) -> None:
        loop, self._timer = asyncio.get_running_loop(), None
        now = loop.time()
        for bucket in sorted(bucket for bucket in self._buckets if bucket / _PER_SECOND <= now):
            for item in self._buckets.pop(bucket):
                loop.call_soon(self._expire, item)
        if self._buckets:
            self._arm(min(self._buckets))


class StallDetector:
    """Detects that this process stood still a moment ago.

    Messages read after a pause may be old, and their cancels may not have been read yet.

    It reads the clock regularly from its first use on. Depending on the event loop, timers run before or after sockets
    are read: both a tick that is overdue and one that came late mean that the process stood still.
    """

    def __init__(self) -> None:
        self._ticked: float | None = None
        self._until = 0.0

    def is_recent(self, now: float) -> bool:
        """`now` is the event loop's time."""
        if self._ticked is None:
            self._ticked = now
            _keep_ticking(asyncio.get_running_loop(), weakref.ref(self))
        return now < self._until or now - self._ticked > _TICK + _STALL

    def _tick(self, now: float) -> None:
        if self._ticked is not None and now - self._ticked > _TICK + _STALL:
            self._until = now + _CATCH_UP
        self._ticked = now


def _keep_ticking(loop: asyncio.AbstractEventLoop, reference: weakref.ref[StallDetector]) -> None:
    """Ticks as long as the detector is in use, without keeping it alive."""

    def tick() -> None:
        if detector := reference():
            detector._tick(loop.time())
            loop.call_later(_TICK, tick)

    loop.call_later(_TICK, tick)
