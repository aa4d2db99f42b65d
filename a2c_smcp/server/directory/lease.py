"""A node's place in the store: its connections, its lease, and the clock by which it has lapsed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from a2c_smcp.errors import Unavailable
from a2c_smcp.server.directory.nodes import Lease, NameInUse, Pace, new_name
from a2c_smcp.server.directory.store import Store
from a2c_smcp.server.directory.store_connection import Line

__all__ = ["GONE", "RETURNED", "Tenancy"]

logger = logging.getLogger(__name__)

_SOON = 0.05

RETURNED, GONE = "=", "-"
"""What is said of nodes on their channel, beside that they have come."""


class Tenancy:
    """Two lines, one to ask on and one to hear on. If either breaks there is trouble, and both are given up.

    `run` is the life of the store in which the last lease was taken, "" if there was none.
    """

    def __init__(self, url: str, node: str, node_url: str, prefix: str, pace: Pace) -> None:
        self.node = node
        self.trouble = asyncio.Event()
        self.run = ""
        self._url = url
        self._facts = {"url": node_url, "started_at": str(time.time())}
        self._prefix = prefix
        self._pace = pace
        self._process = new_name() + new_name()
        self._lines: list[Line] = []
        self._held: tuple[Store, Lease] | None = None
        self._until = float("-inf")
        self._spares_until = float("-inf")
        self._peers: set[str] = set()

    @property
    def is_leased(self) -> bool:
        return time.monotonic() < self._until

    @property
    def is_settling(self) -> bool:
        """Whether this node came back a moment ago: the others have as long as a lease lasts to do so, too."""
        return time.monotonic() < self._spares_until - self._pace.return_grace + self._pace.lease

    @property
    def held(self) -> tuple[Store, Lease]:
        """The store and the lease to show it. Raises `Unavailable` at once while there is trouble."""
        if self._held is None or self.trouble.is_set():
            raise Unavailable("the shared store is unreachable")
        return self._held

    async def take(self, hear: Callable[[str, bytes], None]) -> None:
        """Connects and takes a lease, which counts from the first `beat`."""
        await self.hang_up()
        self.trouble.clear()
        for _ in range(2):
            self._lines.append(await Line.open(self._url, self._pace.patience, hear, self.trouble.set))
        await self.listen(f"{self._prefix}nodes")
        store = Store(self._lines[0], self._prefix)
        await store.prepare()
        run = await store.run_id()
        lease, nodes = await self._register(store, run)
        if self.run:
            self._spares_until = time.monotonic() + self._pace.return_grace
        self._held, self.run, self._peers = (store, lease), run, nodes - {self.node}

    async def beat(self) -> None:
        """Renews the lease, and buries nodes whose own has lapsed."""
        store, lease = self.held
        asked = time.monotonic()
        lapsed = await store.beat(lease, self._pace.lease)
        self._until = asked + self._pace.lease - self._pace.margin
        for node in lapsed if asked > self._spares_until else ():
            freed = await store.bury(node)
            logger.warning("node %s is gone, node %s has freed %d of its seats", node, self.node, freed)

    async def renew(self) -> None:
        """Keeps the lease in the store while this node is not yet what the store says, so that its clock stands."""
        store, lease = self.held
        await store.beat(lease, self._pace.lease)

    def lapse(self) -> None:
        self._until = float("-inf")

    async def listen(self, channel: str) -> None:
        await self._lines[1].ask("SUBSCRIBE", channel)

    async def stop_listening(self, channel: str) -> None:
        await self._lines[1].ask("UNSUBSCRIBE", channel)

    def hear_of_node(self, node: str, *, is_gone: bool) -> None:
        """Who has come and who has gone: those who are known are waited for when the store has lost its memory."""
        (self._peers.discard if is_gone else self._peers.add)(node)
        self._peers.discard(self.node)

    async def tell_of_return(self) -> None:
        """What others have asked of this node while it was out was lost on the way."""
        store, _ = self.held
        await store.publish(f"{self._prefix}nodes", RETURNED + self.node)

    async def retire(self) -> None:
        """What the node still holds is kept a while longer, for those of its members that resume elsewhere."""
        self.lapse()
        with suppress(Unavailable):
            store, lease = self.held
            await store.retire(lease, self._pace.linger)
        await self.hang_up()

    async def hang_up(self) -> None:
        lines, self._lines, self._held = self._lines, [], None
        for line in lines:
            await line.close()

    async def _register(self, store: Store, run: str) -> tuple[Lease, set[str]]:
        """A predecessor of the same name that has died is waited for as long as its lease lasts."""
        deadline = time.monotonic() + self._pace.lease + self._pace.patience
        while True:
            try:
                return await store.register(
                    self.node, self._process, run, self.run, self._pace.lease, self._facts, sorted(self._peers)
                )
            except NameInUse as predecessor:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(min(predecessor.seconds, self._pace.beat) + _SOON)
