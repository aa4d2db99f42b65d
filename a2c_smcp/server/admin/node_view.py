"""This node's own members, calls and keys, and its actions for an operator."""

from __future__ import annotations

import time
from base64 import b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Generic, TypeVar

import msgspec

from a2c_smcp import __version__
from a2c_smcp.errors import BadRequest, NotFound
from a2c_smcp.protocol.offices import Member
from a2c_smcp.server.auth.authentication import OPERATOR_ROLES
from a2c_smcp.server.calls.call import Call
from a2c_smcp.server.cluster.memory import as_shared, node_of
from a2c_smcp.server.connections import BatchingChannel, HoldingChannel
from a2c_smcp.server.hub import Hub

# What operators see, one class for each kind of row, and which rows of a list are chosen: filters and pages.
#
# A page ends with a cursor, the place of its last row in the order of the list. The next page begins behind that place,
# so rows that come and go meanwhile neither repeat a row nor skip one.

MAX_PAGE = 1000
_PAGE = 100
_BETWEEN = "\0"
_EXACT = ("office", "role", "name", "principal", "agent", "computer", "tool", "event", "outcome", "node")

Row = TypeVar("Row")


class MemberRow(msgspec.Struct, array_like=True):
    """A member: a seat, and the connection that has it. `id` names the connection, and does not reveal its sid.

    `connected` is false while the seat is kept for a client whose connection was lost. `dedup`: the client
    recognises a call that is sent again. A computer is `frozen` by itself, with its office or with the Server.
    """

    id: str
    office: str
    role: str
    name: str
    principal: str
    version: str
    dedup: bool
    node: str | None
    calls: int
    connected: bool = False
    address: str | None = None
    device: str | None = None
    since: float | None = None
    unread: int = 0
    frozen: bool = False

    @property
    def place(self) -> tuple[str, ...]:
        return self.office, self.role, self.name

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts that a search reads."""
        return self.office, self.name, self.principal, self.address or ""


class OfficeRow(msgspec.Struct):
    """An office: its agent, and how many computers, frozen ones and calls in flight it has, on which nodes."""

    office: str
    agent: str | None = None
    computers: int = 0
    away: int = 0
    calls: int = 0
    nodes: list[str] = msgspec.field(default_factory=list)
    frozen: int = 0

    @property
    def place(self) -> tuple[str, ...]:
        return (self.office,)


class CallRow(msgspec.Struct, array_like=True):
    """A request in flight. `tool` is unknown for a sealed call, and absent for a request that calls no tool.

    `state` is the last that its computer has told, and `state_since` when it did.
    """

    office: str
    agent: str
    principal: str
    computer: str
    event: str
    req_id: str
    since: float
    deadline: float
    bytes: int
    sent: bool
    node: str | None
    tool: str | None = None
    sealed: bool = False
    state: str | None = None
    state_since: float | None = None

    @property
    def place(self) -> tuple[str, ...]:
        return f"{self.since:.6f}", self.office, self.req_id

    @property
    def texts(self) -> tuple[str, ...]:
        return self.office, self.agent, self.computer, self.tool or "", self.principal


class NodeRow(msgspec.Struct):
    """A node; a Server alone is one without a name. `lease` is what is left of it, in seconds."""

    node: str | None
    version: str
    since: float
    connections: int = 0
    members: int = 0
    calls: int = 0
    ready: bool = True
    url: str | None = None
    lease: float | None = None


class KeyRow(msgspec.Struct):
    """A key by its id, which does not reveal it. `fixed`: it is an option of the program, not in the keys file.

    Connections of an admin key are its open pages and streams. A key without `last_use` was not used after
    `uses_since`, and perhaps before.
    """

    id: str
    principal: str
    offices: list[str] | None
    roles: list[str] | None
    names: list[str] | None
    expires: float | None
    device: str | None
    expired: bool
    fixed: bool
    connections: int = 0
    last_use: float | None = None
    uses_since: float = 0.0

    @property
    def place(self) -> tuple[str, ...]:
        return self.principal, self.id

    @property
    def is_admin_key(self) -> bool:
        return bool(OPERATOR_ROLES.intersection(self.roles or ()))

    def with_uses(self, uses: KeyUses) -> KeyRow:
        count, last_use = uses.connections.get(self.id, 0), uses.last.get(self.id)
        return msgspec.structs.replace(self, connections=count, last_use=last_use, uses_since=uses.since)


class KeyUses(msgspec.Struct):
    """The connections of each key, and its last use. One that is not in `last` was not used after `since`."""

    since: float
    connections: dict[str, int]
    last: dict[str, float]

    def add(self, other: KeyUses) -> None:
        """Adds those of another node."""
        self.since = max(self.since, other.since)
        self.connections = Counter(self.connections) + Counter(other.connections)
        self.last |= {name: max(at, self.last.get(name, at)) for name, at in other.last.items()}


class GrantRow(msgspec.Struct):
    """A grant of a person to an MCP client. `domain` is proved; the name is what the client says of itself."""

    id: str
    principal: str
    office: str
    client: str
    domain: str
    created: float
    used: float
    expires: float


class SessionSeen(msgspec.Struct):
    """An operator's session on one node: ended, or idle for so many seconds; neither if the node has not seen it."""

    is_ended: bool = False
    idle: float | None = None


