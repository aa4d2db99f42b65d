"""The event table: a row for each event says who sends it, what it carries, which notice it causes, its older names.

ARCHITECTURE.md lists what else a new event needs. The older names of events and fields (003) are in `older…` and
`OLDER_FIELDS`; code that reads a payload accepts both names of a field.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cached_property
from typing import Any

from a2c_smcp import mcp_events, smcp, v04_events
from a2c_smcp.errors import SMCPError, UnsupportedEvent
from a2c_smcp.protocol.names import MAX_NAME, fault_in
from a2c_smcp.protocol.operations import OPERATIONS, Operation
from a2c_smcp.types import Role


class Action(Enum):
    """The Server's action on an event."""

    JOIN = auto()
    LEAVE = auto()
    LIST = auto()
    CANCEL = auto()
    BROADCAST = auto()
    TELL = auto()
    FORWARD = auto()


@dataclass(frozen=True)
class EventSpec:
    """One row. `request` is None for events that this version does not know: only what the Server needs is checked.

    `options` and the fields behind it are those of an `Operation`.
    """

    name: str
    action: Action
    senders: tuple[Role, ...]
    request: type[Any] | None = None
    notice: str | None = None
    older: str | None = None
    older_notice: str | None = None
    options: type[Any] | None = None
    is_call: bool = False
    is_sealed: bool = False
    fallback: type[SMCPError] | None = None

    @cached_property
    def json_name(self) -> bytes:
        """The name as JSON, as packets hold it."""
        return json.dumps(self.name, ensure_ascii=False).encode()

    @cached_property
    def required(self) -> frozenset[str]:
        """The fields that must be present."""
        fields: frozenset[str] = self.request.__required_keys__ if self.request else frozenset()
        return fields | _REQUIRED_FIELDS.get(self.action, frozenset())

    @cached_property
    def checked(self) -> frozenset[str]:
        """The fields that are checked if they are present. All others are passed on unread."""
        shapes = [shape for shape in (self.request, self.options) if shape]
        fields = frozenset(field for shape in shapes for field in shape.__annotations__)
        return fields | self.required | _EXTRA_FIELDS.get(self.action, frozenset())


_REQUIRED_FIELDS = {
    Action.BROADCAST: frozenset({"computer"}),
    Action.FORWARD: frozenset({"computer"}),
    Action.TELL: frozenset({"agent"}),
}

# Not in 000: `instance` resumes a seat, with `seats` a computer is told which agent it finds, `office_id` picks one of
# an agent's offices, `seat` means one agent, or one computer, and not the next one of its name (WIRE §4).
_EXTRA_FIELDS = {
    Action.JOIN: frozenset({"instance", "seats"}),
    Action.FORWARD: frozenset({"agent", "office_id", "seat"}),
    Action.TELL: frozenset({"computer", "req_id", "seat"}),
}

_EITHER: tuple[Role, ...] = ("agent", "computer")
_AGENT: tuple[Role, ...] = ("agent",)
_COMPUTER: tuple[Role, ...] = ("computer",)


def _update(name: str, request: type[Any], older: str | None = None) -> EventSpec:
    row = EventSpec(f"server:update_{name}", Action.BROADCAST, _COMPUTER, request, f"notify:update_{name}")
    return replace(row, older=f"server:{older}", older_notice=f"notify:{older}") if older else row


def _tell(name: str, request: type[Any]) -> EventSpec:
    return EventSpec(f"server:tell_{name}", Action.TELL, _COMPUTER, request, f"notify:tell_{name}")


def _forward(row: Operation) -> EventSpec:
    return EventSpec(
        row.event,
        Action.FORWARD,
        _AGENT,
        row.request,
        older=row.older,
        options=row.options,
        is_call=row.is_call,
        is_sealed=row.is_sealed,
        fallback=row.fallback,
    )


EVENTS = (
    EventSpec(smcp.JOIN_OFFICE_EVENT, Action.JOIN, _EITHER, smcp.EnterOfficeReq, smcp.ENTER_OFFICE_NOTIFICATION),
    EventSpec(smcp.LEAVE_OFFICE_EVENT, Action.LEAVE, _EITHER, smcp.LeaveOfficeReq, smcp.LEAVE_OFFICE_NOTIFICATION),
    EventSpec(smcp.LIST_ROOM_EVENT, Action.LIST, _AGENT, smcp.ListRoomReq),
    EventSpec(
        smcp.CANCEL_TOOL_CALL_EVENT, Action.CANCEL, _AGENT, smcp.AgentCallData, smcp.CANCEL_TOOL_CALL_NOTIFICATION
    ),
    _update("config", smcp.UpdateComputerConfigReq, older="update_mcp_config"),
    _update("tool_list", smcp.UpdateToolListNotification),
    _update("desktop", smcp.UpdateComputerConfigReq, older="desktop_refresh"),
    _update("skills", v04_events.UpdateSkillsNotification),
    _update("resource_list", mcp_events.UpdateServerListNotification),
    _update("prompts", mcp_events.UpdateServerListNotification),
    _update("state", mcp_events.UpdateStateNotification),
    _tell("progress", mcp_events.TellProgressNotification),
    _tell("state", mcp_events.TellStateNotification),
    _tell("question", mcp_events.TellQuestionNotification),
    _tell("question_ended", mcp_events.TellQuestionEndedNotification),
    _tell("log", mcp_events.TellLogNotification),
    _tell("resource", mcp_events.TellResourceNotification),
    *map(_forward, OPERATIONS),
)

OLDER_FIELDS = {"agent": "robot_id"}
OLDER_NOTICES = {row.notice: row.older_notice for row in EVENTS if row.older_notice}

_BY_NAME = {row.name: row for row in EVENTS} | {row.older: row for row in EVENTS if row.older}
_NEWER: dict[str, tuple[Action, tuple[Role, ...]]] = {
    "client:": (Action.FORWARD, _AGENT),
    "server:update_": (Action.BROADCAST, _COMPUTER),
    "server:tell_": (Action.TELL, _COMPUTER),
}


def lookup(name: object) -> EventSpec:
    """The row of an event. One whose name begins with a prefix of `_NEWER` has one even if it is not in the table."""
    if not isinstance(name, str):
        raise UnsupportedEvent("its name must be a string")
    row = _BY_NAME.get(name)
    if row is not None:
        return row
    for prefix, (action, senders) in _NEWER.items():
        if name.startswith(prefix) and not fault_in(name.removeprefix(prefix)):
            notice = None if action is Action.FORWARD else f"notify:{name.removeprefix('server:')}"
            return EventSpec(name, action, senders, notice=notice)
    raise UnsupportedEvent(repr(name[:MAX_NAME]))
