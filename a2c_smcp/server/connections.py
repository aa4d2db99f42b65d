"""Authenticated connections: the state of one, and the table of all on this node, with the offices they hear of."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Any

from a2c_smcp.protocol.events import Action, Event
from a2c_smcp.server import audit
from a2c_smcp.server.acks import refusal
from a2c_smcp.server.allowance import Allowance
from a2c_smcp.server.auth.authentication import Principal
from a2c_smcp.server.calls.call import Call
from a2c_smcp.server.calls.routes import RouteCache
from a2c_smcp.server.channels import Batch, Channel, Gate
from a2c_smcp.server.monitoring import Metrics
from a2c_smcp.server.outcomes import Answer, BinaryAnswer, Outcome, Refused

__all__ = ["Connection", "Connections"]


class Connection:
    """One authenticated session on `/smcp`.

    `inbox` is `None` while every event can be handled at once. While one has to wait (a join at a shared store), it
    holds the later ones. `pending` has the calls that were written to this connection and not acked, by the id of the
    ack. A connection that `is_over` has lost its seats for good; one that `is_gone` can no longer be written to.
    """

    __slots__ = (
        "_table",
        "allowance",
        "channel",
        "expiry",
        "inbox",
        "inbox_bytes",
        "is_gone",
        "is_over",
        "last_ack",
        "offices",
        "pending",
        "principal",
        "routes",
        "sid",
        "speaks_older_names",
        "version",
    )

    def __init__(
        self, table: Connections, sid: str, principal: Principal, version: str, channel: Channel, last_ack: int
    ) -> None:
        self._table = table
        self.sid = sid
        self.principal = principal
        self.version = version
        self.channel = channel
        self.pending: dict[int, Call] = {}
        self.last_ack = last_ack
        self.inbox: deque[Any] | None = None
        self.inbox_bytes = 0
        self.routes = RouteCache()
        self.offices: set[str] = set()
        self.speaks_older_names = False
        self.is_over = False
        self.is_gone = False
        self.expiry: asyncio.TimerHandle | None = None
        self.allowance: Allowance | None = None

    def reply(self, number: int | None, event: Event | None, outcome: Outcome) -> None:
        """Acks an event of this connection. Without a number its sender wants no ack."""
        if isinstance(outcome, Refused):
            self._table.count_refusal(self, event, outcome)
            outcome = Answer(refusal(event, outcome.error))
        if number is None or self.is_gone:
            return
        if isinstance(outcome, Answer):
            self.channel.send(b"43/smcp,%d" % number, outcome.body)
        elif isinstance(outcome, BinaryAnswer):
            head = b"46%d-/smcp,%d" % (len(outcome.attachments), number)
            self.channel.send_attached(b"".join((head, outcome.body)), outcome.attachments)

    def reply_to_join(self, number: int | None, event: Event | None, outcome: Outcome) -> None:
        """The ack leaves before everything that was sent to this connection since the gate was closed."""
        gate = self.channel
        if isinstance(gate, Gate):
            self.channel = gate.channel
            self.reply(number, event, outcome)
            if not self.is_gone:  # else the session may be another connection's by now
                gate.open()
        else:
            self.reply(number, event, outcome)

    def close_gate(self) -> None:
        channel = self.channel
        if isinstance(channel, Batch):
            channel.flush()
            channel = channel.channel
        if not isinstance(channel, Gate):
            self.channel = Gate(channel)

    def may_tell(self, size: int, copies: int, most: int) -> None:
        """Raises `TooLarge` or `RateLimited` if others may not be told so much, by this connection or now."""
        self.allowance = self.allowance or Allowance(most)
        self.allowance.spend(size, copies, asyncio.get_running_loop().time())


class Connections:
    """Every connection of this node by its Socket.IO sid, and those that hear the notices of an office."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._connections: dict[str, Connection] = {}
        self._offices: dict[str, dict[str, Connection]] = {}
        self._highest_ack = 0
        self.get = self._connections.get
        metrics.gauge("connections", self._connections.__len__)

    def __len__(self) -> int:
        return len(self._connections)

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._connections.values()))

    def add(self, sid: str, principal: Principal, version: str, channel: Channel) -> Connection:
        """Its ack ids begin above those of every connection that has ended: a client that connects again on the same
        session may still send an ack that was asked for before."""
        connection = self._connections[sid] = Connection(self, sid, principal, version, channel, self._highest_ack)
        self._metrics.count("connections_total")
        return connection

    def remove(self, connection: Connection) -> None:
        """It can no longer be written to, and hears of no office."""
        connection.is_gone = True
        self._highest_ack = max(self._highest_ack, connection.last_ack)
        self._connections.pop(connection.sid, None)
        for office_id in list(connection.offices):
            self.leave(office_id, connection)
        if connection.expiry:
            connection.expiry.cancel()

    def enter(self, office_id: str, connection: Connection) -> None:
        self._offices.setdefault(office_id, {})[connection.sid] = connection
        connection.offices.add(office_id)

    def leave(self, office_id: str, connection: Connection) -> None:
        connection.offices.discard(office_id)
        if present := self._offices.get(office_id):
            present.pop(connection.sid, None)
            if not present:
                del self._offices[office_id]

    def in_office(self, office_id: str) -> list[Connection]:
        """Those of this node. A write may end a connection, so this is no view."""
        present = self._offices.get(office_id)
        return list(present.values()) if present else []

    def count_refusal(self, connection: Connection, event: Event | None, refused: Refused) -> None:
        self._metrics.count("refused_total", code=refused.error.code)
        if event and event.action is Action.JOIN:
            audit.record("join refused", principal=connection.principal.id, reason=str(refused.error))
