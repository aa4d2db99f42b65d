"""Tool calls by (office, agent, its seat, req_id): duplicates join the first call or get its result; a cancel ends one.

How a tool runs at most once for one key: a call is *running*, then its result or error is *kept* for ten minutes.
Directly before its tool runs it is also written into the *journal*, which outlasts both, and the process too. `start`
looks for the key in these three places, in this order, and only if none of them has it does a call begin:

- kept: the duplicate gets the same outcome at once;
- running: the duplicate gets the outcome when the call ends;
- in the journal only: the tool was begun by a call whose result is gone, because it was dropped or because the process
  was killed. The duplicate is refused with `ResultGone`, whose `outcome` says whether the first call has ended.

A sealed call is known for longer than that, by its seal (`computer/device.py`: `Remembered`): such a duplicate never
begins a call.

All of this happens in the event loop without an await between the look-up and the entry into `_running`, so two
duplicates cannot both begin. The task of a call belongs to nobody else: a caller that gives up, or a connection that
is lost, does not end it. Only `cancel`, `withdraw`, `drop` and `close` do. A key that is used again for another tool or
other arguments is refused; a digest tells. A call that fails before it has begun (bad arguments, no approval) is not in
the journal; only its error is kept, and says that the tool has not run.

Cancels may overtake their calls, or come again on another connection: they are remembered for half a minute, and a call
that comes within that time does not begin.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Container, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson

from a2c_smcp.computer.calls.incoming import caller_of, key_of
from a2c_smcp.computer.calls.journal import Journal, Key
from a2c_smcp.computer.consent.approval import Caller
from a2c_smcp.errors import BadRequest, CallCancelled, CallFrozen, ResultGone, SMCPError, Unavailable
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.protocol.codec import Encoded

logger = logging.getLogger(__name__)

Result = dict[str, Any]
Begin = Callable[[], None]
"""To be called directly before a tool is run. Raises if it must not run."""
Work = Callable[[Begin], Coroutine[Any, Any, Result]]
Outcome = Result | SMCPError
OnOutcome = Callable[[Outcome], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The time that results and cancels are kept, in seconds, and their largest numbers."""

    results: float = 600.0
    cancels: float = 30.0
    most: int = 1000
    most_cancels: int = 10_000
    most_bytes: int = 64 * 1024 * 1024


@dataclass(slots=True)
class _Kept:
    """The outcome of a call that has ended. `digest` is that of its tool and arguments."""

    digest: bytes
    until: float
    outcome: Outcome
    size: int


@dataclass(slots=True)
class _Running:
    digest: bytes
    journal: Journal
    task: asyncio.Task[Result] = field(init=False)
    has_begun: bool = False
    is_cancelled: bool = False
    is_kept: bool = True
    frozen: Callable[[], CallFrozen] | None = None
    """The error with which it ends, whatever it still does: the computer was frozen."""

    def cancel(self) -> None:
        self.is_cancelled = True
        self.task.cancel()

    def begin(self, key: Key) -> None:
        if self.frozen:
            raise self.frozen()
        self.journal.begin(key, self.digest)
        self.has_begun = True

    def then(self, then: OnOutcome) -> None:
        self.task.add_done_callback(lambda _: then(_outcome(self)))


