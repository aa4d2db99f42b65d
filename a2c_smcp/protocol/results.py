"""The result of a tool call, and the answer to a request that failed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from a2c_smcp.errors import BadRequest, CallCancelled, CallFrozen, CallTimeout, RateLimited, SMCPError, TooLarge
from a2c_smcp.mcp_events import CallEnd
from a2c_smcp.protocol.codec import Encoded, dumps
from a2c_smcp.protocol.events import Action, EventSpec
from a2c_smcp.protocol.questions import is_input_required
from a2c_smcp.smcp import TOOL_CALL_EVENT

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
        if not texts and self.is_error:  # how computers of the published 0.4 generation report an unknown tool
            error = (_object(self.structured_content) or {}).get("error")
            return error if isinstance(error, str) else ""
        return "\n".join(texts)

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
        """True if this is not a result yet: the MCP server needs answers to its `input_requests` first.

        Only calls with `questions="result"` are answered so (WIRE §9). Call again with `input_responses` (a result for
        each of the requests, under the same key) and this `request_state`.
        """
        return is_input_required(self.extra) or "inputRequests" in self.extra

    @property
    def input_requests(self) -> dict[str, Any]:
        """The questions of the MCP server, as MCP spells them: `{key: {"method", "params"}}`."""
        return _object(self.extra.get("inputRequests")) or {}

    @property
    def request_state(self) -> str | None:
        """The state to send back unchanged with the `input_responses`."""
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
        """True if the tool was stopped because its time was over."""
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
    """The marks that the published 0.4 generation reads in the result of a failed call (PROTOCOL-0.4 §7)."""
    if isinstance(error, CallCancelled):
        reason = "frozen" if isinstance(error, CallFrozen) else "agent_requested"
        return {"a2c_cancelled": True, "a2c_cancel_reason": reason}
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
    if event is not None and event.fallback:
        return _for_published_agents(event.fallback, error)
    return error_ack(event, error)


_KNOWN_CODES = frozenset((404, 4006, 4007, 4008, *range(4014, 4020)))
_REASONS = {TooLarge.code: "too_large", RateLimited.code: "busy"}


def _for_published_agents(fallback: type[SMCPError], error: SMCPError) -> dict[str, Any]:
    """An error in a code that these agents know as one; any other is nothing to them (PROTOCOL-0.4 §1).

    `error`, which they do not read, has the code as it is.
    """
    wire = error.to_wire()
    if error.code in _KNOWN_CODES:
        return wire
    details = {"reason": _REASONS.get(error.code, "forbidden"), **wire["details"]}
    return {**wire, "code": fallback.code, "details": details}


def failed_call(error: SMCPError) -> dict[str, Any]:
    """An error that is also a valid MCP result. Its `details.outcome` says whether the tool has run (WIRE §5)."""
    result = CallToolResult([{"type": "text", "text": error.message}], is_error=True, meta=_marks(error))
    return {**error.to_wire(outcome=error.outcome), **result.to_wire()}


class CallResult(NamedTuple):
    """The end of a call, in one word: `ok`, `tool_error`, `answered` (sealed: not known), or a word for an error.

    `code` is that of an error of the protocol, and `ran` says whether the tool has run then.
    """

    outcome: str
    code: int | None = None
    ran: str | None = None

    @property
    def end(self) -> CallEnd:
        """The end of the call, as people are told it."""
        return _ENDS.get(self.outcome) or ("refused" if self.ran == "not_run" else "lost")


_ENDS: dict[str, CallEnd] = {
    "ok": "done",
    "answered": "done",
    "tool_error": "tool error",
    "denied": "refused",
    "cancelled": "cancelled",
    "timeout": "timed out",
}
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


# Chunks of large contents: their size, and bytes as base64 text (PROTOCOL-0.4 §6).

CHUNK = 262_144
"""Bytes of a chunk, before they are encoded."""


def to_base64(content: bytes | bytearray) -> str:
    """Several times as fast as the standard library."""
    text: str = msgspec.to_builtins(content)
    return text


def from_base64(text: str) -> bytes:
    """Reads the standard alphabet with padding, and nothing else. Raises `BadRequest`."""
    try:
        return msgspec.convert(text, bytes)
    except (msgspec.ValidationError, UnicodeEncodeError):
        raise BadRequest("not base64") from None


def with_blob(message: dict[str, Any], blob: str | bytes) -> dict[str, Any]:
    """The message with a chunk, as it is (an attachment) or in base64.

    Base64 needs no escapes, and to look for some takes longer than the rest.
    """
    if isinstance(blob, bytes):
        return {**message, "blob": blob}
    return Encoded({**message, "blob": blob}, f'{dumps(message)[:-1]},"blob":"{blob}"}}')


def decoded_size(text: str) -> int:
    """The number of bytes that base64 stands for, without reading it."""
    return len(text) // 4 * 3 - text[-2:].count("=")


# Keys of `_meta` that only we set: an MCP server that sends one is not believed (WIRE §2).

_KEYS = ("error_code", "auth_hint")
_METAS = ("_meta", "meta")  # readers accept the second spelling, too
_LISTS = ("content", "contents", "messages")
_INNER = frozenset((*_METAS, "resource", "content"))
_DEPTH = 3  # a result, a message, its content, a resource in it


def is_own_key(key: object) -> bool:
    """True for `a2c_…`, `error_code` and `auth_hint`."""
    return isinstance(key, str) and (key.startswith("a2c_") or key in _KEYS)


def without_own_keys(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result, or an item of a list, without such keys; the same object if there is no `_meta`.

    They are removed from the contents too: of a tool's result, of a resource, of the messages of a prompt.
    """
    for name in _LISTS:
        items = result.get(name)
        if isinstance(items, list) and any(isinstance(item, dict) and not _INNER.isdisjoint(item) for item in items):
            result = {**result, name: [_cleaned(item) for item in items]}
    return _cleaned(result) if "_meta" in result or "meta" in result else result


def _cleaned(item: Any, depth: int = _DEPTH) -> Any:
    if isinstance(item, list):
        return [_cleaned(part, depth) for part in item]
    if not isinstance(item, dict):
        return item
    item = dict(item)
    for key in _INNER & item.keys():
        if key not in _METAS:
            item[key] = _cleaned(item[key], depth - 1) if depth else item[key]
        elif isinstance(meta := item[key], dict):
            item[key] = {name: value for name, value in meta.items() if not is_own_key(name)}
    return item
