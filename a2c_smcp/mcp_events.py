"""Events and payloads that we add to 000 and 002, for the rest of MCP through an office (WIRE §9)."""

from typing import Any, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from a2c_smcp.smcp import AgentCallData
from a2c_smcp.types import TOOL_NAME

__all__ = [
    "ANSWER_QUESTION_EVENT",
    "COMPLETE_EVENT",
    "GET_PROMPTS_EVENT",
    "GET_PROMPT_EVENT",
    "GET_QUESTIONS_EVENT",
    "GET_RESOURCE_TEMPLATES_EVENT",
    "GET_SERVERS_EVENT",
    "READ_RESOURCE_EVENT",
    "SET_LOG_LEVEL_EVENT",
    "SUBSCRIBE_RESOURCE_EVENT",
    "TELL_LOG_EVENT",
    "TELL_LOG_NOTIFICATION",
    "TELL_PROGRESS_EVENT",
    "TELL_PROGRESS_NOTIFICATION",
    "TELL_QUESTION_ENDED_EVENT",
    "TELL_QUESTION_ENDED_NOTIFICATION",
    "TELL_QUESTION_EVENT",
    "TELL_QUESTION_NOTIFICATION",
    "TELL_RESOURCE_EVENT",
    "TELL_RESOURCE_NOTIFICATION",
    "UNSUBSCRIBE_RESOURCE_EVENT",
    "UPDATE_PROMPTS_EVENT",
    "UPDATE_PROMPTS_NOTIFICATION",
    "UPDATE_RESOURCE_LIST_EVENT",
    "UPDATE_RESOURCE_LIST_NOTIFICATION",
    "AnswerAction",
    "AnswerQuestionReq",
    "AnswerQuestionRet",
    "ClientInfo",
    "CompleteReq",
    "GetPromptReq",
    "GetPromptsReq",
    "GetPromptsRet",
    "GetQuestionsReq",
    "GetQuestionsRet",
    "GetResourceTemplatesReq",
    "GetResourceTemplatesRet",
    "GetServersReq",
    "GetServersRet",
    "InputOptions",
    "LogLevel",
    "OpenQuestion",
    "ReadResourceReq",
    "ReadResourceRet",
    "ServerInfo",
    "ServerRequest",
    "SetLogLevelReq",
    "SetLogLevelRet",
    "SubscribeResourceReq",
    "SubscribeResourceRet",
    "TellLogNotification",
    "TellNotification",
    "TellProgressNotification",
    "TellQuestionEndedNotification",
    "TellQuestionNotification",
    "TellResourceNotification",
    "ToolCallOptions",
    "UpdateServerListNotification",
]

ANSWER_QUESTION_EVENT = "client:answer_question"
GET_QUESTIONS_EVENT = "client:get_questions"
SET_LOG_LEVEL_EVENT = "client:set_log_level"
TELL_PROGRESS_EVENT = "server:tell_progress"
TELL_QUESTION_EVENT = "server:tell_question"
TELL_QUESTION_ENDED_EVENT = "server:tell_question_ended"
TELL_LOG_EVENT = "server:tell_log"
TELL_PROGRESS_NOTIFICATION = "notify:tell_progress"
TELL_QUESTION_NOTIFICATION = "notify:tell_question"
TELL_QUESTION_ENDED_NOTIFICATION = "notify:tell_question_ended"
TELL_LOG_NOTIFICATION = "notify:tell_log"
COMPLETE_EVENT = "client:complete"
GET_PROMPT_EVENT = "client:get_prompt"
GET_PROMPTS_EVENT = "client:get_prompts"
GET_RESOURCE_TEMPLATES_EVENT = "client:get_resource_templates"
GET_SERVERS_EVENT = "client:get_servers"
READ_RESOURCE_EVENT = "client:read_resource"
SUBSCRIBE_RESOURCE_EVENT = "client:subscribe_resource"
UNSUBSCRIBE_RESOURCE_EVENT = "client:unsubscribe_resource"
TELL_RESOURCE_EVENT = "server:tell_resource"
TELL_RESOURCE_NOTIFICATION = "notify:tell_resource"
UPDATE_PROMPTS_EVENT = "server:update_prompts"
UPDATE_PROMPTS_NOTIFICATION = "notify:update_prompts"
UPDATE_RESOURCE_LIST_EVENT = "server:update_resource_list"
UPDATE_RESOURCE_LIST_NOTIFICATION = "notify:update_resource_list"

