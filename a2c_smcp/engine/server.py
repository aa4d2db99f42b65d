"""The server's end of a session.

Connecting. A session begins without a namespace: it is unauthenticated. Then only CONNECT is read; all other packets
are dropped. At most three CONNECTs of it are undecided or refused; the third refusal ends it. The
first `accept` makes it authenticated, the end of its last namespace makes it unauthenticated again. In that state it
has `handshake_timeout` to connect.

Pings. The server pings; no pong within `ping_timeout` ends the session. `deadline` is the next time at which `tick`
has something to do. An open poll returns the ping. Without one, the ping waits in the queue, and the pong timeout still
counts.

Polling. At most one poll is open (`open_poll` to `take`). The queue is only taken when a poll is there to carry it. A
poll whose client is gone may have carried packets that never arrived, so its loss ends the session.

Upgrade. A second transport, the candidate, is a websocket that names the session. It is in one of three states:

    none ── upgrade_opens ──► open ── "2probe" / "3probe" ──► probed ── "5" ──► it is the transport; none again

Any other packet, its loss and the deadline lead back to none; the session has been polling all the time, so nothing
is lost by a failure. From `probed` on, polls are answered at once, with NOOP if nothing is queued: the client ends
its polls before it sends "5". Three things may race with "5", which arrives on another connection than polls and
posts:

- a poll that is still open: it is answered with NOOP, and the queue goes to the websocket from here on;
- a POST that arrives later: a client waits for its posts before it sends "5", so this is a mistake or a replay. It is
  refused and not read, because its packets could otherwise follow younger ones;
- another websocket: refused, while a candidate is there and after it has taken over.

A session that is closed while its candidate is `probed` still lets it take over if something is queued: that client
does not poll any more, and could not read why it was closed otherwise.
"""

from __future__ import annotations

from math import inf

from a2c_smcp.engine import packets
from a2c_smcp.engine.events import Closed, Connect, Disconnected, Happening, Reason, Upgraded, UpgradeFailed
from a2c_smcp.engine.packets import Json, Outgoing, Packet
from a2c_smcp.engine.session import POLLING, WEBSOCKET, EngineLimits, Session, Transport

_NONE, _OPEN, _PROBED = range(3)
_NOT_CONNECT = tuple(b"%d" % kind for kind in range(7) if kind != packets.CONNECT)
_LONGEST_NAMESPACE = 1024


