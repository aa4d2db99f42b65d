"""What is broadcast to an office, in order, under all the names it goes by, and not too often."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from a2c_smcp.errors import RateLimited, Unavailable
from a2c_smcp.protocol.codec import dumps, loads
from a2c_smcp.protocol.events import EVENTS, OLDER_NOTICES, Action, Event
from a2c_smcp.protocol.offices import Member, Notice
from a2c_smcp.server.background import Background
from a2c_smcp.server.fields import read_fields
from a2c_smcp.server.packets import Payload
from a2c_smcp.server.settings import Limits
from a2c_smcp.smcp import CANCEL_TOOL_CALL_NOTIFICATION

__all__ = ["Emit", "Everywhere", "Notices", "encoded", "office_room", "older_room", "read_notice"]

_UPDATES = [event.notice for event in EVENTS if event.action is Action.BROADCAST and event.notice]
_MOST_OWED = 1024

Emit = Callable[..., Awaitable[None]]
Everywhere = Callable[[str, str], Awaitable[int]]
"""Tells all nodes of an office something, this one included."""


class _Written(msgspec.Struct, array_like=True):
    event: str
    skip_sid: str | None
    data: msgspec.Raw


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Written)


def read_notice(office_id: str, text: str) -> Notice:
    """A notice as it was spread."""
    written = _decoder.decode(text)
    data = bytes(written.data)
    fields = read_fields(data)
    return Notice(
        written.event, office_id, Payload(loads(data.decode()) if fields is None else fields, data), written.skip_sid
    )


def encoded(data: dict[str, Any], came: dict[str, Any]) -> Payload:
    """The data of a notice as bytes: those that its event came as, unread, and the fields that were added.

    An added field comes last, so that it counts for readers of JSON, also where its sender has said something else.
    """
    if not (isinstance(came, Payload) and came.json):
        return Payload(data, dumps(data).encode())
    added = {name: value for name, value in data.items() if name not in came or came[name] != value}
    if not added:
        return Payload(data, came.json)
    return Payload(data, b"%s,%s" % (bytes(came.json).rstrip()[:-1], dumps(added).encode()[1:]))


def _written(notice: Notice) -> str:
    json = notice.data.json if isinstance(notice.data, Payload) else dumps(notice.data).encode()
    return _encoder.encode(_Written(notice.event, notice.skip_sid, msgspec.Raw(json))).decode()


def office_room(office_id: str) -> str:
    """The Socket.IO room behind an office. The prefix keeps a client's words from naming any other room."""
    return f"office:{office_id}"


def older_room(office_id: str) -> str:
    """Those in an office who speak 003's names."""
    return f"older:{office_id}"


@dataclass(slots=True)
class _Pace:
    """When a computer last said something of one kind, and what it has said too early since."""

    sent: float = float("-inf")
    pending: Notice | None = None
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True)
class _Updates:
    """The updates of one computer."""

    paces: dict[str, _Pace] = field(default_factory=dict)
    newer: deque[float] = field(default_factory=deque)


class Notices:
    """Delivers notices. The known updates of a computer are merged when they come too fast, newer ones refused."""

    def __init__(self, emit: Emit, background: Background, limits: Limits, *, older_to_all: bool = False) -> None:
        self.emit = self._emit_to = emit
        self.everywhere: Everywhere | None = None
        self._background = background
        self._limits = limits
        self._older_to_all = older_to_all
        self._updates: dict[str, _Updates] = {}
        self._owed: dict[tuple[str, str], Notice] = {}

    async def spread(self, notice: Notice) -> None:
        """To the whole office, on whatever nodes its members are. Nodes out of reach are told when they are not."""
        if self.everywhere is None:
            await self.announce(notice)
            return
        written = _written(notice)
        try:
            await self.everywhere(notice.office_id, written)
        except Unavailable:
            self._owe(notice, written)
            await self.announce(notice)

    async def spread_again(self) -> None:
        """What has not reached everybody."""
        owed, self._owed = self._owed, {}
        for notice in owed.values():
            await self.spread(notice)

    def _owe(self, notice: Notice, written: str) -> None:
        self._owed[notice.office_id, written] = notice
        if len(self._owed) > _MOST_OWED:
            del self._owed[next(iter(self._owed))]

    async def announce(self, notice: Notice) -> None:
        """To those of an office who are on this node."""
        room = office_room(notice.office_id)
        await self.emit(notice.event, notice.data, room=room, skip_sid=notice.skip_sid)
        if older := OLDER_NOTICES.get(notice.event):
            room = room if self._older_to_all else older_room(notice.office_id)
            await self.emit(older, notice.data, room=room, skip_sid=notice.skip_sid)

    async def announce_anything(self, computer: Member) -> None:
        """That anything about a computer may have changed: whoever wants to know looks again."""
        data = {"computer": computer.name, "office_id": computer.office_id}
        for event in _UPDATES:
            await self.announce(Notice(event, computer.office_id, data, computer.sid))

    async def update(self, sid: str, event: Event, notice: Notice) -> None:
        """A computer's update: now, or merged with what follows within the pace that WIRE §6 allows."""
        updates = self._updates.setdefault(sid, _Updates())
        now = asyncio.get_running_loop().time()
        if event.request is None:
            self._admit(updates.newer, now)
            return await self.spread(notice)
        pace = updates.paces.setdefault(notice.event, _Pace())
        due = pace.sent + 1 / self._limits.updates_per_second
        if pace.timer:
            pace.pending = notice
        elif now >= due:
            pace.sent = now
            await self.spread(notice)
        else:
            pace.pending = notice
            pace.timer = self._background.later(due - now, lambda: self._send_pending(pace))
        return None

    def remind(self, sid: str, cancel: dict[str, Any]) -> None:
        """Tells a computer that is back of a cancel that it has missed."""
        self._background.spawn(self._tell(sid, cancel))

    async def _tell(self, sid: str, cancel: dict[str, Any]) -> None:
        await self._emit_to(CANCEL_TOOL_CALL_NOTIFICATION, cancel, to=sid)

    async def flush(self, sid: str) -> None:
        """Sends what still waits, before its sender leaves."""
        updates = self._updates.get(sid, _Updates())
        for pace in updates.paces.values():
            if pace.timer:
                pace.timer.cancel()
            await self._send_pending(pace)

    def forget(self, sid: str) -> None:
        """The connection has ended, and with it what it may say in a second."""
        self._updates.pop(sid, None)

    async def _send_pending(self, pace: _Pace) -> None:
        notice, pace.pending, pace.timer = pace.pending, None, None
        if notice:
            pace.sent = asyncio.get_running_loop().time()
            await self.spread(notice)

    def _admit(self, recent: deque[float], now: float) -> None:
        while recent and recent[0] <= now - 1:
            recent.popleft()
        if len(recent) >= self._limits.newer_updates_per_second:
            raise RateLimited(f"at most {self._limits.newer_updates_per_second} updates of this kind a second")
        recent.append(now)
