"""The interfaces of a directory: what every one answers, what a shared one offers beside, what its listener is told.

A directory holds who sits where. Decisions are made elsewhere, on its snapshots (`offices/seating.py`), and written by
`commit` only. Every change that was committed is told to `listener`, in one order on all nodes that share a directory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from a2c_smcp.errors import SMCPError
from a2c_smcp.protocol.offices import Change, Member, Office
from a2c_smcp.server.directory.nodes import Node

__all__ = ["Directory", "DirectoryListener", "NodeMessenger", "Posted", "SharedDirectory", "as_shared"]

Posted: TypeAlias = Callable[[int | Exception], None]
"""Is told how many nodes read the inbox that a message was put into, or why none does."""


class DirectoryListener:
    """Is told what happens in a directory. Override what matters.

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

    def store_lost(self, error: Exception) -> None:
        """The store is out of reach, or this node's lease has ended. The directory reconnects by itself."""

    def store_asked(self, command: str, seconds: float, *, is_answered: bool) -> None:
        """A round trip to the store has ended."""

    async def survivors(self, members: Sequence[Member]) -> Collection[Member]:
        """Which of its members this node still wants to seat, now that it is back."""
        return members


class Directory(Protocol):
    """Who sits where. The only writer is `commit`, which is compare-and-swap."""

    listener: DirectoryListener

    async def office(self, office_id: str) -> Office:
        """A snapshot. An office without members is empty, with the version that a commit will be compared by."""

    async def seats(self, sid: str) -> tuple[Member, ...]:
        """Every seat of a connection."""

    def cached_office(self, office_id: str) -> Office | None:
        """The same as `office` without waiting; `None` if this node has no current snapshot."""

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
        """Whether the store was out of reach a moment ago, so that other nodes may not be back yet."""

    def check(self) -> None:
        """Raises `Unavailable` if nothing can be posted now."""

    def post(self, node: str, message: bytes, posted: Posted) -> None:
        """Puts a message into the inbox of a node. Raises `Unavailable`."""

    async def absent(self, nodes: Collection[str]) -> set[str]:
        """Those of the nodes whose inbox no process reads."""


@runtime_checkable
class SharedDirectory(NodeMessenger, Protocol):
    """What a directory that several nodes share offers beside `Directory`."""

    @property
    def is_ready(self) -> bool: ...

    async def start(self) -> None: ...

    async def nodes(self) -> list[Node]: ...

    async def secret(self) -> str: ...

    async def announce(self, office_id: str, text: str) -> int: ...


def as_shared(directory: Directory | None) -> SharedDirectory | None:
    """The directory, if several nodes share it."""
    return directory if isinstance(directory, SharedDirectory) else None
