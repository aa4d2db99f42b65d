"""The vocabulary against the specification: the tables are written from it, not from the code.

They are those of 000, 002, WIRE §9 and PROTOCOL-0.4.
"""

from typing import Any, Literal, get_args, get_type_hints

import pytest
from typing_extensions import is_typeddict

from a2c_smcp import mcp_events, published_events, smcp, types

pytestmark = pytest.mark.covers("vocabulary")

WORDS = {**vars(smcp), **vars(mcp_events), **vars(published_events)}

CONSTANTS = {
    "SMCP_NAMESPACE": "/smcp",
    "TOOL_CALL_EVENT": "client:tool_call",
    "GET_CONFIG_EVENT": "client:get_config",
    "GET_TOOLS_EVENT": "client:get_tools",
    "GET_DESKTOP_EVENT": "client:get_desktop",
    "JOIN_OFFICE_EVENT": "server:join_office",
    "LEAVE_OFFICE_EVENT": "server:leave_office",
    "UPDATE_CONFIG_EVENT": "server:update_config",
    "UPDATE_TOOL_LIST_EVENT": "server:update_tool_list",
    "UPDATE_DESKTOP_EVENT": "server:update_desktop",
    "CANCEL_TOOL_CALL_EVENT": "server:tool_call_cancel",
    "LIST_ROOM_EVENT": "server:list_room",
    "ENTER_OFFICE_NOTIFICATION": "notify:enter_office",
    "LEAVE_OFFICE_NOTIFICATION": "notify:leave_office",
    "UPDATE_CONFIG_NOTIFICATION": "notify:update_config",
    "UPDATE_TOOL_LIST_NOTIFICATION": "notify:update_tool_list",
    "UPDATE_DESKTOP_NOTIFICATION": "notify:update_desktop",
    "CANCEL_TOOL_CALL_NOTIFICATION": "notify:tool_call_cancel",
    "ANSWER_QUESTION_EVENT": "client:answer_question",
    "GET_QUESTIONS_EVENT": "client:get_questions",
    "SET_LOG_LEVEL_EVENT": "client:set_log_level",
    "TELL_PROGRESS_EVENT": "server:tell_progress",
    "TELL_QUESTION_EVENT": "server:tell_question",
    "TELL_QUESTION_ENDED_EVENT": "server:tell_question_ended",
    "TELL_LOG_EVENT": "server:tell_log",
    "TELL_PROGRESS_NOTIFICATION": "notify:tell_progress",
    "TELL_QUESTION_NOTIFICATION": "notify:tell_question",
    "TELL_QUESTION_ENDED_NOTIFICATION": "notify:tell_question_ended",
    "TELL_LOG_NOTIFICATION": "notify:tell_log",
    "GET_SERVERS_EVENT": "client:get_servers",
    "GET_RESOURCES_EVENT": "client:get_resources",
    "GET_RESOURCE_TEMPLATES_EVENT": "client:get_resource_templates",
    "READ_RESOURCE_EVENT": "client:read_resource",
    "SUBSCRIBE_RESOURCE_EVENT": "client:subscribe_resource",
    "UNSUBSCRIBE_RESOURCE_EVENT": "client:unsubscribe_resource",
    "GET_PROMPTS_EVENT": "client:get_prompts",
    "GET_PROMPT_EVENT": "client:get_prompt",
    "COMPLETE_EVENT": "client:complete",
    "TELL_RESOURCE_EVENT": "server:tell_resource",
    "TELL_RESOURCE_NOTIFICATION": "notify:tell_resource",
    "UPDATE_RESOURCE_LIST_EVENT": "server:update_resource_list",
    "UPDATE_RESOURCE_LIST_NOTIFICATION": "notify:update_resource_list",
    "UPDATE_PROMPTS_EVENT": "server:update_prompts",
    "UPDATE_PROMPTS_NOTIFICATION": "notify:update_prompts",
    "GET_SKILLS_EVENT": "client:get_skills",
    "GET_SKILL_EVENT": "client:get_skill",
    "UPDATE_SKILLS_EVENT": "server:update_skills",
    "UPDATE_SKILLS_NOTIFICATION": "notify:update_skills",
    "GET_BLOB_EVENT": "client:get_blob",
    "PUT_BLOB_EVENT": "client:put_blob",
}