class CallsInFlight:
    """All calls of a computer that are running, and the outcomes of those that have ended."""

    def __init__(
        self,
        retention: Retention | None = None,
        clock: Callable[[], float] = time.monotonic,
        journal: Journal | None = None,
    ) -> None:
        self._retention = retention or Retention()
        self._clock = clock
        self._journal = journal or Journal()
        self._journals: dict[str, Journal] = {}
        self._running: dict[Key, _Running] = {}
        self._kept: OrderedDict[Key, _Kept] = OrderedDict()
        self._kept_bytes = 0
        self._cancels: OrderedDict[Key, float] = OrderedDict()

    @contextmanager
    def recording(self, office: str, journal: Journal) -> Iterator[None]:
        """Inside the `with` block, write calls of this office into this journal; those of others stay in memory."""
        self._journals[office] = journal
        try:
            yield
        finally:
            del self._journals[office]

    async def run(self, caller: Caller, req_id: str, what: Any, work: Work) -> Result:
        """The result of `work`. A caller that gives up does not end the call: others may wait for it."""
        return await result_of(lambda then: self.start(caller, req_id, what, work, then))

    def start(
        self, caller: Caller, req_id: str, what: Any, work: Work, then: OnOutcome, ended: OnOutcome | None = None
    ) -> None:
        """Do `work`, unless that was done before for this `req_id`, and call `then` with its outcome.

        If it is done now, `ended` is called with its outcome before `then`, and before duplicates are answered.
        `what` is called, with which arguments: it must be the same for duplicates. Raises `SMCPError` if the call is
        refused before it begins.
        """
        key, digest = key_of(caller, req_id), digest_of(what)
        self._forget_old()
        if kept := self._kept.get(key):
            _require_same(kept.digest == digest)
            then(kept.outcome)
            return
        if (running := self._running.get(key)) and running.is_kept:
            _require_same(running.digest == digest)
            running.then(then)
        else:
            self._begin(key, digest, work, then, ended, is_repeated=caller.is_repeating)

    def _begin(
        self, key: Key, digest: bytes, work: Work, then: OnOutcome, ended: OnOutcome | None, *, is_repeated: bool
    ) -> None:
        journal = self._journals.get(key[0], self._journal)
        if begun := journal.find(key):
            _require_same(begun.is_of(digest))
            raise ResultGone(repr(key[-1]), outcome=begun.outcome or "unknown")
        if is_repeated:
            raise ResultGone(repr(key[-1]), outcome="unknown")
        if key in self._cancels:
            raise CallCancelled(outcome="not_run")
        running = self._running[key] = _Running(digest, journal)
        running.task = asyncio.create_task(work(lambda: running.begin(key)))
        if ended:
            running.then(ended)
        running.then(then)  # before `_ended`: the caller does not wait for the journal
        running.task.add_done_callback(lambda _: self._ended(key, running))

    def cancel(self, caller: Caller, req_id: str) -> None:
        """End the call, also if it comes after its cancel."""
        key = key_of(caller, req_id)
        self._cancels.pop(key, None)
        self._cancels[key] = self._clock() + self._retention.cancels
        while len(self._cancels) > self._retention.most_cancels:
            self._cancels.popitem(last=False)
        if running := self._running.get(key):
            running.cancel()

    def withdraw(self, matches: Callable[[Key], bool], asking: Container[Key]) -> None:
        """End those of these calls that have not begun, or are `asking` somebody. Their outcomes are kept."""
        for key, running in self._running.items():
            if matches(key) and (key in asking or not running.has_begun):
                running.cancel()

    def freeze(self, error: Callable[[], CallFrozen]) -> None:
        """End all calls with this error. None begins any more."""
        for running in self._running.values():
            running.frozen = error
            running.task.cancel()

    def may_have_run(self, caller: Caller, req_id: str) -> bool:
        """True if the tool of a call with this key was begun."""
        key = key_of(caller, req_id)
        return caller.is_repeating or self._journals.get(key[0], self._journal).find(key) is not None

    def drop(self, matches: Callable[[Caller], bool]) -> None:
        """End the calls of these agents. No outcome is kept for them.

        Behind a Server that tells no seats, an agent whose line was lost leaves and enters like any other: what runs
        goes on.
        """
        for key, running in self._running.items():
            if matches(caller_of(key)):
                running.is_kept = False
                if key[2] or not running.has_begun:
                    running.cancel()
        for key in [key for key in self._kept if matches(caller_of(key))]:
            self._drop(key)

    async def close(self) -> None:
        running = list(self._running.values())
        await cancel_and_wait(*(call.task for call in running))

    def _ended(self, key: Key, running: _Running) -> None:
        if self._running.get(key) is running:
            del self._running[key]
        if not running.task.cancelled() and not isinstance(error := running.task.exception(), SMCPError | None):
            logger.error("a tool call failed", exc_info=error)
        outcome = _outcome(running)
        if isinstance(outcome, SMCPError):  # a kept error must not hold frames, which hold the arguments
            outcome.__traceback__ = outcome.__context__ = outcome.__cause__ = None
        if running.has_begun:
            running.journal.end(key, "unknown" if isinstance(outcome, SMCPError) else "done")
        if running.is_kept:
            self._keep(key, _Kept(running.digest, self._clock() + self._retention.results, outcome, _size(outcome)))

    def _keep(self, key: Key, kept: _Kept) -> None:
        self._kept[key] = kept
        self._kept_bytes += kept.size
        while self._kept_bytes > self._retention.most_bytes or len(self._kept) > self._retention.most:
            self._drop(next(iter(self._kept)))

    def _forget_old(self) -> None:
        now = self._clock()
        while self._kept and next(iter(self._kept.values())).until < now:
            self._drop(next(iter(self._kept)))
        while self._cancels and next(iter(self._cancels.values())) < now:
            self._cancels.popitem(last=False)

    def _drop(self, key: Key) -> None:
        self._kept_bytes -= self._kept.pop(key).size


async def result_of(start: Callable[[OnOutcome], None]) -> Result:
    """Start a call, and wait for its result. Raises the `SMCPError` with which it ends."""
    ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    start(lambda outcome: None if ended.done() else ended.set_result(outcome))
    outcome = await ended
    if isinstance(outcome, SMCPError):
        raise outcome.with_traceback(None)
    return outcome


def digest_of(what: Any) -> bytes:
    """A digest tells calls apart; the arguments themselves may be large, and secret.

    It tells `1` from `true`, and `0` from `-0.0`, which are equal in Python.
    """
    try:
        text = orjson.dumps(what, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        text = json.dumps(what, sort_keys=True, default=repr).encode()
    return hashlib.sha256(text).digest()


def _size(outcome: Outcome) -> int:
    """About how much memory it takes. An `Encoded` answer is in memory twice: as a value and as text."""
    return 2 * sys.getsizeof(outcome.text) if isinstance(outcome, Encoded) else len(json.dumps(outcome, default=str))


def size_of(value: Any) -> int:
    """The bytes that a value takes as JSON."""
    try:
        return len(orjson.dumps(value))
    except TypeError:
        return len(json.dumps(value, default=repr))


def _outcome(running: _Running) -> Outcome:
    """The outcome of a call that has ended. Errors say whether the tool may have run (WIRE §5)."""
    error: BaseException | None
    if running.frozen:
        error = running.frozen()
    elif running.task.cancelled():
        error = CallCancelled() if running.is_cancelled else Unavailable("the computer is stopping")
    else:
        error = running.task.exception()
    if error is None:
        return running.task.result()
    known = error if isinstance(error, SMCPError) else SMCPError()
    known.outcome = "unknown" if running.has_begun else "not_run"
    return known


def _require_same(is_same: bool) -> None:
    if not is_same:
        raise BadRequest("req_id: was used for another call", field="req_id")
