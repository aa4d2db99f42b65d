"""The client's end of a session.

It begins with the OPEN packet, which is received like any other: as the first frame of a websocket, or in the
response to the first poll. The server pings. `deadline` is the time at which the next ping is overdue; then `tick`
ends the session. A namespace counts from `connect` on: events for it may arrive before its `Connected`.

Upgrade. The session is polling; a websocket that names its sid has been opened. The shell writes `probe()` to it and
gives the answer to `probed`. From then on nothing is posted and the shell begins no poll. When the last poll and the
last POST have ended, it writes `upgrade()`, and the websocket is the transport. Packets cannot overtake each other:
what was posted has been read by the server before it sees "5", what it queued for polls it either sent in the last
poll or sends over the websocket afterwards. What is sent meanwhile waits in the queue. If the websocket fails before
`upgrade()`, the shell calls `upgrade_failed` and polls on; after it, the loss is the end of the session.
"""

from __future__ import annotations

import json
from math import inf
from typing import Any

from a2c_smcp.engine import packets
from a2c_smcp.engine.events import Closed, Connected, ConnectRefused, Disconnected, Happening, Opened, Reason
from a2c_smcp.engine.packets import Json, Outgoing, Packet
from a2c_smcp.engine.session import POLLING, WEBSOCKET, EngineLimits, Session, Transport


class ClientSession(Session):
    """A session with one server."""

    __slots__ = ("_is_pausing", "_patience", "max_payload", "sid")

    def __init__(self, limits: EngineLimits, transport: Transport = WEBSOCKET, *, raw: bool = False) -> None:
        super().__init__(limits, transport, raw=raw)
        self.sid = ""
        self.deadline = inf
        self._patience = inf
        self.max_payload = limits.batch_bytes
        self._is_pausing = False

    def connect(self, namespace: bytes, auth: Json = b"") -> None:
        """Asks for a namespace, which `Connected` or `ConnectRefused` answers. `auth` is JSON."""
        if not self.is_closed:
            self._enter(namespace)
            self._push(b"".join((packets.packet_head(packets.CONNECT, namespace), auth)))

    def disconnect(self, namespace: bytes) -> None:
        """Leaves a namespace."""
        if namespace in self._namespaces:
            self._leave(namespace)
            self._push(packets.packet_head(packets.DISCONNECT, namespace))

    def _change_namespace(self, packet: Packet, size: int, now: float) -> Happening | None:
        namespace = packet.namespace
        if namespace not in self._namespaces:
            return None
        if packet.type == packets.CONNECT:
            return Connected(namespace, packet.body)
        self._leave(namespace)
        return Disconnected(namespace) if packet.type == packets.DISCONNECT else ConnectRefused(namespace, packet.body)

    # Opening, pings, the end

    def _control(self, packet: bytes, now: float) -> Happening | None:
        kind = packet[:1]
        if kind == packets.PING:
            self.deadline = now + self._patience
            self._push(packets.PONG + packet[1:])
        elif kind == packets.OPEN and not self.sid:
            return self._open(packet, now)
        elif kind == packets.CLOSE:
            return self._end(Reason.SERVER)
        return None if kind in packets.KINDS else self._end(Reason.PROTOCOL)

    def _open(self, packet: bytes, now: float) -> Opened | Closed:
        try:
            opened = _read_open(json.loads(packet[1:]), self._limits.max_payload)
        except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError):
            return self._end(Reason.PROTOCOL)
        self.sid = opened.sid
        self.max_payload = opened.max_payload
        self._patience = opened.ping_interval + opened.ping_timeout
        self.deadline = now + self._patience
        return opened

    def tick(self, now: float) -> Closed | None:
        """Do the work that is due. Call it when `deadline` has come."""
        return self._end(Reason.PING_TIMEOUT) if now >= self.deadline else None

    def close(self, reason: Reason = Reason.CLIENT) -> Closed:
        return super().close(reason)

    def _end(self, reason: Reason, *, politely: bool = False) -> Closed:
        self.deadline = inf
        return super()._end(reason, politely=politely)

    # Polling and upgrade

    def take(self, transport: Transport) -> list[Outgoing]:
        if transport is WEBSOCKET or self.transport is not POLLING:
            return super().take(transport)
        return [] if self._is_pausing else self._take_batch(self.max_payload)

    def probe(self) -> bytes:
        """The first packet for a websocket that is to take over."""
        return packets.PROBE

    def probed(self, packet: bytes) -> bool:
        """The answer to the probe came. Returns whether it is the right one: then begin no more polls."""
        self._is_pausing = packet == packets.PROBED
        return self._is_pausing

    def upgrade(self) -> bytes:
        """The packet that makes the websocket the transport. Only when no poll and no POST is open."""
        self._is_pausing = False
        self.transport = WEBSOCKET
        self.is_direct = not self._queue and not self.is_closed
        return packets.UPGRADE

    def upgrade_failed(self) -> None:
        """The websocket cannot take over: polling goes on."""
        self._is_pausing = False


def _read_open(packet: Any, max_payload: int) -> Opened:
    sid = packet["sid"]
    if not (isinstance(sid, str) and sid):
        raise ValueError("no session id")
    interval, timeout = packet["pingInterval"] / 1000, packet["pingTimeout"] / 1000
    if not 0 < interval + timeout < inf:
        raise ValueError("no time between pings")
    return Opened(
        sid, tuple(map(str, packet["upgrades"])), interval, timeout, int(packet.get("maxPayload", max_payload))
    )