TELL = "computer office_id"
OF_SERVER = "agent req_id computer mcp_server"
SERVER = "name disabled forbidden_tools tool_meta"
STRUCTURES = {  # name: (required keys, optional keys)
    "AgentCallData": ("agent req_id", ""),
    "ToolCallReq": ("agent req_id computer tool_name params timeout", ""),
    "SMCPTool": ("name description params_schema return_schema", "meta"),
    "ToolMeta": ("", "auto_apply ret_object_mapper alias tags"),
    "GetToolsReq": ("agent req_id computer", ""),
    "GetToolsRet": ("tools req_id", ""),
    "EnterOfficeReq": ("role name office_id", ""),
    "LeaveOfficeReq": ("office_id", ""),
    "EnterOfficeNotification": ("", "office_id computer agent"),
    "LeaveOfficeNotification": ("", "office_id computer agent"),
    "ListRoomReq": ("agent req_id office_id", ""),
    "SessionInfo": ("", "sid name role office_id"),
    "ListRoomRet": ("sessions req_id", ""),
    "UpdateComputerConfigReq": ("computer", ""),
    "UpdateMCPConfigNotification": ("", "computer"),
    "UpdateToolListNotification": ("", "computer"),
    "GetComputerConfigReq": ("agent req_id computer", ""),
    "GetComputerConfigRet": ("servers", "inputs"),
    "GetDeskTopReq": ("agent req_id computer", "desktop_size window"),
    "GetDeskTopRet": ("", "desktops req_id"),
    "BaseMCPServerConfig": (SERVER, "default_tool_meta vrl"),
    "MCPServerStdioParameters": ("command args env cwd encoding encoding_error_handler", ""),
    "MCPServerStdioConfig": (f"{SERVER} type server_parameters", "default_tool_meta vrl"),
    "MCPServerStreamableHttpParameters": ("url headers timeout sse_read_timeout terminate_on_close", ""),
    "MCPServerStreamableHttpConfig": (f"{SERVER} type server_parameters", "default_tool_meta vrl"),
    "MCPSSEParameters": ("url headers timeout sse_read_timeout", ""),
    "MCPSSEConfig": (f"{SERVER} type server_parameters", "default_tool_meta vrl"),
    "MCPServerInputBase": ("id description", ""),
    "MCPServerPromptStringInput": ("id description type", "default password"),
    "MCPServerPickStringInput": ("id description type options", "default"),
    "MCPServerCommandInput": ("id description type command", "args"),
    "ToolCallOptions": (
        "",
        "progress questions extend blobs input_responses request_state client_capabilities client _meta",
    ),
    "AnswerQuestionReq": ("agent req_id computer question_id action", "content"),
    "AnswerQuestionRet": ("req_id", ""),
    "ClientInfo": ("name", "version"),
    "GetQuestionsReq": ("agent req_id computer", ""),
    "GetQuestionsRet": ("questions req_id", ""),
    "OpenQuestion": ("req_id question_id request", "mcp_server tool_name approval"),
    "SetLogLevelReq": ("agent req_id computer level", "mcp_server"),
    "SetLogLevelRet": ("req_id", ""),
    "TellNotification": ("agent", TELL),
    "TellProgressNotification": ("agent req_id progress", f"{TELL} total message"),
    "TellQuestionNotification": ("agent req_id question_id request", f"{TELL} mcp_server tool_name approval"),
    "TellQuestionEndedNotification": ("agent req_id question_id", f"{TELL} request"),
    "TellLogNotification": ("agent mcp_server level data", f"{TELL} logger"),
    "TellResourceNotification": ("agent mcp_server uri", TELL),
    "InputOptions": ("", "questions blobs input_responses request_state client_capabilities client"),
    "ServerRequest": (OF_SERVER, ""),
    "GetServersReq": ("agent req_id computer", ""),
    "GetServersRet": ("servers req_id", ""),
    "ServerInfo": ("name bundle_id state capabilities", "title version instructions icons auth"),
    "ReadResourceReq": (f"{OF_SERVER} uri", ""),
    "ReadResourceRet": ("contents req_id", ""),
    "GetResourceTemplatesReq": (OF_SERVER, "cursor"),
    "GetResourceTemplatesRet": ("resource_templates req_id", "next_cursor"),
    "SubscribeResourceReq": (f"{OF_SERVER} uri", ""),
    "SubscribeResourceRet": ("req_id", ""),
    "GetPromptsReq": ("agent req_id computer", "mcp_server cursor"),
    "GetPromptsRet": ("prompts req_id", "next_cursor"),
    "GetPromptReq": (f"{OF_SERVER} name", "arguments"),
    "CompleteReq": (f"{OF_SERVER} ref argument", "context"),
    "UpdateServerListNotification": ("computer", "mcp_server"),
    "GetResourcesReq": (OF_SERVER, "cursor titles"),
    "GetResourcesRet": ("resources req_id", "next_cursor"),
    "A2CResource": ("uri name", "description mime_type size annotations title icons _meta"),
    "GetSkillsReq": ("agent req_id computer", ""),
    "GetSkillsRet": ("skills req_id", ""),
    "A2CSkillRef": (
        "name source path description",
        "uri license compatibility version allowed_tools tags skill_metadata",
    ),
    "GetSkillReq": ("agent req_id computer name", "rel_path"),
    "GetSkillRet": ("name rel_path mime_type total_size sha256 req_id", "body blob_handle"),
    "GetBlobReq": ("agent req_id computer blob_handle", "chunk_offset max_chunk_bytes binary"),
    "GetBlobRet": ("blob_handle mime_type total_size sha256 chunk_offset eof blob req_id", ""),
    "PutBlobReq": ("agent req_id computer chunk_offset eof blob", "upload_id total_size sha256 name_hint"),
    "PutBlobRet": ("upload_id chunk_offset req_id", "landing_path total_size sha256 in_flight binary"),
    "UpdateSkillsNotification": ("computer", ""),
}

