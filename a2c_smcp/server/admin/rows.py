"""What operators see, one class for each kind of row, and which rows of a list are chosen: filters and pages.

A page ends with a cursor, the place of its last row in the order of the list. The next page begins behind that place,
so rows that come and go meanwhile neither repeat a row nor skip one.
"""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from a2c_smcp.errors import BadRequest

__all__ = [
    "MAX_PAGE",
    "CallRow",
    "KeyRow",
    "MemberRow",
    "NodeRow",
    "OfficeRow",
    "RowPage",
    "Selection",
    "SessionSeen",
    "page_of",
]

MAX_PAGE = 1000
_PAGE = 100
_BETWEEN = "\0"
_EXACT = ("office", "role", "name", "principal", "agent", "computer", "tool", "event", "outcome", "node")

Row = TypeVar("Row")


class MemberRow(msgspec.Struct, array_like=True):
    """A member: a seat, and the connection that has it. `id` names the connection, and does not reveal its sid.

    `connected` is false while the seat is kept for a client whose connection was lost. `dedup`: the client
    recognises a call that is sent again.
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

    @property
    def place(self) -> tuple[str, ...]:
        return self.office, self.role, self.name

    @property
    def texts(self) -> tuple[str, ...]:
        """What a search looks at."""
        return self.office, self.name, self.principal, self.address or ""


class OfficeRow(msgspec.Struct):
    """An office: its agent, and how many computers and calls in flight it has, on which nodes."""

    office: str
    agent: str | None = None
    computers: int = 0
    away: int = 0
    calls: int = 0
    nodes: list[str] = msgspec.field(default_factory=list)

    @property
    def place(self) -> tuple[str, ...]:
        return (self.office,)


class CallRow(msgspec.Struct, array_like=True):
    """A request in flight. `tool` is unknown for a sealed call, and absent for a request that calls no tool."""

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
    """A key by its id, which does not reveal it. `fixed`: it is an option of the program, not in the keys file."""

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

    @property
    def place(self) -> tuple[str, ...]:
        return self.principal, self.id


class SessionSeen(msgspec.Struct):
    """What a node knows of an operator's session: whether it has ended, and for how many seconds it was not used.

    Without either, the node has not seen it.
    """

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
        given = dict(query)
        fields: dict[str, Any] = {name: given.pop(name) for name in (*allowed, "after") if name in given}
        if (limit := given.pop("limit", None)) is not None:
            fields["limit"] = _number(limit)
        if given:
            raise BadRequest(f"{min(given)}: there is no such filter here, there are {', '.join((*allowed, 'limit'))}")
        return cls(**fields)

    def choose(self, rows: Iterable[Row]) -> list[Row]:
        """The rows that fit, of all pages."""
        wanted = {field: value for field in _EXACT if (value := getattr(self, field)) is not None}
        part = self.search.casefold()
        return [row for row in rows if _fits(row, wanted) and (not part or _contains(row, part))]


def page_of(
    rows: Iterable[Row], selection: Selection, place: Callable[[Row], tuple[str, ...]], *, newest_first: bool = False
) -> RowPage[Row]:
    """The page behind the cursor. `place` is the order of the list."""
    ordered = sorted(rows, key=place, reverse=newest_first)
    total = len(ordered)
    if selection.after is not None:
        cursor = _read_cursor(selection.after)
        ordered = [row for row in ordered if (place(row) < cursor if newest_first else place(row) > cursor)]
    shown = ordered[: selection.limit]
    has_more = len(ordered) > len(shown)
    return RowPage(shown, total, _cursor(place(shown[-1])) if has_more else None)


def _cursor(place: tuple[str, ...]) -> str:
    return urlsafe_b64encode(_BETWEEN.join(place).encode("utf-8", "surrogatepass")).decode().rstrip("=")


def _read_cursor(text: str) -> tuple[str, ...]:
    """Raises `BadRequest`."""
    try:
        place = b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        return tuple(place.decode("utf-8", "surrogatepass").split(_BETWEEN))
    except ValueError:
        raise BadRequest("after: must be the `next` of an earlier page") from None


def _fits(row: Any, wanted: Mapping[str, str]) -> bool:
    return all(getattr(row, field, None) == value for field, value in wanted.items())


def _contains(row: Any, part: str) -> bool:
    return any(part in text.casefold() for text in row.texts)


def _number(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_PAGE:
        raise BadRequest(f"limit: must be a whole number from 1 to {MAX_PAGE}")
    return int(text)
