"""What is broadcast to an office, in order, under all the names it goes by, and not too often.

A notice is encoded once, and written to the channel of every member of the office that is on this node. Nodes that
share a directory hear it through the store, this one included, in step with the changes of offices. In a crowd, a
member's notices are gathered for some milliseconds and written together (`channels.Batch`): that timer decides when
they leave, never their order, because whatever else is written to the same connection goes behind them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from a2c_smcp.errors import BadRequest, RateLimited, Unavailable
from a2c_smcp.loops import OwnedTasks
from a2c_smcp.protocol.codec import dumps, loads
from a2c_smcp.protocol.events import EVENTS, OLDER_NOTICES, Action, Event
from a2c_smcp.protocol.offices import Member, Notice
from a2c_smcp.server.channels import Batch, Gate
from a2c_smcp.server.connections import Connection, Connections
from a2c_smcp.server.envelope import Envelope
from a2c_smcp.server.fields import Json, read_fields
from a2c_smcp.server.settings import Limits
from a2c_smcp.smcp import CANCEL_TOOL_CALL_NOTIFICATION

__all__ = ["Announce", "Notices", "Told", "encode", "encode_event", "read_notice"]

_UPDATES = [event.notice for event in EVENTS if event.action is Action.BROADCAST and event.notice]
_MOST_OWED = 1024
_CROWD = 16
_GATHER = 0.02
_MOST_PACKETS, _MOST_GATHERED = 64, 4 * 1024
"""How many notices of one connection are gathered, and up to which size, in bytes; larger ones are sent at once."""

Announce = Callable[[str, str], Awaitable[int]]
"""Tells all nodes of an office something, this one included."""


class Told(NamedTuple):
    """A notice as it is sent: its data is JSON."""

    event: str
    office_id: str
    body: Json
    skip_sid: str | None = None


class _Written(msgspec.Struct, array_like=True):
    event: str
    skip_sid: str | None
    data: msgspec.Raw


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Written)


def encode(notice: Notice) -> Told:
    return Told(notice.event, notice.office_id, dumps(notice.data).encode(), notice.skip_sid)


def encode_event(notice: Notice, came: Envelope) -> Told:
    """A notice that follows from an event: the bytes that the event came as, unread, and the fields that were added.

    An added field comes last, so that it counts for readers of JSON, also where its sender has said something else.
    """
    if came.attachments:
        raise BadRequest("a notice has no binary parts")
    fields, body = came.fields, came.body
    added = {name: value for name, value in notice.data.items() if name not in fields or fields[name] != value}
    if added:
        body = b"%s,%s" % (bytes(body).rstrip()[:-1], dumps(added).encode()[1:])
    return Told(notice.event, notice.office_id, body, notice.skip_sid)


def read_notice(office_id: str, text: str) -> tuple[Told, dict[str, object]]:
    """A notice as it was announced, and its routing fields."""
    written = _decoder.decode(text)
    data = bytes(written.data)
    fields = read_fields(data)
    told = Told(written.event, office_id, data, written.skip_sid)
    return told, loads(data.decode()) if fields is None else fields


def _written(notice: Told) -> str:
    return _encoder.encode(_Written(notice.event, notice.skip_sid, msgspec.Raw(notice.body))).decode()


@dataclass(slots=True)
class _Pace:
    """When a computer last said something of one kind, and what it has said too early since."""

    sent: float = float("-inf")
    pending: Told | None = None
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True)
class _Updates:
    """The updates of one computer."""

    paces: dict[str, _Pace] = field(default_factory=dict)
    newer: deque[float] = field(default_factory=deque)


class Notices:
    """Delivers notices. The known updates of a computer are merged when they come too fast, newer ones refused.

    `announce` is there where offices have members on other nodes.
    """

    def __init__(
        self,
        connections: Connections,
        background: OwnedTasks,
        limits: Limits,
        announce: Announce | None,
        *,
        older_to_all: bool = False,
    ) -> None:
        self._connections = connections
        self._background = background
        self._limits = limits
        self._announce = announce
        self._older_to_all = older_to_all
        self._updates: dict[str, _Updates] = {}
        self._owed: dict[Told, None] = {}
        self._gathering: list[Connection] = []

    # To members of this node

    def tell(self, notice: Told) -> None:
        """To everybody in the office who is on this node."""
        others = [each for each in self._connections.in_office(notice.office_id) if each.sid != notice.skip_sid]
        if not others:
            return
        packet = _packet(notice.event, notice.body)
        is_crowd = len(others) >= _CROWD and len(packet) <= _MOST_GATHERED
        send = self._send_soon if is_crowd else _send
        older = OLDER_NOTICES.get(notice.event)
        if older is None:
            send(others, packet)
            return
        older_packet = _packet(older, notice.body)
        for connection in others:
            is_older = self._older_to_all or connection.speaks_older_names
            send([connection], packet)
            if is_older:
                send([connection], older_packet)

    def tell_anything(self, computer: Member) -> None:
        """That anything about a computer may have changed, so that agents read it again."""
        data = {"computer": computer.name, "office_id": computer.office_id}
        for event in _UPDATES:
            self.tell(encode(Notice(event, computer.office_id, data, computer.sid)))

    def remind(self, connection: Connection, cancel: Json) -> None:
        """Tells a computer that is back of a cancel that it has missed."""
        connection.channel.send(_packet(CANCEL_TOOL_CALL_NOTIFICATION, cancel))

    def _send_soon(self, connections: Sequence[Connection], packet: bytes) -> None:
        for connection in connections:
            channel = connection.channel
            if type(channel) is Batch:
                channel.packets.append(packet)
                if len(channel.packets) >= _MOST_PACKETS:
                    channel.flush()
            elif type(channel) is Gate:
                channel.send(packet)
            else:
                if not self._gathering:
                    asyncio.get_running_loop().call_later(_GATHER, self._send_gathered)
                self._gathering.append(connection)
                batch = connection.channel = Batch(channel)
                batch.packets.append(packet)

    def _send_gathered(self) -> None:
        gathering, self._gathering = self._gathering, []
        for connection in gathering:
            batch = connection.channel
            if isinstance(batch, Batch) and not connection.is_gone:
                batch.flush()
                connection.channel = batch.channel

    # To the whole office

    @property
    def is_shared(self) -> bool:
        """Whether telling an office has to wait for the store."""
        return self._announce is not None

    async def spread(self, *notices: Told) -> None:
        """To the whole office, on whatever nodes its members are. Nodes out of reach are told when they are not."""
        for notice in notices:
            if self._announce is None:
                self.tell(notice)
                continue
            try:
                await self._announce(notice.office_id, _written(notice))
            except Unavailable:
                self._owe(notice)
                self.tell(notice)

    async def spread_again(self) -> None:
        """What has not reached everybody."""
        owed, self._owed = self._owed, {}
        await self.spread(*owed)

    def _owe(self, notice: Told) -> None:
        self._owed[notice._replace(body=bytes(notice.body))] = None
        if len(self._owed) > _MOST_OWED:
            del self._owed[next(iter(self._owed))]

    def spread_soon(self, notices: Collection[Told]) -> None:
        """Without waiting: at once, or as a task of its own."""
        if self._announce is None:
            for notice in notices:
                self.tell(notice)
        elif notices:
            self._background.spawn(self.spread(*notices))

    # The pace of updates

    def admit(self, sid: str, event: Event, notice: Told) -> Told | None:
        """A computer's update, if it is to be told now; else it is merged with what follows (WIRE §6)."""
        updates = self._updates.setdefault(sid, _Updates())
        now = asyncio.get_running_loop().time()
        if event.request is None:
            self._admit_newer(updates.newer, now)
            return notice
        pace = updates.paces.setdefault(notice.event, _Pace())
        due = pace.sent + 1 / self._limits.updates_per_second
        if pace.timer is None and now >= due:
            pace.sent = now
            return notice
        pace.pending = notice
        if pace.timer is None:
            pace.timer = asyncio.get_running_loop().call_at(due, self._send_pending, pace)
        return None

    def _send_pending(self, pace: _Pace) -> None:
        notice, pace.pending, pace.timer = pace.pending, None, None
        if notice:
            pace.sent = asyncio.get_running_loop().time()
            self.spread_soon([notice])

    def take_pending(self, sid: str) -> list[Told]:
        """What still waits, to be told before its sender leaves."""
        updates = self._updates.get(sid)
        pending = []
        for pace in updates.paces.values() if updates else ():
            if pace.timer:
                pace.timer.cancel()
            if pace.pending:
                pending.append(pace.pending)
                pace.sent = asyncio.get_running_loop().time()
            pace.pending = pace.timer = None
        return pending

    def forget(self, sid: str) -> None:
        """The connection has ended, and with it what it may say in a second."""
        self._updates.pop(sid, None)

    def close(self) -> None:
        for sid in list(self._updates):
            self.take_pending(sid)

    def _admit_newer(self, recent: deque[float], now: float) -> None:
        while recent and recent[0] <= now - 1:
            recent.popleft()
        if len(recent) >= self._limits.newer_updates_per_second:
            raise RateLimited(f"at most {self._limits.newer_updates_per_second} updates of this kind a second")
        recent.append(now)


def _send(connections: Sequence[Connection], packet: bytes) -> None:
    for connection in connections:
        connection.channel.send(packet)


def _packet(event: str, body: Json) -> bytes:
    return b"42/smcp,[%s,%s]" % (dumps(event).encode(), body)