class ServerSession(Session):
    """A session with one client. A `raw` one does not read Socket.IO: its happenings are Engine.IO messages."""

    __slots__ = (
        "_candidate", "_handshake_by", "_is_pinged", "_is_polled", "_ping_at", "_refusals", "_undecided", "_upgrade_by",
        "sid",
    )  # fmt: skip

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
        """True if a namespace is connected."""
        return bool(self._namespaces) or self._is_raw

    @property
    def max_frame(self) -> int:
        """The most bytes that a frame or a POST may have now.

        If a frame is longer before authentication, pass its beginning up to this size: a CONNECT is then refused.
        """
        return self._limits.max_payload if self.is_authenticated else self._limits.max_unauthenticated

    def open(self) -> bytes:
        """The OPEN packet: the whole response to the first poll, or the first frame."""
        return b'0{"sid":"%s","upgrades":[%s],"pingInterval":%d,"pingTimeout":%d,"maxPayload":%d}' % (
            self.sid.encode(),
            b'"websocket"' if self.transport is POLLING else b"",
            round(self._limits.ping_interval * 1000),
            round(self._limits.ping_timeout * 1000),
            self._limits.max_payload,
        )

    # Namespaces

    def accept(self, namespace: bytes, sid: str) -> None:
        """Answers a `Connect`."""
        if not self.is_closed:
            self._decided(namespace)
            self._enter(namespace)
            self._refusals = 0
            self._handshake_by = inf
            self._schedule()
            self._push(packets.packet_head(packets.CONNECT, namespace) + b'{"sid":"%s"}' % sid.encode())

    def refuse(self, namespace: bytes, body: Json) -> Closed | None:
        """Answers a `Connect` with a CONNECT_ERROR of this JSON."""
        if self.is_closed:
            return None
        self._decided(namespace)
        self._push(b"".join((packets.packet_head(packets.CONNECT_ERROR, namespace), body)))
        self._refusals += not self.is_authenticated
        return self.close(Reason.REFUSED) if self._refusals >= self._limits.max_refusals else None

    def disconnect(self, namespace: bytes, now: float) -> None:
        """Ends a namespace. The client may connect it again."""
        if namespace in self._namespaces:
            self._push(packets.packet_head(packets.DISCONNECT, namespace))
            self._depart(namespace, now)

    def _read(self, packet: bytes, now: float) -> Happening | None:
        return super()._read(packet, now) if self.is_authenticated else self._read_connect(packet)

    def _read_connect(self, packet: bytes) -> Connect | None:
        """Reads a CONNECT and nothing else. Only the namespace of a large one is read."""
        if packet[1:2] in _NOT_CONNECT or len(self._undecided) + self._refusals >= self._limits.max_refusals:
            return None
        size = len(packet) - 1
        is_large = size > self._limits.max_connect
        return self._connect(packets.read_packet(packet[: 2 * _LONGEST_NAMESPACE] if is_large else packet), size)

    def _change_namespace(self, packet: Packet, size: int, now: float) -> Happening | None:
        if packet.type == packets.CONNECT:
            return self._connect(packet, size)
        if packet.type == packets.CONNECT_ERROR or packet.namespace not in self._namespaces:
            return None
        self._depart(packet.namespace, now)
        return Disconnected(packet.namespace)

    def _connect(self, packet: Packet, size: int) -> Connect:
        namespace = packet.namespace[:_LONGEST_NAMESPACE]
        is_readable = size <= self._limits.max_connect and namespace == packet.namespace
        is_repeated = namespace in self._namespaces or namespace in self._undecided
        self._undecided += (namespace,)
        return Connect(namespace, packet.body if is_readable else None, is_repeated)

    def _decided(self, namespace: bytes) -> None:
        """Forgets one CONNECT to this namespace."""
        if namespace in self._undecided:
            at = self._undecided.index(namespace)
            self._undecided = self._undecided[:at] + self._undecided[at + 1 :]

    def _depart(self, namespace: bytes, now: float) -> None:
        self._leave(namespace)
        if not self._namespaces:
            self._handshake_by = now + self._limits.handshake_timeout
            self._schedule()

    # Pings and deadlines

    def _control(self, packet: bytes, now: float) -> Closed | None:
        kind = packet[:1]
        if kind == packets.PONG and self._is_pinged:
            self._is_pinged = False
            self._ping_at = now + self._limits.ping_interval
            self._schedule()
        elif kind == packets.CLOSE:
            return self._end(Reason.CLIENT)
        return None if kind in packets.KINDS else self._end(Reason.PROTOCOL)

    def tick(self, now: float) -> Closed | UpgradeFailed | None:
        """Do the work that is due. Call it when `deadline` has come."""
        if now < self.deadline:
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

    def close(self, reason: Reason = Reason.SERVER) -> Closed:
        return super().close(reason)

    def _end(self, reason: Reason, *, politely: bool = False) -> Closed:
        closed = super()._end(reason, politely=politely)
        self._schedule()
        if self._is_polled and reason in (Reason.PROTOCOL, Reason.PING_TIMEOUT) and not politely:
            self._push(packets.CLOSE)  # for the open poll; a client that closed itself gets a NOOP
        return closed

    # Polls

    def open_poll(self) -> bool:
        """A poll came. Returns whether it may wait for packets.

        A second poll at a time ends the session. After the end one more may fetch what is still queued.
        """
        if self.transport is not POLLING or (self.is_closed and not self._queue):
            return False
        if self._is_polled:
            self.close(Reason.DUPLICATE_POLL)
            return False
        self._is_polled = True
        return True

    @property
    def poll_is_due(self) -> bool:
        """True if there is an open poll to be answered now, with the packets of `take(POLLING)`."""
        is_released = self._candidate == _PROBED or self.transport is WEBSOCKET or self.is_closed
        return self._is_polled and (is_released or bool(self._queue))

    def take(self, transport: Transport) -> list[Outgoing]:
        if transport is WEBSOCKET:
            return super().take(WEBSOCKET)
        if not self.poll_is_due:
            return []
        self._is_polled = False
        return super().take(POLLING) or [packets.NOOP]

    # Upgrade

    def upgrade_opens(self, now: float) -> bool:
        """A websocket came that names this session. Returns whether it may try to take over."""
        if self.is_closed or self.transport is not POLLING or self._candidate != _NONE:
            return False
        self._set_candidate(_OPEN, now + self._limits.handshake_timeout)
        return True

    def upgrade_receives(self, packet: bytes, now: float) -> bytes | Upgraded | None:
        """A packet of the candidate. Returns the answer to write to it, `Upgraded`, or `None` to close it."""
        expected = {_OPEN: packets.PROBE, _PROBED: packets.UPGRADE}.get(self._candidate)
        is_over = self.is_closed and not (self._candidate == _PROBED and self._queue)
        if is_over or packet != expected:
            self.upgrade_ends()
            return None
        if self._candidate == _OPEN:
            self._candidate = _PROBED
            return packets.PROBED
        self.upgrade_ends()
        self.transport = WEBSOCKET
        self.is_direct = not (self._queue or self.is_closed)
        return Upgraded()

    def upgrade_ends(self) -> None:
        """The candidate is gone."""
        self._set_candidate(_NONE, inf)

    def _set_candidate(self, state: int, deadline: float) -> None:
        self._candidate, self._upgrade_by = state, deadline
        self._schedule()
