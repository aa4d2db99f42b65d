"""Events and payloads that we add to 000 and 002, for the rest of MCP through an office (WIRE §9)."""

from typing import Any, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from a2c_smcp.smcp import AgentCallData
from a2c_smcp.types import TOOL_NAME

__all__ = [
    "ANSWER_QUESTION_EVENT",
    "GET_QUESTIONS_EVENT",
    "SET_LOG_LEVEL_EVENT",
    "TELL_LOG_EVENT",
    "TELL_LOG_NOTIFICATION",
    "TELL_PROGRESS_EVENT",
    "TELL_PROGRESS_NOTIFICATION",
    "TELL_QUESTION_ENDED_EVENT",
    "TELL_QUESTION_ENDED_NOTIFICATION",
    "TELL_QUESTION_EVENT",
    "TELL_QUESTION_NOTIFICATION",
    "AnswerAction",
    "AnswerQuestionReq",
    "AnswerQuestionRet",
    "GetQuestionsReq",
    "GetQuestionsRet",
    "LogLevel",
    "OpenQuestion",
    "SetLogLevelReq",
    "SetLogLevelRet",
    "TellLogNotification",
    "TellNotification",
    "TellProgressNotification",
    "TellQuestionEndedNotification",
    "TellQuestionNotification",
    "ToolCallOptions",
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

AnswerAction: TypeAlias = Literal["accept", "decline", "cancel"]
"""`accept`: here is the content; `decline`: the person said no; `cancel`: the person, or nobody, answered."""

LogLevel: TypeAlias = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]


class ToolCallOptions(TypedDict, total=False):
    """What a tool call may ask for beside the fields of `ToolCallReq` (WIRE §9)."""

    progress: bool
    questions: bool | Literal["result"]
    extend: bool
    input_responses: dict[str, Any]
    request_state: str
    client_capabilities: dict[str, Any]
    _meta: dict[str, Any]


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