class RowPage(msgspec.Struct, Generic[Row]):
    """Some of the rows that were chosen. `next` is the cursor of the next page, `None` on the last one."""

    rows: Sequence[Row]
    total: int
    next: str | None = None


class Selection(msgspec.Struct, frozen=True):
    """Which rows: those that fit every filter that is given. `search` is a part of any text of a row."""

    search: str = ""
    office: str | None = None
    role: str | None = None
    name: str | None = None
    principal: str | None = None
    agent: str | None = None
    computer: str | None = None
    tool: str | None = None
    event: str | None = None
    outcome: str | None = None
    node: str | None = None
    limit: int = _PAGE
    after: str | None = None

    @classmethod
    def read(cls, query: Mapping[str, str], allowed: Sequence[str]) -> Selection:
        """The filters of a query. Raises `BadRequest` for one that there is not, so that none is ignored silently."""
        others = dict(query)
        fields: dict[str, Any] = {name: others.pop(name) for name in (*allowed, "after") if name in others}
        if (limit := others.pop("limit", None)) is not None:
            if not limit.isdecimal() or not 1 <= int(limit) <= MAX_PAGE:
                raise BadRequest(f"limit: must be a whole number from 1 to {MAX_PAGE}")
            fields["limit"] = int(limit)
        if others:
            raise BadRequest(f"{min(others)}: there is no such filter here, there are {', '.join((*allowed, 'limit'))}")
        return cls(**fields)

    def choose(self, rows: Iterable[Row]) -> list[Row]:
        """The rows that fit, of all pages."""
        wanted = {field: value for field in _EXACT if (value := getattr(self, field)) is not None}
        part = self.search.casefold()
        return [
            row
            for row in rows
            if all(getattr(row, field, None) == value for field, value in wanted.items())
            and (not part or any(part in text.casefold() for text in getattr(row, "texts", ())))
        ]


def page_of(
    rows: Iterable[Row], selection: Selection, place: Callable[[Row], tuple[str, ...]], *, newest_first: bool = False
) -> RowPage[Row]:
    """The page behind the cursor. `place` is the order of the list."""
    ordered = sorted(rows, key=place, reverse=newest_first)
    total = len(ordered)
    if selection.after is not None:
        cursor = _read_cursor(selection.after)
        ordered = [row for row in ordered if (place(row) < cursor if newest_first else place(row) > cursor)]
    shown, cursor_text = ordered[: selection.limit], None
    if len(ordered) > len(shown):
        last = _BETWEEN.join(place(shown[-1])).encode("utf-8", "surrogatepass")
        cursor_text = urlsafe_b64encode(last).decode().rstrip("=")
    return RowPage(shown, total, cursor_text)


def _read_cursor(text: str) -> tuple[str, ...]:
    """Raises `BadRequest`."""
    try:
        place = b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        return tuple(place.decode("utf-8", "surrogatepass").split(_BETWEEN))
    except ValueError:
        raise BadRequest("after: must be the `next` of an earlier page") from None


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

    def key_uses(self) -> KeyUses:
        """Return the uses of each credential here. One that is connected is in use now."""
        operators = [visit.principal for visit in self.hub.visits if visit.principal.is_operator]
        principals = [*operators, *(connection.principal for connection in self.hub.connections)]
        counts = Counter(principal.credential for principal in principals)
        return KeyUses(self.hub.uses.since, counts, {**self.hub.uses.last, **dict.fromkeys(counts, time.time())})

    def disconnect(self, wanted: str) -> list[Member]:
        """Ends the connection with this id, and releases its seats, which are returned. Raises `NotFound`."""
        connection = next((each for each in self.hub.connections if _id_of(each.sid) == wanted), None)
        if connection is None:
            raise NotFound("no such connection, it may have ended meanwhile")
        seats = [seat for seat in self.hub.directory.own_members() if seat.sid == connection.sid]
        self.hub.dismiss(connection)
        return seats

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
        row.frozen = member.role == "computer" and self.hub.freezes.of(member.office_id, member.name) is not None
        if connection := self.hub.connections.get(member.sid):
            row.connected = True
            row.address, row.device = connection.address, connection.principal.device
            channel = connection.channel
            while isinstance(channel, HoldingChannel | BatchingChannel):
                channel = channel.channel
            row.since, row.unread = connection.since, int(getattr(channel, "unread", 0))
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
            *(call.state or ()),
        )


def _id_of(sid: str) -> str:
    """Names a connection. Who knows a sid could speak for its session."""
    return sha256(sid.encode()).hexdigest()[:16]
