"""The result of a tool call, and the answer to a request that failed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from a2c_smcp import published_events
from a2c_smcp.errors import (
    BlobNotAccessible,
    BlobWriteFailed,
    CallCancelled,
    CallTimeout,
    NotFound,
    RateLimited,
    ServerNotRegistered,
    SkillFileNotAccessible,
    SMCPError,
    TooLarge,
)
from a2c_smcp.protocol.events import Action, EventSpec
from a2c_smcp.smcp import TOOL_CALL_EVENT

__all__ = [
    "ANSWERED",
    "OK",
    "SAVED_TO",
    "TOOL_ERROR",
    "CallOrigin",
    "CallResult",
    "CallToolResult",
    "call_result",
    "computer_error_ack",
    "error_ack",
    "failed_call",
]

SAVED_TO = "a2c_saved_to"
"""In the `_meta` of a content item: the file into which an agent has written its content. Never on the wire."""


class CallOrigin(NamedTuple):
    """Where a result is from. Without an office, the computer was found by its name alone."""

    computer: str
    tool: str
    office: str | None = None


@dataclass(frozen=True)
class CallToolResult:
    """The result of an MCP tool. Fields that this class does not know are kept in `extra`.

    `origin` is known to the agent that made the call, and not sent.
    """

    content: list[dict[str, Any]] = field(default_factory=list)
    is_error: bool = False
    structured_content: dict[str, Any] | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    origin: CallOrigin | None = field(default=None, compare=False, repr=False)

    @property
    def text(self) -> str:
        """All text blocks, joined by line breaks."""
        blocks = (block for block in self.content if isinstance(block, dict))
        texts = [block["text"] for block in blocks if isinstance(block.get("text"), str)]
        return "\n".join(texts) if texts or not self.is_error else self._structured_error

    @property
    def _structured_error(self) -> str:
        """How computers of the published 0.4 generation say that there is no such tool."""
        error = (_object(self.structured_content) or {}).get("error")
        return error if isinstance(error, str) else ""

    @property
    def links(self) -> list[dict[str, Any]]:
        """All blocks that link to a resource (`resource_link`). An agent follows one with `read_link`."""
        return [block for block in self.content if isinstance(block, dict) and block.get("type") == "resource_link"]

    @property
    def files(self) -> list[str]:
        """The files into which contents were written, with `save_to`."""
        metas = (block.get("_meta") for block in self.content if isinstance(block, dict))
        return [str(meta[SAVED_TO]) for meta in metas if isinstance(meta, dict) and SAVED_TO in meta]

    @property
    def is_input_required(self) -> bool:
        """Whether this is not a result yet: the MCP server needs answers to its `input_requests` first.

        Only calls with `questions="result"` are answered so (WIRE §9). Call again with `input_responses` (a result for
        each of the requests, under the same key) and this `request_state`.
        """
        return self.extra.get("resultType") == "input_required" or "inputRequests" in self.extra

    @property
    def input_requests(self) -> dict[str, Any]:
        """What the MCP server asks, as MCP spells it: `{key: {"method", "params"}}`."""
        return _object(self.extra.get("inputRequests")) or {}

    @property
    def request_state(self) -> str | None:
        """To be sent back unchanged with the `input_responses`."""
        state = self.extra.get("requestState")
        return state if isinstance(state, str) else None

    @property
    def error_code(self) -> int | None:
        """Why the tool did not run: 4006, its MCP server wants a sign-in; 4007, a permission is missing."""
        code = self.meta.get("error_code")
        return code if self.is_error and type(code) is int else None

    @property
    def auth_hint(self) -> dict[str, Any] | None:
        """With 4006 and 4007: what has to be done on the computer, as `{"action", "message"}`."""
        return _object(self.meta.get("auth_hint")) if self.is_error else None

    @property
    def mcp_server(self) -> str | None:
        """With 4006 and 4007: the MCP server that wants it."""
        server = self.meta.get("mcp_server")
        return server if isinstance(server, str) else None

    @property
    def is_timeout(self) -> bool:
        """Whether the tool was stopped because its time was over."""
        return self.is_error and self.meta.get("a2c_timeout") is True

    @property
    def mcp_error(self) -> dict[str, Any] | None:
        """The JSON-RPC error with which the MCP server answered: `{"code", "message", "data"}`."""
        return _object(self.meta.get("a2c_mcp_error")) if self.is_error else None

    @classmethod
    def from_wire(cls, answer: object, origin: CallOrigin | None = None) -> CallToolResult:
        """Reads a result in MCP's spelling. `meta` is accepted for `_meta` (WIRE §3). Raises `SMCPError`."""
        if not isinstance(answer, dict):
            raise SMCPError("the computer's answer is not a tool result")
        rest = dict(answer)
        content, structured = rest.pop("content", None), rest.pop("structuredContent", None)
        meta, older_meta = rest.pop("_meta", None), rest.pop("meta", None)
        return cls(
            content=content if isinstance(content, list) else [],
            is_error=bool(rest.pop("isError", False)),
            structured_content=structured,
            meta=next((each for each in (meta, older_meta) if each and isinstance(each, dict)), {}),
            extra=rest,
            origin=origin,
        )

    def to_wire(self) -> dict[str, Any]:
        wire: dict[str, Any] = {"content": self.content, "isError": self.is_error}
        if self.structured_content is not None:
            wire["structuredContent"] = self.structured_content
        if self.meta:
            wire["_meta"] = self.meta
        return {**wire, **self.extra}


