"""Calls in flight: their deadlines, duplicates, cancels, and what becomes of them when somebody leaves."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from a2c_smcp.errors import (
    BadRequest,
    CallCancelled,
    CallTimeout,
    ComputerLeft,
    RateLimited,
    ResultGone,
    SMCPError,
    Unavailable,
)
from a2c_smcp.protocol.offices import Member
from a2c_smcp.protocol.routing import Forward
from a2c_smcp.server.background import Background
from a2c_smcp.server.deadlines import Deadlines
from a2c_smcp.server.identity import Identity
from a2c_smcp.server.kept import Kept
from a2c_smcp.server.packets import Answer, Rejected
from a2c_smcp.server.settings import Limits
from a2c_smcp.server.stalls import Stalls
from a2c_smcp.smcp import TOOL_CALL_EVENT

__all__ = ["LATER", "NOT_SENT", "Calls", "Closing", "Reply"]

Key = tuple[str, str, str, str]
_AFTER_THE_ACK = 0.01  # of the join with which a client came back
_LATER = 0.2
Deliver = Callable[[str, Forward, float, bool, Callable[..., None]], None]
LATER, NOT_SENT = object(), object()
"""Said instead of an answer by a target that is not ready yet: the call is sent again soon.

`NOT_SENT` says in addition that this time it cannot have arrived.
"""

Reply = Callable[[Any], None]
"""Given the answer to a call: an `Answer`, several ack arguments as a tuple, or an `SMCPError`."""


class Closing(Unavailable):
    """This Server goes. Another node may have an answer, once whoever was here is there."""

    def __init__(self, **details: Any) -> None:
        super().__init__("the server is shutting down", **details)


@dataclass(eq=False, slots=True)
class _Waiter:
    """Somebody who waits for a call, until it ends or until his own time is over."""

    caller: str
    reply: Reply
    timer: asyncio.TimerHandle | None = None


@dataclass(eq=False, slots=True, weakref_slot=True)
class Call:
    """One request on its way. `caller` and `target` are connections: they change when their client resumes.

    `is_awaited` is false from the return of its agent until the agent asks for it again. `cancel` is what its agent
    sent to cancel it. The `outcome` is `None` as long as there is none. It was `sent` so many times: an error of a call
    that was never written to its computer says `not_run` (WIRE §5), any other `unknown`, unless the node that refused
    it knows better.
    """

    forward: Forward
    key: Key | None
    caller: str
    target: str
    on_end: Callable[[Call], None]
    timeout: float
    until: float
    outcome: Any = None
    sent: int = 0
    waiters: list[_Waiter] = field(default_factory=list)
    is_awaited: bool = True
    cancel: dict[str, Any] | None = None
    _identity: Identity | None = None

    def answered(self, *answer: Any) -> None:
        outcome: Any = answer[0] if len(answer) == 1 and isinstance(answer[0], Answer | Rejected) else answer
        self.finish(outcome.error if isinstance(outcome, Rejected) else outcome)

    def finish(self, outcome: Any) -> None:
        if self.outcome is None:
            # A traceback would hold the frames that hold this call, and with it its payload.
            self.outcome = self._judged(outcome.with_traceback(None)) if isinstance(outcome, SMCPError) else outcome
            self.on_end(self)

    def too_late(self, timeout: float) -> SMCPError:
        return self._judged(CallTimeout(f"{self.forward.target.name!r} did not answer within {timeout:g} s"))

    def _judged(self, error: SMCPError) -> SMCPError:
        """With whether the tool has run, as far as it is known here."""
        if self.forward.event != TOOL_CALL_EVENT:
            return error
        if not self.sent:
            error.outcome = "not_run"
        elif self.sent > 1 or "outcome" not in error.details:
            error.outcome = "unknown"
        return error

    def expire(self, timeout: float) -> None:
        self.finish(self.too_late(timeout))

    def is_same(self, other: Forward) -> bool:
        return self.identity.is_same(Identity(other.data))

    @property
    def identity(self) -> Identity:
        if self._identity is None:
            self._identity = Identity(self.forward.data)
        return self._identity

    def shrink(self) -> int:
        """Lets go of what was sent, once it is answered: its identity stays. The bytes that are left."""
        size = self.identity.size
        self.forward, self.cancel = self.forward._replace(data={}), None
        return size + (len(self.outcome.json) if isinstance(self.outcome, Answer) else 0)


class Calls:
    """The requests that this Server has passed on and not yet seen answered.

    Tool calls are known by (office, who, agent, req_id): one that comes again joins the first. `who` is the client's
    instance, or its principal where it has none. An answer whose agent is gone is kept for its return, and so, for as
    long as a half-open connection may go unnoticed, is the answer to a client with an instance.
    """

    def __init__(
        self,
        deliver: Deliver,
        is_here: Callable[[str], bool],
        is_reachable: Callable[[str], bool],
        background: Background,
        limits: Limits,
    ) -> None:
        self._deliver = deliver
        self._is_here = is_here
        self._is_reachable = is_reachable
        self._background = background
        self._limits = limits
        self._running: set[Call] = set()
        self._by_key: dict[Key, Call] = {}
        self._by_member: dict[str, set[Call]] = {}
        self._waiting: dict[str, int] = {}
        self._deadlines: Deadlines[Call] = Deadlines(Call.expire)
        self._unheard: Kept[Key, Call] = Kept(limits.keep_time, limits.max_kept, limits.max_kept_bytes)
        self._recent: Kept[Key, Call] = Kept(limits.half_open_time, limits.max_kept, limits.max_kept_bytes)
        self._stalls = Stalls()
        self._closing = False
        self._over = asyncio.Event()

    def __len__(self) -> int:
        return len(self._running)

    def begin(self, forward: Forward, timeout: float, reply: Reply) -> None:
        """Passes a request on. `reply` is called once, perhaps at once; what refuses the request is raised."""
        caller = forward.caller.sid
        key = _key(forward.caller, forward.data["req_id"]) if forward.event == TOOL_CALL_EVENT else None
        if self._waiting.get(caller, 0) >= self._limits.calls_per_agent:
            became = {"outcome": "unknown"} if self._find(key) else {}
            raise RateLimited(f"at most {self._limits.calls_per_agent} calls of one agent at a time", **became)
        call = self._known(key, forward)
        if call is None:
            call = self._start(forward, key, timeout)
            self._wait(call, _Waiter(caller, reply))
            self._send_unless_stalled(call)
        elif call.outcome is not None:
            reply(call.outcome)
        else:
            waiter = _Waiter(caller, reply)
            waiter.timer = asyncio.get_running_loop().call_later(timeout, self._give_up, call, waiter, timeout)
            self._wait(call, waiter)

    def cancel(self, seats: Sequence[Member], data: dict[str, Any]) -> set[str]:
        """Marks the calls of these seats with the cancelled `req_id` and returns their offices.

        A computer that does not answer soon is answered for.
        """
        keys = [_key(seat, data["req_id"]) for seat in seats]
        found = [call for key in keys if (call := self._by_key.get(key))]
        for call in found:
            call.cancel = data
            asyncio.get_running_loop().call_later(self._limits.cancel_grace, call.finish, CallCancelled())
        return {call.forward.caller.office_id for call in found}

    def move(self, old: str, new: str) -> list[tuple[Member, dict[str, Any]]]:
        """A client is back on another connection: its calls are sent again, or answered there.

        Returns the cancels that a computer has missed, and whose they are.
        """
        missed = []
        for call in self._by_member.pop(old, set()):
            self._link(new, call)
            if call.caller == old:
                call.caller, call.is_awaited = new, False
            if call.target == old:
                call.target = new
                if call.cancel is None:
                    asyncio.get_running_loop().call_later(_AFTER_THE_ACK, self._send, call)
                else:
                    missed.append((call.forward.caller, call.cancel))
        return missed

    def computer_left(self, computer: Member) -> None:
        for call in list(self._by_member.get(computer.sid, ())):
            if call.target == computer.sid:
                call.finish(ComputerLeft(repr(computer.name), computer=computer.name))

    def agent_left(self, agent: Member) -> None:
        """Nothing is kept for an agent that has left for good; what still runs can no longer be joined."""
        *mine, _ = _key(agent, "")
        for kept in (self._unheard, self._recent):
            kept.drop_all(lambda key: [*key[:3]] == mine)
        for call in self._by_member.get(agent.sid, ()):
            if call.key and [*call.key[:3]] == mine:
                self._by_key.pop(call.key, None)
                call.key = None

    def send_again(self, is_meant: Callable[[str], bool]) -> None:
        """To computers whose node has not heard what it was asked. One that has joins it with the first."""
        for call in [call for call in self._running if is_meant(call.target) and call.cancel is None]:
            self._send(call)

    def fail_requests(self, is_meant: Callable[[str], bool], error: SMCPError) -> None:
        """Ends whatever is no tool call to these targets."""
        for call in [call for call in self._running if is_meant(call.target) and call.key is None]:
            call.finish(error)

    def is_engaged(self, sid: str) -> bool:
        """Whether a connection asks or is asked for something."""
        return sid in self._by_member or sid in self._waiting

    async def drain(self) -> None:
        """Takes no new calls, gives those in flight time to finish, and tells the rest."""
        self._closing = True
        if self._running:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.drain_timeout):
                    await self._over.wait()
        for call in list(self._running):
            call.finish(Closing())
        self._unheard.drop_all()
        self._recent.drop_all()

    def _known(self, key: Key | None, forward: Forward) -> Call | None:
        """The call that this one repeats."""
        call = self._find(key)
        if call is None:
            return None
        if not call.is_same(forward):
            raise BadRequest("req_id: was used for another call", field="req_id")
        call.is_awaited = True
        if call.caller != forward.caller.sid and call.outcome is None:
            self._unlink(call.caller, call)
            self._link(forward.caller.sid, call)
        call.caller = forward.caller.sid
        return call

    def _find(self, key: Key | None) -> Call | None:
        """A call in flight, or one whose answer is kept."""
        if key is None:
            return None
        return self._by_key.get(key) or self._unheard.get(key) or self._recent.get(key)

    def _start(self, forward: Forward, key: Key | None, timeout: float) -> Call:
        target = forward.target.sid
        if self._closing:
            raise Closing(outcome="not_run")
        if len(self._by_member.get(target, ())) >= self._limits.calls_per_computer:
            raise RateLimited(f"at most {self._limits.calls_per_computer} calls to one computer at a time")
        if key and forward.sent_before and not forward.target.instance and self._is_here(target):
            raise ResultGone(repr(forward.data["req_id"]), outcome="unknown")
        until = asyncio.get_running_loop().time() + timeout
        call = Call(forward, key, forward.caller.sid, target, self._ended, timeout, until)
        self._deadlines.add(call, timeout)
        self._running.add(call)
        self._link(call.caller, call)
        self._link(target, call)
        if key:
            self._by_key[key] = call
        return call

    def _send_unless_stalled(self, call: Call) -> None:
        """After this process stood still, the cancel of a call that its agent has given up is read first."""
        if self._stalls.is_recent:
            asyncio.get_running_loop().call_later(_LATER, self._send, call)
        else:
            self._send(call)

    def _send(self, call: Call) -> None:
        """Passes a call on, unless its computer is away: it is sent when the computer is back."""
        if not self._is_reachable(call.target) or call.outcome is not None or call.cancel is not None:
            return
        left, is_again = call.until - asyncio.get_running_loop().time(), call.sent > 0
        call.sent += 1
        try:
            self._deliver(call.target, call.forward, left, is_again, self._reply_to(call))
        except SMCPError as error:
            call.sent -= 1
            if not (is_again and isinstance(error, Unavailable)):  # then it is sent when the store is back
                call.finish(error)

    def _reply_to(self, call: Call) -> Callable[..., None]:
        """The ack callback of a call. The library keeps it until the ack comes, perhaps for ever, so it holds no call.

        What refuses it where its computer no longer sits means nothing: it has been sent again.
        """
        reference, target = weakref.ref(call), call.target

        def reply(*answer: Any) -> None:
            word = answer[0] if answer else None
            call = reference()
            if call is not None and word is NOT_SENT:
                call.sent -= 1
            is_later = word is LATER or word is NOT_SENT
            if call is None or (call.target != target and (is_later or isinstance(word, Rejected))):
                return
            if is_later:
                asyncio.get_running_loop().call_later(_LATER, self._send, call)
            else:
                call.answered(*answer)

        return reply

    def _wait(self, call: Call, waiter: _Waiter) -> None:
        self._waiting[waiter.caller] = self._waiting.get(waiter.caller, 0) + 1
        call.waiters.append(waiter)

    def _give_up(self, call: Call, waiter: _Waiter, timeout: float) -> None:
        call.waiters.remove(waiter)
        self._tell(waiter, call.too_late(timeout))

    def _tell(self, waiter: _Waiter, outcome: Any) -> None:
        if waiter.timer:
            waiter.timer.cancel()
        if left := self._waiting.pop(waiter.caller) - 1:
            self._waiting[waiter.caller] = left
        waiter.reply(outcome)

    def _ended(self, call: Call) -> None:
        self._deadlines.discard(call, call.timeout)
        self._running.discard(call)
        self._unlink(call.caller, call)
        self._unlink(call.target, call)
        if call.key:
            del self._by_key[call.key]
            self._keep(call.key, call)
        waiters, call.waiters = call.waiters, []
        for waiter in waiters:
            self._tell(waiter, call.outcome)
        if self._closing and not self._running:
            self._over.set()

    def _link(self, sid: str, call: Call) -> None:
        if calls := self._by_member.get(sid):
            calls.add(call)
        else:
            self._by_member[sid] = {call}

    def _unlink(self, sid: str, call: Call) -> None:
        if calls := self._by_member.get(sid):
            calls.discard(call)
            if not calls:
                del self._by_member[sid]

    def _keep(self, key: Key, call: Call) -> None:
        is_here = call.is_awaited and self._is_here(call.caller)
        if isinstance(call.outcome, SMCPError) or (is_here and not call.forward.caller.instance):
            return
        is_heard = is_here or (call.is_awaited and self._is_reachable(call.caller))
        (self._recent if is_heard else self._unheard).keep(key, call, call.shrink())


def _key(agent: Member, req_id: str) -> Key:
    return (agent.office_id, agent.instance or agent.owner, agent.name, req_id)
