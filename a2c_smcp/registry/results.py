"""What an MCP result means to a Python program: a value, or an exception."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from a2c_smcp.errors import SMCPError

MAX_REASON = 1000

__all__ = ["Content", "RawResult", "ToolFailed", "text_of", "value_of"]


class ToolFailed(SMCPError):
    """A tool that runs elsewhere said that it failed. `result` is what it answered."""

    title = "Tool failed"

    def __init__(self, about: str = "", *, result: Mapping[str, Any] | None = None, **details: Any) -> None:
        super().__init__(about, **details)
        self.result = dict(result or {})


class Content(list[dict[str, Any]]):
    """Blocks of content, such as images, which are just that again where a registry is served over MCP."""


class RawResult(dict[str, Any]):
    """An MCP result as it came, which is just that again where a registry is served over MCP."""


def value_of(result: Mapping[str, Any]) -> Any:
    """`structuredContent` where there is one, else the text, else the content as it came; `None` if there is none.

    Raises `ToolFailed` for a result that is an error.
    """
    if result.get("isError"):
        raise ToolFailed(text_of(result) or _reason_in(result.get("structuredContent")), result=result)
    if result.get("structuredContent") is not None:
        return result["structuredContent"]
    content = result.get("content") or []
    if all(_is_text(block) for block in content):
        return text_of(result) if content else None
    return Content(content)


def text_of(result: Mapping[str, Any]) -> str:
    """What the result says in words, one line per block."""
    return "\n".join(block["text"] for block in result.get("content") or [] if _is_text(block))


def _reason_in(structured: Any) -> str:
    """Why a tool failed, of one that says it in no words of its own: 0.4.2's computers put it under `error`."""
    reason = structured.get("error", structured) if isinstance(structured, Mapping) else None
    if not reason or isinstance(reason, str):
        return reason or ""
    return json.dumps(reason, ensure_ascii=False, default=str)[:MAX_REASON]


def _is_text(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str)
