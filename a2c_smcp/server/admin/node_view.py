"""What this node itself knows of its members, its calls and its keys, and what it does for an operator."""

from __future__ import annotations

import time
from hashlib import sha256

from a2c_smcp import __version__
from a2c_smcp.errors import NotFound
from a2c_smcp.protocol.offices import Member
from a2c_smcp.server.admin.rows import CallRow, MemberRow, NodeRow
from a2c_smcp.server.calls.call import Call
from a2c_smcp.server.channels import BatchingChannel, Channel, HoldingChannel
from a2c_smcp.server.connections import Connection
from a2c_smcp.server.directory.interface import as_shared
from a2c_smcp.server.directory.nodes import node_of
from a2c_smcp.server.hub import Hub

__all__ = ["NodeView"]


class NodeView:
    """Reads the tables of the hub. Nothing here waits, and reading takes nobody's seat."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self._shared = as_shared(hub.directory)
        self.node = self._shared.node if self._shared else None
        self._since = time.time()

    def members(self) -> list[MemberRow]:
        return [self._member(member) for member in self.hub.directory.own_members()]

    def calls(self) -> list[CallRow]:
        """Requests to computers of this node: the node of a computer owns its calls."""
        clock, now = time.monotonic(), time.time()
        running = self.hub.calls.by_connection.running()
        return [self._call(call, now - clock) for call in running if self._is_here(call.target_sid)]

    def row(self) -> NodeRow:
        is_ready = self._shared is None or self._shared.is_ready
        return NodeRow(
            self.node,
            __version__,
            self._since,
            connections=len(self.hub.connections),
            members=len(self.hub.directory.own_members()),
            calls=sum(1 for call in self.hub.calls.by_connection.running() if self._is_here(call.target_sid)),
            ready=is_ready and not self.hub.calls.is_closing,
        )

    def credentials(self) -> dict[str, int]:
        """How many connections each credential has here."""
        counts: dict[str, int] = {}
        for connection in self.hub.connections:
            credential = connection.principal.credential
            counts[credential] = counts.get(credential, 0) + 1
        return counts

    def disconnect(self, wanted: str) -> list[Member]:
        """Ends the connection with this id, and releases its seats, which are returned. Raises `NotFound`."""
        connection = self._find(wanted)
        if connection is None:
            raise NotFound("no such connection, it may have ended meanwhile")
        seats = [seat for seat in self.hub.directory.own_members() if seat.sid == connection.sid]
        self.hub.dismiss(connection)
        return seats

    def _find(self, wanted: str) -> Connection | None:
        return next((each for each in self.hub.connections if _id_of(each.sid) == wanted), None)

    def _is_here(self, sid: str) -> bool:
        return self.node is None or node_of(sid) == self.node

    def _member(self, member: Member) -> MemberRow:
        calls = self.hub.calls.by_connection[member.sid]
        in_flight = len(calls.asks) if member.role == "agent" else len(calls.serves)
        row = MemberRow(
            _id_of(member.sid),
            member.office_id,
            member.role,
            member.name,
            member.owner,
            member.version,
            member.instance is not None,
            self.node,
            in_flight,
        )
        if connection := self.hub.connections.get(member.sid):
            row.connected = True
            row.address, row.device = connection.address, connection.principal.device
            row.since, row.unread = connection.since, _unread(connection.channel)
        return row

    def _call(self, call: Call, offset: float) -> CallRow:
        fields = call.envelope.fields if call.envelope and call.event.is_call else {}
        tool = fields.get("tool_name")
        return CallRow(
            call.caller.office_id,
            call.caller.name,
            call.caller.owner,
            call.target.name,
            call.event.name,
            call.req_id,
            call.until - call.timeout + offset,
            call.until + offset,
            call.size,
            call.sent > 0,
            self.node,
            tool if isinstance(tool, str) and not call.event.is_sealed else None,
            call.event.is_sealed,
        )


def _id_of(sid: str) -> str:
    """Names a connection. Who knows a sid could speak for its session."""
    return sha256(sid.encode()).hexdigest()[:16]


def _unread(channel: Channel) -> int:
    while isinstance(channel, HoldingChannel | BatchingChannel):
        channel = channel.channel
    return int(getattr(channel, "unread", 0))
