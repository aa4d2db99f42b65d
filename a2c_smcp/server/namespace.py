"""The `/smcp` namespace: every event is decoded, decided by the protocol, carried out, and answered."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs

import socketio

from a2c_smcp.errors import BadRequest, NotAuthenticated, SMCPError, Unavailable, UnsupportedEvent
from a2c_smcp.protocol import routing, version
from a2c_smcp.protocol.codec import decode
from a2c_smcp.protocol.events import OLDER_FIELDS, Action, Event, lookup
from a2c_smcp.protocol.offices import Member, Notice, instance_digest
from a2c_smcp.protocol.results import error_ack
from a2c_smcp.protocol.routing import Forward
from a2c_smcp.server import audit
from a2c_smcp.server.auth import AuthenticationProvider, admit
from a2c_smcp.server.background import Background
from a2c_smcp.server.bus import Bus
from a2c_smcp.server.calls import Reply
from a2c_smcp.server.connections import Connection, address_in, headers_in
from a2c_smcp.server.directory import Directory, MemoryDirectory
from a2c_smcp.server.metrics import Metrics
from a2c_smcp.server.neighbours import Shared
from a2c_smcp.server.notices import Notices, encoded, older_room
from a2c_smcp.server.packets import Payload, Rejected
from a2c_smcp.server.relay import CheckRoom, Relay, check_size
from a2c_smcp.server.seating import Seating
from a2c_smcp.server.settings import Limits
from a2c_smcp.server.ways import ROUTE
from a2c_smcp.smcp import SMCP_NAMESPACE, ListRoomRet

__all__ = ["SMCPNamespace"]

logger = logging.getLogger(__name__)

_CLEAN = "client disconnect"
_NOTHING: frozenset[str] = frozenset()
_OLDER_FIELDS = frozenset(OLDER_FIELDS.values())

Joined = tuple[bool, str | None]


class SMCPNamespace(socketio.AsyncNamespace):  # type: ignore[misc]  # untyped base
    """Register it on your own `socketio.AsyncServer`, or use `create_app`, which also bounds what clients may send."""

    def __init__(
        self,
        auth_provider: AuthenticationProvider,
        *,
        directory: Directory | None = None,
        limits: Limits | None = None,
        require_version: str | None = None,
        legacy_notices: bool = False,
        metrics: Metrics | None = None,
        check_room: CheckRoom = lambda sid, size: None,
        namespace: str = SMCP_NAMESPACE,
    ) -> None:
        super().__init__(namespace)
        self.auth_provider = auth_provider
        self.limits = limits or Limits()
        self.metrics = metrics or Metrics()
        self.background = Background()
        self._directory = directory or MemoryDirectory()
        self._require_version = require_version
        self._connections: dict[str, Connection] = {}
        self.notices = Notices(self.emit, self.background, self.limits, older_to_all=legacy_notices)
        self.requests = Relay(
            self._directory,
            self.emit,
            self._connections.get,
            self.background,
            self.metrics,
            self.limits,
            check_room,
        )
        self._calls = self.requests.calls
        self._seating = Seating(self, self._directory, self._calls, self.notices)
        self._is_draining = False
        self._handlers: dict[Action, Callable[[Connection, Event, dict[str, Any]], Awaitable[Any]]] = {
            Action.JOIN: self.on_server_join_office,
            Action.LEAVE: self.on_server_leave_office,
            Action.LIST: self.on_server_list_room,
            Action.CANCEL: self.on_server_tool_call_cancel,
            Action.BROADCAST: self.on_server_update,
            Action.FORWARD: self.on_client_request,
        }
        self.metrics.gauge("connections", lambda: len(self._connections))
        self.metrics.gauge("calls_in_flight", lambda: len(self._calls))

    # What comes from the library

    async def trigger_event(self, event: str, sid: str, *args: Any) -> Any:
        """Every event arrives here. A client may send one that is called `connect`: only the library's own counts."""
        row = None
        try:
            if event == "connect" and self.server.manager.is_pre_connected(sid, self.namespace):
                return await self.on_connect(sid, *args)
            if event == "disconnect" and not self.server.manager.is_connected(sid, self.namespace):
                return await self.on_disconnect(sid, *args)
            speaker = self._connections.get(sid)
            row = _row_of(event, speaker)
            if speaker is None:
                raise NotAuthenticated
            answer = await self._handle(speaker, event, row, args)
        except SMCPError as error:
            self.note_refusal(row, sid, error)
            error.__traceback__ = None  # one that is an outcome too would hold the frames that hold the payload
            return error_ack(row, error)
        except socketio.exceptions.ConnectionRefusedError:
            raise
        except Exception:
            logger.exception("%s failed", row.name if row else event)
            self.metrics.count("refused_total", code=SMCPError.code)
            return False if event == "connect" and row is None else error_ack(row, SMCPError())
        # Once its own session is gone, another one on the same transport would take the ack for its own.
        return answer if sid in self._connections else self.server.not_handled

    async def on_connect(self, sid: str, environ: dict[str, Any], auth: Any = None) -> None:
        try:
            if self._is_draining:
                raise Unavailable("the server is shutting down")
            claimed = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True).get("a2c_version", [None])
            spoken = version.accept(claimed[0], self._require_version)
            principal = await admit(
                self.auth_provider, self.server, environ, auth, headers_in(environ), self.limits.authentication_timeout
            )
        except SMCPError as error:
            self.metrics.count("refused_total", code=error.code)
            audit.record("refused", code=error.code, client=address_in(environ))
            data = {"code": error.code, "message": error.message}
            raise socketio.exceptions.ConnectionRefusedError(error.message, data) from None
        connection = self._connections[sid] = Connection(sid, principal, spoken)
        if principal.expires is not None:
            connection.expiry = self.background.later(principal.expires - time.time(), lambda: self.dismiss(sid))
        self.metrics.count("connections_total")
        audit.record("connected", principal=principal.id, version=spoken, client=address_in(environ))

    async def on_disconnect(self, sid: str, reason: Any = None) -> None:
        connection = self._connections.pop(sid, None)
        if connection is None:
            return
        connection.is_gone = True
        if connection.expiry:
            connection.expiry.cancel()
        is_clean = connection.is_over or self._is_clean_disconnect(sid, reason)
        await self._seating.disconnected(connection, is_clean=is_clean)
        audit.record("disconnected", principal=connection.principal.id, reason=reason)

    # What clients ask for

    async def on_server_join_office(self, speaker: Connection, event: Event, data: dict[str, Any]) -> Joined:
        role, name, office_id, instance = data["role"], data["name"], data["office_id"], data.get("instance")
        owner = speaker.principal.id
        speaker.principal.check(role, name, office_id)
        if self._is_draining:
            raise Unavailable("the server is shutting down")
        digest = instance_digest(owner, role, name, instance) if instance else None
        await self._seating.join(speaker, Member(speaker.sid, role, name, office_id, digest, owner, speaker.version))
        return True, None

    async def on_server_leave_office(self, speaker: Connection, event: Event, data: dict[str, Any]) -> Joined:
        await self._seating.leave(speaker, data["office_id"])
        return True, None

    async def on_server_list_room(self, speaker: Connection, event: Event, data: dict[str, Any]) -> ListRoomRet:
        seats = await self.requests.seats(speaker.sid)
        return routing.list_room(event, seats, await self.requests.office(data["office_id"]), data)

    async def on_server_tool_call_cancel(self, speaker: Connection, event: Event, data: dict[str, Any]) -> None:
        seats = await self.requests.seats(speaker.sid)
        offices = self._calls.cancel(routing.seated(event, seats, data), data)
        for notice in self._encoded(speaker, routing.cancel(event, seats, data, offices), data):
            await self.notices.spread(notice)

    async def on_server_update(self, speaker: Connection, event: Event, data: dict[str, Any]) -> None:
        notice = routing.broadcast(event, await self.requests.seats(speaker.sid), data)
        (notice,) = self._encoded(speaker, [notice], data)
        await self.notices.update(speaker.sid, event, notice)

    async def on_client_request(self, speaker: Connection, event: Event, data: dict[str, Any]) -> asyncio.Future[Any]:
        return await self.requests.request(speaker.sid, event, data)

    def relay(self, speaker: Connection, name: str, event: Event, data: Payload, reply: Reply) -> bool:
        """A request that can be passed on without waiting. `False` if it has to go the long way."""
        way = speaker.ways.find(name, data, self._directory.office_at_hand)
        decode(event, data, known=ROUTE if way else _NOTHING)
        if way is None:
            if not speaker.speaks_older_names and _has_older_names(name, event, data):
                return False
            way = self.requests.find(speaker.sid, event, data)
            if way is None:
                return False
            speaker.ways.keep(name, data, way)
        forward = Forward(event.name, way.caller, way.target, data, routing.is_sent_before(data))
        self.requests.begin(event, forward, reply)
        return True

    def connection(self, sid: str | None) -> Connection | None:
        return self._connections.get(sid) if sid else None

    def seats_here(self) -> list[Member]:
        """Those of all connections, as far as they are at hand."""
        return [seat for sid in self._connections for seat in self._directory.seats_at_hand(sid) or ()]

    # What operators ask for

    async def dismiss(self, sid: str) -> None:
        """Ends a connection and its seats, for good: its token is no longer worth anything."""
        if connection := self._connections.get(sid):
            connection.is_over = True
            await self.disconnect(sid)

    async def reload(self) -> None:
        """Reads the credentials again and disconnects whom they no longer admit."""
        self.auth_provider.reload()
        for connection in list(self._connections.values()):
            if not self.auth_provider.valid(connection.principal):
                await self.dismiss(connection.sid)

    async def drop_lost(self, sockets: Container[str]) -> None:
        """Ends sessions whose transport, one of `sockets`, ended without telling."""
        for sid in list(self._connections):
            if self.server.manager.eio_sid_from_sid(sid, self.namespace) not in sockets:
                await self.disconnect(sid)
                await self.on_disconnect(sid)

    async def drain(self) -> None:
        """Stops taking newcomers and calls, and returns when no call is in flight any more."""
        self._is_draining = True
        await self._calls.drain()

    def is_engaged(self, sid: str | None) -> bool:
        """Whether a connection asks or is asked for something."""
        return sid is not None and self._calls.is_engaged(sid)

    def span(self, directory: Shared) -> None:
        """Offices have members on other nodes too, where those of this one resume when it goes."""
        self.requests.bus = self._seating.bus = Bus(directory, self.requests.serve, self.background)
        self.notices.everywhere = directory.announce

    async def close(self) -> None:
        self._seating.close()
        await self.background.close()
        await self._directory.close()

    # What follows

    async def _handle(self, speaker: Connection, name: str, event: Event, args: Sequence[Any]) -> Any:
        try:
            answer = await self._look_at(speaker, name, event, args)
        finally:
            speaker.event_seen()
        outcome = await answer if isinstance(answer, asyncio.Future) else answer
        if isinstance(outcome, SMCPError):
            raise outcome
        return outcome

    async def _look_at(self, speaker: Connection, name: str, event: Event, args: Sequence[Any]) -> Any:
        """The answer, or a future of it."""
        if args and isinstance(args[0], Rejected):
            raise args[0].error
        if len(args) != 1:
            raise BadRequest("an event carries one object")
        data = decode(event, args[0])
        if not speaker.speaks_older_names and _has_older_names(name, event, data):
            await self._learn_older_names(speaker)
        await speaker.until_seated(event)
        return await self._handlers[event.action](speaker, event, data)

    def _is_clean_disconnect(self, sid: str, reason: Any) -> bool:
        """Whether this was a Socket.IO disconnect. Clients also close Engine.IO when their network fails."""
        socket = self.server.eio.sockets.get(self.server.manager.eio_sid_from_sid(sid, self.namespace))
        return reason == _CLEAN and socket is not None and not socket.closing

    def note_refusal(self, event: Event | None, sid: str, error: SMCPError) -> None:
        self.metrics.count("refused_total", code=error.code)
        if event and event.action is Action.JOIN and (connection := self._connections.get(sid)):
            audit.record("join refused", principal=connection.principal.id, reason=str(error))

    async def _learn_older_names(self, speaker: Connection) -> None:
        speaker.speaks_older_names = True
        for seat in await self.requests.seats(speaker.sid):
            await self.enter_room(speaker.sid, older_room(seat.office_id))

    def _encoded(self, speaker: Connection, notices: Sequence[Notice], came: dict[str, Any]) -> list[Notice]:
        """As bytes, once for everybody, and while their sender can still be told that they cannot be sent."""
        payloads = [encoded(notice.data, came) for notice in notices]
        size = max((payload.size for payload in payloads), default=0)
        check_size(size + max((len(notice.event) for notice in notices), default=0), self.limits)
        offices = [self._directory.office_at_hand(notice.office_id) for notice in notices]
        copies = sum(len(office.members) for office in offices if office)
        speaker.may_tell(size, copies, self.limits.told_bytes)
        return [replace(notice, data=payload) for notice, payload in zip(notices, payloads, strict=True)]


def _row_of(event: str, speaker: Connection | None) -> Event:
    """Raises `UnsupportedEvent`, and then nothing has to wait for this event any more."""
    try:
        return lookup(event)
    except UnsupportedEvent:
        if speaker:
            speaker.event_seen()
        raise


def _has_older_names(name: str, event: Event, data: dict[str, Any]) -> bool:
    return name != event.name or not _OLDER_FIELDS.isdisjoint(data)
