"""Events and payloads that we add to 000 and 002, for the rest of MCP through an office (WIRE §9)."""

from typing import Any, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from a2c_smcp.smcp import AgentCallData
from a2c_smcp.types import TOOL_NAME

TELL_PROGRESS_EVENT = "server:tell_progress"
TELL_QUESTION_EVENT = "server:tell_question"
TELL_QUESTION_ENDED_EVENT = "server:tell_question_ended"
TELL_LOG_EVENT = "server:tell_log"
TELL_PROGRESS_NOTIFICATION = "notify:tell_progress"
TELL_QUESTION_NOTIFICATION = "notify:tell_question"
TELL_QUESTION_ENDED_NOTIFICATION = "notify:tell_question_ended"
TELL_LOG_NOTIFICATION = "notify:tell_log"
TELL_STATE_EVENT = "server:tell_state"
TELL_STATE_NOTIFICATION = "notify:tell_state"
TELL_RESOURCE_EVENT = "server:tell_resource"
TELL_RESOURCE_NOTIFICATION = "notify:tell_resource"
UPDATE_PROMPTS_EVENT = "server:update_prompts"
UPDATE_PROMPTS_NOTIFICATION = "notify:update_prompts"
UPDATE_RESOURCE_LIST_EVENT = "server:update_resource_list"
UPDATE_RESOURCE_LIST_NOTIFICATION = "notify:update_resource_list"
UPDATE_STATE_EVENT = "server:update_state"
UPDATE_STATE_NOTIFICATION = "notify:update_state"

CallState: TypeAlias = Literal["queued", "waiting", "asked", "running"]
"""Of a call that has not ended: `waiting` for the owner's approval, `asked` while a question of its tool is open."""
CallEnd: TypeAlias = Literal["done", "tool error", "refused", "cancelled", "timed out", "lost"]
"""`lost`: the tool may have run, and there is no result."""

AnswerAction: TypeAlias = Literal["accept", "decline", "cancel"]
"""`accept`: here is the content; `decline`: the person said no; `cancel`: the person, or nobody, answered."""

LogLevel: TypeAlias = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]


class ClientInfo(TypedDict):
    """The MCP client that an agent calls for, by the name that it gives itself."""

    name: str
    version: NotRequired[str]


class ToolCallOptions(TypedDict, total=False):
    """Options of a tool call beside the fields of `ToolCallReq` (WIRE §9)."""

    progress: bool
    states: bool
    questions: bool | Literal["result"]
    extend: bool
    blobs: bool
    input_responses: dict[str, Any]
    request_state: str
    client_capabilities: dict[str, Any]
    client: ClientInfo
    _meta: dict[str, Any]


class InputOptions(TypedDict, total=False):
    """Options of a request for a prompt or a resource (WIRE §9). All but `blobs` are for agents that speak MCP."""

    blobs: bool
    questions: Literal["result"]
    input_responses: dict[str, Any]
    request_state: str
    client_capabilities: dict[str, Any]
    client: ClientInfo


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


class TellNotification(TypedDict):
    """A message of a computer to one agent. In the notice, the Server has set `computer` and `office_id`."""

    agent: str
    computer: NotRequired[str]
    office_id: NotRequired[str]


class TellProgressNotification(TellNotification):
    req_id: str
    progress: float
    total: NotRequired[float | None]
    message: NotRequired[str | None]


class TellStateNotification(TellNotification):
    """The state of a call that was sent with `progress` or `states`. `since` is in seconds since the epoch."""

    req_id: str
    state: CallState
    since: float
    reason: NotRequired[str]


class TellQuestionNotification(TellNotification, OpenQuestion):
    """An `OpenQuestion`, told."""


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


class UpdateStateNotification(TypedDict):
    """A computer has been frozen by its owner, or released (WIRE §11)."""

    computer: str
    frozen: bool


class UpdateServerListNotification(TypedDict):
    """The list of resources, or of prompts, of one MCP server has changed."""

    computer: str
    mcp_server: NotRequired[str]
