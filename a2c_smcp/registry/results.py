"""Results of tools: 001 §7's envelope, an MCP result as a Python value, a Python value as an MCP result."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Mapping
from typing import Any

from pydantic_core import to_jsonable_python

from a2c_smcp.errors import SMCPError
from a2c_smcp.loops import is_cancelled

__all__ = [
    "ContentBlocks",
    "RawResult",
    "ToolFailed",
    "ToolNeedsPermission",
    "ToolNeedsSignIn",
    "envelope",
    "mcp_result",
    "text_of",
    "value_of",
]

logger = logging.getLogger(__name__)

MAX_REASON = 1000

_ENVELOPE_KEYS = frozenset({"output", "meta"})


class ToolFailed(SMCPError):
    """A remote tool answered that it failed. `result` is its answer."""

    title = "Tool failed"

    def __init__(self, about: str = "", *, result: Mapping[str, Any] | None = None, **details: Any) -> None:
        super().__init__(about, **details)
        self.result = dict(result or {})


class ToolNeedsSignIn(ToolFailed):
    """The owner of the tool's MCP server has to sign in there before the tool can be used."""

    code = 4006
    title = "The owner of this tool has to sign in"


class ToolNeedsPermission(ToolFailed):
    """The tool's MCP server is signed in to, but without a permission that the tool needs."""

    code = 4007
    title = "The owner of this tool has to give it a permission"


class ContentBlocks(list[dict[str, Any]]):
    """Content blocks of an MCP result, such as images. `mcp_result` passes them on unchanged."""


class RawResult(dict[str, Any]):
    """A whole MCP result. `mcp_result` passes it on unchanged."""


def envelope(result: Any, *, tool: str, duration: float) -> dict[str, Any]:
    """Returns `{"output": …, "meta": {…}}` (001 §7).

    A result that has this shape is completed, not wrapped again. Its own `meta` wins over `tool` and `duration`.
    """
    measured = {"tool": tool, "duration": duration}
    if not _is_envelope(result):
        return {"output": result, "meta": measured}
    return {"output": result["output"], "meta": measured | result.get("meta", {})}


def value_of(result: Mapping[str, Any]) -> Any:
    """The Python value of an MCP result: `structuredContent`, else the text, else the content; `None` if it is empty.

    Raises `ToolFailed` for an error result; `ToolNeedsSignIn` and `ToolNeedsPermission` say what the owner has to do.
    """
    if result.get("isError"):
        raise _failure(result)
    if result.get("resultType") == "input_required":
        raise ToolFailed("it asks a question, and this caller cannot answer", result=result)
    if result.get("structuredContent") is not None:
        return result["structuredContent"]
    content = result.get("content") or []
    if all(_is_text(block) for block in content):
        return text_of(result) if content else None
    return ContentBlocks(content)


def _failure(result: Mapping[str, Any]) -> ToolFailed:
    meta = result.get("_meta")
    meta = meta if isinstance(meta, Mapping) else {}
    kind = next((each for each in (ToolNeedsSignIn, ToolNeedsPermission) if each.code == meta.get("error_code")), None)
    if kind is None:
        return ToolFailed(text_of(result) or _structured_reason(result.get("structuredContent")), result=result)
    hint, server = meta.get("auth_hint"), meta.get("mcp_server")
    advice = hint.get("message") if isinstance(hint, Mapping) else None
    reasons = dict.fromkeys(filter(None, (text_of(result), str(advice or ""))))  # often they are the same
    details = {"mcp_server": server} if isinstance(server, str) else {}
    return kind("; ".join(reasons), result=result, **details)


def text_of(result: Mapping[str, Any]) -> str:
    """The text blocks of an MCP result, one line each."""
    return "\n".join(block["text"] for block in result.get("content") or [] if _is_text(block))


async def mcp_result(tool: str, call: Awaitable[Any]) -> dict[str, Any]:
    """Awaits a call of `tool` and returns its outcome as an MCP result: what it raises becomes an error result.

    Raises only `CancelledError`, if the current task is cancelled.
    """
    try:
        return _success(await call)
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        return _error("The tool was cancelled.")
    except ToolFailed as failure:
        return dict(failure.result) or _error(failure.message)
    except SMCPError as error:
        return _error(error.message)
    except (Exception, SystemExit) as error:  # a function that exits must not end the program that hosts it
        logger.warning("Tool %r failed", tool, exc_info=True)
        return _error(str(error) or type(error).__name__)


def _is_envelope(result: Any) -> bool:
    return (
        isinstance(result, dict)
        and "output" in result
        and result.keys() <= _ENVELOPE_KEYS
        and isinstance(result.get("meta", {}), dict)
    )


def _structured_reason(structured: Any) -> str:
    """The reason of a failure without text: computers of 0.4.2 put it under `error`."""
    reason = structured.get("error", structured) if isinstance(structured, Mapping) else None
    if not reason or isinstance(reason, str):
        return reason or ""
    return json.dumps(reason, ensure_ascii=False, default=str)[:MAX_REASON]


def _success(value: Any) -> dict[str, Any]:
    if isinstance(value, RawResult):
        return dict(value)
    if isinstance(value, ContentBlocks):
        return {"content": [*value], "isError": False}
    plain = _without_nan(to_jsonable_python(value, bytes_mode="base64", fallback=str))
    if plain is None:
        return {"content": [], "isError": False}
    if isinstance(plain, str):
        return {"content": [_text(plain)], "isError": False}
    return {
        "content": [_text(json.dumps(plain, ensure_ascii=False))],
        "structuredContent": plain if isinstance(plain, dict) else {"result": plain},
        "isError": False,
    }


def _without_nan(value: Any) -> Any:
    """JSON has no NaN and no infinities: they become null, as in JavaScript."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _error(text: str) -> dict[str, Any]:
    return {"content": [_text(text)], "isError": True}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _is_text(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str)
