"""Notices: broadcast to an office in order, under current and older names, and not too often.

A notice is encoded once, and written to the channel of every member of the office that is on this node. Nodes that
share a directory, this one included, hear it through the store, in order with the changes of offices. In a crowd, a
member's notices are gathered for some milliseconds and written together (`BatchingChannel`): that timer decides when
they leave, never their order, because any other packet to the same connection goes behind them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from a2c_smcp.engine.packets import Json
from a2c_smcp.errors import BadRequest, RateLimited, Unavailable
from a2c_smcp.loops import OwnedTasks
from a2c_smcp.mcp_events import UPDATE_STATE_NOTIFICATION
from a2c_smcp.protocol.codec import dumps, loads
from a2c_smcp.protocol.events import EVENTS, OLDER_NOTICES, Action, EventSpec
from a2c_smcp.protocol.offices import Member, Notice, Office, present
from a2c_smcp.server.connections import BatchingChannel, Connection, Connections, HoldingChannel, event_packet
from a2c_smcp.server.envelope import Envelope
from a2c_smcp.server.routing_fields import read_fields
from a2c_smcp.server.settings import Limits
from a2c_smcp.smcp import (
    CANCEL_TOOL_CALL_NOTIFICATION,
    UPDATE_CONFIG_EVENT,
    UPDATE_DESKTOP_EVENT,
    UPDATE_TOOL_LIST_EVENT,
)

_UPDATES = [event.notice for event in EVENTS if event.action is Action.BROADCAST and event.notice]
_MERGED = (UPDATE_CONFIG_EVENT, UPDATE_TOOL_LIST_EVENT, UPDATE_DESKTOP_EVENT)
"""Two of one kind say the same. Those about an MCP server do not, if it is another one."""
_MOST_UNANNOUNCED = 1024
_ABSENT = object()
_CROWD = 16
_GATHER = 0.02
_MOST_PACKETS, _MOST_GATHERED = 64, 4 * 1024
"""Limits of gathered notices of one connection: number, and size in bytes. Larger ones are sent at once."""

Announce = Callable[[str, str], Awaitable[int]]
"""Publishes a notice to all nodes that follow an office, this one included."""


class EncodedNotice(NamedTuple):
    """A notice as it is sent: its data is JSON."""

    event: str
    office_id: str
    body: Json
    skip_sid: str | None = None


class _Announcement(msgspec.Struct, array_like=True):
    event: str
    skip_sid: str | None
    data: msgspec.Raw


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Announcement)


def encode(notice: Notice) -> EncodedNotice:
    return EncodedNotice(notice.event, notice.office_id, dumps(notice.data).encode(), notice.skip_sid)


def encode_caused(notice: Notice, cause: Envelope) -> EncodedNotice:
    """A notice that an event caused: the bytes of the event's payload, unread, and the fields that were added.

    An added field comes last, so that it counts for readers of JSON, also if the sender gave it another value.
    """
    if cause.attachments:
        raise BadRequest("a notice has no binary parts")
    fields, body = cause.fields, cause.body
    added = {name: value for name, value in notice.data.items() if fields.get(name, _ABSENT) != value}
    if added:
        body = b"%s,%s" % (bytes(body).rstrip()[:-1], dumps(added).encode()[1:])
    return EncodedNotice(notice.event, notice.office_id, body, notice.skip_sid)


def read_notice(office_id: str, text: str) -> tuple[EncodedNotice, dict[str, object]]:
    """A notice that a node has announced, and its routing fields."""
    announced = _decoder.decode(text)
    data = bytes(announced.data)
    fields = read_fields(data)
    notice = EncodedNotice(announced.event, office_id, data, announced.skip_sid)
    return notice, loads(data.decode()) if fields is None else fields


@dataclass(slots=True)
class _Pace:
    """The time of the last update of one kind, and the latest one that came too early since."""

    sent: float = float("-inf")
    pending: EncodedNotice | None = None
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True)
class _Updates:
    """The updates of one computer."""

    paces: dict[str, _Pace] = field(default_factory=dict)
    newer: deque[float] = field(default_factory=deque)


@dataclass(eq=False)
class Notices:
    """Delivers notices. Updates of a computer that come too fast are merged; those of other kinds are refused.

    `announce` is given if offices may have members on other nodes.
    """

    _connections: Connections
    _background: OwnedTasks
    _limits: Limits
    _announce: Announce | None
    older_to_all: bool

    def __post_init__(self) -> None:
        self._updates: dict[str, _Updates] = {}
        self._unannounced: dict[EncodedNotice, None] = {}
        self._gathering: list[Connection] = []

    # To members on this node

    def deliver(self, notice: EncodedNotice) -> None:
        """Sends a notice to the members of its office on this node."""
        members = self._connections.in_office(notice.office_id)
        others = [connection for connection in members if connection.sid != notice.skip_sid]
        if not others:
            return
        packet = event_packet(notice.event, notice.body)
        is_crowd = len(others) >= _CROWD and len(packet) <= _MOST_GATHERED
        send = self._gather if is_crowd else _send
        older = OLDER_NOTICES.get(notice.event)
        if older is None:
            send(others, packet)
            return
        older_packet = event_packet(older, notice.body)
        for connection in others:
            send([connection], packet)
            if self.older_to_all or connection.speaks_older_names:
                send([connection], older_packet)

    def deliver_all_updates(self, computer: Member) -> None:
        """Sends every kind of update of a computer, so that agents read all of it again."""
        data = {"computer": computer.name, "office_id": computer.office_id}
        for event in _UPDATES:
            self.deliver(encode(Notice(event, computer.office_id, data, computer.sid)))

    def tell_present(self, computer: Member, office: Office) -> None:
        """Tells a computer that has joined which agent it finds: it may have missed that another one has come."""
        if (connection := self._connections.get(computer.sid)) and connection.wants_seats:
            notice = encode(present(office))
            connection.channel.send(event_packet(notice.event, notice.body))

    def tell_frozen(self, computer: Member, office: Office, *, is_frozen: bool) -> None:
        """Tells the agent of an office and the computer itself, if they are on this node."""
        told = {"computer": computer.name, "office_id": computer.office_id, "frozen": is_frozen}
        packet = event_packet(UPDATE_STATE_NOTIFICATION, dumps(told).encode())
        members = (office.agent, computer) if office.agent else (computer,)
        _send([here for member in members if (here := self._connections.get(member.sid))], packet)

    def repeat_cancel(self, connection: Connection, cancel: Json) -> None:
        """Send a cancel again to a computer that is back and has missed it."""
        connection.channel.send(event_packet(CANCEL_TOOL_CALL_NOTIFICATION, cancel))

    def _gather(self, connections: Sequence[Connection], packet: bytes) -> None:
        for connection in connections:
            channel = connection.channel
            if type(channel) is BatchingChannel:
                channel.packets.append(packet)
                if len(channel.packets) >= _MOST_PACKETS:
                    channel.flush()
            elif type(channel) is HoldingChannel:
                channel.send(packet)
            else:
                if not self._gathering:
                    asyncio.get_running_loop().call_later(_GATHER, self._send_gathered)
                self._gathering.append(connection)
                batch = connection.channel = BatchingChannel(channel)
                batch.packets.append(packet)

    def _send_gathered(self) -> None:
        gathering, self._gathering = self._gathering, []
        for connection in gathering:
            batch = connection.channel
            if isinstance(batch, BatchingChannel) and not connection.is_gone:
                batch.flush()
                connection.channel = batch.channel

    # To the whole office

    @property
    def is_shared(self) -> bool:
        """True if a broadcast has to wait for the store."""
        return self._announce is not None

    async def broadcast(self, *notices: EncodedNotice) -> None:
        """Sends notices to their offices on all nodes. Nodes that are out of reach get them when they are back."""
        for notice in notices:
            if self._announce is None:
                self.deliver(notice)
                continue
            try:
                announcement = _Announcement(notice.event, notice.skip_sid, msgspec.Raw(notice.body))
                await self._announce(notice.office_id, _encoder.encode(announcement).decode())
            except Unavailable:
                self._unannounced[notice._replace(body=bytes(notice.body))] = None
                if len(self._unannounced) > _MOST_UNANNOUNCED:
                    del self._unannounced[next(iter(self._unannounced))]
                self.deliver(notice)

    async def broadcast_missed(self) -> None:
        """Broadcasts again what could not reach other nodes."""
        missed, self._unannounced = self._unannounced, {}
        await self.broadcast(*missed)

    def broadcast_soon(self, notices: Collection[EncodedNotice]) -> None:
        """Broadcasts without waiting: at once, or in a task of its own."""
        if self._announce is None:
            for notice in notices:
                self.deliver(notice)
        elif notices:
            self._background.spawn(self.broadcast(*notices))

    # The pace of updates

    def admit(self, sid: str, event: EventSpec, notice: EncodedNotice) -> EncodedNotice | None:
        """A computer's update, if it is to be sent now; else it is merged with later ones (WIRE §6)."""
        updates = self._updates.setdefault(sid, _Updates())
        now = asyncio.get_running_loop().time()
        if event.name not in _MERGED:
            while updates.newer and updates.newer[0] <= now - 1:
                updates.newer.popleft()
            if len(updates.newer) >= self._limits.newer_updates_per_second:
                raise RateLimited(f"at most {self._limits.newer_updates_per_second} updates of this kind a second")
            updates.newer.append(now)
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
            self.broadcast_soon([notice])

    def take_pending(self, sid: str) -> list[EncodedNotice]:
        """The updates that still wait, to be sent before their sender leaves."""
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
        """The connection has ended: forgets when it sent updates."""
        self._updates.pop(sid, None)

    def close(self) -> None:
        for sid in list(self._updates):
            self.take_pending(sid)


def _send(connections: Sequence[Connection], packet: bytes) -> None:
    for connection in connections:
        connection.channel.send(packet)
