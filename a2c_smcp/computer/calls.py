"""Tool calls by req_id: one that comes again joins the first, or finds its result; a cancel ends one and no other."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import orjson

from a2c_smcp.computer.approval import Caller
from a2c_smcp.errors import BadRequest, CallCancelled, ResultGone, SMCPError, Unavailable
from a2c_smcp.protocol.codec import Written

__all__ = ["Calls", "Key", "Retention"]

Key = tuple[str, str, str]
Result = dict[str, Any]
Work = Callable[[], Coroutine[Any, Any, Result]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long results and cancels are remembered, in seconds, and how much of them.

    That a call has run is remembered longer than its result: as long as the longest call may be sent again.
    """

    results: float = 600.0
    tombstones: float = 3600.0
    cancels: float = 30.0
    most: int = 1000
    most_tombstones: int = 100_000
    most_bytes: int = 64 * 1024 * 1024


@dataclass(slots=True)
class _Tombstone:
    """A call that has run."""

    what: bytes
    until: float


@dataclass(slots=True)
class _Kept:
    """What came of it. An error is an outcome too: whether the tool had its effect before is unknown."""

    until: float
    outcome: Result | SMCPError
    size: int


@dataclass(slots=True)
class _Running:
    what: bytes
    task: asyncio.Task[Result]
    is_cancelled: bool = False


class Calls:
    """No call runs twice for one (office, agent, req_id) while its result, or that it has run, is remembered."""

    def __init__(self, retention: Retention | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._retention = retention or Retention()
        self._clock = clock
        self._running: dict[Key, _Running] = {}
        self._ran: OrderedDict[Key, _Tombstone] = OrderedDict()
        self._kept: OrderedDict[Key, _Kept] = OrderedDict()
        self._kept_bytes = 0
        self._cancels: OrderedDict[tuple[str, str], float] = OrderedDict()

    async def run(self, caller: Caller, req_id: str, what: Any, work: Work) -> Result:
        """The result of `work`, which is done once for one `req_id`; `what` tells whether it is the same call."""
        key, told = (caller.office, caller.agent, req_id), _digest(what)
        self._forget_old()
        if known := self._running.get(key) or self._ran.get(key):
            if known.what != told:
                raise BadRequest("req_id: was used for another call", field="req_id")
            return await self._await(known) if isinstance(known, _Running) else self._again(key)
        if (caller.agent, req_id) in self._cancels:
            raise CallCancelled
        running = self._running[key] = _Running(told, asyncio.create_task(work()))
        running.task.add_done_callback(lambda task: self._ended(key, running))
        return await self._await(running)

    def cancel(self, agent: str, req_id: str) -> None:
        """Ends the call, also if it has not come yet."""
        self._cancels.pop((agent, req_id), None)
        self._cancels[agent, req_id] = self._clock() + self._retention.cancels
        while len(self._cancels) > self._retention.most:
            self._cancels.popitem(last=False)
        for (_, caller, running_id), running in self._running.items():
            if (caller, running_id) == (agent, req_id):
                running.is_cancelled = True
                running.task.cancel()

    def forget(self, office: str, agent: str | None = None) -> None:
        """Drops the results kept for an agent that has left, or for an office that this computer has left."""
        for key in [key for key in self._kept if key[0] == office and agent in (None, key[1])]:
            self._drop(key)

    async def close(self) -> None:
        running = list(self._running.values())
        for call in running:
            call.task.cancel()
        await asyncio.gather(*(call.task for call in running), return_exceptions=True)

    async def _await(self, running: _Running) -> Result:
        """Waits without owning: a caller that gives up does not end the call of the others."""
        await _end_of(running.task)
        if running.task.cancelled():
            raise CallCancelled if running.is_cancelled else Unavailable("the computer is stopping")
        return running.task.result()

    def _again(self, key: Key) -> Result:
        if key not in self._kept:
            raise ResultGone(repr(key[-1]))
        outcome = self._kept[key].outcome
        if isinstance(outcome, SMCPError):
            raise outcome.with_traceback(None)
        return outcome

    def _ended(self, key: Key, running: _Running) -> None:
        del self._running[key]
        now, outcome = self._clock(), _outcome(running)
        size = _size(outcome)
        self._ran[key] = _Tombstone(running.what, now + self._retention.tombstones)
        self._kept[key] = _Kept(now + self._retention.results, outcome, size)
        self._kept_bytes += size
        while self._kept_bytes > self._retention.most_bytes or len(self._kept) > self._retention.most:
            self._drop(next(iter(self._kept)))
        while len(self._ran) > self._retention.most_tombstones:
            self._ran.popitem(last=False)

    def _forget_old(self) -> None:
        now = self._clock()
        while self._kept and next(iter(self._kept.values())).until < now:
            self._drop(next(iter(self._kept)))
        while self._ran and next(iter(self._ran.values())).until < now:
            self._ran.popitem(last=False)
        while self._cancels and next(iter(self._cancels.values())) < now:
            self._cancels.popitem(last=False)

    def _drop(self, key: Key) -> None:
        self._kept_bytes -= self._kept.pop(key).size


def _digest(what: Any) -> bytes:
    """Enough to tell calls apart; their arguments may be large, and secret."""
    try:
        text = orjson.dumps(what, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        text = json.dumps(what, sort_keys=True, default=repr).encode()
    return hashlib.sha256(text).digest()


def _size(outcome: Result | SMCPError) -> int:
    """About what it costs to keep: an answer that is written is there twice."""
    return 2 * sys.getsizeof(outcome.text) if isinstance(outcome, Written) else len(json.dumps(outcome, default=str))


async def _end_of(task: asyncio.Task[Result]) -> None:
    """As `asyncio.wait` would, for one."""
    if not task.done():
        waiter = task.get_loop().create_future()
        task.add_done_callback(lambda _: None if waiter.done() else waiter.set_result(None))
        await waiter


def _outcome(running: _Running) -> Result | SMCPError:
    if running.task.cancelled():
        return CallCancelled() if running.is_cancelled else Unavailable("the computer is stopping")
    error = running.task.exception()
    if error is None:
        return running.task.result()
    return error if isinstance(error, SMCPError) else SMCPError()