AnswerAction: TypeAlias = Literal["accept", "decline", "cancel"]
"""`accept`: here is the content; `decline`: the person said no; `cancel`: the person, or nobody, answered."""

LogLevel: TypeAlias = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]


class ClientInfo(TypedDict):
    """The MCP client that an agent calls for, by the name that it gives itself."""

    name: str
    version: NotRequired[str]


class ToolCallOptions(TypedDict, total=False):
    """What a tool call may ask for beside the fields of `ToolCallReq` (WIRE §9)."""

    progress: bool
    questions: bool | Literal["result"]
    extend: bool
    blobs: bool
    input_responses: dict[str, Any]
    request_state: str
    client_capabilities: dict[str, Any]
    client: ClientInfo
    _meta: dict[str, Any]


class InputOptions(TypedDict, total=False):
    """What a request for a prompt or a resource may have (WIRE §9). All but `blobs` is for agents that speak MCP."""

    blobs: bool
    questions: Literal["result"]
    input_responses: dict[str, Any]
    request_state: str
    client_capabilities: dict[str, Any]
    client: ClientInfo


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
    """`req_id` is that of the call. `request` is MCP's request: `{"method": "elicitation/create", "params": {…}}`.

    `approval`: the computer itself asks, whether the call may run.
    """

    req_id: str
    question_id: str
    request: dict[str, Any]
    mcp_server: NotRequired[str]
    tool_name: NotRequired[TOOL_NAME]
    approval: NotRequired[bool]


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
    approval: NotRequired[bool]


class TellQuestionEndedNotification(TellNotification):
    req_id: str
    question_id: str
    request: NotRequired[dict[str, Any]]


class TellLogNotification(TellNotification):
    mcp_server: str
    level: LogLevel
    data: Any
    logger: NotRequired[str | None]


class TellResourceNotification(TellNotification):
    mcp_server: str
    uri: str


class ServerRequest(AgentCallData):
    """A request about one MCP server of a computer: its name, or its bundle id."""

    computer: str
    mcp_server: str


class GetServersReq(AgentCallData):
    computer: str


class ServerInfo(TypedDict):
    """An MCP server of a computer. `capabilities` and `icons` are MCP's own."""

    name: str
    bundle_id: str
    state: str
    capabilities: dict[str, Any]
    title: NotRequired[str]
    version: NotRequired[str]
    instructions: NotRequired[str]
    icons: NotRequired[list[dict[str, Any]]]
    auth: NotRequired[dict[str, Any]]


class GetServersRet(TypedDict):
    servers: list[ServerInfo]
    req_id: str


class ReadResourceReq(ServerRequest):
    uri: str


class ReadResourceRet(TypedDict):
    """`contents` are MCP's own."""

    contents: list[dict[str, Any]]
    req_id: str


class GetResourceTemplatesReq(ServerRequest):
    cursor: NotRequired[str | None]


class GetResourceTemplatesRet(TypedDict):
    resource_templates: list[dict[str, Any]]
    req_id: str
    next_cursor: NotRequired[str]


class SubscribeResourceReq(ServerRequest):
    """Also the request to end a subscription."""

    uri: str


class SubscribeResourceRet(TypedDict):
    req_id: str


class GetPromptsReq(AgentCallData):
    computer: str
    mcp_server: NotRequired[str | None]
    cursor: NotRequired[str | None]


class GetPromptsRet(TypedDict):
    """MCP's own prompts, each with its `mcp_server`."""

    prompts: list[dict[str, Any]]
    req_id: str
    next_cursor: NotRequired[str]


class GetPromptReq(ServerRequest):
    name: str
    arguments: NotRequired[dict[str, str] | None]


class CompleteReq(ServerRequest):
    """`ref`, `argument` and `context` are MCP's own."""

    ref: dict[str, Any]
    argument: dict[str, Any]
    context: NotRequired[dict[str, Any] | None]


class UpdateServerListNotification(TypedDict):
    """The list of resources, or of prompts, of one MCP server has changed."""

    computer: str
    mcp_server: NotRequired[str]
