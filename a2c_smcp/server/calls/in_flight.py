"""Requests in flight: duplicates, deadlines, cancels, kept answers, and what happens to them when a member leaves.

A call is in flight from `begin` to `finish`. `finish` is called by exactly one of: the ack of the computer, the
answer of another node, the deadline, a cancel that the computer ignored, the leave of the computer, the end of this
Server. What comes after the first of them is ignored: the call has its outcome. Nothing here waits, so nothing can
come in between.

Every call is in flight at two sids, its caller's and its target's, in `_traffic`. They change only in `move`, when a
client is back on another connection. A call whose computer is away stays where it is, unsent, until the computer is
back (`move`), is given up (`computer_left`), or the deadline has passed.

Tool calls are known by their key as well. One that comes again joins the first: it waits for the same outcome, with a
deadline of its own. After the end the key still leads to the call as long as its answer is kept: for an agent that
was gone (60 s), and for a client with an instance as long as its connection may be lost without anybody knowing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic

from a2c_smcp.errors import (
    BadRequest,
    CallCancelled,
    ComputerLeft,
    RateLimited,
    ResultGone,
    SMCPError,
    Unavailable,
)
from a2c_smcp.protocol.events import Event
from a2c_smcp.protocol.offices import Member
from a2c_smcp.server.calls.by_connection import Traffic, TrafficTable
from a2c_smcp.server.calls.call import Asker, Call, Key, Place, Waiter
from a2c_smcp.server.calls.deadlines import Deadlines
from a2c_smcp.server.calls.kept_answers import Kept
from a2c_smcp.server.connections import Connections
from a2c_smcp.server.envelope import Envelope
from a2c_smcp.server.fields import Json
from a2c_smcp.server.identity import Identity
from a2c_smcp.server.outcomes import Closing, Outcome, Refused
from a2c_smcp.server.settings import Limits
from a2c_smcp.server.stalls import Stalls
from a2c_smcp.smcp import TOOL_CALL_EVENT

__all__ = ["Calls", "Deliver"]

_LATER = 0.2

Deliver = Callable[[Call, bool], bool]
"""Writes a call to its target, perhaps again. `False` if the target is away. Raises what refuses it."""


class Calls:
    """The requests that this node has passed on and not yet seen answered."""

    def __init__(
        self,
        deliver: Deliver,
        withdraw: Callable[[Call], None],
        is_reachable: Callable[[str], bool],
        connections: Connections,
        limits: Limits,
    ) -> None:
        self._deliver = deliver
        self._withdraw = withdraw
        self._is_reachable = is_reachable
        self._connections = connections
        self._limits = limits
        self._count = 0
        self._by_key: dict[Key, Call] = {}
        self._traffic = TrafficTable(connections)
        self._deadlines: Deadlines[Call | Waiter] = Deadlines(self._expire)
        bounds = limits.max_kept, limits.max_kept_bytes
        self._unheard: Kept[Key] = Kept(limits.keep_time, *bounds, self._forget_key)
        self._recent: Kept[Key] = Kept(limits.half_open_time, *bounds, self._forget_key)
        self._stalls = Stalls()
        self._is_closing = False
        self._over = asyncio.Event()

    def __len__(self) -> int:
        return self._count

    @property
    def is_closing(self) -> bool:
        """Whether no new calls are taken any more."""
        return self._is_closing

    # Begin

    def begin(
        self,
        event: Event,
        caller: Member,
        target: Member,
        envelope: Envelope,
        req_id: str,
        timeout: float,
        sent_before: bool,
        asker: Asker,
        number: int | None,
    ) -> None:
        """Passes a request on. `asker` is answered once, perhaps at once; what refuses the request is raised."""
        now, sid, target_sid = monotonic(), caller.sid, target.sid
        key = known = None
        if event.name == TOOL_CALL_EVENT:
            key = (caller.office_id, caller.instance or caller.owner, caller.name, req_id)
            known = self._by_key.get(key)
        traffic, limits, size = self._traffic, self._limits, envelope.size
        asking = traffic.get(sid) or Traffic()
        serving = traffic.get(target_sid) or Traffic()
        if asking.waits >= limits.calls_per_agent:
            became = {"outcome": "unknown"} if known else {}
            raise RateLimited(f"at most {limits.calls_per_agent} calls of one agent at a time", **became)
        if known is not None:
            self._join(known, caller, envelope, asker, number, timeout, now + timeout)
            return
        if (
            sent_before
            or self._is_closing
            or len(serving.serves) >= limits.calls_per_computer
            or serving.served_bytes + size > limits.in_flight_bytes
            or asking.asked_bytes + size > limits.in_flight_bytes
        ):
            self._check(target, key, size, asking, serving, sent_before)
        call = Call(
            event, caller, target, envelope, req_id, size, key, timeout, now + timeout, sid, target_sid, asker, number
        )
        call.sent_before = sent_before
        call.bucket = self._deadlines.add(call, now + timeout)
        self._count += 1
        if not asking.waits:
            traffic[sid] = asking
        asking.waits += 1
        asking.asks.add(call)
        asking.asked_bytes += size
        if not serving.serves:
            traffic[target_sid] = serving
        serving.serves.add(call)
        serving.served_bytes += size
        if key is not None:
            self._by_key[key] = call
        if self._stalls.is_recent(now):
            # The cancel of a call that its agent has given up meanwhile may not have been read yet.
            asyncio.get_running_loop().call_later(_LATER, self._send_first, call)
        else:
            self.send(call)

    def _send_first(self, call: Call) -> None:
        """Unless its computer came back meanwhile, and was sent it then."""
        if not call.sent:
            self.send(call)

    def _check(
        self, target: Member, key: Key | None, size: int, asking: Traffic, serving: Traffic, sent_before: bool
    ) -> None:
        """Raises what refuses a new call. Of that nothing is kept."""
        limits = self._limits
        if self._is_closing:
            raise Closing(outcome="not_run")
        if len(serving.serves) >= limits.calls_per_computer:
            raise RateLimited(f"at most {limits.calls_per_computer} calls to one computer at a time")
        if max(asking.asked_bytes, serving.served_bytes) + size > limits.in_flight_bytes:
            raise RateLimited(
                f"at most {limits.in_flight_bytes} bytes of one member in calls that are not answered yet"
            )
        if sent_before and key and not target.instance and self._connections.get(target.sid):
            raise ResultGone(repr(key[-1]), outcome="unknown")

    def _join(
        self,
        call: Call,
        caller: Member,
        envelope: Envelope,
        asker: Asker,
        number: int | None,
        timeout: float,
        until: float,
    ) -> None:
        """The same call again: it gets the answer of the first."""
        if not call.identity.is_same(Identity(envelope)):
            raise BadRequest("req_id: was used for another call", field="req_id")
        call.is_awaited = True
        if call.outcome is not None:
            call.caller_sid = caller.sid
            asker.reply(number, call.event, call.outcome)
            return
        if call.caller_sid != caller.sid:
            self._traffic.unlink_caller(call)
            self._traffic.link_caller(call, caller.sid)
        waiter = Waiter(call, caller.sid, asker, number, timeout, until)
        waiter.bucket = self._deadlines.add(waiter, until)
        self._traffic.of(caller.sid).waits += 1
        call.waiters = [*(call.waiters or ()), waiter]

    def send(self, call: Call) -> None:
        """Passes a call on, unless its computer is away: it is sent when the computer is back."""
        if call.outcome is not None or call.cancel is not None:
            return
        is_again = call.sent > 0
        call.sent += 1
        try:
            if not self._deliver(call, is_again):
                call.sent -= 1
        except SMCPError as error:
            call.sent -= 1
            if not (is_again and isinstance(error, Unavailable)):  # then it is sent when the store is back
                self.finish(call, call.refused(error))

    def send_later(self, call: Call, *, was_sent: bool) -> None:
        """The node of the target is not ready yet."""
        if not was_sent:
            call.sent -= 1
        asyncio.get_running_loop().call_later(_LATER, self.send, call)

    # End

    def answered(self, call: Call, place: Place, outcome: Outcome) -> None:
        """An ack from where the call was written to. One that cannot be read ends only a call that is still there."""
        if isinstance(outcome, Refused):
            if call.place is not place:
                return
            outcome = call.refused(outcome.error)
        self.finish(call, outcome)

    def finish(self, call: Call, outcome: Outcome) -> None:
        """Ends a call and answers who waits for it."""
        if call.outcome is not None:
            return
        call.outcome = outcome
        self._count -= 1
        self._deadlines.discard(call, call.bucket)
        if call.place is not None:
            call.place.pending.pop(call.ack, None)
        self._traffic.unlink_target(call)
        self._traffic.unlink_caller(call)
        asker, waiters = call.asker, call.waiters
        call.asker = call.waiters = None
        self._traffic.stop_waiting(call.caller.sid)
        if call.key is not None:
            self._keep(call.key, call)
        if asker is not None:
            asker.reply(call.number, call.event, outcome)
        if waiters:
            self._answer_waiters(waiters, call.event, outcome)
        if self._is_closing and not self._count:
            self._over.set()

    def _answer_waiters(self, waiters: Sequence[Waiter], event: Event, outcome: Outcome) -> None:
        for waiter in waiters:
            self._deadlines.discard(waiter, waiter.bucket)
            self._traffic.stop_waiting(waiter.caller_sid)
            waiter.asker.reply(waiter.number, event, outcome)

    def _expire(self, item: Call | Waiter) -> None:
        if isinstance(item, Waiter):
            call = item.call
            if call.waiters and item in call.waiters:
                call.waiters.remove(item)
                self._traffic.stop_waiting(item.caller_sid)
                item.asker.reply(item.number, call.event, call.timed_out(item.timeout))
        elif item.outcome is None:
            was_sent = item.sent > 0
            self.finish(item, item.timed_out(item.timeout))
            if was_sent and item.event.name == TOOL_CALL_EVENT:
                self._withdraw(item)

    def _keep(self, key: Key, call: Call) -> None:
        is_here = call.is_awaited and self._connections.get(call.caller_sid) is not None
        if (is_here and not call.caller.instance) or isinstance(call.outcome, Refused):
            del self._by_key[key]
            return
        is_heard = is_here or (call.is_awaited and self._is_reachable(call.caller_sid))
        kept = self._recent if is_heard else self._unheard
        kept.keep(key, call.shrink(), monotonic())

    def _forget_key(self, key: Key) -> None:
        self._by_key.pop(key, None)

    # What members do meanwhile

    def cancel(self, seats: Sequence[Member], req_id: str, cancel: Json) -> set[str]:
        """Marks the calls of these seats with this `req_id`, and returns their offices.

        A computer that does not answer soon is answered for.
        """
        offices = set()
        for seat in seats:
            call = self._by_key.get(_key(seat, req_id))
            if call is not None and call.outcome is None:
                call.cancel = cancel
                offices.add(call.caller.office_id)
                asyncio.get_running_loop().call_later(self._limits.cancel_grace, self._end_cancelled, call)
        return offices

    def _end_cancelled(self, call: Call) -> None:
        if call.outcome is None:
            self.finish(call, call.refused(CallCancelled()))

    def move(self, old: str, new: str) -> list[Call]:
        """A client is back on another connection: its calls are sent again, or answered there.

        Returns those to it that were cancelled meanwhile: it has missed that.
        """
        traffic = self._traffic.get(old)
        if traffic is None or old == new:
            return []
        for call in list(traffic.asks):
            self._traffic.unlink_caller(call)
            self._traffic.link_caller(call, new)
            call.is_awaited = False
        cancelled = []
        for call in list(traffic.serves):
            self._traffic.unlink_target(call)
            self._traffic.link_target(call, new)
            call.place = None
            if call.cancel is None:
                self.send(call)
            else:
                cancelled.append(call)
        return cancelled

    def computer_left(self, computer: Member) -> None:
        for call in self._traffic.served_by(computer.sid):
            self.finish(call, call.refused(ComputerLeft(repr(computer.name), computer=computer.name)))

    def agent_left(self, agent: Member) -> None:
        """Nothing is kept for an agent that has left for good; what still runs can no longer be joined."""
        mine = _key(agent, "")[:3]
        for kept in (self._unheard, self._recent):
            kept.drop_office(agent.office_id, lambda key: key[:3] == mine)
        traffic = self._traffic.get(agent.sid)
        for call in traffic.asks if traffic else ():
            if call.key and call.key[:3] == mine:
                self._by_key.pop(call.key, None)
                call.key = None

    def disconnected(self, sid: str) -> None:
        """The connection has ended. What is in flight stays."""
        if traffic := self._traffic.get(sid):
            self._traffic.tidy(sid, traffic)

    def send_again(self, is_meant: Callable[[str], bool]) -> None:
        """To computers whose node has not heard what it was asked. One that has joins it with the first."""
        for call in [call for call in self._traffic.running() if is_meant(call.target_sid)]:
            self.send(call)

    def fail_requests(self, is_meant: Callable[[str], bool], error: SMCPError) -> None:
        """Ends every call to these targets that is no tool call."""
        for call in [call for call in self._traffic.running() if is_meant(call.target_sid)]:
            if call.event.name != TOOL_CALL_EVENT:
                self.finish(call, Refused(error))

    def is_engaged(self, sid: str) -> bool:
        """Whether a connection asks or is asked for something."""
        traffic = self._traffic.get(sid)
        return traffic is not None and not traffic.is_over

    async def drain(self) -> None:
        """Takes no new calls, gives those in flight time to finish, and tells the rest."""
        self._is_closing = True
        if self._count:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.drain_timeout):
                    await self._over.wait()
        for call in list(self._traffic.running()):
            self.finish(call, call.refused(Closing()))
        self._unheard.clear()
        self._recent.clear()


def _key(agent: Member, req_id: str) -> Key:
    return (agent.office_id, agent.instance or agent.owner, agent.name, req_id)
