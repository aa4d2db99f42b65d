"""A list of tools in the words of those who read it: 001's planner, the model providers, and MCP."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Literal, TypeAlias

from a2c_smcp.registry.planning.provider_schemas import one_object, reduced_schema
from a2c_smcp.registry.tool_info import Traits

__all__ = ["FORMATS", "Format", "in_format", "portable_name"]

Format: TypeAlias = Literal["openai", "anthropic", "gemini", "mcp"]

MAX_NAME = 64

_PORTABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")


def in_format(format: str | None, tools: Sequence[Traits]) -> Any:  # noqa: A002
    """Plain JSON. Raises `ValueError` for a format that there is not."""
    if format not in FORMATS:
        raise ValueError(f"there is no format {format!r}, only {', '.join(filter(None, FORMATS))}")
    return FORMATS[format](tools)


def portable_name(name: str) -> str:
    """The name itself if every provider takes it (64 of `A-Z a-z 0-9 _ -`, a letter or `_` first), else one made of it.

    What is made depends on nothing but the name: whatever else is registered, a model's call finds the same tool.
    """
    if _PORTABLE.fullmatch(name):
        return name
    mark = sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    plain = _FOREIGN.sub("_", name)
    plain = plain if plain[0].isalpha() or plain[0] == "_" else f"_{plain}"
    return f"{plain[: MAX_NAME - len(mark) - 1]}_{mark}"


def _planner(tools: Sequence[Traits]) -> dict[str, dict[str, Any]]:
    return {tool.name: {"description": tool.description, "input_schema": tool.input_schema} for tool in tools}


def _openai(tools: Sequence[Traits]) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {
                "name": portable_name(tool.name),
                "description": tool.description,
                "parameters": {"properties": {}} | one_object(tool.input_schema),
            },
        }
        for tool in tools
    ]


def _anthropic(tools: Sequence[Traits]) -> list[dict[str, Any]]:
    return [
        {
            "name": portable_name(tool.name),
            "description": tool.description,
            "input_schema": one_object(tool.input_schema),
        }
        for tool in tools
    ]


def _gemini(tools: Sequence[Traits]) -> list[dict[str, Any]]:
    return [{"function_declarations": [_declaration(tool) for tool in tools]}]


def _declaration(tool: Traits) -> dict[str, Any]:
    """A function without parameters has none: an object without properties is refused."""
    declaration: dict[str, Any] = {"name": portable_name(tool.name), "description": tool.description}
    parameters = reduced_schema(one_object(tool.input_schema))
    return declaration | {"parameters": parameters} if parameters.get("properties") else declaration


def _mcp(tools: Sequence[Traits]) -> list[dict[str, Any]]:
    return [
        {
            "name": tool.name,
            "description": tool.description,
            "inputSchema": {"type": "object", **tool.input_schema},
            **tool.wire,
        }
        for tool in tools
    ]


FORMATS: Mapping[str | None, Callable[[Sequence[Traits]], Any]] = {
    None: _planner,
    "openai": _openai,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "mcp": _mcp,
}
