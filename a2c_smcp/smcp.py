"""The vocabulary: every event name of 002 and every data structure of 000, spelled as there, and those of WIRE §9."""

from typing import Any, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from a2c_smcp.types import SERVER_NAME, TOOL_NAME, Attributes, Desktop, Role

__all__ = [
    "ANSWER_QUESTION_EVENT",
    "CANCEL_TOOL_CALL_EVENT",
    "CANCEL_TOOL_CALL_NOTIFICATION",
    "ENTER_OFFICE_NOTIFICATION",
    "GET_CONFIG_EVENT",
    "GET_DESKTOP_EVENT",
    "GET_QUESTIONS_EVENT",
    "GET_TOOLS_EVENT",
    "JOIN_OFFICE_EVENT",
    "LEAVE_OFFICE_EVENT",
    "LEAVE_OFFICE_NOTIFICATION",
    "LIST_ROOM_EVENT",
    "SET_LOG_LEVEL_EVENT",
    "SMCP_NAMESPACE",
    "TELL_LOG_EVENT",
    "TELL_LOG_NOTIFICATION",
    "TELL_PROGRESS_EVENT",
    "TELL_PROGRESS_NOTIFICATION",
    "TELL_QUESTION_ENDED_EVENT",
    "TELL_QUESTION_ENDED_NOTIFICATION",
    "TELL_QUESTION_EVENT",
    "TELL_QUESTION_NOTIFICATION",
    "TOOL_CALL_EVENT",
    "UPDATE_CONFIG_EVENT",
    "UPDATE_CONFIG_NOTIFICATION",
    "UPDATE_DESKTOP_EVENT",
    "UPDATE_DESKTOP_NOTIFICATION",
    "UPDATE_TOOL_LIST_EVENT",
    "UPDATE_TOOL_LIST_NOTIFICATION",
    "AgentCallData",
    "AnswerAction",
    "AnswerQuestionReq",
    "AnswerQuestionRet",
    "BaseMCPServerConfig",
    "Desktop",
    "EnterOfficeNotification",
    "EnterOfficeReq",
    "GetComputerConfigReq",
    "GetComputerConfigRet",
    "GetDeskTopReq",
    "GetDeskTopRet",
    "GetQuestionsReq",
    "GetQuestionsRet",
    "GetToolsReq",
    "GetToolsRet",
    "LeaveOfficeNotification",
    "LeaveOfficeReq",
    "ListRoomReq",
    "ListRoomRet",
    "LogLevel",
    "MCPSSEConfig",
    "MCPSSEParameters",
    "MCPServerCommandInput",
    "MCPServerConfig",
    "MCPServerInput",
    "MCPServerInputBase",
    "MCPServerPickStringInput",
    "MCPServerPromptStringInput",
    "MCPServerStdioConfig",
    "MCPServerStdioParameters",
    "MCPServerStreamableHttpConfig",
    "MCPServerStreamableHttpParameters",
    "OpenQuestion",
    "SMCPTool",
    "SessionInfo",
    "SetLogLevelReq",
    "SetLogLevelRet",
    "TellLogNotification",
    "TellNotification",
    "TellProgressNotification",
    "TellQuestionEndedNotification",
    "TellQuestionNotification",
    "ToolCallOptions",
    "ToolCallReq",
    "ToolMeta",
    "UpdateComputerConfigReq",
    "UpdateMCPConfigNotification",
    "UpdateToolListNotification",
]

SMCP_NAMESPACE = "/smcp"

TOOL_CALL_EVENT = "client:tool_call"
GET_CONFIG_EVENT = "client:get_config"
GET_TOOLS_EVENT = "client:get_tools"
GET_DESKTOP_EVENT = "client:get_desktop"
ANSWER_QUESTION_EVENT = "client:answer_question"
GET_QUESTIONS_EVENT = "client:get_questions"
SET_LOG_LEVEL_EVENT = "client:set_log_level"

