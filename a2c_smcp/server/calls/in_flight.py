"""Calls in flight: duplicates, deadlines, cancels, kept answers, and what becomes of them when a member leaves.

States. A call is made by `begin` and ended by `finish`:

    begin ──► unsent ── deliver ──► sent ── finish ──► over ── kept for a while ──► forgotten
                ▲                    │
                └── computer is back (move): sent again

A call whose computer is away when it begins stays unsent: the seat is kept, and the call waits. A call that was sent
before its computer was lost stays as it is, until the computer is back. `finish` is called by exactly one of: the ack
of the computer, the answer of another node, the deadline, a cancel that the computer ignored, the leave of the
computer, the end of this Server. Whatever comes after the first of them is ignored: the call has its outcome.

Owners. The node of the computer owns a call: its duplicates, its deadline and its kept answer. A node whose agent calls
a computer of another node has a call too, which waits for that node's answer. A call is found in three ways:

- by the id of its ack, in `connection.pending` of the connection that it was written to (`call.callee`);
- by its two sids, its caller's and its target's, in `by_connection`. They change only in `move` and `_join`, when a
  client is back on another connection;
- tool calls and sealed calls by their key, in `_by_key`. One that comes again joins the first (`_join`): it waits for
  the same outcome, with a deadline of its own. After the end the key still leads to the call as long as its answer is
  kept: for an agent that was gone (60 s), and for a client with an instance as long as its connection may be lost
  without notice.

Races. Nothing here waits, so no step can come between two lines of a method, and `finish` cannot run twice. What may
arrive in any order is answers, cancels, deadlines and moves of the same call, and each looks first whether the call
has its outcome. A call never runs twice unnoticed: one that may have been run is sent again only to a computer with an
instance, which recognises it (WIRE §5); any other is told `ResultGone`. After a standstill of this process a new call
waits a moment before it is sent, because its cancel may be in a socket that was not read yet.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Generic, TypeVar

from a2c_smcp.engine.packets import Json
from a2c_smcp.errors import BadRequest, CallCancelled, ComputerLeft, RateLimited, ResultGone, SMCPError, Unavailable
from a2c_smcp.protocol.offices import Member, Office
from a2c_smcp.server.calls.by_connection import CallsByConnection, ConnectionCalls
from a2c_smcp.server.calls.call import (
    Asker,
    Call,
    Callee,
    CallIdentity,
    Deadlines,
    Deliver,
    Key,
    StallDetector,
    Waiter,
    cancel_of,
    key_of,
)
from a2c_smcp.server.calls.routes import Route
from a2c_smcp.server.connections import Connection, Connections
from a2c_smcp.server.envelope import Closing, Envelope, Outcome, Refused
from a2c_smcp.server.freezes import Freezes
from a2c_smcp.server.observation.happened import CallBegun, Observation, result_of
from a2c_smcp.server.settings import Limits

# Which answers are kept for a while, for agents that come back: bounded in number and bytes, fairly among offices.
#
# When there are too many, the oldest entry is dropped among those whose office holds an average share or more: an
# office with many kept answers never costs another one its few.

K = TypeVar("K", bound=tuple[str, ...])


class _Share:
    """The answers that are kept for one office."""

    __slots__ = ("count", "size")

    def __init__(self) -> None:
        self.count = 0
        self.size = 0


class KeptAnswers(Generic[K]):
    """Keys of calls, which begin with an office, each kept for `seconds`: the oldest is always the next to expire.

    The answers themselves are the owner's, who is told of every key that is dropped (`dropped`).
    """

    def __init__(self, seconds: float, most: int, most_bytes: int, dropped: Callable[[K], None]) -> None:
        self._dropped = dropped
        self._seconds = seconds
        self._most = most
        self._most_bytes = most_bytes
        self._entries: OrderedDict[K, tuple[int, float]] = OrderedDict()
        self._shares: dict[str, _Share] = {}
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def keep(self, key: K, size: int, now: float) -> None:
        """`size` is what the answer takes in bytes, `now` the event loop's time."""
        self._entries[key] = (size, now + self._seconds)
        share = self._shares.get(key[0])
        if share is None:
            share = self._shares[key[0]] = _Share()
        share.count += 1
        share.size += size
        self._bytes += size
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(now + self._seconds, self._drop_expired)
        while len(self._entries) > self._most:
            self._drop_one(lambda share: share.count, len(self._entries))
        while self._bytes > self._most_bytes:
            self._drop_one(lambda share: share.size, self._bytes)

    def drop(self, key: K) -> None:
        size, _ = self._entries.pop(key)
        share = self._shares[key[0]]
        share.count -= 1
        share.size -= size
        self._bytes -= size
        if not share.count:
            del self._shares[key[0]]
        self._dropped(key)

    def discard(self, key: K) -> None:
        """Drops a key, if it is kept."""
        if key in self._entries:
            self.drop(key)

    def drop_office(self, office_id: str, wanted: Callable[[K], bool]) -> None:
        """Drops those keys of one office that are `wanted`."""
        if office_id in self._shares:
            for key in [key for key in self._entries if key[0] == office_id and wanted(key)]:
                self.drop(key)

    def clear(self) -> None:
        for key in list(self._entries):
            self.drop(key)
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _drop_one(self, part: Callable[[_Share], int], total: int) -> None:
        """Drops the oldest entry of those whose office holds an average part of the total or more."""
        for key in self._entries:
            if part(self._shares[key[0]]) * len(self._shares) >= total:
                self.drop(key)
                return

    def _drop_expired(self) -> None:
        loop, self._timer = asyncio.get_running_loop(), None
        now = loop.time()
        while self._entries:
            key, (_, until) = next(iter(self._entries.items()))
            if until > now:
                self._timer = loop.call_at(until, self._drop_expired)
                return
            self.drop(key)