def _object(value: object) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _marks(error: SMCPError) -> dict[str, Any]:
    """What the published 0.4 generation reads in the result of a call that failed (PROTOCOL-0.4 §7)."""
    if isinstance(error, CallCancelled):
        return {"a2c_cancelled": True, "a2c_cancel_reason": "agent_requested"}
    if isinstance(error, CallTimeout) and error.outcome != "not_run":  # a call that waits for approval has not run
        return {"a2c_timeout": True}
    return {}


def error_ack(event: EventSpec | None, error: SMCPError) -> dict[str, Any] | tuple[bool, str]:
    """The answer to a request that failed, in the shape that its sender expects (WIRE §3).

    Returns one ack argument, or a tuple of two.
    """
    if event is None:
        return error.to_wire()
    if event.action in (Action.JOIN, Action.LEAVE):
        return False, str(error)
    if event.name == TOOL_CALL_EVENT:
        return failed_call(error)
    return error.to_wire(outcome=error.outcome) if event.is_call else error.to_wire()


def computer_error_ack(event: EventSpec | None, error: SMCPError) -> dict[str, Any] | tuple[bool, str]:
    """As `error_ack`, from a computer: agents of the published 0.4 generation find an error that they know."""
    if event is not None and event.name in _PUBLISHED:
        return _for_published_agents(event.name, error)
    return error_ack(event, error)


_PUBLISHED: dict[str, type[SMCPError]] = {
    published_events.GET_RESOURCES_EVENT: ServerNotRegistered,
    published_events.GET_SKILLS_EVENT: NotFound,
    published_events.GET_SKILL_EVENT: SkillFileNotAccessible,
    published_events.GET_BLOB_EVENT: BlobNotAccessible,
    published_events.PUT_BLOB_EVENT: BlobWriteFailed,
}
"""By request, the error that agents of the published 0.4 generation expect for whatever has no code of its own."""
_KNOWN_CODES = frozenset((404, 4006, 4007, 4008, *range(4014, 4020)))
_REASONS = {TooLarge.code: "too_large", RateLimited.code: "busy"}


def _for_published_agents(event: str, error: SMCPError) -> dict[str, Any]:
    """An error in a code that these agents know as one; any other is nothing to them (PROTOCOL-0.4 §1).

    `error`, which they do not read, has the code as it is.
    """
    wire = error.to_wire()
    if error.code in _KNOWN_CODES:
        return wire
    details = {"reason": _REASONS.get(error.code, "forbidden"), **wire["details"]}
    return {**wire, "code": _PUBLISHED[event].code, "details": details}


def failed_call(error: SMCPError) -> dict[str, Any]:
    """An error that is also a valid MCP result. Its `details.outcome` says whether the tool has run (WIRE §5)."""
    result = CallToolResult([{"type": "text", "text": error.message}], is_error=True, meta=_marks(error))
    return {**error.to_wire(outcome=error.outcome), **result.to_wire()}


class CallResult(NamedTuple):
    """How a call ended, in one word: `ok`, `tool_error`, `answered` (sealed: not known), or a word for an error.

    `code` is that of an error of the protocol, and `ran` says whether the tool has run then.
    """

    outcome: str
    code: int | None = None
    ran: str | None = None


OK, TOOL_ERROR, ANSWERED = CallResult("ok"), CallResult("tool_error"), CallResult("answered")
_OUTCOME_WORDS = {
    400: "bad_request",
    401: "denied",
    403: "denied",
    404: "not_found",
    408: "timeout",
    413: "too_large",
    429: "busy",
    499: "cancelled",
    503: "unavailable",
    4006: "sign_in_required",
    4007: "sign_in_required",
}


def call_result(
    code: int | None, *, is_error: bool = False, ran: str | None = None, is_sealed: bool = False
) -> CallResult:
    """The word for an error with this code, or for an answer without one. Codes without a word are an `error`."""
    if code is not None:
        return CallResult(_OUTCOME_WORDS.get(code, "error"), code, ran)
    return TOOL_ERROR if is_error else ANSWERED if is_sealed else OK
