"""`smcp.py` and `types.py` against the specification. The tables are written from 000 and 002, not from the code."""

from typing import Any, Literal, get_args, get_type_hints

import pytest
from typing_extensions import is_typeddict

from a2c_smcp import smcp, types

pytestmark = pytest.mark.covers("vocabulary")

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
}

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
}

UNIONS = {
    "MCPServerConfig": ("MCPServerStdioConfig", "MCPServerStreamableHttpConfig", "MCPSSEConfig"),
    "MCPServerInput": ("MCPServerPromptStringInput", "MCPServerPickStringInput", "MCPServerCommandInput"),
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
    assert getattr(smcp, constant) == name


@pytest.mark.parametrize(("structure", "keys"), STRUCTURES.items())
def test_a_structure_has_exactly_the_keys_of_000(structure: str, keys: tuple[str, str]) -> None:
    cls = getattr(smcp, structure)
    assert (set(cls.__required_keys__), set(cls.__optional_keys__)) == tuple(set(part.split()) for part in keys)


@pytest.mark.parametrize(("field", "expected"), FIELDS.items())
def test_a_field_has_the_type_of_000(field: str, expected: object) -> None:
    structure, _, key = field.partition(".")
    assert get_type_hints(getattr(smcp, structure))[key] == expected


@pytest.mark.parametrize(("union", "members"), UNIONS.items())
def test_a_union_has_the_members_of_000(union: str, members: tuple[str, ...]) -> None:
    assert get_args(getattr(smcp, union)) == tuple(getattr(smcp, member) for member in members)


@pytest.mark.parametrize(("alias", "meaning"), ALIASES.items())
def test_an_alias_means_what_000_says(alias: str, meaning: object) -> None:
    assert getattr(types, alias) == meaning


def test_smcp_exports_the_whole_vocabulary_and_nothing_else() -> None:
    assert sorted(smcp.__all__) == sorted([*CONSTANTS, *STRUCTURES, *UNIONS, "Desktop"])


def test_no_word_of_smcp_is_missing_from_the_tables() -> None:
    words = {
        name for name, value in vars(smcp).items() if is_typeddict(value) or name.endswith(("_EVENT", "_NOTIFICATION"))
    }
    assert words == {*CONSTANTS, *STRUCTURES} - {"SMCP_NAMESPACE"}


def test_types_exports_all_its_aliases() -> None:
    assert sorted(types.__all__) == sorted(ALIASES)