_LATER = 0.2


class Calls:
    """Calls of this node's agents, and of other nodes' agents to its computers. None begins if `is_closing`."""

    def __init__(
        self,
        deliver: Deliver,
        withdraw: Callable[[Call], bool],
        is_elsewhere: Callable[[str], bool],
        check_reporter: Callable[[Call, Callable[[], None]], None],
        connections: Connections,
        limits: Limits,
        observation: Observation,
        freezes: Freezes,
    ) -> None:
        self._deliver = deliver
        self._withdraw = withdraw
        self._is_elsewhere = is_elsewhere
        self._check_reporter = check_reporter
        self._observation = observation
        self._freezes = freezes
        self._uncancelled: dict[str, list[Call]] = {}
        self._connections = connections
        self._limits = limits
        self._count = 0
        self._by_key: dict[Key, Call] = {}
        self.by_connection = CallsByConnection(connections)
        self._deadlines: Deadlines[Call | Waiter] = Deadlines(self._expire)
        bounds = limits.max_kept, limits.max_kept_bytes
        self._unheard: KeptAnswers[Key] = KeptAnswers(limits.keep_time, *bounds, self._forget_key)
        self._recent: KeptAnswers[Key] = KeptAnswers(limits.half_open_time, *bounds, self._forget_key)
        self._stalls = StallDetector()
        self.is_closing = False
        self._over = asyncio.Event()

    def __len__(self) -> int:
        return self._count

    # Begin

    def begin(
        self,
        route: Route,
        envelope: Envelope,
        req_id: str,
        timeout: float,
        sent_before: bool,
        asker: Asker,
        number: int | None,
    ) -> None:
        """Passes a request on. `asker` is answered once, perhaps at once. Raises what refuses the request."""
        event, caller, target, now = route.event, route.caller, route.target, monotonic()
        sid, target_sid = caller.sid, target.sid
        key = known = None
        if event.is_call:
            key = (caller.office_id, caller.instance or caller.owner, caller.name, req_id)
            known = self._by_key.get(key)
        by_connection, limits, size = self.by_connection, self._limits, envelope.size
        asking, serving = by_connection[sid], by_connection[target_sid]
        if known is not None and not self._is_sealed_anew(known, envelope):
            asking.check_waits(self._limits.calls_per_agent, outcome="unknown")
            self._join(known, caller, envelope, asker, number, timeout, now + timeout)
            return
        if (
            sent_before
            or self.is_closing
            or self._freezes.by_scope
            or asking.waits >= limits.calls_per_agent
            or len(serving.serves) >= limits.calls_per_computer
            or max(asking.asked_bytes, serving.served_bytes) + size > limits.in_flight_bytes
        ):
            self._check(target, key, envelope, asking, serving, sent_before)
        call = Call(
            event, caller, target, envelope, req_id, size, key, timeout, now + timeout, sid, target_sid, asker, number
        )
        call.sent_before, call.notes = sent_before, route.notes
        call.bucket = self._deadlines.add(call, now + timeout)
        self._count += 1
        by_connection[sid], by_connection[target_sid] = asking, serving
        asking.waits += 1
        asking.asks.add(call)
        asking.asked_bytes += size
        serving.serves.add(call)
        serving.served_bytes += size
        if key is not None:
            self._by_key[key] = call
        self._send_first(call, now)

    def _send_first(self, call: Call, now: float) -> None:
        if self._observation.refused_calls:
            self._observation.refused_calls.sent_again((call.caller.owner, call.caller.name, call.req_id))
        if self._observation.is_watched and isinstance(call.asker, Connection):
            self._observation.report_often(CallBegun(call, call.asker))
        if not self._stalls.is_recent(now):
            self.send(call)
            return

        def send_unless_sent() -> None:
            if not call.sent:  # its computer may have come back meanwhile
                self.send(call)

        asyncio.get_running_loop().call_later(_LATER, send_unless_sent)

    def _check(
        self,
        target: Member,
        key: Key | None,
        envelope: Envelope,
        asking: ConnectionCalls,
        serving: ConnectionCalls,
        sent_before: bool,
    ) -> None:
        """Raises what refuses a new call. Nothing of such a call is kept."""
        limits, size = self._limits, envelope.size
        if freeze := self._freezes.of(target.office_id, target.name):
            raise freeze.refusal("unknown" if sent_before else "not_run")
        asking.check_waits(limits.calls_per_agent)
        if self.is_closing:
            raise Closing(outcome="not_run")
        if len(serving.serves) >= limits.calls_per_computer:
            raise RateLimited(f"at most {limits.calls_per_computer} calls to one computer at a time")
        if max(asking.asked_bytes, serving.served_bytes) + size > limits.in_flight_bytes:
            raise RateLimited(
                f"at most {limits.in_flight_bytes} bytes of one member in calls that are not answered yet"
            )
        if sent_before and key:
            is_another = envelope.fields.get("seat", target.seat) != target.seat
            if is_another or (not target.instance and self._connections.get(target.sid)):
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
        """The same call again: it gets the outcome of the first."""
        if not call.event.is_sealed and not call.identity.is_same(CallIdentity(envelope)):
            raise BadRequest("req_id: was used for another call", field="req_id")
        call.is_awaited = True
        if call.outcome is not None:
            call.caller_sid = caller.sid
            again = partial(self._answer_again, call, asker, number)
            (partial(self._check_reporter, call, again) if call.reporter else again)()
            return
        is_stale = self._is_elsewhere(caller.sid) and self._connections.get(call.caller_sid) is not None
        if call.caller_sid != caller.sid and not is_stale:  # a node may not know yet that the agent is back here
            self.by_connection.unlink_caller(call)
            self.by_connection.link_caller(call, caller.sid)
        waiter = Waiter(call, caller.sid, asker, number, timeout, until)
        waiter.bucket = self._deadlines.add(waiter, until)
        self.by_connection.of(caller.sid).waits += 1
        call.waiters = [*(call.waiters or ()), waiter]

    def _answer_again(self, call: Call, asker: Asker, number: int | None) -> None:
        assert call.outcome is not None
        if self._observation.follows_requests and call.reporter is None:
            self._report_end(call, call.outcome)
        asker.reply(number, call.event, call.outcome, call)

    def _is_sealed_anew(self, call: Call, envelope: Envelope) -> bool:
        """True if a sealed call that is over comes again for another key: its computer did not hold the first one.

        Its computer recognises what has run before. A sealed call in flight is joined under any key.
        """
        if not call.event.is_sealed or call.outcome is None or call.identity.is_same(CallIdentity(envelope)):
            return False
        assert call.key
        for kept in (self._unheard, self._recent):
            kept.discard(call.key)
        return True

    def send(self, call: Call) -> None:
        """Passes a call on. If its computer is away, the call is sent when the computer is back."""
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
        """Sends a call again in a moment: the node of its target is not ready yet."""
        if not was_sent:
            call.sent -= 1
        asyncio.get_running_loop().call_later(_LATER, self.send, call)

    # End

    def answered(self, call: Call, callee: Callee, outcome: Outcome) -> None:
        """The ack of a call. One that cannot be read is ignored if the call was sent to another connection since."""
        if isinstance(outcome, Refused):
            if call.callee is not callee:
                return
            outcome = call.refused(outcome.error)
        self.finish(call, outcome)

    def finish(self, call: Call, outcome: Outcome) -> None:
        """Ends a call, and answers its asker and its waiters."""
        if call.outcome is not None:
            return
        call.outcome = outcome
        if self._observation.follows_requests:
            self._report_end(call, outcome)
        self._count -= 1
        self._deadlines.discard(call, call.bucket)
        if call.callee is not None:
            call.callee.pending.pop(call.ack, None)
        self.by_connection.unlink_target(call)
        self.by_connection.unlink_caller(call)
        asker, waiters = call.asker, call.waiters
        call.asker = call.waiters = None
        self.by_connection.stop_waiting(call.caller.sid)
        if call.key is not None:
            self._keep(call.key, call)
        if asker is not None:
            asker.reply(call.number, call.event, outcome, call)
        if waiters:
            self._answer_waiters(waiters, call, outcome)
        if self.is_closing and not self._count:
            self._over.set()

    def _report_end(self, call: Call, outcome: Outcome) -> None:
        """Report the end of a call before its answer leaves, if that is for this node to do."""
        is_here = self._connections.get(call.caller_sid) is not None or not self._is_elsewhere(call.caller_sid)
        if (is_here or call.reports_here) and not call.is_reported:
            call.is_reported, call.result = True, result_of(call.event, outcome)
            self._observation.report_ended(call, self._connections)

    def _answer_waiters(self, waiters: Sequence[Waiter], call: Call, outcome: Outcome) -> None:
        for waiter in waiters:
            self._deadlines.discard(waiter, waiter.bucket)
            self.by_connection.stop_waiting(waiter.caller_sid)
            waiter.asker.reply(waiter.number, call.event, outcome, call)

    def _expire(self, item: Call | Waiter) -> None:
        if isinstance(item, Waiter):
            call = item.call
            if call.waiters and item in call.waiters:
                call.waiters.remove(item)
                self.by_connection.stop_waiting(item.caller_sid)
                item.asker.reply(item.number, call.event, call.timed_out(item.timeout))
        elif item.outcome is None:
            was_sent = item.sent > 0
            self.finish(item, item.timed_out(item.timeout))
            if was_sent and item.event.is_call:
                self._withdraw(item)

    def _keep(self, key: Key, call: Call) -> None:
        is_here = call.is_awaited and self._connections.get(call.caller_sid) is not None
        if (is_here and not call.caller.instance) or isinstance(call.outcome, Refused):
            del self._by_key[key]
            return
        is_heard = is_here or (call.is_awaited and self._is_elsewhere(call.caller_sid))
        kept = self._recent if is_heard else self._unheard
        kept.keep(key, call.shrink(), monotonic())

    def _forget_key(self, key: Key) -> None:
        self._by_key.pop(key, None)

    # What members do during a call

    def in_flight(self, agent: Member, req_id: str) -> Call | None:
        call = self._by_key.get(key_of(agent, req_id))
        return call if call and call.outcome is None else None

    def cancel(self, seats: Sequence[Member], req_id: str, cancel: Json) -> set[str]:
        """Marks the calls of these seats with this `req_id`, and returns their offices.

        If the computer does not answer within `cancel_grace`, the call ends without it.
        """
        offices = set()
        for seat in seats:
            call = self._by_key.get(key_of(seat, req_id))
            if call is not None and call.outcome is None:
                call.cancel = cancel
                offices.add(call.caller.office_id)
                asyncio.get_running_loop().call_later(self._limits.cancel_grace, self._end_cancelled, call)
        return offices

    def _end_cancelled(self, call: Call) -> None:
        if call.outcome is None:
            self.finish(call, call.refused(CallCancelled()))

    def move(self, old: str, new: str) -> list[Call]:
        """A client is back on another connection: calls to it are sent again, and its own are answered there.

        Returns calls to it that were cancelled meanwhile: it has missed the cancels.
        """
        cancelled = self._uncancelled.pop(old, [])
        calls = self.by_connection.get(old)
        if calls is None or old == new:
            return cancelled
        for call in list(calls.asks):
            self.by_connection.unlink_caller(call)
            self.by_connection.link_caller(call, new)
            call.is_awaited = False
        for call in list(calls.serves):
            self.by_connection.unlink_target(call)
            self.by_connection.link_target(call, new)
            call.callee = None
            if call.cancel is None:
                self.send(call)
            else:
                cancelled.append(call)
        return cancelled

    def computer_left(self, computer: Member) -> None:
        self._uncancelled.pop(computer.sid, None)
        for call in self.by_connection.served_by(computer.sid):
            self.finish(call, call.refused(ComputerLeft(repr(computer.name), computer=computer.name)))

    def agent_left(self, agent: Member, *, is_lost: bool) -> None:
        """Cancels the calls of an agent that has left, and drops its kept answers: nothing runs for nobody.

        One that was lost may come back. Only its calls that no computer has seen yet are ended: it sends them again.
        """
        mine = key_of(agent, "")[:3]
        if not is_lost:
            for kept in (self._unheard, self._recent):
                kept.drop_office(agent.office_id, lambda key: key[:3] == mine)
        for call in list(self.by_connection[agent.sid].asks):
            if call.event.is_call and key_of(call.caller, "")[:3] == mine and not (is_lost and call.sent):
                self._end_orphan(call)

    def agent_entered(self, agent: Member, office: Office) -> None:
        """Ends the calls of an agent before this one: their computers would take them for calls of this one."""
        mine = key_of(agent, "")[:3]
        for computer in office.computers.values():
            for call in self.by_connection.served_by(computer.sid):
                if key_of(call.caller, "")[:3] != mine:
                    self._end_orphan(call)

    def end_frozen(self) -> None:
        """Ends what is in flight where it is frozen. A computer that is away is told when it is back.

        A call that another node owns is ended by that one, which knows whether it was sent; or here if it does not.
        """
        for call in list(self.by_connection.running()):
            if freeze := self._freezes.of(call.target.office_id, call.target.name):
                error = freeze.end() if call.event.is_call else freeze.refusal("unknown")
                call.cancel = cancel_of(call)  # it is not sent again
                if call.sent and self._is_elsewhere(call.target_sid):
                    asyncio.get_running_loop().call_later(self._limits.cancel_grace, self._end_orphan, call, error)
                elif not self._end_orphan(call, error):
                    self._uncancelled.setdefault(call.target_sid, []).append(call)

    def _end_orphan(self, call: Call, error: SMCPError | None = None) -> bool:
        """Ends a call, and cancels it. `False` if its computer is not here to be told."""
        if call.outcome is not None:
            return True
        self.finish(call, call.refused(error or CallCancelled()))
        return not (call.sent and call.event.is_call) or self._withdraw(call)

    def disconnected(self, sid: str) -> None:
        """The connection has ended. Its calls in flight stay."""
        if calls := self.by_connection.get(sid):
            self.by_connection.tidy(sid, calls)

    def send_again(self, is_target: Callable[[str], bool]) -> None:
        """Sends calls to these targets again. A node that knows a call already joins it with the first."""
        for call in [call for call in self.by_connection.running() if is_target(call.target_sid)]:
            self.send(call)

    def fail_requests(self, is_target: Callable[[str], bool], error: SMCPError) -> None:
        """Ends every request to these targets that may be repeated."""
        for call in [call for call in self.by_connection.running() if is_target(call.target_sid)]:
            if not call.event.is_call:
                self.finish(call, Refused(error))

    def is_engaged(self, sid: str) -> bool:
        """True if a connection has calls in flight, as caller or as target."""
        return not self.by_connection[sid].is_over

    async def drain(self) -> None:
        """Takes no new calls, waits for those in flight for a while, and refuses the rest."""
        self.is_closing = True
        if self._count:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.drain_timeout):
                    await self._over.wait()
        for call in list(self.by_connection.running()):
            self.finish(call, call.refused(Closing()))
        self._unheard.clear()
        self._recent.clear()
