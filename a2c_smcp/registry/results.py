"""Results of tools: 001 §7's envelope, an MCP result as a Python value, a Python value as an MCP result.

The Python value of an MCP result leaves things out, such as content beside `structuredContent`. A program that passes
results on shall lose nothing, so a remote tool also says what its whole result was (`note_result`). `mcp_result` uses
that if this tool, and not a function around it, was called.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from a2c_smcp.errors import AuthorizationFailed, AuthorizationRequired, SMCPError
from a2c_smcp.loops import is_cancelled
from a2c_smcp.registry.content import ToolResult, blocks_of, has_content, json_of

__all__ = [
    "ContentBlocks",
    "RawResult",
    "ToolFailed",
    "ToolNeedsPermission",
    "ToolNeedsSignIn",
    "envelope",
    "mcp_result",
    "note_result",
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


class ToolNeedsSignIn(ToolFailed, AuthorizationRequired):
    """The owner of the tool's MCP server has to sign in there before the tool can be used."""

    title = "The owner of this tool has to sign in"


class ToolNeedsPermission(ToolFailed, AuthorizationFailed):
    """The tool's MCP server is signed in to, but without a permission that the tool needs."""

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


@dataclass(slots=True)
class _Noted:
    """The last whole result of a remote tool in the call that is being made."""

    tool: object = None
    result: Mapping[str, Any] | None = None


_NOTED: ContextVar[_Noted | None] = ContextVar("noted_result", default=None)


def note_result(tool: object, result: Mapping[str, Any]) -> None:
    """Says that this is the whole result of a remote tool, whose value its caller gets."""
    if noted := _NOTED.get():
        noted.tool, noted.result = tool, result


async def mcp_result(
    name: str, call: Awaitable[Any], tool: object = None, *, passing: tuple[type[Exception], ...] = ()
) -> dict[str, Any]:
    """Awaits a call of the tool `name` and returns its outcome as an MCP result: errors become error results.

    If `tool` is a remote one, its own result is returned. Raises errors of the classes in `passing`, and
    `CancelledError` if the current task is cancelled.
    """
    noted = _Noted()
    token = _NOTED.set(noted)
    try:
        value = await call
        return _success(value) if noted.result is None or noted.tool is not tool else dict(noted.result)
    except passing:
        raise
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        return _error("The tool was cancelled.")
    except ToolFailed as failure:
        return dict(failure.result) or _error(failure.message)
    except SMCPError as error:
        return _error(error.message)
    except (Exception, SystemExit) as error:  # a function that exits must not end the program that hosts it
        logger.warning("Tool %r failed", name, exc_info=True)
        return _error(str(error) or type(error).__name__)
    finally:
        _NOTED.reset(token)


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
    if isinstance(value, ToolResult):
        return value.to_mcp()
    if isinstance(value, ContentBlocks):
        return {"content": [*value], "isError": False}
    if has_content(value):
        return {"content": blocks_of(value), "isError": False}
    plain = json_of(value)
    if plain is None or isinstance(plain, str):
        return {"content": blocks_of(plain), "isError": False}
    return {
        "content": blocks_of(plain),
        "structuredContent": plain if isinstance(plain, dict) else {"result": plain},
        "isError": False,
    }


def _error(text: str) -> dict[str, Any]:
    return {"content": blocks_of(text), "isError": True}


def _is_text(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str)
