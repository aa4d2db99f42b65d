"""The list of tools in the format of each reader: 001's planner, OpenAI, Anthropic, Gemini, MCP."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Literal, TypeAlias

from a2c_smcp.registry.planning.provider_schemas import gemini_schema, plain_object
from a2c_smcp.registry.tool_info import ToolInfo

__all__ = ["FORMATS", "Format", "in_format", "portable_name"]

Format: TypeAlias = Literal["openai", "anthropic", "gemini", "mcp"]

MAX_NAME = 64

_PORTABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")


def in_format(format: str | None, tools: Sequence[ToolInfo]) -> Any:  # noqa: A002
    """Plain JSON. Raises `ValueError` for an unknown format."""
    if format not in FORMATS:
        raise ValueError(f"there is no format {format!r}, only {', '.join(filter(None, FORMATS))}")
    return FORMATS[format](tools)


def portable_name(name: str) -> str:
    """The name itself if every provider accepts it, else a similar name with a hash of the original.

    Providers accept up to 64 of `A-Z a-z 0-9 _ -`, with a letter or `_` first. The result depends on the name only: a
    model's call finds the same tool whatever else is registered.
    """
    if _PORTABLE.fullmatch(name):
        return name
    mark = sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    plain = _FOREIGN.sub("_", name)
    plain = plain if plain[0].isalpha() or plain[0] == "_" else f"_{plain}"
    return f"{plain[: MAX_NAME - len(mark) - 1]}_{mark}"


def _planner(tools: Sequence[ToolInfo]) -> dict[str, dict[str, Any]]:
    return {tool.name: {"description": tool.description, "input_schema": tool.input_schema} for tool in tools}


def _openai(tools: Sequence[ToolInfo]) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {
                "name": portable_name(tool.name),
                "description": tool.description,
                "parameters": {"properties": {}} | plain_object(tool.input_schema),
            },
        }
        for tool in tools
    ]


def _anthropic(tools: Sequence[ToolInfo]) -> list[dict[str, Any]]:
    return [
        {
            "name": portable_name(tool.name),
            "description": tool.description,
            "input_schema": plain_object(tool.input_schema),
        }
        for tool in tools
    ]


def _gemini(tools: Sequence[ToolInfo]) -> list[dict[str, Any]]:
    return [{"function_declarations": [_declaration(tool) for tool in tools]}]


def _declaration(tool: ToolInfo) -> dict[str, Any]:
    """A function without parameters has no `parameters`: Gemini refuses an object without properties."""
    declaration: dict[str, Any] = {"name": portable_name(tool.name), "description": tool.description}
    parameters = gemini_schema(plain_object(tool.input_schema))
    return declaration | {"parameters": parameters} if parameters.get("properties") else declaration


def _mcp(tools: Sequence[ToolInfo]) -> list[dict[str, Any]]:
    return [
        {
            "name": tool.name,
            "description": tool.description,
            "inputSchema": {"type": "object", **tool.input_schema},
            **tool.mcp_fields,
        }
        for tool in tools
    ]


FORMATS: Mapping[str | None, Callable[[Sequence[ToolInfo]], Any]] = {
    None: _planner,
    "openai": _openai,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "mcp": _mcp,
}
