"""Cache of routes per connection: a request like an earlier one has sound names and goes to the same computer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from a2c_smcp.protocol.codec import Check, checks_beside
from a2c_smcp.protocol.events import EventSpec
from a2c_smcp.protocol.offices import Member, Office
from a2c_smcp.server.routing_fields import NAMES, RecordedRequest, RequestFields, UnrecordedRequest
from a2c_smcp.smcp import TOOL_CALL_EVENT

_ROUTE_FIELDS = ("agent", "robot_id", "computer", "office_id", "tool_name")
"""Two requests with the same values here have the same route."""

_SOUND = frozenset({*_ROUTE_FIELDS, "timeout", "params", "extend"})
"""Fields that need no check in a request with a known route, if they are there."""

_KEY = (str, UnsetType)

_READ = frozenset(RequestFields.__struct_fields__)

_MOST = 256


class Route(msgspec.Struct, eq=False):
    """The way from a caller to a target. It is valid as long as every office of the caller's connection is unchanged.

    `checks` are those that a request still has to pass. A call must have a `timeout`, too, and a tool call `params`.
    All tool calls of a route are of one tool: in `notes` a recorder may keep what it has found out about them.
    """

    event: EventSpec
    caller: Member
    target: Member
    offices: tuple[Office, ...] = ()
    checks: tuple[Check, ...] = ()
    is_call: bool = False
    is_tool_call: bool = False
    notes: dict[str, Any] = {}

    def is_sound(self, request: UnrecordedRequest | RecordedRequest) -> bool:
        """True if the other fields are sound. If not, the whole payload has to be checked."""
        for field, rule, is_required in self.checks:
            value = getattr(request, field)
            if is_required if value is UNSET else rule(value):
                return False
        if self.is_call and request.timeout is UNSET:
            return False
        return not self.is_tool_call or request.params is not UNSET


def make_route(event: EventSpec, offices: Sequence[Office], caller: Member, target: Member) -> Route:
    checks = checks_beside(_SOUND, event, NAMES)
    return Route(event, caller, target, tuple(offices), checks, event.is_call, event.name == TOOL_CALL_EVENT)


class RouteCache:
    """The routes of one connection, while its seats are unchanged."""

    __slots__ = ("_routes",)

    def __init__(self) -> None:
        self._routes: dict[tuple[object, ...], Route] = {}

    def find(self, name: str, request: RequestFields, cached_office: Callable[[str], Office | None]) -> Route | None:
        """The route of an earlier request with the same names, if it is still valid."""
        route = self._routes.get(
            (name, request.agent, request.robot_id, request.computer, request.office_id, request.tool_name)
        )
        if route is None:
            return None
        for office in route.offices:
            if cached_office(office.office_id) is not office:
                return None
        return route

    def keep(self, name: str, fields: Mapping[str, object], route: Route) -> None:
        """Caches a route, unless its requests have a field that `RequestFields` does not hold."""
        key = (name, *(fields.get(field, UNSET) for field in _ROUTE_FIELDS))
        # Of an event that is newer than this Server any field may have any type.
        if any(field not in _READ for field, _, _ in route.checks) or not all(isinstance(each, _KEY) for each in key):
            return
        if len(self._routes) >= _MOST:
            self._routes.clear()
        self._routes[key] = route

    def clear(self) -> None:
        self._routes.clear()
