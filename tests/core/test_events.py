"""The event table and what is looked up in it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2c_smcp.errors import UnsupportedEvent
from a2c_smcp.protocol import EVENTS, Action, lookup
from a2c_smcp.protocol.events import OLDER_FIELDS, OLDER_NOTICES

# From 002, WIRE §9 and PROTOCOL-0.4: its senders, what the Server does, its structure, the notice that follows.
ROWS = {
    "client:tool_call": ("agent", Action.FORWARD, "ToolCallReq", None),
    "client:get_config": ("agent", Action.FORWARD, "GetComputerConfigReq", None),
    "client:get_tools": ("agent", Action.FORWARD, "GetToolsReq", None),
    "client:get_desktop": ("agent", Action.FORWARD, "GetDeskTopReq", None),
    "server:join_office": ("agent computer", Action.JOIN, "EnterOfficeReq", "notify:enter_office"),
    "server:leave_office": ("agent computer", Action.LEAVE, "LeaveOfficeReq", "notify:leave_office"),
    "server:update_config": ("computer", Action.BROADCAST, "UpdateComputerConfigReq", "notify:update_config"),
    "server:update_tool_list": ("computer", Action.BROADCAST, "UpdateToolListNotification", "notify:update_tool_list"),
    "server:update_desktop": ("computer", Action.BROADCAST, "UpdateComputerConfigReq", "notify:update_desktop"),
    "server:tool_call_cancel": ("agent", Action.CANCEL, "AgentCallData", "notify:tool_call_cancel"),
    "server:list_room": ("agent", Action.LIST, "ListRoomReq", None),
    "client:answer_question": ("agent", Action.FORWARD, "AnswerQuestionReq", None),
    "client:get_questions": ("agent", Action.FORWARD, "GetQuestionsReq", None),
    "client:set_log_level": ("agent", Action.FORWARD, "SetLogLevelReq", None),
    "server:tell_progress": ("computer", Action.TELL, "TellProgressNotification", "notify:tell_progress"),
    "server:tell_question": ("computer", Action.TELL, "TellQuestionNotification", "notify:tell_question"),
    "server:tell_question_ended": (
        "computer",
        Action.TELL,
        "TellQuestionEndedNotification",
        "notify:tell_question_ended",
    ),
    "server:tell_log": ("computer", Action.TELL, "TellLogNotification", "notify:tell_log"),
    "server:tell_resource": ("computer", Action.TELL, "TellResourceNotification", "notify:tell_resource"),
    "server:update_skills": ("computer", Action.BROADCAST, "UpdateSkillsNotification", "notify:update_skills"),
    "server:update_resource_list": (
        "computer",
        Action.BROADCAST,
        "UpdateServerListNotification",
        "notify:update_resource_list",
    ),
    "server:update_prompts": ("computer", Action.BROADCAST, "UpdateServerListNotification", "notify:update_prompts"),
    "client:get_servers": ("agent", Action.FORWARD, "GetServersReq", None),
    "client:get_resources": ("agent", Action.FORWARD, "GetResourcesReq", None),
    "client:get_resource_templates": ("agent", Action.FORWARD, "GetResourceTemplatesReq", None),
    "client:read_resource": ("agent", Action.FORWARD, "ReadResourceReq", None),
    "client:subscribe_resource": ("agent", Action.FORWARD, "SubscribeResourceReq", None),
    "client:unsubscribe_resource": ("agent", Action.FORWARD, "SubscribeResourceReq", None),
    "client:get_prompts": ("agent", Action.FORWARD, "GetPromptsReq", None),
    "client:get_prompt": ("agent", Action.FORWARD, "GetPromptReq", None),
    "client:complete": ("agent", Action.FORWARD, "CompleteReq", None),
    "client:sealed": ("agent", Action.FORWARD, "SealedReq", None),
    "client:get_device": ("agent", Action.FORWARD, "GetDeviceReq", None),
    "client:get_skills": ("agent", Action.FORWARD, "GetSkillsReq", None),
    "client:get_skill": ("agent", Action.FORWARD, "GetSkillReq", None),
    "client:get_blob": ("agent", Action.FORWARD, "GetBlobReq", None),
    "client:put_blob": ("agent", Action.FORWARD, "PutBlobReq", None),
}
OLDER = {  # WIRE §2
    "client:get_mcp_config": "client:get_config",
    "server:update_mcp_config": "server:update_config",
    "server:desktop_refresh": "server:update_desktop",
}
REFUSED = [
    *("connect", "disconnect", "connect_error", "message", "", " ", ":", "client", "client:", "server:", "notify:"),
    *("server:foo", "server:update", "server:update_", "server:join", "server:joinoffice", "server:desktop_refreshed"),
    *("server:tell", "server:tell_", "server:tells_x", "notify:tell_progress", "server:Tell_progress"),
    *("notify:update_config", "notify:enter_office", "notify:tool_call_cancel", "notify:desktop_refresh", "notify:x"),
    *("Client:tool_call", "CLIENT:TOOL_CALL", "Server:join_office", "server:Join_Office", "server:Update_config"),
    *("client:tool_call ", " client:tool_call", "client: tool_call", "server:join_office\n", "server:update_x\t"),
    *("client:a\x00b", "client:a\nb", "client:\x1b[0m", "client:\u202eevil", "server:update_\x7f", "client:\u2066x"),
    *("client:" + "x" * 129, "server:update_" + "x" * 129, "client:" + "x" * 10**6),
    *("client.tool_call", "client_tool_call", "on_client_tool_call", "clienttool_call", "/smcp", "smcp:x", "*"),
]


@pytest.mark.covers("event-names")
def test_the_table_has_a_row_for_every_event_and_no_other() -> None:
    assert sorted(row.name for row in EVENTS) == sorted(ROWS)


@pytest.mark.covers("event-names")
@pytest.mark.parametrize(("name", "row"), ROWS.items())
def test_a_row_says_what_the_specification_says(name: str, row: tuple[str, Action, str, str | None]) -> None:
    event = lookup(name)
    assert event.name == name
    assert event.request is not None
    assert (" ".join(sorted(event.senders)), event.action, event.request.__name__, event.notice) == row


@pytest.mark.covers("older-names")
@pytest.mark.parametrize(("older", "canonical"), OLDER.items())
def test_an_older_name_finds_the_row_of_the_canonical_one(older: str, canonical: str) -> None:
    assert lookup(older) is lookup(canonical)


@pytest.mark.covers("older-names")
def test_there_are_no_other_older_names() -> None:
    assert {row.older: row.name for row in EVENTS if row.older} == OLDER
    assert OLDER_FIELDS == {"agent": "robot_id"}
    assert OLDER_NOTICES == {
        "notify:update_config": "notify:update_mcp_config",
        "notify:update_desktop": "notify:desktop_refresh",
    }


@pytest.mark.covers("event-names")
@pytest.mark.parametrize(
    "name", ["client:x", "client:get_roots", "client:a b", "client:a:b", "client:工具", "client:" + "x" * 121]
)
def test_a_client_event_newer_than_the_table_is_forwarded_for_agents(name: str) -> None:
    event = lookup(name)
    assert (event.name, event.action, event.senders) == (name, Action.FORWARD, ("agent",))
    assert (event.notice, event.required) == (None, {"computer"})


@pytest.mark.covers("event-names")
@pytest.mark.parametrize(
    "name", ["server:update_x", "server:update_roots", "server:update_finder", "server:update_update_x"]
)
def test_an_update_newer_than_the_table_is_broadcast_for_computers(name: str) -> None:
    event = lookup(name)
    assert (event.name, event.action, event.senders) == (name, Action.BROADCAST, ("computer",))
    assert (event.notice, event.required) == (name.replace("server:", "notify:", 1), {"computer"})


@pytest.mark.covers("event-names")
@pytest.mark.parametrize("name", ["server:tell_x", "server:tell_root", "server:tell_tell_x", "server:tell_进度"])
def test_a_tell_newer_than_the_table_is_for_computers_and_needs_an_agent(name: str) -> None:
    event = lookup(name)
    assert (event.name, event.action, event.senders) == (name, Action.TELL, ("computer",))
    assert (event.notice, event.required) == (name.replace("server:", "notify:", 1), {"agent"})
    assert event.checked == {"agent", "computer", "req_id"}


@pytest.mark.covers("event-names")
@pytest.mark.parametrize("name", REFUSED, ids=lambda name: ascii(name[:30]))
def test_a_name_that_is_no_event_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedEvent) as refusal:
        lookup(name)
    assert refusal.value.code == 400
    assert len(refusal.value.message) < 1000, "a refusal does not send a long name back"


@given(
    st.text()
    | st.builds(
        str.__add__, st.sampled_from(["client:", "server:", "server:update_", "server:tell_", "notify:"]), st.text()
    )
)
def test_only_forwards_broadcasts_and_tells_can_be_invented(name: str) -> None:
    try:
        event = lookup(name)
    except UnsupportedEvent:
        return
    assert event in EVENTS or (event.action, name.partition(":")[0]) in (
        (Action.FORWARD, "client"),
        (Action.BROADCAST, "server"),
        (Action.TELL, "server"),
    )