FIELDS: dict[str, Any] = {  # the types on which the wire depends
    "ToolCallReq.params": dict[str, Any],
    "ToolCallReq.timeout": int,
    "GetDeskTopReq.desktop_size": int,
    "EnterOfficeReq.role": Literal["computer", "agent"],
    "SessionInfo.role": Literal["computer", "agent"],
    "EnterOfficeNotification.computer": str | None,
    "GetDeskTopRet.desktops": list[str],
    "MCPServerStdioConfig.type": Literal["stdio"],
    "MCPServerStreamableHttpConfig.type": Literal["streamable"],
    "MCPSSEConfig.type": Literal["sse"],
    "MCPServerStdioParameters.encoding_error_handler": Literal["strict", "ignore", "replace"],
    "MCPServerStreamableHttpParameters.timeout": str,
    "MCPServerStreamableHttpParameters.sse_read_timeout": str,
    "MCPSSEParameters.timeout": float,
    "MCPSSEParameters.sse_read_timeout": float,
    "MCPServerPromptStringInput.type": Literal["promptString"],
    "MCPServerPickStringInput.type": Literal["pickString"],
    "MCPServerCommandInput.type": Literal["command"],
    "MCPServerCommandInput.args": dict[str, str] | None,
    "ToolCallOptions.questions": bool | Literal["result"],
    "AnswerQuestionReq.action": Literal["accept", "decline", "cancel"],
    "TellProgressNotification.progress": float,
    "TellQuestionNotification.request": dict[str, Any],
}

UNIONS = {
    "MCPServerConfig": ("MCPServerStdioConfig", "MCPServerStreamableHttpConfig", "MCPSSEConfig"),
    "MCPServerInput": ("MCPServerPromptStringInput", "MCPServerPickStringInput", "MCPServerCommandInput"),
}

LITERALS = {
    "AnswerAction": ("accept", "decline", "cancel"),
    "LogLevel": ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"),
}

ALIASES = {
    "SERVER_NAME": str,
    "TOOL_NAME": str,
    "AttributeValue": str | int | float | bool | list[str] | None,  # both of 000's statements (WIRE §7)
    "Attributes": dict[str, str | int | float | bool | list[str] | None],
    "Desktop": str,
    "Role": Literal["computer", "agent"],
}


@pytest.mark.parametrize(("constant", "name"), CONSTANTS.items())
def test_a_constant_is_spelled_as_in_002(constant: str, name: str) -> None:
    assert WORDS[constant] == name


@pytest.mark.parametrize(("structure", "keys"), STRUCTURES.items())
def test_a_structure_has_exactly_the_keys_of_000(structure: str, keys: tuple[str, str]) -> None:
    cls = WORDS[structure]
    assert (set(cls.__required_keys__), set(cls.__optional_keys__)) == tuple(set(part.split()) for part in keys)


@pytest.mark.parametrize(("field", "expected"), FIELDS.items())
def test_a_field_has_the_type_of_000(field: str, expected: object) -> None:
    structure, _, key = field.partition(".")
    assert get_type_hints(WORDS[structure])[key] == expected


@pytest.mark.parametrize(("union", "members"), UNIONS.items())
def test_a_union_has_the_members_of_000(union: str, members: tuple[str, ...]) -> None:
    assert get_args(WORDS[union]) == tuple(WORDS[member] for member in members)


@pytest.mark.parametrize(("literal", "words"), LITERALS.items())
def test_a_literal_has_the_words_of_mcp(literal: str, words: tuple[str, ...]) -> None:
    assert get_args(WORDS[literal]) == words


@pytest.mark.parametrize(("alias", "meaning"), ALIASES.items())
def test_an_alias_means_what_000_says(alias: str, meaning: object) -> None:
    assert getattr(types, alias) == meaning


def test_the_whole_vocabulary_is_exported_and_nothing_else() -> None:
    exported = [*smcp.__all__, *mcp_events.__all__, *published_events.__all__]
    assert sorted(exported) == sorted([*CONSTANTS, *STRUCTURES, *UNIONS, *LITERALS, "Desktop"])


def test_no_word_is_missing_from_the_tables() -> None:
    words = {name for name, value in WORDS.items() if is_typeddict(value) or name.endswith(("_EVENT", "_NOTIFICATION"))}
    assert words == {*CONSTANTS, *STRUCTURES} - {"SMCP_NAMESPACE"}


def test_types_exports_all_its_aliases() -> None:
    assert sorted(types.__all__) == sorted(ALIASES)
