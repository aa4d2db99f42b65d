"""One request in flight: who waits for it, where it was sent, and what an error of it says about its tool."""

from __future__ import annotations

from typing import Protocol

import msgspec

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


class Call(msgspec.Struct, eq=False):
    """One request in flight. Once it has an `outcome` it is over, and perhaps kept for an agent that asks again.

    `caller` and `target` are seats, `caller_sid` and `target_sid` the connections, which change when a client resumes.
    `asker` and `number` say who gets the answer; the other `waiters` sent the same tool call again and joined this one.
    `is_awaited` is false from the return of the agent until it asks again. `cancel` is what the agent sent to cancel
    it. It was `sent` so many times: an error of a call that was never written to its computer says `not_run` (WIRE §5),
    any other `unknown`, unless the node that refused it knows better.
    """

    event: Event
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
    cancel: Json | None = None
    place: Place | None = None
    ack: int = 0
    known_by: Identity | None = None

    @property
    def identity(self) -> Identity:
        if self.known_by is None:
            assert self.envelope
            self.known_by = Identity(self.envelope)
        return self.known_by

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


class Waiter(msgspec.Struct, eq=False):
    """Somebody who sent a tool call again that is in flight: it waits for its end, or until its own time is over."""

    call: Call
    caller_sid: str
    asker: Asker
    number: int | None
    timeout: float
    until: float
    bucket: int = 0
