"""Requests for input that an MCP server or a tool makes during a request, and questions to a person (WIRE §9).

An `InputRequest` is MCP's message. A `Question` is an elicitation as programs and people see it, an `Answer` the reply.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from a2c_smcp.errors import BadRequest
from a2c_smcp.mcp_events import AnswerAction

ELICITATION, SAMPLING, ROOTS = "elicitation/create", "sampling/createMessage", "roots/list"
INPUT_METHODS: Mapping[str, str] = {ELICITATION: "elicitation", SAMPLING: "sampling", ROOTS: "roots"}
"""MCP's requests for input, and the capability that each needs."""

QuestionMode: TypeAlias = Literal["form", "url"]

_MODES = get_args(QuestionMode)
_ACTIONS = get_args(AnswerAction)


class InputRequest(NamedTuple):
    """A request for input, one of `INPUT_METHODS`. The `params` are MCP's, unchecked. A tool may give it a `key`."""

    method: str
    params: dict[str, Any]
    key: str | None = None

    @classmethod
    def read(cls, request: object) -> InputRequest:
        """Return the request in MCP's message. A malformed message has an empty method."""
        method, params = (request.get("method"), request.get("params")) if isinstance(request, Mapping) else ("", {})
        return cls(str(method), params if isinstance(params, dict) else {})

    def to_mcp(self) -> dict[str, Any]:
        return {"method": self.method, "params": self.params}


def is_input_required(result: Mapping[str, Any]) -> bool:
    """True for MCP's `InputRequiredResult`: the server asks before it answers."""
    return result.get("resultType") == "input_required"


def input_required(requests: Mapping[str, InputRequest], state: str) -> dict[str, Any]:
    """Return an `InputRequiredResult`. The next request brings the responses and the state."""
    asked = {key: request.to_mcp() for key, request in requests.items()}
    return {"resultType": "input_required", "inputRequests": asked, "requestState": state}


def input_requests(result: Mapping[str, Any]) -> dict[str, InputRequest]:
    """Return the requests in an `InputRequiredResult`, by their keys."""
    asked = result.get("inputRequests")
    return {key: InputRequest.read(request) for key, request in asked.items()} if isinstance(asked, Mapping) else {}


@dataclass(frozen=True, slots=True)
class Question:
    """A form to be filled in, or a URL to be opened.

    `schema` is the JSON schema of a form's content, with one level of properties. A question that `is_secret` asks for
    a password or the like. `tool` is the name by which the agent has called it, `server` the MCP server; `tool`,
    `req_id` and `agent` are empty if nobody can tell which of several calls it belongs to. `client` is the MCP client
    that the agent calls for, by the name that it gives itself. `is_approval`: it is the computer that asks, whether the
    call may run, and a person should answer. `problem` says why the last answer was refused, if there was one. `until`
    is when the call times out, in epoch seconds, if that is known, which is so on its computer only.
    """

    message: str
    mode: QuestionMode = "form"
    schema: Mapping[str, Any] = field(default_factory=dict)
    url: str = ""
    computer: str = ""
    server: str = ""
    tool: str = ""
    agent: str = ""
    req_id: str = ""
    question_id: str = ""
    is_secret: bool = False
    office: str = ""
    problem: str = ""
    client: str = ""
    is_approval: bool = False
    until: float | None = field(default=None, compare=False)

    @classmethod
    def of_request(cls, request: object, **about: Any) -> Question:
        """Return the question in MCP's elicitation request, or in its bare params. Raises `BadRequest`."""
        params = _params_of(request)
        mode, message = params.get("mode", "form"), params.get("message", "")
        schema, url = params.get("requestedSchema") or {}, params.get("url", "")
        if mode not in _MODES or not isinstance(message, str):
            raise BadRequest("its mode or its message is not MCP's", field="request")
        if not isinstance(schema, Mapping) or not isinstance(url, str) or (mode == "url" and not url):
            raise BadRequest("its schema or its url is not MCP's", field="request")
        return cls(message, mode, schema if mode == "form" else {}, url if mode == "url" else "", **about)

    @property
    def fields(self) -> dict[str, Mapping[str, Any]]:
        return fields_in(self.schema)


def fields_in(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the schemas of the fields of a form, by name."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    return {str(name): field for name, field in properties.items() if isinstance(field, Mapping)}


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a question. `content` has the values of a form's fields, for `accept` only.

    `by` is where a person has answered, such as `terminal` or `console`. It is not sent.
    """

    action: AnswerAction
    content: Mapping[str, Any] | None = field(default=None, repr=False)
    by: str = field(default="", compare=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.action not in _ACTIONS:
            raise BadRequest(f"action: must be one of {', '.join(_ACTIONS)}", field="action")
        if self.content is not None and not isinstance(self.content, Mapping):
            raise BadRequest("content: must be an object", field="content")

    @classmethod
    def of(cls, answer: GivenAnswer) -> Answer:
        """An object is the content of an `accept`, `None` is a `cancel`. Raises `BadRequest` for anything else."""
        if isinstance(answer, cls):
            return answer
        if answer is None:
            return cls("cancel")
        if isinstance(answer, Mapping):
            return cls("accept", answer)
        raise BadRequest(f"an answer is an Answer, an object or None, not {type(answer).__name__}")

    def to_mcp(self) -> dict[str, Any]:
        """MCP's `ElicitResult`. A URL is accepted without content."""
        has_content = self.action == "accept" and self.content is not None
        return {"action": self.action, **({"content": dict(self.content or {})} if has_content else {})}


GivenAnswer: TypeAlias = Answer | Mapping[str, Any] | None
"""The return value of a function that answers questions."""
OnQuestion: TypeAlias = Callable[[Question], GivenAnswer | Awaitable[GivenAnswer]]
"""Answers a question: with an `Answer`, the content of its form, or `None`, which cancels. It may be async."""


def _params_of(request: object) -> Mapping[str, Any]:
    if isinstance(request, Mapping):
        params = request.get("params") if "method" in request else request
        if request.get("method", ELICITATION) == ELICITATION and isinstance(params, Mapping):
            return params
    raise BadRequest(f"not an {ELICITATION} request", field="request")
