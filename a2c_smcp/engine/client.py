"""The client's end of a session."""

from __future__ import annotations

import json
from math import inf
from typing import Any

from a2c_smcp.engine import packets
from a2c_smcp.engine.events import Closed, Connected, Disconnected, Happening, Opened, Reason, Refused
from a2c_smcp.engine.packets import Json, Outgoing, Packet
from a2c_smcp.engine.session import POLLING, WEBSOCKET, EngineLimits, Session, Transport

__all__ = ["ClientSession"]


class ClientSession(Session):
    """One Server. It begins with the OPEN packet, which is received like all others."""

    __slots__ = ("_is_pausing", "_max_payload", "_patience", "sid")

    def __init__(self, limits: EngineLimits, transport: Transport = WEBSOCKET, *, raw: bool = False) -> None:
        super().__init__(limits, transport, raw=raw)
        self.sid = ""
        self.deadline = inf
        self._is_pausing = False
        self._patience = inf
        self._max_payload = limits.batch_bytes

    def connect(self, namespace: bytes, auth: Json = b"") -> None:
        """Asks for a namespace. `Connected` or `Refused` answers it; events may come before."""
        self._enter(namespace)
        self.send(b"".join((packets.packet_head(packets.CONNECT, namespace), auth)))

    def disconnect(self, namespace: bytes) -> None:
        if namespace in self._namespaces:
            self.send(packets.packet_head(packets.DISCONNECT, namespace))
            self._leave(namespace)

    def close(self, reason: Reason = Reason.CLIENT) -> Closed:
        return super().close(reason)

    def tick(self, now: float) -> Closed | None:
        """To be called when `deadline` has come."""
        return self._end(Reason.PING_TIMEOUT) if not self.is_closed and now >= self.deadline else None

    def _control(self, packet: bytes, now: float) -> Happening | None:
        kind = packet[:1]
        if kind == packets.PING:
            self.deadline = now + self._patience
            self._push(packets.PONG + packet[1:])
        elif kind == packets.CLOSE:
            return self._end(Reason.SERVER)
        elif kind == packets.OPEN and not self.sid:
            return self._open(packet, now)
        elif kind not in packets.KINDS:
            return self._end(Reason.PROTOCOL)
        return None

    def _open(self, packet: bytes, now: float) -> Opened | Closed:
        try:
            said: Any = json.loads(packet[1:])
            opened = Opened(
                _checked_sid(said["sid"]),
                tuple(map(str, said["upgrades"])),
                said["pingInterval"] / 1000,
                said["pingTimeout"] / 1000,
                int(said.get("maxPayload", self._limits.max_payload)),
            )
        except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError):
            return self._end(Reason.PROTOCOL)
        self.sid = opened.sid
        self._max_payload = opened.max_payload
        self._patience = opened.ping_interval + opened.ping_timeout
        self.deadline = now + self._patience
        return opened

    def _steer(self, packet: Packet, size: int, now: float) -> Happening | None:
        namespace = packet.namespace
        if namespace not in self._namespaces:
            return None
        if packet.type == packets.CONNECT:
            return Connected(namespace, packet.body)
        self._leave(namespace)
        return Disconnected(namespace) if packet.type == packets.DISCONNECT else Refused(namespace, packet.body)

    # Polling and upgrade

    def take(self, transport: Transport) -> list[Outgoing]:
        if transport is WEBSOCKET or self.transport is not POLLING:
            return super().take(transport)
        return [] if self._is_pausing else self._take_batch(self._max_payload)

    def probe(self) -> bytes:
        """What is to be written first to a websocket that is to take over."""
        return packets.PROBE

    def probed(self, packet: bytes) -> bool:
        """Whether that websocket works. If so nothing more is posted, and no new poll is to be begun."""
        self._is_pausing = packet == packets.PROBED
        return self._is_pausing

    def upgrade(self) -> bytes:
        """The websocket takes over: to be called when no poll and no POST is open, and written to it."""
        self._is_pausing = False
        self.transport = WEBSOCKET
        self.is_direct = not self._queue
        return packets.UPGRADE

    def upgrade_failed(self) -> None:
        """Polling goes on."""
        self._is_pausing = False


def _checked_sid(sid: object) -> str:
    if not (isinstance(sid, str) and sid):
        raise ValueError("no session id")
    return sid
