"""The vocabulary: every event name of 002 and every data structure of 000, spelled as there."""

from typing import Any, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from a2c_smcp.types import SERVER_NAME, TOOL_NAME, Attributes, Role
from a2c_smcp.types import Desktop as Desktop

SMCP_NAMESPACE = "/smcp"

TOOL_CALL_EVENT = "client:tool_call"
GET_CONFIG_EVENT = "client:get_config"
GET_TOOLS_EVENT = "client:get_tools"
GET_DESKTOP_EVENT = "client:get_desktop"

JOIN_OFFICE_EVENT = "server:join_office"
LEAVE_OFFICE_EVENT = "server:leave_office"
UPDATE_CONFIG_EVENT = "server:update_config"
UPDATE_TOOL_LIST_EVENT = "server:update_tool_list"
UPDATE_DESKTOP_EVENT = "server:update_desktop"
CANCEL_TOOL_CALL_EVENT = "server:tool_call_cancel"
LIST_ROOM_EVENT = "server:list_room"

ENTER_OFFICE_NOTIFICATION = "notify:enter_office"
LEAVE_OFFICE_NOTIFICATION = "notify:leave_office"
UPDATE_CONFIG_NOTIFICATION = "notify:update_config"
UPDATE_TOOL_LIST_NOTIFICATION = "notify:update_tool_list"
UPDATE_DESKTOP_NOTIFICATION = "notify:update_desktop"
CANCEL_TOOL_CALL_NOTIFICATION = "notify:tool_call_cancel"


class AgentCallData(TypedDict):
    agent: str
    req_id: str


# Tools


class ToolCallReq(AgentCallData):
    computer: str
    tool_name: TOOL_NAME
    params: dict[str, Any]
    timeout: int


class SMCPTool(TypedDict):
    name: TOOL_NAME
    description: str
    params_schema: dict[str, Any]
    return_schema: dict[str, Any] | None
    meta: NotRequired[Attributes | None]


class ToolMeta(TypedDict, total=False):
    auto_apply: NotRequired[bool | None]
    ret_object_mapper: NotRequired[dict[str, Any] | None]
    alias: NotRequired[str | None]
    tags: NotRequired[list[str] | None]


class GetToolsReq(AgentCallData):
    computer: str


class GetToolsRet(TypedDict):
    tools: list[SMCPTool]
    req_id: str


# Offices


class EnterOfficeReq(TypedDict):
    role: Role
    name: str
    office_id: str


class LeaveOfficeReq(TypedDict):
    office_id: str


class EnterOfficeNotification(TypedDict, total=False):
    office_id: str
    computer: str | None
    agent: str | None


class LeaveOfficeNotification(TypedDict, total=False):
    office_id: str
    computer: str | None
    agent: str | None


class ListRoomReq(AgentCallData):
    office_id: str


class SessionInfo(TypedDict, total=False):
    sid: str
    name: str
    role: Role
    office_id: str


class ListRoomRet(TypedDict):
    sessions: list[SessionInfo]
    req_id: str


# Updates and configuration


class UpdateComputerConfigReq(TypedDict):
    computer: str


class UpdateMCPConfigNotification(TypedDict, total=False):
    computer: str


class UpdateToolListNotification(TypedDict, total=False):
    computer: str


class GetComputerConfigReq(AgentCallData):
    computer: str


class BaseMCPServerConfig(TypedDict):
    name: SERVER_NAME
    disabled: bool
    forbidden_tools: list[str]
    tool_meta: dict[TOOL_NAME, ToolMeta]
    default_tool_meta: NotRequired[ToolMeta | None]
    vrl: NotRequired[str | None]


class MCPServerStdioParameters(TypedDict):
    command: str
    args: list[str]
    env: dict[str, str] | None
    cwd: str | None
    encoding: str
    encoding_error_handler: Literal["strict", "ignore", "replace"]


class MCPServerStdioConfig(BaseMCPServerConfig):
    type: Literal["stdio"]
    server_parameters: MCPServerStdioParameters


class MCPServerStreamableHttpParameters(TypedDict):
    url: str
    headers: dict[str, Any] | None
    timeout: str
    sse_read_timeout: str
    terminate_on_close: bool


class MCPServerStreamableHttpConfig(BaseMCPServerConfig):
    type: Literal["streamable"]
    server_parameters: MCPServerStreamableHttpParameters


class MCPSSEParameters(TypedDict):
    url: str
    headers: dict[str, Any] | None
    timeout: float
    sse_read_timeout: float


class MCPSSEConfig(BaseMCPServerConfig):
    type: Literal["sse"]
    server_parameters: MCPSSEParameters


MCPServerConfig: TypeAlias = MCPServerStdioConfig | MCPServerStreamableHttpConfig | MCPSSEConfig


class MCPServerInputBase(TypedDict):
    id: str
    description: str


class MCPServerPromptStringInput(MCPServerInputBase):
    type: Literal["promptString"]
    default: NotRequired[str | None]
    password: NotRequired[bool | None]


class MCPServerPickStringInput(MCPServerInputBase):
    type: Literal["pickString"]
    options: list[str]
    default: NotRequired[str | None]


class MCPServerCommandInput(MCPServerInputBase):
    type: Literal["command"]
    command: str
    args: NotRequired[dict[str, str] | None]


MCPServerInput: TypeAlias = MCPServerPromptStringInput | MCPServerPickStringInput | MCPServerCommandInput


class GetComputerConfigRet(TypedDict):
    inputs: NotRequired[list[MCPServerInput] | None]
    servers: dict[SERVER_NAME, MCPServerConfig]


# Desktop


class GetDeskTopReq(AgentCallData, total=True):
    computer: str
    desktop_size: NotRequired[int]
    window: NotRequired[str]


class GetDeskTopRet(TypedDict, total=False):
    desktops: list[Desktop]
    req_id: str
