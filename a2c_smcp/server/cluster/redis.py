"""The directory of many nodes: the same answers as the one in memory, out of Valkey or Redis.

Two parts make it up, each with a theory of its own: the lease (`lease.py`), which says until when this node may speak
for its members, and the mirror (`mirror.py`), which follows the offices so that calls do not ask the store. This module
joins them. The node is in one of three states:

    out of reach ── _come_back ──► back, not complete ── all nodes are back ──► back and complete
         ▲                                                                           │
         └──────────────────────── trouble: a connection broke, the lease ended ─────┘

- Out of reach: `office`, `seats`, `holder`, `commit`, `announce` and `post` raise `Unavailable` at once. What is cached
  is given out until the lease has ended by this node's own clock.
- `_come_back` takes a lease, subscribes, reads what is frozen, and seats this node's members again, in this order: what
  is published from the subscription on is heard, and nothing is served before the store agrees with the node.
- Not complete: the store was restarted without its memory and still awaits other nodes. Members of this node are
  served; no newcomer is seated, and the mirror does not catch up yet, because members of nodes that are not back would
  seem to have left.

One task (`_keeper`) moves between these states. Messages of the store arrive between its steps, and are applied at
once: `Mirror.hear` takes them in any order relative to answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from a2c_smcp.errors import NameTaken, NotInOffice, OfficeHasAgent, SMCPError, Unavailable
from a2c_smcp.loops import OwnedTasks, cancel_and_wait
from a2c_smcp.protocol.offices import Change, Member, Office
from a2c_smcp.server.cluster.lease import GONE, RETURNED, NodeLease
from a2c_smcp.server.cluster.memory import (
    FREEZES,
    DirectoryListener,
    LeaseLost,
    LeaseToken,
    NameInUse,
    Node,
    Pace,
    Posted,
    check_name,
    new_name,
    node_of,
)
from a2c_smcp.server.cluster.mirror import Applied, Mirror, PublishedChange, SeatRecord, field_of
from a2c_smcp.server.cluster.store import Published, Store, StoreRefused, masked

logger = logging.getLogger(__name__)

# How a node that is back seats its members again, and which of two members that claim one seat gets it.
#
# While a node was out of reach, other nodes may have freed the seats of its members and given them away. The script
# `restore.lua` decides for each seat, in one step: the member that has held the seat for longer gets it (`since`),
# and a client that is back on another connection keeps its newer one. The member that loses is disconnected.

_BATCH = 128  # a script that takes longer than some milliseconds keeps all nodes waiting


@dataclass(frozen=True, slots=True)
class LostSeat:
    """A member that could not have its seat back, and why."""

    member: Member
    why: SMCPError


@dataclass(slots=True)
class Recovered:
    """The result of a recovery: published changes, seats that were given up, and seats lost to others."""

    published: Published = field(default_factory=list)
    given_up: list[Member] = field(default_factory=list)
    lost: list[LostSeat] = field(default_factory=list)


async def recover_seats(
    store: Store,
    token: LeaseToken,
    seats: Sequence[SeatRecord],
    survivors: Callable[[Sequence[Member]], Awaitable[Collection[Member]]],
    renew: Callable[[], Awaitable[None]],
) -> Recovered:
    """Makes the store agree with the node: frees the seats it no longer needs, and takes those it needs again.

    `renew` is awaited after each batch, to keep the lease alive.
    """
    alive = set(await survivors([seat.member for seat in seats]))
    wanted = [seat for seat in seats if seat.member in alive]
    known = {(seat.member.sid, seat.member.office_id, field_of(seat.member)) for seat in wanted}
    unknown = sorted(await store.held(token.node) - known)
    recovered = Recovered(given_up=[seat.member for seat in seats if seat.member not in alive])
    for start in range(0, max(len(wanted), len(unknown)), _BATCH):
        batch = slice(start, start + _BATCH)
        outcomes, published = await store.restore(token, unknown[batch], wanted[batch])
        recovered.published += published
        for seat, outcome in zip(wanted[batch], outcomes, strict=True):
            member = seat.member
            if outcome == "taken":
                recovered.lost.append(LostSeat(member, displaced_by_older(member)))
            elif outcome == "replaced":
                back = f"{member.name!r} is back in {member.office_id!r} on another connection"
                recovered.lost.append(LostSeat(member, NotInOffice(back)))
        await renew()
    return recovered


def displaced_by_older(member: Member) -> SMCPError:
    """Return the error for a member that has lost its seat to one that held it before."""
    if member.role == "agent":
        return OfficeHasAgent(f"office {member.office_id!r} has an agent who was there before, and is back")
    return NameTaken(f"a computer called {member.name!r} was there before, and is back")


_MOST_IDLE = 4096  # offices that are followed though no member of this node is there
_AT_ONCE = 64
_SOON = 0.1
_CHANGED, _ANNOUNCED = "+", "!"
_INBOX, _WITHHELD = "in", "withheld"
_OF_REFUSALS = "correct --redis or A2C_SERVER_REDIS and start it again, or admit it in the store"


class RedisDirectory:
    """The directory of one node, given as `Settings(directory=RedisDirectory(url, node=…, node_url=…))`.

    `node_url` is where other nodes reach this one. It stands on one Valkey or Redis server, not on a cluster: a change
    touches several offices in one script. Its methods raise `Unavailable` while the store is out of reach.
    """

    def __init__(
        self,
        url: str,
        *,
        node: str | None = None,
        node_url: str = "",
        listener: DirectoryListener | None = None,
        prefix: str = "a2c:",
        pace: Pace | None = None,
    ) -> None:
        self.node = check_name(node or new_name())
        self.listener = listener or DirectoryListener()
        self._url = url
        self._prefix = prefix
        self._pace = pace or Pace()
        self._lease = NodeLease(url, self.node, node_url, prefix, self._pace, self._asked)
        self._mirror = Mirror(self.node, _MOST_IDLE)
        self._followed: set[str] = set()
        self._background = OwnedTasks()
        self._is_back = False
        self._trouble = self.refusal = ""
        self._is_complete = True
        self._keeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take a lease and keep it until `close`. If the store is not there, the node joins when it is.

        Raises `StoreRefused` and `NameInUse`, which waiting would not mend.
        """
        try:
            await self._come_back()
        except BaseException as error:
            await self._lease.disconnect()
            if isinstance(error, StoreRefused | NameInUse) or not isinstance(error, Unavailable):
                raise
            self._lose(error)
        self._keeper = asyncio.create_task(self._keep())

    async def close(self) -> None:
        """Gives the lease up. Seats that are left stay for a while, for members that resume on another node."""
        if self._keeper:
            await cancel_and_wait(self._keeper)
        await self._background.close()
        await self._lease.retire()

    # What every directory does

    async def office(self, office_id: str) -> Office:
        self._require_all_nodes()
        return await self._look(office_id)

    async def seats(self, sid: str) -> tuple[Member, ...]:
        return await self._store.seats(sid)

    def cached_office(self, office_id: str) -> Office | None:
        return self.last_office(office_id) if self._lease.is_held else None

    def last_office(self, office_id: str) -> Office | None:
        return self._mirror.office(office_id)

    def cached_seats(self, sid: str) -> tuple[Member, ...] | None:
        if not self._lease.is_held:
            return None
        return self._mirror.seats(sid) or (() if node_of(sid) == self.node else None)

    def own_members(self) -> tuple[Member, ...]:
        return tuple(seat.member for seat in self._mirror.own_seats())

    async def holder(self, instance: str) -> str | None:
        return await self._store.holder(instance)

    async def commit(self, change: Change) -> bool:
        store, token = self._ready()
        if change.enters:
            self._require_all_nodes()
        for office_id in change.expects:
            if office_id not in self._mirror:
                await self.office(office_id)
        if not all(office_id in self._mirror for office_id in change.expects):
            return False
        try:
            published = await store.commit(token, change)
        except LeaseLost:
            self._lease.trouble.set()
            raise
        for office_id, text in published or ():
            self._hear_change(office_id, text)
        return published is not None

    # What a shared directory does beside

    @property
    def is_leased(self) -> bool:
        """True while this node's lease lasts, by its own clock."""
        return self._lease.is_held

    @property
    def is_ready(self) -> bool:
        """True if the store answers and knows this node's members."""
        return self._is_back and self._lease.is_held and not self._lease.trouble.is_set()

    @property
    def is_settling(self) -> bool:
        return self._lease.is_settling

    async def announce(self, office_id: str, text: str) -> int:
        """Publishes to all nodes that follow this office, this one included, in order with changes."""
        return await self._store.publish(self._channel(office_id), _ANNOUNCED + text)

    def check(self) -> None:
        """Raises `Unavailable` if nothing can be asked of the store now."""
        self._ready()

    def post(self, node: str, message: bytes, posted: Posted) -> None:
        """Puts a message into the inbox of a node. `posted` is told how many processes read it."""
        self._store.post(self._inbox(node), message, posted)

    async def absent(self, nodes: Collection[str]) -> set[str]:
        """Return those of the nodes whose inbox no process reads."""
        counts = await self._store.listeners([self._inbox(node) for node in nodes])
        return {node for node in nodes if not counts.get(self._inbox(node))}

    async def nodes(self) -> list[Node]:
        return await self._store.nodes()

    async def secret(self) -> str:
        """The secret that nodes show to one another when one passes a request on to the other."""
        return await self._store.secret()

    async def withhold(self, credential: str) -> None:
        """Nodes refuse this key, also those that begin later, for as long as the store remembers it."""
        await self._store.withhold(credential)
        await self._store.publish(f"{self._prefix}{_WITHHELD}", credential)

    async def kept(self, name: str) -> str | None:
        """A text that nodes keep in the store (`server/auth/grants.py`)."""
        return await self._store.kept(name)

    async def swap(self, name: str, before: str | None, after: str | None, seconds: float) -> bool:
        """Replace a text for so many seconds. `False`, without effect, if it is not `before` any more.

        A text that is kept for ever (`math.inf`) is told to all nodes that subscribe to its name.
        """
        return await self._store.swap(name, before, after, seconds)

    async def kept_names(self, beginning: str) -> list[str]:
        return await self._store.kept_names(beginning)

    # How it keeps its lease

    def _ready(self) -> tuple[Store, LeaseToken]:
        if not self.is_ready:
            raise Unavailable("the shared store is unreachable")
        return self._lease.store

    @property
    def _store(self) -> Store:
        return self._ready()[0]

    def _asked(self, command: str, seconds: float, is_answered: bool) -> None:
        self.listener.store_asked(command, seconds, is_answered=is_answered)

    def _require_all_nodes(self) -> None:
        """Raises `Unavailable` while the store does not know the members of nodes that are not back yet."""
        if self._is_back and not self._is_complete:
            raise Unavailable("the shared store has been restarted, and waits for its nodes")

    async def _keep(self) -> None:
        """Keeps the lease, and takes a new one after every trouble."""
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
        if self._is_back or str(error) != self._trouble:
            remedy = f"; {_OF_REFUSALS}" if isinstance(error, StoreRefused) else ""
            logger.warning("node %s: %s%s; it is tried again until it answers", self.node, error, remedy)
        if self._is_back:
            self.listener.store_lost(error)
        self._is_back, self._trouble = False, str(error)
        self.refusal = error.about if isinstance(error, StoreRefused) else ""
        if isinstance(error, LeaseLost):
            self._lease.end()

    async def _come_back(self) -> None:
        """Takes a lease, seats this node's members again, and catches up with changes that were missed."""
        is_return = bool(self._lease.run)
        self._followed.clear()
        self._mirror.rewind()
        await self._lease.take(self._on_message)
        await self._lease.subscribe(self._inbox(self.node))
        await self._lease.subscribe(f"{self._prefix}{_WITHHELD}")
        await self._lease.subscribe(f"{self._prefix}{FREEZES}")
        store, _ = self._lease.store
        frozen = await store.kept(FREEZES)
        self.listener.freezes_read(frozen)
        await self._in_batches(self._follow, self._mirror.own_offices())
        if is_return:
            await self._seat_again()
        self._is_complete = not await store.settle(self.node)
        await self._lease.beat()
        self.listener.keys_withheld(await store.withheld())
        if not is_return and (sids := {sid for sid, _, _ in await store.held(self.node)}):
            self.listener.seats_inherited(sids)  # of an earlier process of this name
        self._is_back, self.refusal = True, ""
        self.listener.freezes_read(frozen)  # the store may have forgotten some, which can be written now
        await self._catch_up()
        if is_return:
            await self._lease.publish_return()
            self.listener.reconnected()

    async def _seat_again(self) -> None:
        store, token = self._lease.store
        recovered = await recover_seats(
            store, token, self._mirror.own_seats(), self.listener.survivors, self._lease.renew
        )
        for office_id, text in recovered.published:
            self._hear_change(office_id, text)
        for member in recovered.given_up:
            self._mirror.forget(member)
        for seat in recovered.lost:
            self._mirror.forget(seat.member)
            self.listener.seat_lost(seat.member, seat.why)

    async def _beat_until_trouble(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pace.beat if self._is_complete else _SOON):
                    await self._lease.trouble.wait()
            if not self._lease.is_held:
                raise LeaseLost("this node stood still for longer than its lease")
            await self._lease.beat()
            if not self._is_complete:
                store, _ = self._lease.store
                self._is_complete = not await store.settle(self.node)
                await self._catch_up()

    # How its mirror follows

    async def _catch_up(self) -> None:
        """Reads the offices of our members again, once the store is complete."""
        if self._is_complete:
            await self._in_batches(self._catch_up_on, self._mirror.own_offices())

    async def _catch_up_on(self, office_id: str) -> None:
        with suppress(Unavailable):  # then there is trouble, and the next return does this again
            await self._look(office_id, is_missed=True)

    async def _look(self, office_id: str, *, is_missed: bool = False) -> Office:
        """Reads an office. The mirror takes this snapshot only if it has none, or has missed a change (`is_missed`):
        what is published says more, such as which connection replaced which."""
        store = self._store
        await self._follow(office_id)
        known = self._mirror.office(office_id)
        at, changed = await store.look(office_id, known.version if known else None)
        office, seats = changed or (known or Office(office_id), None)
        is_due = is_missed or office_id not in self._mirror
        if is_due and self._is_complete and office_id in self._followed:
            self._tell(self._mirror.see(office, seats, at))
            for dropped in self._mirror.drop_excess():
                self._followed.discard(dropped)
                await self._lease.unsubscribe(self._channel(dropped))
        return office

    async def _follow(self, office_id: str) -> None:
        if office_id not in self._followed:
            await self._lease.subscribe(self._channel(office_id))
            self._followed.add(office_id)

    def _inbox(self, node: str) -> str:
        return f"{self._prefix}{_INBOX}:{node}"

    def _channel(self, office_id: str) -> str:
        return f"{self._prefix}at:{office_id}"

    def _on_message(self, channel: str, data: bytes) -> None:
        """A message of a subscription. No message may break the connection."""
        try:
            kind, _, office_id = channel.removeprefix(self._prefix).partition(":")
            if kind == _INBOX:
                self.listener.message_received(data)
                return
            text = data.decode(errors="surrogateescape")
            if kind == _WITHHELD:
                self.listener.keys_withheld([text])
            elif kind == FREEZES:
                self.listener.freezes_read(text)
            elif kind == "nodes":
                message, node = text[:1], text[1:]
                self._lease.note_node(node, is_gone=message == GONE)
                if message == RETURNED and node != self.node:
                    self.listener.node_returned(node)
            elif text.startswith(_CHANGED):
                self._hear_change(office_id, text.removeprefix(_CHANGED))
            else:
                self.listener.notice_announced(office_id, text.removeprefix(_ANNOUNCED))
        except Exception:
            logger.exception("node %s did not understand what was published on %r", self.node, channel)

    def _hear_change(self, office_id: str, text: str) -> None:
        published = PublishedChange.read(office_id, text)
        displaced = [seat for sid in published.displaced if (seat := self._mirror.own_seat(sid, office_id))]
        self._tell(self._mirror.hear(office_id, published))
        for member in displaced:
            self._mirror.forget(member)
            self.listener.seat_lost(member, displaced_by_older(member))
        if self._is_back and self._is_complete and self._mirror.is_behind(office_id):
            self._background.spawn(self._catch_up_on(office_id))

    def _tell(self, applied: Applied | None) -> None:
        if applied:
            self.listener.office_changed(*applied)

    async def _in_batches(self, do: Callable[[str], Awaitable[None]], office_ids: Sequence[str]) -> None:
        for start in range(0, len(office_ids), _AT_ONCE):
            await asyncio.gather(*map(do, office_ids[start : start + _AT_ONCE]))
