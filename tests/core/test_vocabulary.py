"""The vocabulary against the specification: the tables are written from it (000, 002, WIRE §9), not from the code."""

from typing import Any, Literal, get_args, get_type_hints

import pytest
from typing_extensions import is_typeddict

from a2c_smcp import mcp_events, smcp, types

pytestmark = pytest.mark.covers("vocabulary")

WORDS = {**vars(smcp), **vars(mcp_events)}

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
}

TELL = "computer office_id"
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
        "progress questions extend input_responses request_state client_capabilities _meta",
    ),
    "AnswerQuestionReq": ("agent req_id computer question_id action", "content"),
    "AnswerQuestionRet": ("req_id", ""),
    "GetQuestionsReq": ("agent req_id computer", ""),
    "GetQuestionsRet": ("questions req_id", ""),
    "OpenQuestion": ("req_id question_id request", "mcp_server tool_name"),
    "SetLogLevelReq": ("agent req_id computer level", "mcp_server"),
    "SetLogLevelRet": ("req_id", ""),
    "TellNotification": ("agent", TELL),
    "TellProgressNotification": ("agent req_id progress", f"{TELL} total message"),
    "TellQuestionNotification": ("agent req_id question_id request", f"{TELL} mcp_server tool_name"),
    "TellQuestionEndedNotification": ("agent req_id question_id", f"{TELL} request"),
    "TellLogNotification": ("agent mcp_server level data", f"{TELL} logger"),
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
    assert sorted([*smcp.__all__, *mcp_events.__all__]) == sorted(
        [*CONSTANTS, *STRUCTURES, *UNIONS, *LITERALS, "Desktop"]
    )


def test_no_word_is_missing_from_the_tables() -> None:
    words = {name for name, value in WORDS.items() if is_typeddict(value) or name.endswith(("_EVENT", "_NOTIFICATION"))}
    assert words == {*CONSTANTS, *STRUCTURES} - {"SMCP_NAMESPACE"}


def test_types_exports_all_its_aliases() -> None:
    assert sorted(types.__all__) == sorted(ALIASES)
