"""Nodes of one directory: what each has heard, and one that lives on a loop of its own, where it can be paused."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from a2c_smcp.errors import SMCPError
from a2c_smcp.protocol.offices import Change, Member, Notice, Office
from a2c_smcp.server.cluster.memory import DirectoryListener, Pace
from a2c_smcp.server.cluster.redis import RedisDirectory
from a2c_smcp.server.seating import Offices

QUICK = Pace(lease=1.5, beat=0.15, margin=0.3, patience=0.5, retry=0.1, return_grace=1.0, linger=0.5)
LONG = Pace(lease=600, patience=10)

Said = tuple[str, str, str]
"""An event, its office, and the name in it."""


def said(notices: Sequence[Notice]) -> list[Said]:
    names = [next(value for key, value in notice.data.items() if key != "office_id") for notice in notices]
    return [(notice.event.split(":")[1], notice.office_id, name) for notice, name in zip(notices, names, strict=True)]


class Ear(DirectoryListener):
    """Remembers everything."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.announcements: list[tuple[str, str]] = []
        self.losses: list[tuple[Member, SMCPError]] = []
        self.troubles: list[Exception] = []
        self.gone: set[str] = set()

    def office_changed(self, office: Office, change: Change) -> None:
        self.changes.append(change)

    def notice_announced(self, office_id: str, text: str) -> None:
        self.announcements.append((office_id, text))

    def seat_lost(self, member: Member, why: SMCPError) -> None:
        self.losses.append((member, why))

    def store_lost(self, error: Exception) -> None:
        self.troubles.append(error)

    async def survivors(self, members: Sequence[Member]) -> Collection[Member]:
        return [member for member in members if member.sid not in self.gone]

    @property
    def said(self) -> list[Said]:
        return said([notice for change in self.changes for notice in change.notices])

    def count(self, *said: str) -> int:
        return Counter(self.said)[said]  # type: ignore[index]


class Node(RedisDirectory):
    """A directory that remembers what it has heard."""

    def __init__(self, url: str, **options: Any) -> None:
        self.ear = Ear()
        super().__init__(url, listener=self.ear, **options)
        self.offices = Offices(self)


class Elsewhere:
    """A loop in a thread of its own, that can be stopped as a whole and knows nothing of it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._go = threading.Event()

    def start(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return await asyncio.wait_for(asyncio.wrap_future(self.start(work)), 20)

    async def pause(self) -> None:
        """Returns when the loop stands still."""
        self._go.clear()
        stands = threading.Event()

        def stand() -> None:
            stands.set()
            self._go.wait(60)

        self._loop.call_soon_threadsafe(stand)
        await asyncio.to_thread(stands.wait, 20)

    def resume(self) -> None:
        self._go.set()

    def end(self) -> None:
        self._go.set()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()


@contextmanager
def elsewhere() -> Iterator[Elsewhere]:
    place = Elsewhere()
    try:
        yield place
    finally:
        place.end()


@asynccontextmanager
async def node_elsewhere(url: str, prefix: str, pace: Pace, *members: Member) -> AsyncIterator[tuple[Elsewhere, Node]]:
    """Node `n1` with these members, on a loop that can be stopped."""
    with elsewhere() as place:
        node = Node(url, node="n1", prefix=prefix, pace=pace)
        await place.run(node.start())
        for member in members:
            await place.run(node.offices.join(member))
        yield place, node
        place.resume()
        await place.run(node.close())


Start = Callable[..., Awaitable[Node]]

PLANNER = Member("n1.s", "agent", "planner", "north", instance="i1", owner="ann")
LAPTOP = Member("n2.c", "computer", "laptop", "north", instance="i2", owner="ann")