JOIN_OFFICE_EVENT = "server:join_office"
LEAVE_OFFICE_EVENT = "server:leave_office"
UPDATE_CONFIG_EVENT = "server:update_config"
UPDATE_TOOL_LIST_EVENT = "server:update_tool_list"
UPDATE_DESKTOP_EVENT = "server:update_desktop"
CANCEL_TOOL_CALL_EVENT = "server:tool_call_cancel"
LIST_ROOM_EVENT = "server:list_room"
TELL_PROGRESS_EVENT = "server:tell_progress"
TELL_QUESTION_EVENT = "server:tell_question"
TELL_QUESTION_ENDED_EVENT = "server:tell_question_ended"
TELL_LOG_EVENT = "server:tell_log"

ENTER_OFFICE_NOTIFICATION = "notify:enter_office"
LEAVE_OFFICE_NOTIFICATION = "notify:leave_office"
UPDATE_CONFIG_NOTIFICATION = "notify:update_config"
UPDATE_TOOL_LIST_NOTIFICATION = "notify:update_tool_list"
UPDATE_DESKTOP_NOTIFICATION = "notify:update_desktop"
CANCEL_TOOL_CALL_NOTIFICATION = "notify:tool_call_cancel"
TELL_PROGRESS_NOTIFICATION = "notify:tell_progress"
TELL_QUESTION_NOTIFICATION = "notify:tell_question"
TELL_QUESTION_ENDED_NOTIFICATION = "notify:tell_question_ended"
TELL_LOG_NOTIFICATION = "notify:tell_log"


class AgentCallData(TypedDict):
    agent: str
    req_id: str


# Tools


class ToolCallReq(AgentCallData):
    computer: str
    tool_name: TOOL_NAME
    params: dict[str, Any]
    timeout: int


class ToolCallOptions(TypedDict, total=False):
    """What a tool call may ask for beside the fields of `ToolCallReq` (WIRE §9)."""

    progress: bool
    questions: bool | Literal["result"]
    extend: bool
    input_responses: dict[str, Any]
    request_state: str
    client_capabilities: dict[str, Any]
    _meta: dict[str, Any]


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


# Questions, progress and logs (WIRE §9)

AnswerAction: TypeAlias = Literal["accept", "decline", "cancel"]

LogLevel: TypeAlias = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]


class AnswerQuestionReq(AgentCallData):
    computer: str
    question_id: str
    action: AnswerAction
    content: NotRequired[dict[str, Any] | None]


class AnswerQuestionRet(TypedDict):
    req_id: str


class GetQuestionsReq(AgentCallData):
    computer: str


class OpenQuestion(TypedDict):
    """`req_id` is that of the call. `request` is MCP's request: `{"method": "elicitation/create", "params": {…}}`."""

    req_id: str
    question_id: str
    request: dict[str, Any]
    mcp_server: NotRequired[str]
    tool_name: NotRequired[TOOL_NAME]


class GetQuestionsRet(TypedDict):
    questions: list[OpenQuestion]
    req_id: str


class SetLogLevelReq(AgentCallData):
    computer: str
    level: LogLevel
    mcp_server: NotRequired[str | None]


class SetLogLevelRet(TypedDict):
    req_id: str


class TellNotification(TypedDict):
    """What a computer tells one agent. In the notice, the Server has set `computer` and `office_id`."""

    agent: str
    computer: NotRequired[str]
    office_id: NotRequired[str]


class TellProgressNotification(TellNotification):
    req_id: str
    progress: float
    total: NotRequired[float | None]
    message: NotRequired[str | None]


class TellQuestionNotification(TellNotification):
    """The fields of an `OpenQuestion`."""

    req_id: str
    question_id: str
    request: dict[str, Any]
    mcp_server: NotRequired[str]
    tool_name: NotRequired[TOOL_NAME]


class TellQuestionEndedNotification(TellNotification):
    req_id: str
    question_id: str
    request: NotRequired[dict[str, Any]]


class TellLogNotification(TellNotification):
    mcp_server: str
    level: LogLevel
    data: Any
    logger: NotRequired[str | None]
