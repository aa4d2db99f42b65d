"""The stream of events for operators: one bounded queue for each reader, with filters.

An event has the facts of what has happened, `at` (when), and `node` (where).

A reader that does not keep up is dropped: its queue is replaced by one last event, `dropped`, which says how many
events it has missed, and its stream ends. Other readers, and the Server, never wait for it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

from a2c_smcp.audit.observers import Facts, Observed
from a2c_smcp.errors import BadRequest, RateLimited
from a2c_smcp.protocol.names import MAX_NAME, did_you_mean, similar_names
from a2c_smcp.server.observation.happened import EVENT_NAMES, Observation

MOST_HELD = 1000
"""Events that a reader may not have read yet."""

_MOST_READERS = 64
_FIELDS = ("office", "name", "agent", "computer", "principal", "tool", "outcome", "node")
DROPPED = "dropped"


class EventFilter:
    """Chooses events by `event` (several, with commas between them), and by fields that must have a value."""

    def __init__(self, query: Mapping[str, str]) -> None:
        """Raises `BadRequest`."""
        filters = dict(query)
        self._kinds = frozenset(_known_events(filters.pop("event", "")))
        if unknown := filters.keys() - set(_FIELDS):
            raise BadRequest(f"{min(unknown)}: there is no such filter here, there are event, {', '.join(_FIELDS)}")
        self._wanted = filters

    def fits(self, facts: Facts) -> bool:
        if self._kinds and facts["event"] not in self._kinds:
            return False
        return all(facts.get(field) == value for field, value in self._wanted.items())


def _known_events(names: str) -> Iterator[str]:
    """Raises `BadRequest` for a name that no event has: its reader would wait for ever."""
    known = (*EVENT_NAMES, DROPPED)
    for name in filter(None, map(str.strip, names.split(","))):
        if name not in known:
            shown = name[:MAX_NAME]
            meant = did_you_mean(similar_names(shown, known)[:1]) or "."
            raise BadRequest(f"event: there is no {shown!r}{meant} There are {', '.join(known)}")
        yield name


class EventReader:
    """One reader: iterate over it. `end` ends it."""

    def __init__(self, chosen: EventFilter) -> None:
        self._chosen = chosen
        self._queue: deque[Facts] = deque()
        self._more = asyncio.Event()
        self._is_over = False

    def put(self, facts: Facts) -> None:
        """Queues an event, if the reader wants it. It does not wait. No filter hides that events were missed."""
        if self._is_over or not (facts["event"] == DROPPED or self._chosen.fits(facts)):
            return
        if len(self._queue) >= MOST_HELD:
            missed = len(self._queue) + 1
            self._queue.clear()
            self._queue.append({"event": DROPPED, "at": facts["at"], "missed": missed})
            self._is_over = True
        else:
            self._queue.append(facts)
        self._more.set()

    def end(self) -> None:
        self._is_over = True
        self._more.set()

    async def batches(self, quiet: float) -> AsyncIterator[Sequence[Facts]]:
        """All events that have come since the last time; none at all after `quiet` seconds without any."""
        while True:
            try:
                async with asyncio.timeout(quiet):
                    await self._more.wait()
            except TimeoutError:
                yield ()
                continue
            self._more.clear()
            batch = [*self._queue]
            self._queue.clear()
            if batch:
                yield batch
            if self._is_over and not self._queue:
                return


class EventSource:
    """The events of this node. Nothing is described while there is no reader."""

    def __init__(self, observation: Observation, node: str | None) -> None:
        self._observation = observation
        self._node = node
        self._readers: set[EventReader] = set()

    @property
    def readers(self) -> int:
        return len(self._readers)

    def open(self, chosen: EventFilter) -> EventReader:
        """Raises `RateLimited`."""
        if len(self._readers) >= _MOST_READERS:
            raise RateLimited(f"at most {_MOST_READERS} readers follow events at a time")
        reader = EventReader(chosen)
        if not self._readers:
            self._observation.add(self.observe, often=True)
        self._readers.add(reader)
        return reader

    def close(self, reader: EventReader) -> None:
        self._readers.discard(reader)
        if not self._readers:
            self._observation.remove(self.observe)

    def end_all(self) -> None:
        for reader in self._readers:
            reader.end()

    def observe(self, happened: Observed) -> None:
        """Queues what has happened, for the readers that want it."""
        facts = {**happened.facts(), "at": time.time()}
        if self._node:
            facts["node"] = self._node
        for reader in self._readers:
            reader.put(facts)
