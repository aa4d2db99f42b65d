"""The server's end of a session."""

from __future__ import annotations

from math import inf

from a2c_smcp.engine import packets
from a2c_smcp.engine.events import (
    Closed,
    Connect,
    Disconnected,
    Happening,
    Reason,
    Upgraded,
    UpgradeFailed,
)
from a2c_smcp.engine.packets import Json, Outgoing, Packet
from a2c_smcp.engine.session import POLLING, WEBSOCKET, EngineLimits, Session, Transport

__all__ = ["ServerSession"]

_NONE, _OPEN, _PROBED = range(3)
_OTHER_TYPES = tuple(b"%d" % kind for kind in range(1, 7))
_LONGEST_NAMESPACE = 1024


class ServerSession(Session):
    """One client. `raw` leaves out Socket.IO: what comes are Engine.IO messages."""

    __slots__ = (
        "_candidate",
        "_handshake_by",
        "_is_pinged",
        "_is_polled",
        "_ping_at",
        "_refusals",
        "_undecided",
        "_upgrade_by",
        "sid",
    )

    def __init__(
        self, sid: str, limits: EngineLimits, now: float, transport: Transport = POLLING, *, raw: bool = False
    ) -> None:
        super().__init__(limits, transport, raw=raw)
        self.sid = sid
        self._undecided: tuple[bytes, ...] = ()
        self._refusals = 0
        self._candidate = _NONE
        self._is_polled = False
        self._is_pinged = False
        self._ping_at = now + limits.ping_interval
        self._handshake_by = inf if raw else now + limits.handshake_timeout
        self._upgrade_by = inf
        self._schedule()

    @property
    def is_authenticated(self) -> bool:
        """Whether a namespace is connected. Until then nothing but CONNECT is read."""
        return bool(self._namespaces) or self._is_raw

    @property
    def max_frame(self) -> int:
        """How many bytes one frame or one POST may have now.

        Of a longer one before authentication it is enough to hand in the beginning, up to this size.
        """
        return self._limits.max_payload if self.is_authenticated else self._limits.max_unauthenticated

    def open(self) -> bytes:
        """The OPEN packet: the whole response to the first poll, or the first frame."""
        limits = self._limits
        return b'0{"sid":"%s","upgrades":[%s],"pingInterval":%d,"pingTimeout":%d,"maxPayload":%d}' % (
            self.sid.encode(),
            b'"websocket"' if self.transport is POLLING else b"",
            round(limits.ping_interval * 1000),
            round(limits.ping_timeout * 1000),
            limits.max_payload,
        )

    # Namespaces

    def accept(self, namespace: bytes, sid: str, now: float) -> None:
        """Answers a `Connect`."""
        if not self.is_closed:
            self._decided(namespace)
            self._enter(namespace)
            self._handshake_by = inf
            self._schedule()
            self._push(packets.packet_head(packets.CONNECT, namespace) + b'{"sid":"%s"}' % sid.encode())

    def refuse(self, namespace: bytes, body: Json) -> Closed | None:
        """Answers a `Connect`. `body` is the JSON of the CONNECT_ERROR. The third refusal ends a session."""
        if self.is_closed:
            return None
        self._decided(namespace)
        self._push(b"".join((packets.packet_head(packets.CONNECT_ERROR, namespace), body)))
        if self.is_authenticated:
            return None
        self._refusals += 1
        return self.close(Reason.REFUSED) if self._refusals >= self._limits.max_refusals else None

    def disconnect(self, namespace: bytes, now: float) -> None:
        """Ends one namespace. The client may connect it again."""
        if namespace in self._namespaces:
            self._push(packets.packet_head(packets.DISCONNECT, namespace))
            self._depart(namespace, now)

    def _decided(self, namespace: bytes) -> None:
        undecided = list(self._undecided)
        if namespace in undecided:
            undecided.remove(namespace)
        self._undecided = tuple(undecided)

    def _depart(self, namespace: bytes, now: float) -> None:
        self._leave(namespace)
        if not self._namespaces:
            self._handshake_by = now + self._limits.handshake_timeout
            self._schedule()

    def _read(self, packet: bytes, now: float) -> Happening | None:
        return super()._read(packet, now) if self.is_authenticated else self._read_connect(packet)

    def _read_connect(self, packet: bytes) -> Connect | None:
        """Of a client that is not authenticated: no other packet is read, nor all of a large one."""
        if packet[1:2] in _OTHER_TYPES or self._refusals + len(self._undecided) >= self._limits.max_refusals:
            return None
        size = len(packet) - 1
        is_large = size > self._limits.max_connect
        return self._connect(packets.read_packet(packet[:_LONGEST_NAMESPACE] if is_large else packet), size)

    def _steer(self, packet: Packet, size: int, now: float) -> Happening | None:
        if packet.type == packets.CONNECT:
            return self._connect(packet, size)
        if packet.type == packets.DISCONNECT and packet.namespace in self._namespaces:
            self._depart(packet.namespace, now)
            return Disconnected(packet.namespace)
        return None

    def _connect(self, packet: Packet, size: int) -> Connect:
        is_repeated = packet.namespace in self._namespaces or packet.namespace in self._undecided
        self._undecided += (packet.namespace,)
        if size > self._limits.max_connect:
            return Connect(packet.namespace[:_LONGEST_NAMESPACE], None, is_repeated)
        return Connect(packet.namespace, packet.body, is_repeated)

    # Engine.IO

    def _control(self, packet: bytes, now: float) -> Happening | None:
        kind = packet[:1]
        if kind == packets.PONG:
            if self._is_pinged:
                self._is_pinged = False
                self._ping_at = now + self._limits.ping_interval
                self._schedule()
            return None
        if kind == packets.CLOSE:
            return self._end(Reason.CLIENT)
        return None if kind in packets.KINDS else self._end(Reason.PROTOCOL)

    def tick(self, now: float) -> Closed | UpgradeFailed | None:
        """To be called when `deadline` has come."""
        if self.is_closed or now < self.deadline:
            return None
        if now >= self._handshake_by:
            return self.close(Reason.HANDSHAKE)
        if now >= self._upgrade_by:
            self.upgrade_ends()
            return UpgradeFailed()
        if self._is_pinged:
            return self._end(Reason.PING_TIMEOUT)
        self._is_pinged = True
        self._ping_at = now + self._limits.ping_timeout
        self._schedule()
        self._push(packets.PING)
        return None

    def _schedule(self) -> None:
        self.deadline = inf if self.is_closed else min(self._ping_at, self._handshake_by, self._upgrade_by)

    # Polls

    def open_poll(self) -> bool:
        """A poll came. Whether it may wait for packets; a second one at a time ends the session."""
        if self.transport is not POLLING or (self.is_closed and not self._queue):
            return False
        if self._is_polled:
            self.close(Reason.DUPLICATE_POLL)
            return False
        self._is_polled = True
        return True

    @property
    def poll_is_due(self) -> bool:
        """Whether the open poll is to be answered now, with what `take(POLLING)` gives."""
        return self._is_polled and bool(
            self._queue or self._candidate == _PROBED or self.is_closed or self.transport is WEBSOCKET
        )

    def take(self, transport: Transport) -> list[Outgoing]:
        if transport is WEBSOCKET:
            return super().take(transport)
        if not self.poll_is_due:
            return []
        self._is_polled = False
        return super().take(transport) or [packets.NOOP]

    def close(self, reason: Reason = Reason.SERVER) -> Closed:
        return super().close(reason)

    def _end(self, reason: Reason, *, politely: bool = False) -> Closed:
        closed = super()._end(reason, politely=politely)
        self.deadline = inf
        if self._is_polled and reason in (Reason.PROTOCOL, Reason.PING_TIMEOUT) and not politely:
            self._push(packets.CLOSE)  # after the client's own CLOSE it is a NOOP
        return closed

    # Upgrade

    def upgrade_opens(self, now: float) -> bool:
        """A websocket came that wants to take this session over. Whether it may try."""
        if self.is_closed or self.transport is not POLLING or self._candidate:
            return False
        self._candidate = _OPEN
        self._upgrade_by = now + self._limits.handshake_timeout
        self._schedule()
        return True

    def upgrade_receives(self, packet: bytes, now: float) -> bytes | Upgraded | None:
        """A packet of that websocket. The answer to it, or that it has taken over, or `None`: close it."""
        if not self.is_closed and self._candidate == _OPEN and packet == packets.PROBE:
            self._candidate = _PROBED
            return packets.PROBED
        if self.is_closed or self._candidate != _PROBED or packet != packets.UPGRADE:
            self.upgrade_ends()
            return None
        self.upgrade_ends()
        self.transport = WEBSOCKET
        self.is_direct = not self._queue
        return Upgraded()

    def upgrade_ends(self) -> None:
        """That websocket is gone."""
        self._candidate = _NONE
        self._upgrade_by = inf
        self._schedule()
