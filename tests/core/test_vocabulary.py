"""The vocabulary against the specification: the tables are written from it, not from the code.

They are those of 000, 002, WIRE §9 and §10, and PROTOCOL-0.4.
"""

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_type_hints

import pytest
from typing_extensions import is_typeddict

from a2c_smcp import device_events, mcp_events, smcp, types, v04_events
from a2c_smcp.protocol import operations
from tests.core.specification import EVENTS, INPUTS, OPTIONS, TELL, rule_of

pytestmark = pytest.mark.covers("vocabulary")

WORDS = {}
for module in (smcp, mcp_events, v04_events, device_events, operations):
    WORDS |= vars(module)
WORDS |= {f"{row.event.removeprefix('client:').upper()}_EVENT": row.event for row in operations.OPERATIONS}

NAMES = {"JOIN_OFFICE_NOTIFICATION": "ENTER_OFFICE_NOTIFICATION"}
NAMES |= {f"TOOL_CALL_CANCEL_{kind}": f"CANCEL_TOOL_CALL_{kind}" for kind in ("EVENT", "NOTIFICATION")}
"""Constants that are not called as their event is."""


def constants() -> Iterator[tuple[str, str]]:
    for event in EVENTS:
        for kind, wire_name in (("EVENT", event), ("NOTIFICATION", rule_of(event)[2])):
            name = f"{event.partition(':')[2].upper()}_{kind}"
            if wire_name:
                yield NAMES.get(name, name), wire_name


SERVER = "name disabled forbidden_tools tool_meta"
STRUCTURES = {  # name: (required keys, optional keys)
    "SMCPTool": ("name description params_schema return_schema", "meta"),
    "ToolMeta": ("", "auto_apply ret_object_mapper alias tags"),
    "GetToolsRet": ("tools req_id", ""),
    "EnterOfficeNotification": ("", "office_id computer agent"),
    "LeaveOfficeNotification": ("", "office_id computer agent"),
    "SessionInfo": ("", "sid name role office_id"),
    "ListRoomRet": ("sessions req_id", ""),
    "UpdateMCPConfigNotification": ("", "computer"),
    "UpdateToolListNotification": ("", "computer"),
    "GetComputerConfigRet": ("servers", "inputs"),
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
    "ToolCallOptions": ("", OPTIONS),
    "WithdrawCallRet": ("req_id", ""),
    "AnswerQuestionRet": ("req_id", ""),
    "ClientInfo": ("name", "version"),
    "GetQuestionsRet": ("questions req_id", ""),
    "OpenQuestion": ("req_id question_id request", "mcp_server tool_name approval"),
    "SetLogLevelRet": ("req_id", ""),
    "TellNotification": ("agent", TELL),
    "InputOptions": ("", INPUTS),
    "ServerRequest": ("agent req_id computer mcp_server", ""),
    "GetServersRet": ("servers req_id", ""),
    "ServerInfo": ("name bundle_id state capabilities", "title version instructions icons auth"),
    "ReadResourceRet": ("contents req_id", ""),
    "GetResourceTemplatesRet": ("resource_templates req_id", "next_cursor"),
    "SubscribeResourceRet": ("req_id", ""),
    "GetPromptsRet": ("prompts req_id", "next_cursor"),
    "GetResourcesRet": ("resources req_id", "next_cursor"),
    "A2CResource": ("uri name", "description mime_type size annotations title icons _meta"),
    "SealedRet": ("req_id sealed", ""),
    "SealedTell": ("agent req_id computer seq sealed", ""),
    "GetDeviceRet": ("identity kid kem e2e sig", "was req_id"),
    "DeviceSuccession": ("identity sig", ""),
    "GetSkillsRet": ("skills req_id", ""),
    "A2CSkillRef": (
        "name source path description",
        "uri license compatibility version allowed_tools tags skill_metadata",
    ),
    "GetSkillRet": ("name rel_path mime_type total_size sha256 req_id", "body blob_handle"),
    "GetBlobRet": ("blob_handle mime_type total_size sha256 chunk_offset eof blob req_id", ""),
    "PutBlobRet": ("upload_id chunk_offset req_id", "landing_path total_size sha256 in_flight binary"),
}
STRUCTURES |= {
    row.structure: (row.required, row.optional) for row in EVENTS.values() if row.structure not in STRUCTURES
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


def test_every_constant_is_spelled_as_in_002() -> None:
    found = {name: value for name, value in WORDS.items() if name.endswith(("_EVENT", "_NOTIFICATION"))}
    assert (found, WORDS["SMCP_NAMESPACE"]) == (dict(constants()), "/smcp")


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


def test_no_structure_is_missing_from_the_tables() -> None:
    assert {name for name, value in WORDS.items() if is_typeddict(value)} == set(STRUCTURES)


def test_types_exports_all_its_aliases() -> None:
    assert sorted(types.__all__) == sorted(ALIASES)
