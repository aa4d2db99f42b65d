"""The directory of many nodes: the same answers as the one in memory, out of Valkey or Redis."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from a2c_smcp.errors import Unavailable
from a2c_smcp.loops import OwnedTasks
from a2c_smcp.protocol.offices import Change, Member, Office
from a2c_smcp.server.directory.addresses import masked
from a2c_smcp.server.directory.lease import GONE, RETURNED, Tenancy
from a2c_smcp.server.directory.listener import Listener
from a2c_smcp.server.directory.mirror import Mirror, Turn
from a2c_smcp.server.directory.nodes import Lease, LeaseLost, Node, Pace, check_name, new_name, node_of
from a2c_smcp.server.directory.records import News
from a2c_smcp.server.directory.seat_recovery import displaced, restore
from a2c_smcp.server.directory.store import Store

__all__ = ["RedisDirectory"]

logger = logging.getLogger(__name__)

_MOST_IDLE = 4096  # offices that are followed though nobody of ours sits there
_AT_ONCE = 64
_SOON = 0.1
_CHANGED, _ANNOUNCED = "+", "!"
_INBOX = "in"


class RedisDirectory:
    """`office`, `seats` and `holder` ask the store; what is at hand comes from the node's own mirror of it.

    Every seat belongs to the lease of a node. While the store is out of reach, what is at hand stays so until the
    lease has lapsed by the node's own clock; everything else answers 503 at once. One server only, no cluster: a change
    touches several offices in one script.
    """

    def __init__(
        self,
        url: str,
        *,
        node: str | None = None,
        node_url: str = "",
        listener: Listener | None = None,
        prefix: str = "a2c:",
        pace: Pace | None = None,
    ) -> None:
        self.node = check_name(node or new_name())
        self.listener = listener or Listener()
        self._url = url
        self._prefix = prefix
        self._pace = pace or Pace()
        self._tenancy = Tenancy(url, self.node, node_url, prefix, self._pace)
        self._mirror = Mirror(self.node, _MOST_IDLE)
        self._followed: set[str] = set()
        self._background = OwnedTasks()
        self._is_back = False
        self._is_complete = True
        self._keeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Takes a lease and keeps it until `close`. Raises `Unavailable` if the store does not answer."""
        try:
            await self._come_back()
            await self._inherit()
        except BaseException:
            await self._tenancy.hang_up()
            raise
        self._keeper = asyncio.create_task(self._keep())

    async def close(self) -> None:
        """Retires: what the node still holds is kept for a while, for members that resume elsewhere."""
        if self._keeper:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        await self._background.close()
        await self._tenancy.retire()

    # What every directory answers

    async def office(self, office_id: str) -> Office:
        self._require_all_nodes()
        return await self._look(office_id)

    async def seats(self, sid: str) -> tuple[Member, ...]:
        store, _ = self._ready()
        return await store.seats(sid)

    def office_at_hand(self, office_id: str) -> Office | None:
        return self._mirror.office(office_id) if self._tenancy.is_leased else None

    def seats_at_hand(self, sid: str) -> tuple[Member, ...] | None:
        if not self._tenancy.is_leased:
            return None
        return self._mirror.seats(sid) or (() if node_of(sid) == self.node else None)

    async def holder(self, instance: str) -> str | None:
        store, _ = self._ready()
        return await store.holder(instance)

    async def commit(self, change: Change) -> bool:
        store, lease = self._ready()
        if change.enters:
            self._require_all_nodes()
        for office_id in change.expects:
            if office_id not in self._mirror:
                await self.office(office_id)
        if not all(office_id in self._mirror for office_id in change.expects):
            return False
        try:
            told = await store.commit(lease, change)
        except LeaseLost:
            self._tenancy.trouble.set()
            raise
        for office_id, text in told or ():
            self._hear_change(office_id, text)
        return told is not None

    # What nodes need beside

    @property
    def is_leased(self) -> bool:
        """Whether this node may still speak for its members, by its own clock."""
        return self._tenancy.is_leased

    @property
    def is_ready(self) -> bool:
        """Whether the store answers, and knows this node's members."""
        return self._is_back and self._tenancy.is_leased and not self._tenancy.trouble.is_set()

    @property
    def is_settling(self) -> bool:
        return self._tenancy.is_settling

    async def announce(self, office_id: str, text: str) -> int:
        """Publishes to all nodes that follow this office, this one included, in step with changes. How many hear it."""
        store, _ = self._ready()
        return await store.publish(self._channel(office_id), _ANNOUNCED + text)

    def check(self) -> None:
        """Raises `Unavailable` if nothing can be asked of the store now."""
        self._ready()

    def post(self, node: str, message: bytes, answered: Callable[[Any], None]) -> None:
        """Puts a message into the inbox of a node, and tells how many there are who read it."""
        store, _ = self._ready()
        store.post(self._inbox(node), message, answered)

    async def absent(self, nodes: Collection[str]) -> set[str]:
        """Those of the nodes whose inbox nobody reads."""
        store, _ = self._ready()
        counts = await store.listeners([self._inbox(node) for node in nodes])
        return {node for node in nodes if not counts.get(self._inbox(node))}

    async def nodes(self) -> list[Node]:
        store, _ = self._ready()
        return await store.nodes()

    async def secret(self) -> str:
        """What nodes show to one another when one passes on a request to the other."""
        store, _ = self._ready()
        return await store.secret()

    # How it keeps its lease

    def _ready(self) -> tuple[Store, Lease]:
        if not self.is_ready:
            raise Unavailable("the shared store is unreachable")
        return self._tenancy.held

    def _require_all_nodes(self) -> None:
        """A store that has lost its memory does not know the members of nodes that are not back yet."""
        if self._is_back and not self._is_complete:
            raise Unavailable("the shared store has been restarted, and waits for its nodes")

    async def _keep(self) -> None:
        """Keeps the lease, and comes back under a new one after every trouble."""
        while True:
            try:
                if not self._is_back:
                    await self._come_back()
                    logger.info("node %s is back, with %s", self.node, masked(self._url))
                await self._beat_until_trouble()
            except Unavailable as error:
                self._lose(error)
            except Exception as error:
                logger.exception("node %s could not keep its lease", self.node)
                self._lose(error)
            await asyncio.sleep(self._pace.retry)

    def _lose(self, error: Exception) -> None:
        if self._is_back:
            logger.warning("node %s: %s", self.node, error)
            self.listener.lost(error)
        self._is_back = False
        if isinstance(error, LeaseLost):
            self._tenancy.lapse()

    async def _come_back(self) -> None:
        """Takes a lease, seats this node's members again, and catches up with what has happened."""
        is_return = bool(self._tenancy.run)
        self._followed.clear()
        self._mirror.rewind()
        await self._tenancy.take(self._hear)
        await self._tenancy.listen(self._inbox(self.node))
        await self._in_batches(self._follow, self._mirror.pinned())
        if is_return:
            await self._seat_again()
        store, _ = self._tenancy.held
        self._is_complete = not await store.settle(self.node)
        await self._tenancy.beat()
        self._is_back = True
        await self._catch_up()
        if is_return:
            await self._tenancy.tell_of_return()
            self.listener.back()

    async def _inherit(self) -> None:
        """Seats that a predecessor of this name has left for whoever comes back for them."""
        store, _ = self._tenancy.held
        if sids := {sid for sid, _, _ in await store.held(self.node)}:
            self.listener.inherited(sids)

    async def _seat_again(self) -> None:
        store, lease = self._tenancy.held
        restored = await restore(store, lease, self._mirror.mine(), self.listener.survivors, self._tenancy.renew)
        for office_id, text in restored.told:
            self._hear_change(office_id, text)
        for member in restored.given_up:
            self._mirror.forget(member)
        for loss in restored.losses:
            self._mirror.forget(loss.member)
            self.listener.displaced(loss.member, loss.why)

    async def _beat_until_trouble(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pace.beat if self._is_complete else _SOON):
                    await self._tenancy.trouble.wait()
            if not self._tenancy.is_leased:
                raise LeaseLost("this node stood still for longer than its lease")
            await self._tenancy.beat()
            if not self._is_complete:
                store, _ = self._tenancy.held
                self._is_complete = not await store.settle(self.node)
                await self._catch_up()

    # How its mirror follows

    async def _catch_up(self) -> None:
        """What was missed is seen now; not before all nodes are back, or those who are not yet would seem to leave."""
        if self._is_complete:
            await self._in_batches(self._catch_up_on, self._mirror.pinned())

    async def _catch_up_on(self, office_id: str) -> None:
        with suppress(Unavailable):  # then there is trouble, and after it all of this again
            await self._look(office_id, is_missed=True)

    async def _look(self, office_id: str, *, is_missed: bool = False) -> Office:
        """What an office is now. The mirror moves on with what is published, which says more, unless it was missed."""
        store, _ = self._ready()
        await self._follow(office_id)
        known = self._mirror.office(office_id)
        at, found = await store.look(office_id, known.version if known else None)
        office, seats = found or (known or Office(office_id), None)
        is_due = is_missed or office_id not in self._mirror
        if is_due and self._is_complete and office_id in self._followed:
            self._tell(self._mirror.see(office, seats, at))
            await self._unfollow(self._mirror.overflow())
        return office

    async def _follow(self, office_id: str) -> None:
        if office_id not in self._followed:
            await self._tenancy.listen(self._channel(office_id))
            self._followed.add(office_id)

    async def _unfollow(self, office_ids: Sequence[str]) -> None:
        self._followed.difference_update(office_ids)
        for office_id in office_ids:
            await self._tenancy.stop_listening(self._channel(office_id))

    def _inbox(self, node: str) -> str:
        return f"{self._prefix}{_INBOX}:{node}"

    def _channel(self, office_id: str) -> str:
        return f"{self._prefix}at:{office_id}"

    def _hear(self, channel: str, data: bytes) -> None:
        """Comes from the line, which must go on whatever was published."""
        try:
            kind, _, office_id = channel.removeprefix(self._prefix).partition(":")
            if kind == _INBOX:
                self.listener.posted(data)
                return
            text = data.decode(errors="surrogateescape")
            if kind == "nodes":
                self._hear_of_node(text[:1], text[1:])
            elif text.startswith(_CHANGED):
                self._hear_change(office_id, text.removeprefix(_CHANGED))
            else:
                self.listener.announced(office_id, text.removeprefix(_ANNOUNCED))
        except Exception:
            logger.exception("node %s did not understand what was published on %r", self.node, channel)

    def _hear_of_node(self, what: str, node: str) -> None:
        self._tenancy.hear_of_node(node, is_gone=what == GONE)
        if what == RETURNED and node != self.node:
            self.listener.returned(node)

    def _hear_change(self, office_id: str, text: str) -> None:
        news = News.read(office_id, text)
        own = {sid: seat for sid in news.displaced if (seat := self._mirror.own(sid, office_id))}
        self._tell(self._mirror.hear(office_id, news))
        for member in own.values():
            self._mirror.forget(member)
            self.listener.displaced(member, displaced(member))
        if self._is_back and self._is_complete and self._mirror.is_behind(office_id):
            self._background.spawn(self._catch_up_on(office_id))

    def _tell(self, turn: Turn | None) -> None:
        if turn:
            self.listener.turned(turn)

    async def _in_batches(self, do: Callable[[str], Awaitable[Any]], office_ids: Sequence[str]) -> None:
        for start in range(0, len(office_ids), _AT_ONCE):
            await asyncio.gather(*map(do, office_ids[start : start + _AT_ONCE]))
