"""Directories: their nodes, their interfaces, and the directory of one process."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias, runtime_checkable

from a2c_smcp.errors import ConfigError, SMCPError, Unavailable
from a2c_smcp.protocol.offices import Change, Member, Office, part_of

# The nodes that share a directory: their names, which session ids carry, and how long their leases last.

_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}")


class LeaseLost(Unavailable):
    """This node's lease has ended, or a newer one was given under its name: its members may have lost their seats."""


class NameInUse(Unavailable):
    """Another process has a lease under this node's name, for so many `seconds` more."""

    def __init__(self, name: str, seconds: float) -> None:
        super().__init__(f"another process is node {name!r}")
        self.seconds = seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Times of leases, in seconds (`lease.py` says what each is for).

    A node that dies is noticed after `lease - beat` to `lease + beat`: not before its members could resume elsewhere (a
    grace of 5 s), and in less than 10 s.
    """

    lease: float = 7.0
    beat: float = 1.0
    margin: float = 0.5
    patience: float = 1.0
    retry: float = 0.25
    return_grace: float = 3.0
    linger: float = 5.0


@dataclass(frozen=True, slots=True)
class LeaseToken:
    """The fencing token of a node that writes: the store refuses every epoch but the newest of a node."""

    node: str
    epoch: str


@dataclass(frozen=True, slots=True)
class Node:
    """A node as operators see it. `lease` is what is left of it in seconds, negative if it has ended."""

    name: str
    epoch: int
    url: str
    started_at: float
    lease: float
    members: int


def new_name() -> str:
    return secrets.token_hex(4)


def check_name(name: str) -> str:
    """Raises `ConfigError` for a name that cannot be part of a session id."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"a node's name is made of 1 to 63 letters, digits, '-' and '_', not {name!r}")
    return name


def new_sid(node: str | None) -> str:
    """Return a new session id. It names its node, if that is one of several."""
    token = secrets.token_urlsafe(15)  # without a dot
    return f"{node}.{token}" if node else token


def node_of(sid: str) -> str | None:
    """The node that a session id names; `None` if it names none. A client may have invented the sid."""
    name, dot, _ = sid.partition(".")
    return name if dot and _NAME.fullmatch(name) else None


# The interfaces of a directory: what every one answers, what a shared one offers beside, what its listener is told.
#
# A directory holds who sits where. Decisions are made elsewhere, on its snapshots (`seating.py`), and written
# by `commit` only. Every change that was committed is told to `listener`, in one order on all nodes that share a
# directory.

FREEZES = "freezes"
"""The text of what operators have frozen, in a shared store."""

Posted: TypeAlias = Callable[[int | Exception], None]
"""Called with the number of nodes that read the inbox of a message, or with the error."""


class DirectoryListener:
    """The listener of a directory. Override the methods that matter.

    No method here may wait, except `survivors`, and each is called once for one event.
    """

    def office_changed(self, office: Office, change: Change) -> None:
        """`office` is the new snapshot of an office that this node follows, and `change` what led to it.

        Changes of one office come in order, those that were committed on this node included.
        """

    def notice_announced(self, office_id: str, text: str) -> None:
        """A node, perhaps this one, has announced a notice to an office that this node follows."""

    def message_received(self, message: bytes) -> None:
        """Another node has put a message into this node's inbox."""

    def seats_inherited(self, sids: Collection[str]) -> None:
        """An earlier process of this node's name has left seats behind, under sessions that have ended."""

    def node_returned(self, node: str) -> None:
        """Another node was out of reach and has its members again. It has missed all messages in between."""

    def reconnected(self) -> None:
        """This node itself was out of reach and has caught up. It has missed all announcements in between."""

    def seat_lost(self, member: Member, why: SMCPError) -> None:
        """A member of this node has lost its seat, to an older member or to a newer connection of its own client."""

    def keys_withheld(self, credentials: Collection[str]) -> None:
        """Keys that nodes withhold: one more, or all of the store whenever this node begins or is back."""

    def freezes_read(self, text: str | None) -> None:
        """The freezes as the store has them: after a change, or whenever this node begins or is back."""

    def store_lost(self, error: Exception) -> None:
        """The store is out of reach, or this node's lease has ended. The directory reconnects by itself."""

    def store_asked(self, command: str, seconds: float, *, is_answered: bool) -> None:
        """A round trip to the store has ended."""

    async def survivors(self, members: Sequence[Member]) -> Collection[Member]:
        """Which of its members this node still wants to seat, now that it is back."""
        return members


