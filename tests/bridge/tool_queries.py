"""A fixed set of tools and of queries for them, with the tool that each query means: `queries.json`.

The queries are of five kinds. `direct`: in words that the tool itself may use. `paraphrase`: in other words. `request`:
as a person asks for it, in a whole sentence. `chinese`: Chinese for a tool that is described in Chinese. `crossed`:
Chinese for a tool that is described in English.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["ToolQuery", "all_queries", "all_tools"]

_DATA = json.loads(Path(__file__).with_name("queries.json").read_text("utf-8"))


class ToolQuery(NamedTuple):
    """What a model might search for, and the names of the tools that would do."""

    kind: str
    text: str
    expected: list[str]


def all_tools() -> dict[str, dict[str, Any]]:
    """Every tool, by its name: MCP's `Tool` without the name."""
    return {tool["name"]: _listing(tool) for tool in _DATA["tools"]}


def all_queries() -> list[ToolQuery]:
    return [ToolQuery(query["kind"], query["query"], query["expected"]) for query in _DATA["queries"]]


def _listing(tool: dict[str, Any]) -> dict[str, Any]:
    properties = {name: {"type": "string", "description": about} for name, about in tool["parameters"].items()}
    schema = {"type": "object", "properties": properties, "required": [*properties][:1]}
    return {"description": tool["description"], "inputSchema": schema}
