"""A question that a tool asks a person in the middle of a call, and the answer to it (WIRE §9)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from a2c_smcp.errors import BadRequest
from a2c_smcp.mcp_events import AnswerAction

__all__ = ["ELICITATION", "Answer", "AnswerAction", "GivenAnswer", "Question", "QuestionMode"]

ELICITATION = "elicitation/create"
"""The method of MCP's requests that ask a person."""

QuestionMode: TypeAlias = Literal["form", "url"]

_MODES = get_args(QuestionMode)
_ACTIONS = get_args(AnswerAction)


@dataclass(frozen=True, slots=True)
class Question:
    """A form to be filled in, or a URL to be opened.

    `schema` is the JSON schema of a form's content, with one level of properties. A question that `is_secret` asks for
    a password or the like. `tool` is the name by which the agent has called it, `server` the MCP server. `client` is
    the MCP client that the agent calls for, by the name that it gives itself. `is_approval`: it is the computer that
    asks, whether the call may run, and a person should answer. `problem` says why the last answer was refused, if there
    was one. `until` is when the call times out, in epoch seconds, if that is known, which is so on its computer only.
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
        """The question in MCP's elicitation request, or in its bare params. Raises `BadRequest` if it is not valid."""
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
        """The schemas of the fields of a form, by name."""
        properties = self.schema.get("properties")
        if not isinstance(properties, Mapping):
            return {}
        return {str(name): each for name, each in properties.items() if isinstance(each, Mapping)}


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
    def of(cls, given: GivenAnswer) -> Answer:
        """An object is the content of an `accept`, `None` is a `cancel`. Raises `BadRequest` for anything else."""
        if isinstance(given, cls):
            return given
        if given is None:
            return cls("cancel")
        if isinstance(given, Mapping):
            return cls("accept", given)
        raise BadRequest(f"an answer is an Answer, an object or None, not {type(given).__name__}")

    def to_mcp(self) -> dict[str, Any]:
        """MCP's `ElicitResult`. A URL is accepted without content."""
        has_content = self.action == "accept" and self.content is not None
        return {"action": self.action, **({"content": dict(self.content or {})} if has_content else {})}


GivenAnswer: TypeAlias = Answer | Mapping[str, Any] | None
"""What a function that answers an agent's questions may return."""


def _params_of(request: object) -> Mapping[str, Any]:
    if isinstance(request, Mapping):
        params = request.get("params") if "method" in request else request
        if request.get("method", ELICITATION) == ELICITATION and isinstance(params, Mapping):
            return params
    raise BadRequest(f"not an {ELICITATION} request", field="request")
