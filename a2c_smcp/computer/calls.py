"""Tool calls by req_id: one that comes again joins the first, or finds its result; a cancel ends one and no other."""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from a2c_smcp.computer.approval import Caller
from a2c_smcp.errors import BadRequest, CallCancelled, ResultGone

__all__ = ["Calls", "Retention"]

Key = tuple[str, str, str]
Result = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long results and cancels are remembered, in seconds, and how much of them."""

    results: float = 600.0
    cancels: float = 30.0
    most: int = 1000
    most_bytes: int = 64 * 1024 * 1024


@dataclass(slots=True)
class _Kept:
    """A call that has run. Without `result` it is a tombstone."""

    what: str
    until: float
    result: Result | None
    size: int


@dataclass(slots=True)
class _Running:
    what: str
    task: asyncio.Task[Result]
    is_cancelled: bool = False


class Calls:
    """No call runs twice for one (office, agent, req_id) while its result, or that it has run, is remembered."""

    def __init__(self, retention: Retention | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._retention = retention or Retention()
        self._clock = clock
        self._running: dict[Key, _Running] = {}
        self._kept: OrderedDict[Key, _Kept] = OrderedDict()
        self._kept_bytes = 0
        self._cancels: OrderedDict[tuple[str, str], float] = OrderedDict()

    async def run(self, caller: Caller, req_id: str, what: Any, work: Callable[[], Awaitable[Result]]) -> Result:
        """The result of `work`, which is done once for one `req_id`; `what` tells whether it is the same call."""
        key, told = (caller.office, caller.agent, req_id), json.dumps(what, sort_keys=True, default=repr)
        self._forget_old()
        if known := self._running.get(key) or self._kept.get(key):
            if known.what != told:
                raise BadRequest("req_id: was used for another call", field="req_id")
            if isinstance(known, _Running):
                return await self._await(known)
            if known.result is None:
                raise ResultGone(repr(req_id))
            return known.result
        if (caller.agent, req_id) in self._cancels:
            raise CallCancelled
        running = self._running[key] = _Running(told, asyncio.ensure_future(_coroutine(work)))
        running.task.add_done_callback(lambda task: self._ended(key, running))
        return await self._await(running)

    def cancel(self, agent: str, req_id: str) -> None:
        """Ends the call, also if it has not come yet."""
        self._cancels[agent, req_id] = self._clock() + self._retention.cancels
        for (_, caller, running_id), running in self._running.items():
            if (caller, running_id) == (agent, req_id):
                running.is_cancelled = True
                running.task.cancel()

    def forget(self, office: str, agent: str | None = None) -> None:
        """Drops what is kept for an agent that has left, or for an office that this computer has left."""
        for key in [key for key in self._kept if key[0] == office and agent in (None, key[1])]:
            self._drop(key)

    async def close(self) -> None:
        running = list(self._running.values())
        for call in running:
            call.task.cancel()
        await asyncio.gather(*(call.task for call in running), return_exceptions=True)

    async def _await(self, running: _Running) -> Result:
        """Waits without owning: a caller that gives up does not end the call of the others."""
        await asyncio.wait([running.task])
        if running.task.cancelled():
            raise CallCancelled
        return running.task.result()

    def _ended(self, key: Key, running: _Running) -> None:
        del self._running[key]
        if running.task.cancelled() or running.task.exception():
            return
        result = running.task.result()
        size = len(json.dumps(result, default=repr))
        self._kept[key] = _Kept(running.what, self._clock() + self._retention.results, result, size)
        self._kept_bytes += size
        for old in self._kept.values():
            if self._kept_bytes <= self._retention.most_bytes:
                break
            self._kept_bytes -= old.size
            old.result, old.size = None, 0
        while len(self._kept) > self._retention.most:
            self._drop(next(iter(self._kept)))

    def _forget_old(self) -> None:
        now = self._clock()
        while self._kept and next(iter(self._kept.values())).until < now:
            self._drop(next(iter(self._kept)))
        while self._cancels and next(iter(self._cancels.values())) < now:
            self._cancels.popitem(last=False)

    def _drop(self, key: Key) -> None:
        self._kept_bytes -= self._kept.pop(key).size


async def _coroutine(work: Callable[[], Awaitable[Result]]) -> Result:
    return await work()
