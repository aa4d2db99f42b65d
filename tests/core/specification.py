"""The events as the specification has them: written from 000, 002, WIRE §§4, 9 and PROTOCOL-0.4, not from the code."""

from __future__ import annotations

from typing import NamedTuple

from a2c_smcp.protocol.events import Action

__all__ = ["CHECKED", "EVENTS", "Event", "rule_of"]

INPUTS = "questions blobs input_responses request_state client_capabilities client"
OPTIONS = f"{INPUTS} progress states extend _meta"
ASKS = "agent req_id computer"
SERVER = f"{ASKS} mcp_server"
TELL = "computer office_id"


class Event(NamedTuple):
    """Its structure, the required and the optional keys of that, and what is checked although it is not in it."""

    structure: str
    required: str
    optional: str = ""
    beside: str = ""

    def checked_beside(self, name: str) -> str:
        """Any request may name its office, any request and any tell the seat that it is for."""
        is_free = name.startswith("client:") and "office_id" not in self.required
        seat = "seat" if name.startswith(("server:tell_", "client:")) else ""
        return f"{seat} {'office_id' if is_free else ''} {self.optional} {self.beside}"


EVENTS = {
    "client:tool_call": Event("ToolCallReq", f"{ASKS} tool_name params timeout", "", OPTIONS),
    "client:get_config": Event("GetComputerConfigReq", ASKS),
    "client:get_tools": Event("GetToolsReq", ASKS),
    "client:get_desktop": Event("GetDeskTopReq", ASKS, "desktop_size window"),
    "server:join_office": Event("EnterOfficeReq", "role name office_id", "", "instance seats"),
    "server:leave_office": Event("LeaveOfficeReq", "office_id"),
    "server:update_config": Event("UpdateComputerConfigReq", "computer"),
    "server:update_tool_list": Event("UpdateToolListNotification", "computer"),
    "server:update_desktop": Event("UpdateComputerConfigReq", "computer"),
    "server:tool_call_cancel": Event("AgentCallData", "agent req_id"),
    "server:list_room": Event("ListRoomReq", "agent req_id office_id"),
    "client:withdraw_call": Event("WithdrawCallReq", f"{ASKS} call"),
    "client:answer_question": Event("AnswerQuestionReq", f"{ASKS} question_id action", "content"),
    "client:get_questions": Event("GetQuestionsReq", ASKS),
    "client:set_log_level": Event("SetLogLevelReq", f"{ASKS} level", "mcp_server"),
    "server:tell_progress": Event("TellProgressNotification", "agent req_id progress", f"{TELL} total message"),
    "server:tell_question": Event(
        "TellQuestionNotification", "agent req_id question_id request", f"{TELL} mcp_server tool_name approval"
    ),
    "server:tell_question_ended": Event("TellQuestionEndedNotification", "agent req_id question_id", f"{TELL} request"),
    "server:tell_state": Event("TellStateNotification", "agent req_id state since", f"{TELL} reason"),
    "server:tell_log": Event("TellLogNotification", "agent mcp_server level data", f"{TELL} logger", "req_id"),
    "server:tell_resource": Event("TellResourceNotification", "agent mcp_server uri", TELL, "req_id"),
    "server:update_skills": Event("UpdateSkillsNotification", "computer"),
    "server:update_resource_list": Event("UpdateServerListNotification", "computer", "mcp_server"),
    "server:update_prompts": Event("UpdateServerListNotification", "computer", "mcp_server"),
    "server:update_state": Event("UpdateStateNotification", "computer frozen"),
    "client:get_servers": Event("GetServersReq", ASKS),
    "client:get_resources": Event("GetResourcesReq", SERVER, "cursor titles"),
    "client:get_resource_templates": Event("GetResourceTemplatesReq", SERVER, "cursor"),
    "client:read_resource": Event("ReadResourceReq", f"{SERVER} uri", "", INPUTS),
    "client:subscribe_resource": Event("SubscribeResourceReq", f"{SERVER} uri"),
    "client:unsubscribe_resource": Event("SubscribeResourceReq", f"{SERVER} uri"),
    "client:get_prompts": Event("GetPromptsReq", ASKS, "mcp_server cursor"),
    "client:get_prompt": Event("GetPromptReq", f"{SERVER} name", "arguments", INPUTS),
    "client:complete": Event("CompleteReq", f"{SERVER} ref argument", "context"),
    "client:sealed": Event("SealedReq", f"{ASKS} office_id timeout kid sealed", "extend"),
    "client:get_device": Event("GetDeviceReq", f"{ASKS} nonce"),
    "client:get_skills": Event("GetSkillsReq", ASKS),
    "client:get_skill": Event("GetSkillReq", f"{ASKS} name", "rel_path as_mcp"),
    "client:get_blob": Event("GetBlobReq", f"{ASKS} blob_handle", "chunk_offset max_chunk_bytes binary"),
    "client:put_blob": Event("PutBlobReq", f"{ASKS} chunk_offset eof blob", "upload_id total_size sha256 name_hint"),
}

OWN_RULES = {
    "server:join_office": ("agent computer", Action.JOIN, "notify:enter_office"),
    "server:leave_office": ("agent computer", Action.LEAVE, "notify:leave_office"),
    "server:tool_call_cancel": ("agent", Action.CANCEL, "notify:tool_call_cancel"),
    "server:list_room": ("agent", Action.LIST, None),
}
"""Who may send an event, what the Server does, and the notice that follows, where no rule of its group says it."""


def rule_of(name: str) -> tuple[str, Action, str | None]:
    if name in OWN_RULES:
        return OWN_RULES[name]
    if name.startswith("client:"):
        return "agent", Action.FORWARD, None
    action = Action.TELL if name.startswith("server:tell_") else Action.BROADCAST
    return "computer", action, name.replace("server:", "notify:")


UNLISTED = {
    "server:tell_newer": ("agent", "computer seat req_id"),
    "client:newer": ("computer", "agent office_id seat"),
}
UNLISTED["server:update_newer"] = ("computer", "")
"""Events that are newer than the table, each in the place of its group."""

CHECKED = {name: (event.required, event.checked_beside(name)) for name, event in EVENTS.items()} | UNLISTED
"""By event: the fields that are required, and those that are optional but checked."""
