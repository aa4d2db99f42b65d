"""Authenticated connections: the state of one, and the table of all on this node by sid and by office."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, Self, TypeAlias

from a2c_smcp.engine.events import Ack, Event, Faulty
from a2c_smcp.engine.packets import Json
from a2c_smcp.errors import RateLimited, TooLarge
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.protocol.events import EventSpec
from a2c_smcp.server.auth.authentication import Principal
from a2c_smcp.server.calls.call import Call
from a2c_smcp.server.calls.routes import RouteCache
from a2c_smcp.server.envelope import Answer, BinaryAnswer, Outcome, Refused, refusal_ack
from a2c_smcp.server.settings import TellPace
from a2c_smcp.telemetry.metrics import Metrics, count_refusal

# The channel of a connection, and two wrappers around it that change when packets leave, never their order.
#
# A connection always writes to `connection.channel`. That is the transport's channel, except in two states:
#
# - While a join is handled it is a `HoldingChannel`. It holds every packet, and the ack of the join, which is written
#   past it, leaves first: calls that wait for a computer, and notices of its new office, follow the ack.
# - If an office has many members it is a `BatchingChannel`, which gathers notices for some milliseconds. Other packets
#   go behind them.
#
# A wrapper is put on and taken off in one step of the event loop, so no packet is ever between the two: a
# `HoldingChannel` is put on by the handlers and taken off by the hub, a `BatchingChannel` by the notices. A call to a
# connection in neither state passes no wrapper.


def event_packet(event: str, body: Json) -> bytes:
    """An event that wants no ack, as a packet."""
    return b"42/smcp,[%s,%s]" % (dumps(event).encode(), body)


class Channel(Protocol):
    """Writes never wait. Writing more than the budget of unread bytes ends the session."""

    def send(self, *parts: Json) -> None:
        """Sends one text packet, with the `4` of its Engine.IO MESSAGE, in parts."""

    def send_all(self, packets: Sequence[bytes]) -> None:
        """Sends several text packets, in one write if the transport can do that."""

    def send_attached(self, packet: bytes, attachments: Sequence[bytes]) -> None:
        """Sends a text packet and its binary attachments."""

    def check_room(self, size: int) -> None:
        """Raises `RateLimited` if a call of this size does not fit into the budget of unread bytes."""

    def dismiss(self) -> None:
        """Disconnects the client from `/smcp`, after packets that were sent. It may connect again in its session."""

    def abort(self) -> None:
        """Ends the session now. The hub is told of it later."""


class HoldingChannel:
    """Holds packets until it is opened. Holding more than the budget ends the session, too."""

    __slots__ = ("_held", "_size", "channel")

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._held: list[tuple[bytes, Sequence[bytes]]] = []
        self._size = 0

    def open(self) -> Channel:
        """Sends the packets that were held, and returns the channel underneath."""
        held, self._held = self._held, []
        for packet, attachments in held:
            if attachments:
                self.channel.send_attached(packet, attachments)
            else:
                self.channel.send(packet)
        return self.channel

    def send(self, *parts: Json) -> None:
        self.send_attached(b"".join(parts), ())

    def send_all(self, packets: Sequence[bytes]) -> None:
        for packet in packets:
            self.send_attached(packet, ())

    def send_attached(self, packet: bytes, attachments: Sequence[bytes]) -> None:
        self._size += len(packet) + sum(map(len, attachments))
        try:
            self.channel.check_room(self._size)
        except RateLimited:
            self._held.clear()
            self.channel.abort()
        else:
            self._held.append((packet, attachments))

    def check_room(self, size: int) -> None:
        self.channel.check_room(self._size + size)

    def dismiss(self) -> None:
        self.open().dismiss()

    def abort(self) -> None:
        self.channel.abort()


class BatchingChannel:
    """Gathers packets until it is flushed. Code that adds one to `packets` flushes when they are too many."""

    __slots__ = ("channel", "packets")

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.packets: list[bytes] = []

    def flush(self) -> None:
        if self.packets:
            packets, self.packets = self.packets, []
            self.channel.send_all(packets)

    def send(self, *parts: Json) -> None:
        self.flush()
        self.channel.send(*parts)

    def send_all(self, packets: Sequence[bytes]) -> None:
        self.flush()
        self.channel.send_all(packets)

    def send_attached(self, packet: bytes, attachments: Sequence[bytes]) -> None:
        self.flush()
        self.channel.send_attached(packet, attachments)

    def check_room(self, size: int) -> None:
        self.channel.check_room(sum(map(len, self.packets)) + size)

    def dismiss(self) -> None:
        self.flush()
        self.channel.dismiss()

    def abort(self) -> None:
        self.channel.abort()


_MIB = 1024 * 1024
_SMALL_NOTICE = 4 * 1024
"""Notices up to this size, in bytes, which nearly all are, are limited by their number only."""


class End(NamedTuple):
    """The end of a connection, as the last entry of its inbox."""

    is_clean: bool
    reason: str | None


InboxEntry: TypeAlias = Event | Ack | Faulty | End


class BroadcastBudget:
    """The bytes that one connection may have broadcast: each notice is written once for each receiver.

    The budget is refilled by a quarter of itself each second.
    """

    __slots__ = ("_left", "_most", "_since")

    def __init__(self, most: int) -> None:
        self._most = most
        self._left = float(most)
        self._since = 0.0

    def spend(self, size: int, copies: int, now: float) -> None:
        """Raises `TooLarge` for a notice that never fits into the budget, `RateLimited` if there is no room now."""
        cost = size * copies
        if size <= _SMALL_NOTICE:
            return
        if cost > self._most:
            what = f"{size} bytes for {copies} members, at most {self._most // _MIB} MiB are told in all"
            raise TooLarge(what, size=size, limit=self._most // copies)
        self._left = min(self._most, self._left + (now - self._since) * self._most / 4)
        self._since = now
        if cost > self._left:
            raise RateLimited("too many large notices, try again later")
        self._left -= cost


class Admitted:
    """A client that was let in, until its credential expires or is revoked."""

    __slots__ = ("expiry", "principal")

    def __init__(self, principal: Principal) -> None:
        self.principal = principal
        self.expiry: asyncio.TimerHandle | None = None

    def renew(self, principal: Principal, at_expiry: Callable[[Self], None]) -> None:
        """The credential is valid as this principal, until it expires."""
        self.principal = principal
        self.stop_expiry()
        if principal.expires is not None:
            left = principal.expires - time.time()
            self.expiry = asyncio.get_running_loop().call_later(left, at_expiry, self)

    def stop_expiry(self) -> None:
        if self.expiry:
            self.expiry.cancel()
            self.expiry = None


class AdmittedRequest(Admitted):
    """A request that is no part of a connection, while it is under way. `end` ends it."""

    __slots__ = ("end",)

    def __init__(self, principal: Principal, end: Callable[[], None]) -> None:
        super().__init__(principal)
        self.end = end


class Connection(Admitted):
    """One authenticated session on `/smcp`.

    `inbox` is `None` while every event can be handled at once. While one has to wait (a join at a shared store), it
    holds the later ones; `held_in_order` counts the tells among them, and acks that came behind a tell. `pending` has
    the calls that were written to this connection and not acked, by the id of the ack. A connection that `is_over` has
    lost its seats for good; one that `is_gone` can no longer be written to. `address` is where it comes from,
    and `since` the time at which it was admitted. A computer that `wants_seats` is told which agent it finds.
    """

    __slots__ = (
        "_budget", "_table", "address", "channel", "held_in_order", "inbox", "inbox_bytes", "is_gone", "is_over",
        "last_ack", "offices", "pending", "routes", "sid", "since", "speaks_older_names", "tell_pace", "version",
        "wants_seats",
    )  # fmt: skip

    def __init__(
        self,
        table: Connections,
        sid: str,
        principal: Principal,
        version: str,
        channel: Channel,
        address: str | None,
        last_ack: int,
    ) -> None:
        super().__init__(principal)
        self._table = table
        self.sid = sid
        self.address = address
        self.version = version
        self.since = time.time()
        self.channel = channel
        self.pending: dict[int, Call] = {}
        self.last_ack = last_ack
        self.inbox: deque[InboxEntry] | None = None
        self.inbox_bytes = 0
        self.held_in_order = 0
        self.routes = RouteCache()
        self.offices: set[str] = set()
        self.speaks_older_names = False
        self.wants_seats = False
        self.tell_pace: TellPace | None = None
        self.is_over = False
        self.is_gone = False
        self._budget: BroadcastBudget | None = None

    def reply(self, number: int | None, event: EventSpec | None, outcome: Outcome, call: Call | None = None) -> None:
        """Acks an event of this connection. Without a number its sender wants no ack."""
        if isinstance(outcome, Refused):
            self._table.count_refusal(outcome)
            outcome = Answer(refusal_ack(event, outcome.error))
        if number is None or self.is_gone:
            return
        if isinstance(outcome, Answer):
            self.channel.send(b"43/smcp,%d" % number, outcome.body)
        elif isinstance(outcome, BinaryAnswer):
            head = b"46%d-/smcp,%d" % (len(outcome.attachments), number)
            self.channel.send_attached(b"".join((head, outcome.body)), outcome.attachments)

    def hold_packets(self) -> None:
        """Hold packets to this connection until the ack of its join (`reply_to_join`)."""
        channel = self.channel
        if isinstance(channel, BatchingChannel):
            channel.flush()
            channel = channel.channel
        if not isinstance(channel, HoldingChannel):
            self.channel = HoldingChannel(channel)

    def reply_to_join(self, number: int | None, event: EventSpec | None, outcome: Outcome) -> None:
        """The ack leaves before every packet that was held since `hold_packets`."""
        holding = self.channel
        if isinstance(holding, HoldingChannel):
            self.channel = holding.channel
            self.reply(number, event, outcome)
            if not self.is_gone:  # else the session may be another connection's by now
                holding.open()
        else:
            self.reply(number, event, outcome)

    def spend_broadcast(self, size: int, copies: int, most: int) -> None:
        """Counts a notice to so many members. Raises `TooLarge` or `RateLimited` if it is over the budget."""
        self._budget = self._budget or BroadcastBudget(most)
        self._budget.spend(size, copies, asyncio.get_running_loop().time())


class Connections:
    """Every connection of this node by its Socket.IO sid, and by the offices whose notices it hears."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._connections: dict[str, Connection] = {}
        self._offices: dict[str, dict[str, Connection]] = {}
        self._highest_ack = 0
        self.get = self._connections.get
        metrics.watch("a2c_connections", self._connections.__len__)

    def __len__(self) -> int:
        return len(self._connections)

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._connections.values()))

    def add(
        self, sid: str, principal: Principal, version: str, channel: Channel, address: str | None = None
    ) -> Connection:
        """Adds a connection from the `address` of its client.

        Its ack ids begin above those of every connection that has ended: a client that connects again on the same
        session may still send an ack that was asked for before.
        """
        connection = self._connections[sid] = Connection(
            self, sid, principal, version, channel, address, self._highest_ack
        )
        self._metrics.count("a2c_connects_total")
        return connection

    def remove(self, connection: Connection) -> None:
        """Remove a connection: it is not written to any more, and receives no notices."""
        connection.is_gone = True
        self._highest_ack = max(self._highest_ack, connection.last_ack)
        self._connections.pop(connection.sid, None)
        for office_id in list(connection.offices):
            self.leave(office_id, connection)
        connection.stop_expiry()

    def enter(self, office_id: str, connection: Connection) -> None:
        self._offices.setdefault(office_id, {})[connection.sid] = connection
        connection.offices.add(office_id)

    def leave(self, office_id: str, connection: Connection) -> None:
        connection.offices.discard(office_id)
        if present := self._offices.get(office_id):
            present.pop(connection.sid, None)
            if not present:
                del self._offices[office_id]

    def office_ids(self) -> list[str]:
        """The offices in which a connection of this node is."""
        return list(self._offices)

    def in_office(self, office_id: str) -> list[Connection]:
        """The connections of this node in an office. It is a copy, because a write may end a connection."""
        present = self._offices.get(office_id)
        return list(present.values()) if present else []

    def count_refusal(self, refused: Refused) -> None:
        count_refusal(self._metrics, refused.error)
