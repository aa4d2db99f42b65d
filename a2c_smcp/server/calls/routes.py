"""Cache of routes per connection: a request like an earlier one has sound names and goes to the same computer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import UNSET

from a2c_smcp.protocol.codec import Check, checks_beside
from a2c_smcp.protocol.events import Event
from a2c_smcp.protocol.offices import Member, Office
from a2c_smcp.server.fields import Request
from a2c_smcp.smcp import TOOL_CALL_EVENT

__all__ = ["Route", "RouteCache", "make_route"]

_ROUTE_FIELDS = ("agent", "robot_id", "computer", "office_id", "tool_name")
"""Two requests with the same values here have the same route."""

_SOUND = frozenset({*_ROUTE_FIELDS, "timeout", "params"})
"""What is sound in a `Request` with a known route, if it is there."""

_MOST = 256


class Route(NamedTuple):
    """From a caller to a target. It holds as long as every office of the caller's connection is unchanged.

    `checks` are those that a request has to pass beside: of a tool call, that everything is there as well.
    """

    event: Event
    offices: tuple[Office, ...]
    caller: Member
    target: Member
    checks: tuple[Check, ...]
    is_tool_call: bool

    def is_sound(self, request: Request) -> bool:
        """Whether the fields beside the route are sound. If not, the whole payload has to be checked."""
        for field, rule, is_required in self.checks:
            value = getattr(request, field)
            if is_required if value is UNSET else rule(value):
                return False
        return not self.is_tool_call or not (request.params is UNSET or request.timeout is UNSET)


def make_route(event: Event, offices: Sequence[Office], caller: Member, target: Member) -> Route:
    checks = checks_beside(_SOUND, event)
    return Route(event, tuple(offices), caller, target, checks, event.name == TOOL_CALL_EVENT)


class RouteCache:
    """Of one connection, for as long as its seats are unchanged."""

    __slots__ = ("_routes",)

    def __init__(self) -> None:
        self._routes: dict[tuple[Any, ...], Route] = {}

    def find(self, said: str, request: Request, at_hand: Callable[[str], Office | None]) -> Route | None:
        """The route of an earlier request like this one, if it still holds."""
        route = self._routes.get(
            (said, request.agent, request.robot_id, request.computer, request.office_id, request.tool_name)
        )
        if route is None:
            return None
        for office in route.offices:
            if at_hand(office.office_id) is not office:
                return None
        return route

    def keep(self, said: str, fields: Mapping[str, Any], route: Route) -> None:
        if len(self._routes) >= _MOST:
            self._routes.clear()
        self._routes[said, *(fields.get(name, UNSET) for name in _ROUTE_FIELDS)] = route

    def clear(self) -> None:
        self._routes.clear()
