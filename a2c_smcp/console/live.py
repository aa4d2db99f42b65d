"""Pages that stay current: the regions of a page are sent again over one stream (server-sent events) when they change.

A page names the topics that it shows. `Changes.changed` is called with a topic; every stream of a page that shows it
makes its regions anew and sends those whose HTML is not what it has sent last. A stream begins with all regions, so a
browser that was away, and misses changes, has everything again as soon as it is back: no log of events is needed.
Changes that come close together are sent together; the first one is sent at once.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import TypeAlias

from a2c_smcp.console.html import Html
from a2c_smcp.loops import cancel_and_wait

__all__ = ["ENDED", "Changes", "MakeRegions", "Regions", "live_events"]

Regions: TypeAlias = Mapping[str, Html]
"""Parts of a page by their ids."""
MakeRegions: TypeAlias = Callable[[], Awaitable[Regions]]

ENDED = b"event: ended\ndata: {}\n\n"
"""The last event of a stream whose session is over."""
_HEARTBEAT = 15.0
"""Seconds after which something is sent in any case, so that both ends notice a lost connection."""


class Changes:
    """Counts the changes of each topic, and wakes the streams that wait for one."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._waiting: set[asyncio.Event] = set()

    @property
    def has_readers(self) -> bool:
        """Whether a page is open: without one, nothing need be prepared."""
        return bool(self._waiting)

    def changed(self, *topics: str) -> None:
        """Something of these topics has changed. Must be called in the event loop; it returns at once."""
        self._counts.update(topics)
        for event in self._waiting:
            event.set()

    def count(self, topics: Iterable[str]) -> int:
        return sum(self._counts[topic] for topic in topics)

    def reading(self) -> _Reading:
        """Use it in a `with` block, and await `changed_from` in it."""
        return _Reading(self)

    def _enter(self, event: asyncio.Event) -> None:
        self._waiting.add(event)

    def _leave(self, event: asyncio.Event) -> None:
        self._waiting.discard(event)


class _Reading:
    """One stream that waits for changes."""

    def __init__(self, changes: Changes) -> None:
        self._changes, self._event = changes, asyncio.Event()

    def __enter__(self) -> _Reading:
        self._changes._enter(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        self._changes._leave(self._event)

    async def changed_from(self, count: int, topics: Iterable[str]) -> None:
        """Return as soon as the topics have changed since they had this count."""
        while self._changes.count(topics) == count:
            self._event.clear()
            await self._event.wait()


async def live_events(
    changes: Changes,
    topics: frozenset[str],
    make: MakeRegions,
    *,
    pause: float,
    refresh: float | None,
    ended: asyncio.Event,
) -> AsyncIterator[bytes]:
    """The events of one stream, until `ended` is set. `pause` is the least time between two of them, in seconds.

    With `refresh`, regions are made anew after so many seconds, too: for content whose changes are not announced.
    """
    sent: dict[str, Html] = {}
    ending = asyncio.create_task(ended.wait())
    try:
        with changes.reading() as reading:
            while not ended.is_set():
                count = changes.count(topics)
                regions = await make()
                new = {name: html for name, html in regions.items() if sent.get(name) != html}
                sent.update(new)
                yield f"event: regions\ndata: {json.dumps(new)}\n\n".encode() if new else b": nothing new\n\n"
                await asyncio.wait([ending], timeout=pause)
                waiting = asyncio.create_task(reading.changed_from(count, topics))
                await asyncio.wait(
                    [waiting, ending], timeout=refresh or _HEARTBEAT, return_when=asyncio.FIRST_COMPLETED
                )
                await cancel_and_wait(waiting)
    finally:
        await cancel_and_wait(ending)
