"""One request in flight: who waits for it, where it was sent, and what an error of it says about its tool."""

from __future__ import annotations

from typing import Protocol

from a2c_smcp.errors import CallTimeout, SMCPError
from a2c_smcp.protocol.events import Event
from a2c_smcp.protocol.offices import Member
from a2c_smcp.server.envelope import Envelope
from a2c_smcp.server.fields import Json
from a2c_smcp.server.identity import Identity
from a2c_smcp.server.outcomes import Answer, BinaryAnswer, Outcome, Refused
from a2c_smcp.smcp import TOOL_CALL_EVENT

__all__ = ["Asker", "Call", "Key", "Place", "Waiter"]

Key = tuple[str, str, str, str]
"""Office, instance or principal of the agent, name of the agent, `req_id`: equal for the same tool call (WIRE §5)."""

_LARGE = 8 * 1024
"""From this size on a request that has been answered is reduced to its identity."""


class Asker(Protocol):
    """Who is answered: a connection, or another node."""

    def reply(self, number: int | None, event: Event, outcome: Outcome) -> None:
        """Sends the outcome of the request that this asker knows by a number. `None` wants no answer."""


class Place(Protocol):
    """Where a call was written to: a connection of this node, which acks it by its number there."""

    pending: dict[int, Call]


class Call:
    """One request in flight. Once it has an `outcome` it is over, and perhaps kept for an agent that asks again.

    `caller` and `target` are seats, `caller_sid` and `target_sid` the connections, which change when a client resumes.
    `asker` and `number` say who gets the answer; the other `waiters` sent the same tool call again and joined this one.
    `is_awaited` is false from the return of the agent until it asks again. `cancel` is what the agent sent to cancel
    it. It was `sent` so many times: an error of a call that was never written to its computer says `not_run` (WIRE §5),
    any other `unknown`, unless the node that refused it knows better.
    """

    __slots__ = (
        "_identity",
        "ack",
        "asker",
        "bucket",
        "caller",
        "caller_sid",
        "cancel",
        "envelope",
        "event",
        "is_awaited",
        "key",
        "number",
        "outcome",
        "place",
        "sent",
        "sent_before",
        "size",
        "target",
        "target_sid",
        "timeout",
        "until",
        "waiters",
    )

    def __init__(
        self,
        event: Event,
        caller: Member,
        target: Member,
        envelope: Envelope,
        size: int,
        key: Key | None,
        timeout: float,
        until: float,
        asker: Asker | None,
        number: int | None,
        sent_before: bool,
    ) -> None:
        self.event = event
        self.caller = caller
        self.target = target
        self.caller_sid = caller.sid
        self.target_sid = target.sid
        self.envelope: Envelope | None = envelope
        self.size = size
        self.key = key
        self.timeout = timeout
        self.until = until
        self.bucket = 0
        self.asker: Asker | None = asker
        self.number = number
        self.waiters: list[Waiter] | None = None
        self.outcome: Outcome | None = None
        self.sent = 0
        self.sent_before = sent_before
        self.is_awaited = True
        self.cancel: Json | None = None
        self.place: Place | None = None
        self.ack = 0
        self._identity: Identity | None = None

    @property
    def identity(self) -> Identity:
        if self._identity is None:
            assert self.envelope
            self._identity = Identity(self.envelope)
        return self._identity

    def refused(self, error: SMCPError) -> Refused:
        """With whether the tool has run, as far as it is known here."""
        if self.event.name == TOOL_CALL_EVENT:
            if not self.sent:
                error.outcome = "not_run"
            elif self.sent > 1 or "outcome" not in error.details:
                error.outcome = "unknown"
        return Refused(error)

    def timed_out(self, timeout: float) -> Refused:
        return self.refused(CallTimeout(f"{self.target.name!r} did not answer within {timeout:g} s"))

    def shrink(self) -> int:
        """Lets go of a large request, once it is answered: its identity stays. The bytes that are left."""
        self.cancel = self.place = self.asker = None
        size = self.outcome.size if isinstance(self.outcome, Answer | BinaryAnswer) else 0
        if self.size < _LARGE:
            return size + self.size
        size += self.identity.size
        self.envelope = None
        return size


class Waiter:
    """Somebody who sent a tool call again that is in flight: it waits for its end, or until its own time is over."""

    __slots__ = ("asker", "bucket", "call", "caller_sid", "number", "timeout", "until")

    def __init__(
        self, call: Call, caller_sid: str, asker: Asker, number: int | None, timeout: float, until: float
    ) -> None:
        self.call = call
        self.caller_sid = caller_sid
        self.asker = asker
        self.number = number
        self.timeout = timeout
        self.until = until
        self.bucket = 0
