"""The lease of a node: its connections to the store, its heartbeat, and its own clock for when the lease ends.

Every seat in the store belongs to the lease of a node. While the lease lasts, no other node may free its seats, so the
node can serve its members from its mirror, without asking. A lease is in one of three states, for which this node and
the store use clocks of their own:

    none ── take, beat ──► held ── `lease - margin` without a beat ──► ended for us ── `margin` later ──► ended for all

- The node counts from before it sent the beat, and stops `margin` early. So it has stopped before the store lets
  another node free its seats (`bury`), however long an answer took. After a standstill of the process it sees this by
  its clock, before it answers anything.
- Each lease has an epoch, and every write shows it. A process that comes too late, or a second one under the same name,
  is refused by the store (`LeaseLost`), whatever its clock says.
- Two connections are open: one asks, the other listens to channels. If either breaks, both are given up (`trouble`) and
  a new lease is taken on new ones: what was published meanwhile is lost, so the mirror has to catch up in any case.

After an outage of the store all leases have ended at once. When a node is back, it does not free the seats of other
nodes for `return_grace` seconds, so that they can come back too. If the store was restarted without its memory (`run`
differs), seats are unknown that other nodes still serve until their leases end. The first node that registers then
names all nodes that it remembers (`_peers`), and the store seats no newcomers until these have come back or must have
stopped.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from a2c_smcp.errors import Unavailable
from a2c_smcp.server.cluster.memory import LeaseToken, NameInUse, Pace, new_name
from a2c_smcp.server.cluster.store import OnAsked, Store, StoreConnection, ignore_asked

logger = logging.getLogger(__name__)

_SOON = 0.05

RETURNED, GONE = "=", "-"
"""The messages about nodes on their channel, beside that they have come."""


class NodeLease:
    """The lease of one node. `run` names the run of the store in which the last lease was taken, "" if none was."""

    def __init__(
        self, url: str, node: str, node_url: str, prefix: str, pace: Pace, on_asked: OnAsked = ignore_asked
    ) -> None:
        self.node = node
        self.trouble = asyncio.Event()
        self.run = ""
        self._url = url
        self._facts = {"url": node_url, "started_at": str(time.time())}
        self._prefix = prefix
        self._pace = pace
        self._on_asked = on_asked
        self._process = new_name() + new_name()
        self._connections: list[StoreConnection] = []
        self._held: tuple[Store, LeaseToken] | None = None
        self._until = float("-inf")
        self._spares_until = float("-inf")
        self._peers: set[str] = set()

    @property
    def is_held(self) -> bool:
        """True while the lease lasts, by this node's own clock."""
        return time.monotonic() < self._until

    @property
    def is_settling(self) -> bool:
        """True if this node came back so lately that other nodes, whose leases ended too, may not be back yet."""
        return time.monotonic() < self._spares_until - self._pace.return_grace + self._pace.lease

    @property
    def store(self) -> tuple[Store, LeaseToken]:
        """The store, and the token to show it. Raises `Unavailable` at once while there is trouble."""
        if self._held is None or self.trouble.is_set():
            raise Unavailable("the shared store is unreachable")
        return self._held

    async def take(self, on_message: Callable[[str, bytes], None]) -> None:
        """Connects and takes a lease, which counts from the first `beat`. Raises `Unavailable` or `NameInUse`."""
        await self.disconnect()
        self.trouble.clear()
        for _ in range(2):
            connection = await StoreConnection.open(self._url, self._pace.patience, on_message, self.trouble.set)
            self._connections.append(connection)
        await self.subscribe(f"{self._prefix}nodes")
        store = Store(self._connections[0], self._prefix, self._on_asked)
        await store.prepare()
        run = await store.run_id()
        token, nodes = await self._register(store, run)
        if self.run:
            self._spares_until = time.monotonic() + self._pace.return_grace
        self._held, self.run, self._peers = (store, token), run, nodes - {self.node}

    async def beat(self) -> None:
        """Renews the lease, and frees the seats of nodes whose lease has ended."""
        store, token = self.store
        asked = time.monotonic()
        ended = await store.beat(token, self._pace.lease)
        self._until = asked + self._pace.lease - self._pace.margin
        for node in ended if asked > self._spares_until else ():
            freed = await store.bury(node)
            logger.warning("node %s is gone, node %s has freed %d of its seats", node, self.node, freed)

    async def renew(self) -> None:
        """Renews the lease in the store, not by this node's clock: its members are still being seated again."""
        store, token = self.store
        await store.beat(token, self._pace.lease)

    def end(self) -> None:
        """End the lease by this node's own clock."""
        self._until = float("-inf")

    async def subscribe(self, channel: str) -> None:
        await self._connections[1].ask("SUBSCRIBE", channel)

    async def unsubscribe(self, channel: str) -> None:
        await self._connections[1].ask("UNSUBSCRIBE", channel)

    def note_node(self, node: str, *, is_gone: bool) -> None:
        """A node has come or gone. Those that are known are awaited if the store loses its memory."""
        (self._peers.discard if is_gone else self._peers.add)(node)
        self._peers.discard(self.node)

    async def publish_return(self) -> None:
        """Announce that this node is back: it has missed what the others asked while it was unreachable."""
        store, _ = self.store
        await store.publish(f"{self._prefix}nodes", RETURNED + self.node)

    async def retire(self) -> None:
        """Gives the lease up. The store keeps its seats for `linger`, for members that resume on another node."""
        self.end()
        with suppress(Unavailable):
            store, token = self.store
            await store.retire(token, self._pace.linger)
        await self.disconnect()

    async def disconnect(self) -> None:
        connections, self._connections, self._held = self._connections, [], None
        for connection in connections:
            await connection.close()

    async def _register(self, store: Store, run: str) -> tuple[LeaseToken, set[str]]:
        """Take a lease. Wait for the end of the lease of an earlier process of the same name, if that has died."""
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
