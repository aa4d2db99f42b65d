"""The result of a tool call, and the answer to a request that failed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from a2c_smcp.errors import CallCancelled, SMCPError
from a2c_smcp.protocol.events import Action, EventSpec
from a2c_smcp.smcp import TOOL_CALL_EVENT

__all__ = ["CallToolResult", "error_ack", "failed_call"]


@dataclass(frozen=True)
class CallToolResult:
    """The result of an MCP tool. Fields that this class does not know are kept in `extra`."""

    content: list[dict[str, Any]] = field(default_factory=list)
    is_error: bool = False
    structured_content: dict[str, Any] | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """All text blocks, joined by line breaks."""
        blocks = (block for block in self.content if isinstance(block, dict))
        return "\n".join(block["text"] for block in blocks if isinstance(block.get("text"), str))

    @classmethod
    def from_wire(cls, answer: object) -> CallToolResult:
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
        )

    def to_wire(self) -> dict[str, Any]:
        wire: dict[str, Any] = {"content": self.content, "isError": self.is_error}
        if self.structured_content is not None:
            wire["structuredContent"] = self.structured_content
        if self.meta:
            wire["_meta"] = self.meta
        return {**wire, **self.extra}


def error_ack(event: EventSpec | None, error: SMCPError) -> dict[str, Any] | tuple[bool, str]:
    """The answer to a request that failed, in the shape that its sender expects (WIRE §3).

    Returns one ack argument, or a tuple of two.
    """
    if event is None:
        return error.to_wire()
    if event.action in (Action.JOIN, Action.LEAVE):
        return False, str(error)
    return failed_call(error) if event.name == TOOL_CALL_EVENT else error.to_wire()


def failed_call(error: SMCPError) -> dict[str, Any]:
    """An error that is also a valid MCP result. Its `details.outcome` says whether the tool has run (WIRE §5)."""
    meta = {"a2c_cancelled": True} if isinstance(error, CallCancelled) else {}
    result = CallToolResult([{"type": "text", "text": error.message}], is_error=True, meta=meta)
    return {**error.to_wire(outcome=error.outcome), **result.to_wire()}