class Directory(Protocol):
    """The offices and their members. The only writer is `commit`, which is compare-and-swap."""

    listener: DirectoryListener

    async def office(self, office_id: str) -> Office:
        """A snapshot. An office without members is empty, with the version that a commit will be compared by."""

    async def seats(self, sid: str) -> tuple[Member, ...]:
        """Every seat of a connection."""

    def cached_office(self, office_id: str) -> Office | None:
        """The same as `office` without waiting; `None` if this node has no current snapshot."""

    def last_office(self, office_id: str) -> Office | None:
        """The same as `cached_office`, also while this node may not speak for its members."""

    def cached_seats(self, sid: str) -> tuple[Member, ...] | None:
        """The same as `seats` without waiting; `None` if this node does not know them."""

    def own_members(self) -> tuple[Member, ...]:
        """The members whose connections are on this node, or were when they were lost."""

    async def holder(self, instance: str) -> str | None:
        """The sid of the connection that has a seat with this instance digest."""

    async def commit(self, change: Change) -> bool:
        """Commits all of the change; or nothing, and returns `False`, if an office has changed since its snapshot.

        A directory that waits between snapshot and commit must also refuse a change that `replaces` a connection which
        has taken another seat meanwhile.
        """

    async def close(self) -> None:
        """Closes what it holds open."""


class NodeMessenger(Protocol):
    """Messages from node to node. Each node has an inbox, which is a channel of the shared store.

    What one node posts, announces and commits reaches another in that order.
    """

    node: str

    @property
    def is_settling(self) -> bool:
        """True if the store was unreachable a moment ago, so that other nodes may not be back yet."""

    def check(self) -> None:
        """Raises `Unavailable` if nothing can be posted now."""

    def post(self, node: str, message: bytes, posted: Posted) -> None:
        """Puts a message into the inbox of a node. Raises `Unavailable`."""

    async def absent(self, nodes: Collection[str]) -> set[str]:
        """Return those of the nodes whose inbox no process reads."""


@runtime_checkable
class SharedDirectory(NodeMessenger, Protocol):
    """A directory that several nodes share. `refusal` says why its store refuses this node; empty if it does not."""

    refusal: str

    @property
    def is_ready(self) -> bool: ...

    async def start(self) -> None: ...

    async def nodes(self) -> list[Node]: ...

    async def secret(self) -> str: ...

    async def withhold(self, credential: str) -> None: ...

    async def kept(self, name: str) -> str | None: ...

    async def swap(self, name: str, before: str | None, after: str | None, seconds: float) -> bool: ...

    async def kept_names(self, beginning: str) -> list[str]: ...

    async def announce(self, office_id: str, text: str) -> int: ...


def as_shared(directory: Directory | None) -> SharedDirectory | None:
    """The directory, if several nodes share it."""
    return directory if isinstance(directory, SharedDirectory) else None


class MemoryDirectory:
    """Offices as immutable snapshots, replaced on commit. Nothing here waits, so nothing interleaves.

    Versions come from one counter: an office that was emptied and filled again never shows an old one.
    """

    def __init__(self) -> None:
        self._offices: dict[str, Office] = {}
        self._seats: dict[str, dict[str, Member]] = {}
        self._holders: dict[str, str] = {}
        self._version = 0
        self.listener = DirectoryListener()

    async def office(self, office_id: str) -> Office:
        return self.cached_office(office_id)

    async def seats(self, sid: str) -> tuple[Member, ...]:
        return self.cached_seats(sid)

    def cached_office(self, office_id: str) -> Office:
        return self._offices.get(office_id) or Office(office_id)

    def last_office(self, office_id: str) -> Office:
        return self.cached_office(office_id)

    def cached_seats(self, sid: str) -> tuple[Member, ...]:
        return tuple(self._seats.get(sid, {}).values())

    def own_members(self) -> tuple[Member, ...]:
        return tuple(member for seats in self._seats.values() for member in seats.values())

    async def holder(self, instance: str) -> str | None:
        return self._holders.get(instance)

    async def commit(self, change: Change) -> bool:
        for office_id, version in change.expects.items():
            if (await self.office(office_id)).version != version:
                return False
        for member in change.leaves:
            self._unseat(member)
        for member in change.enters:
            self._seat(member)
        for office_id in dict.fromkeys(member.office_id for member in (*change.leaves, *change.enters)):
            self.listener.office_changed(self.cached_office(office_id), part_of(change, office_id))
        return True

    async def close(self) -> None:
        return None

    def _seat(self, member: Member) -> None:
        office = self._offices.get(member.office_id) or Office(member.office_id)
        self._put(
            replace(office, agent=member)
            if member.role == "agent"
            else replace(office, computers={**office.computers, member.name: member})
        )
        self._seats.setdefault(member.sid, {})[member.office_id] = member
        if member.instance:
            self._holders[member.instance] = member.sid

    def _unseat(self, member: Member) -> None:
        office = self._offices[member.office_id]
        if member.role == "agent":
            self._put(replace(office, agent=None))
        else:
            others = dict(office.computers)
            del others[member.name]
            self._put(replace(office, computers=others))
        seats = self._seats[member.sid]
        del seats[member.office_id]
        if not seats:
            del self._seats[member.sid]
        if member.instance and not any(seat.instance == member.instance for seat in seats.values()):
            self._holders.pop(member.instance, None)

    def _put(self, office: Office) -> None:
        self._version += 1
        if office.members:
            self._offices[office.office_id] = replace(office, version=self._version)
        else:
            self._offices.pop(office.office_id, None)
