"""What a connection has asked before: requests like it were sound, and went there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from a2c_smcp.protocol.offices import Member, Office

__all__ = ["ROUTE", "Way", "Ways"]

ROUTE = frozenset({"agent", "robot_id", "computer", "office_id", "tool_name"})
"""The fields that two requests have in common if they go the same way."""

_MOST = 256


class Way(NamedTuple):
    """From a caller to a target, as long as all offices of the caller's connection are what they were."""

    offices: tuple[Office, ...]
    caller: Member
    target: Member


class Ways:
    """Those of one connection, while it has the seats it has."""

    __slots__ = ("_ways",)

    def __init__(self) -> None:
        self._ways: dict[tuple[Any, ...], Way] = {}

    def find(self, event: str, data: Mapping[str, Any], at_hand: Callable[[str], Office | None]) -> Way | None:
        """The way of an earlier request like this one, if it still holds."""
        try:
            way = self._ways.get(_key(event, data))
        except TypeError:  # a list or an object where a name belongs
            return None
        if way is None:
            return None
        for office in way.offices:
            if at_hand(office.office_id) is not office:
                return None
        return way

    def keep(self, event: str, data: Mapping[str, Any], way: Way) -> None:
        if len(self._ways) >= _MOST:
            self._ways.clear()
        self._ways[_key(event, data)] = way

    def clear(self) -> None:
        self._ways.clear()


def _key(event: str, data: Mapping[str, Any]) -> tuple[Any, ...]:
    get = data.get
    return (event, get("agent"), get("robot_id"), get("computer"), get("office_id"), get("tool_name"))
