"""Cache of routes per connection: a request like an earlier one has sound names and goes to the same computer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from a2c_smcp.protocol.codec import Check
from a2c_smcp.protocol.events import Event
from a2c_smcp.protocol.offices import Member, Office

__all__ = ["ROUTE_FIELDS", "Route", "RouteCache"]

ROUTE_FIELDS = frozenset({"agent", "robot_id", "computer", "office_id", "tool_name"})
"""Two requests with the same values here have the same route."""

_MOST = 256


class Route(NamedTuple):
    """From a caller to a target. It holds as long as every office of the caller's connection is unchanged."""

    event: Event
    offices: tuple[Office, ...]
    caller: Member
    target: Member
    checks: tuple[Check, ...]

    def is_sound(self, fields: Mapping[str, Any]) -> bool:
        """Whether the fields beside the route are sound. If not, the whole payload has to be checked."""
        for field, rule, is_required in self.checks:
            value = fields.get(field)
            if is_required if value is None else rule(value):
                return False
        return True


class RouteCache:
    """Of one connection, for as long as its seats are unchanged."""

    __slots__ = ("_routes",)

    def __init__(self) -> None:
        self._routes: dict[tuple[Any, ...], Route] = {}

    def find(self, said: str, fields: Mapping[str, Any], at_hand: Callable[[str], Office | None]) -> Route | None:
        """The route of an earlier request like this one, if it still holds."""
        get = fields.get
        key = (said, get("agent"), get("robot_id"), get("computer"), get("office_id"), get("tool_name"))
        try:
            route = self._routes.get(key)
        except TypeError:  # a list or an object in the place of a name
            return None
        if route is None:
            return None
        for office in route.offices:
            if at_hand(office.office_id) is not office:
                return None
        return route

    def keep(self, said: str, fields: Mapping[str, Any], route: Route) -> None:
        if len(self._routes) >= _MOST:
            self._routes.clear()
        get = fields.get
        key = (said, get("agent"), get("robot_id"), get("computer"), get("office_id"), get("tool_name"))
        self._routes[key] = route

    def clear(self) -> None:
        self._routes.clear()
