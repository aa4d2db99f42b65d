"""What a connection is written to, and two wrappers around it that change when packets leave, never their order.

A connection always writes to `connection.channel`. That is the transport's channel, except in two states:

- While a join is handled it is a `HoldingChannel`. It holds every packet, and the ack of the join, which is written
  past it, leaves first: calls that wait for a computer, and notices of its new office, follow the ack.
- In a crowd it is a `BatchingChannel`, which gathers notices for some milliseconds. Any other packet goes behind them.

A wrapper is put on and taken off in one step of the event loop, by the hub (`HoldingChannel`) and by the notices
(`BatchingChannel`), so no packet is ever between the two. A call to a connection in neither state passes no wrapper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from a2c_smcp.engine.packets import Json
from a2c_smcp.errors import RateLimited
from a2c_smcp.protocol.codec import dumps

__all__ = ["BatchingChannel", "Channel", "HoldingChannel", "event_packet"]


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
