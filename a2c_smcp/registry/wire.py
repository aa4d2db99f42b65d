"""A registry as MCP's wire shows a server: what `tools/list` and `tools/call` would answer."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from typing import Any

from pydantic_core import to_jsonable_python

from a2c_smcp.errors import SMCPError
from a2c_smcp.loops import is_cancelled
from a2c_smcp.registry.registry import MCPRegistry
from a2c_smcp.registry.results import Content, RawResult, ToolFailed

__all__ = ["wire_call", "wire_tools"]

logger = logging.getLogger(__name__)


def wire_tools(registry: MCPRegistry) -> list[dict[str, Any]]:
    """The tools in MCP's spelling, by order of registration."""
    return list(registry.describe("mcp"))


async def wire_call(registry: MCPRegistry, name: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
    """The result in MCP's spelling. Whatever the tool raises becomes an error result; only a cancel goes through."""
    try:
        return _result(await registry.acall(name, {} if arguments is None else arguments))
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        return _error("The tool was cancelled.")
    except ToolFailed as failure:
        return dict(failure.result) or _error(failure.message)
    except SMCPError as error:
        return _error(error.message)
    except (Exception, SystemExit) as error:  # a function that exits shall not take its host with it
        logger.warning("Tool %r failed", name, exc_info=True)
        return _error(str(error) or type(error).__name__)


def _result(value: Any) -> dict[str, Any]:
    if isinstance(value, RawResult):
        return dict(value)
    if isinstance(value, Content):
        return {"content": [*value], "isError": False}
    plain = _strict(to_jsonable_python(value, bytes_mode="base64", fallback=str))
    if plain is None:
        return {"content": [], "isError": False}
    if isinstance(plain, str):
        return {"content": [_text(plain)], "isError": False}
    return {
        "content": [_text(json.dumps(plain, ensure_ascii=False))],
        "structuredContent": plain if isinstance(plain, dict) else {"result": plain},
        "isError": False,
    }


def _strict(value: Any) -> Any:
    """JSON has no NaN and no infinities: null, as in JavaScript."""
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _error(text: str) -> dict[str, Any]:
    return {"content": [_text(text)], "isError": True}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
