"""What a computer tells one agent (`server:tell_<x>`): whether it may, and how it is written to the agent.

Order. A tell and the ack of a call leave a computer on one connection, and the agent hears them in this order. On one
node both are written in the step of the event loop in which they came; if a tell has to wait behind an earlier event,
acks wait behind it (`Hub.acked`). Between nodes both are messages of one `Outbox` to the node of the agent.

Loss. A tell is written at most once. An agent that is away for a moment, within its grace, misses it, and asks for open
questions after it has rejoined; a question that a computer has asked before it hears that request is in the answer,
and later ones go to the new connection, because a node hears of the rejoin before it hears the request. Progress and
logs that are too many, or that an agent reads too slowly, are dropped without a word. Other kinds are refused, so that
the computer can tell them again. Tells use at most half of an agent's budget of unread bytes, so the ack of a call fits
beside them: nobody is disconnected because of a tell.
"""

from __future__ import annotations

import asyncio

from a2c_smcp.errors import RateLimited
from a2c_smcp.mcp_events import TELL_LOG_EVENT, TELL_PROGRESS_EVENT
from a2c_smcp.protocol.events import EventSpec
from a2c_smcp.server.connections import Connection, Connections
from a2c_smcp.server.settings import Limits
from a2c_smcp.server.tell_pace import TellPace
from a2c_smcp.telemetry.metrics import Metrics

__all__ = ["TellWriter", "may_be_lost"]

_LOSSY = frozenset({TELL_PROGRESS_EVENT, TELL_LOG_EVENT})


def may_be_lost(event: EventSpec) -> bool:
    """Whether a tell that is not delivered is dropped, and acked like any other."""
    return event.name in _LOSSY


class TellWriter:
    """Admits tells of this node's computers, and writes tells to this node's agents. It counts what is dropped."""

    def __init__(self, connections: Connections, metrics: Metrics, limits: Limits) -> None:
        self._connections = connections
        self._metrics = metrics
        self._limits = limits

    def admit(self, sender: Connection, event: EventSpec, req_id: str | None, size: int) -> None:
        """Counts a tell of a computer. Raises `RateLimited`, or `TooLarge` if it can never be sent."""
        sender.tell_pace = pace = sender.tell_pace or TellPace(self._limits)
        if not pace.admits(event.name, req_id, asyncio.get_running_loop().time()):
            self.count_dropped("rate")
            raise RateLimited("too many tells in a second, try again later")
        try:
            sender.spend_broadcast(size, 1, self._limits.told_bytes)
        except RateLimited:
            self.count_dropped("rate")
            raise
        self._metrics.count("a2c_tells_total")

    def write(self, sid: str, office_id: str, packet: bytes) -> None:
        """Writes a tell to the agent of an office, if it is there. Raises `RateLimited` if it reads too slowly."""
        connection = self._connections.get(sid)
        if connection is None or office_id not in connection.offices:
            self.count_dropped("away")
            return
        try:
            connection.channel.check_room(len(packet) + self._limits.unread_bytes // 2)
        except RateLimited:
            self.count_dropped("unread")
            raise RateLimited("the agent reads too slowly, try again later") from None
        connection.channel.send(packet)

    def count_dropped(self, reason: str) -> None:
        self._metrics.count("a2c_tells_dropped_total", reason)
