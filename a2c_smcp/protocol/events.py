"""The event table: a row for each event says who sends it, what it carries, which notice it causes, its older names.

ARCHITECTURE.md lists what else a new event needs. The older names of events and fields (003) are in `older…` and
`OLDER_FIELDS`; code that reads a payload accepts both names of a field.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from typing import Any

from a2c_smcp import device_events, mcp_events, published_events, smcp
from a2c_smcp.errors import UnsupportedEvent
from a2c_smcp.protocol.names import MAX_NAME, fault_in
from a2c_smcp.types import Role

__all__ = ["EVENTS", "OLDER_FIELDS", "OLDER_NOTICES", "Action", "EventSpec", "lookup"]


class Action(Enum):
    """What the Server does with an event."""

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

    `options` has further fields that a request may have, beside those of 000. `is_call`: it may run a tool, so it is
    never run twice, can be cancelled, and its errors say whether it has run (WIRE §5). `is_sealed`: only the computer
    can read it.
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

# Not in 000: `instance` resumes a seat, `office_id` picks one of an agent's offices (WIRE §4).
_EXTRA_FIELDS = {
    Action.JOIN: frozenset({"instance"}),
    Action.FORWARD: frozenset({"agent", "office_id"}),
    Action.TELL: frozenset({"computer", "req_id"}),
}

_EITHER: tuple[Role, ...] = ("agent", "computer")
_AGENT: tuple[Role, ...] = ("agent",)
_COMPUTER: tuple[Role, ...] = ("computer",)

EVENTS = (
    EventSpec(smcp.JOIN_OFFICE_EVENT, Action.JOIN, _EITHER, smcp.EnterOfficeReq, smcp.ENTER_OFFICE_NOTIFICATION),
    EventSpec(smcp.LEAVE_OFFICE_EVENT, Action.LEAVE, _EITHER, smcp.LeaveOfficeReq, smcp.LEAVE_OFFICE_NOTIFICATION),
    EventSpec(smcp.LIST_ROOM_EVENT, Action.LIST, _AGENT, smcp.ListRoomReq),
    EventSpec(
        smcp.CANCEL_TOOL_CALL_EVENT, Action.CANCEL, _AGENT, smcp.AgentCallData, smcp.CANCEL_TOOL_CALL_NOTIFICATION
    ),
    EventSpec(
        smcp.UPDATE_CONFIG_EVENT,
        Action.BROADCAST,
        _COMPUTER,
        smcp.UpdateComputerConfigReq,
        smcp.UPDATE_CONFIG_NOTIFICATION,
        older="server:update_mcp_config",
        older_notice="notify:update_mcp_config",
    ),
    EventSpec(
        smcp.UPDATE_TOOL_LIST_EVENT,
        Action.BROADCAST,
        _COMPUTER,
        smcp.UpdateToolListNotification,
        smcp.UPDATE_TOOL_LIST_NOTIFICATION,
    ),
    EventSpec(
        smcp.UPDATE_DESKTOP_EVENT,
        Action.BROADCAST,
        _COMPUTER,
        smcp.UpdateComputerConfigReq,
        smcp.UPDATE_DESKTOP_NOTIFICATION,
        older="server:desktop_refresh",
        older_notice="notify:desktop_refresh",
    ),
    EventSpec(
        published_events.UPDATE_SKILLS_EVENT,
        Action.BROADCAST,
        _COMPUTER,
        published_events.UpdateSkillsNotification,
        published_events.UPDATE_SKILLS_NOTIFICATION,
    ),
    EventSpec(
        mcp_events.UPDATE_RESOURCE_LIST_EVENT,
        Action.BROADCAST,
        _COMPUTER,
        mcp_events.UpdateServerListNotification,
        mcp_events.UPDATE_RESOURCE_LIST_NOTIFICATION,
    ),
    EventSpec(
        mcp_events.UPDATE_PROMPTS_EVENT,
        Action.BROADCAST,
        _COMPUTER,
        mcp_events.UpdateServerListNotification,
        mcp_events.UPDATE_PROMPTS_NOTIFICATION,
    ),
    EventSpec(
        mcp_events.TELL_PROGRESS_EVENT,
        Action.TELL,
        _COMPUTER,
        mcp_events.TellProgressNotification,
        mcp_events.TELL_PROGRESS_NOTIFICATION,
    ),
    EventSpec(
        mcp_events.TELL_QUESTION_EVENT,
        Action.TELL,
        _COMPUTER,
        mcp_events.TellQuestionNotification,
        mcp_events.TELL_QUESTION_NOTIFICATION,
    ),
    EventSpec(
        mcp_events.TELL_QUESTION_ENDED_EVENT,
        Action.TELL,
        _COMPUTER,
        mcp_events.TellQuestionEndedNotification,
        mcp_events.TELL_QUESTION_ENDED_NOTIFICATION,
    ),
    EventSpec(
        mcp_events.TELL_LOG_EVENT,
        Action.TELL,
        _COMPUTER,
        mcp_events.TellLogNotification,
        mcp_events.TELL_LOG_NOTIFICATION,
    ),
    EventSpec(
        mcp_events.TELL_RESOURCE_EVENT,
        Action.TELL,
        _COMPUTER,
        mcp_events.TellResourceNotification,
        mcp_events.TELL_RESOURCE_NOTIFICATION,
    ),
    EventSpec(
        smcp.TOOL_CALL_EVENT,
        Action.FORWARD,
        _AGENT,
        smcp.ToolCallReq,
        options=mcp_events.ToolCallOptions,
        is_call=True,
    ),
    EventSpec(
        device_events.SEALED_EVENT, Action.FORWARD, _AGENT, device_events.SealedReq, is_call=True, is_sealed=True
    ),
    EventSpec(device_events.GET_DEVICE_EVENT, Action.FORWARD, _AGENT, device_events.GetDeviceReq),
    EventSpec(smcp.GET_TOOLS_EVENT, Action.FORWARD, _AGENT, smcp.GetToolsReq),
    EventSpec(smcp.GET_CONFIG_EVENT, Action.FORWARD, _AGENT, smcp.GetComputerConfigReq, older="client:get_mcp_config"),
    EventSpec(smcp.GET_DESKTOP_EVENT, Action.FORWARD, _AGENT, smcp.GetDeskTopReq),
    EventSpec(mcp_events.ANSWER_QUESTION_EVENT, Action.FORWARD, _AGENT, mcp_events.AnswerQuestionReq),
    EventSpec(mcp_events.GET_QUESTIONS_EVENT, Action.FORWARD, _AGENT, mcp_events.GetQuestionsReq),
    EventSpec(mcp_events.SET_LOG_LEVEL_EVENT, Action.FORWARD, _AGENT, mcp_events.SetLogLevelReq),
    EventSpec(mcp_events.GET_SERVERS_EVENT, Action.FORWARD, _AGENT, mcp_events.GetServersReq),
    EventSpec(published_events.GET_RESOURCES_EVENT, Action.FORWARD, _AGENT, published_events.GetResourcesReq),
    EventSpec(mcp_events.GET_RESOURCE_TEMPLATES_EVENT, Action.FORWARD, _AGENT, mcp_events.GetResourceTemplatesReq),
    EventSpec(
        mcp_events.READ_RESOURCE_EVENT,
        Action.FORWARD,
        _AGENT,
        mcp_events.ReadResourceReq,
        options=mcp_events.InputOptions,
    ),
    EventSpec(mcp_events.SUBSCRIBE_RESOURCE_EVENT, Action.FORWARD, _AGENT, mcp_events.SubscribeResourceReq),
    EventSpec(mcp_events.UNSUBSCRIBE_RESOURCE_EVENT, Action.FORWARD, _AGENT, mcp_events.SubscribeResourceReq),
    EventSpec(mcp_events.GET_PROMPTS_EVENT, Action.FORWARD, _AGENT, mcp_events.GetPromptsReq),
    EventSpec(
        mcp_events.GET_PROMPT_EVENT, Action.FORWARD, _AGENT, mcp_events.GetPromptReq, options=mcp_events.InputOptions
    ),
    EventSpec(mcp_events.COMPLETE_EVENT, Action.FORWARD, _AGENT, mcp_events.CompleteReq),
    EventSpec(published_events.GET_SKILLS_EVENT, Action.FORWARD, _AGENT, published_events.GetSkillsReq),
    EventSpec(published_events.GET_SKILL_EVENT, Action.FORWARD, _AGENT, published_events.GetSkillReq),
    EventSpec(published_events.GET_BLOB_EVENT, Action.FORWARD, _AGENT, published_events.GetBlobReq),
    EventSpec(published_events.PUT_BLOB_EVENT, Action.FORWARD, _AGENT, published_events.PutBlobReq),
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
