"""The line to try next: a command that can be pasted into a shell, with a tool that is really there."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from a2c_smcp.cli.invocation import invocation_anywhere
from a2c_smcp.computer.arguments import compile_schema
from a2c_smcp.computer.tools import A2C_TOOL_META, MCP_TOOL_ANNOTATION
from a2c_smcp.registry.schemas import find_faults
from a2c_smcp.smcp import SMCPTool

__all__ = ["agent_line", "call_of"]

# fmt: off
_HARMLESS = frozenset({
    "add", "calculate", "check", "count", "current", "describe", "echo", "find", "get", "greet", "hello",
    "help", "info", "list", "look", "ping", "read", "search", "show", "status", "sum", "time", "version",
    "view", "weather",
})
# fmt: on
"""Words in the names of tools that only look, where nothing else tells."""
_BY_TYPE: dict[str, Any] = {"string": "hello", "integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}


def agent_line(words: Sequence[str], *, url: str, office: str, key_file: Path) -> str:
    """`a2c-smcp agent WORDS`. The key is read where it is kept, so that it gets into no history of commands."""
    command = [*invocation_anywhere(), "agent", *words, "--url", url, "--office", office]
    if os.name == "nt":
        quoted = " ".join(f"'{word}'" if not word.isalnum() else word for word in command)
        return f"$env:A2C_API_KEY = Get-Content '{key_file}'; {quoted}"
    return f'A2C_API_KEY="$(cat {shlex.quote(str(key_file))})" {shlex.join(command)}'


def call_of(computer: str, tools: Iterable[SMCPTool], *, may_ask: bool) -> list[str] | None:
    """The words of a call that seems to do no harm and needs the least, or `None` if no tool seems so.

    `may_ask`: tools that need approval will get it, or their owner is there to be asked.
    """
    candidates = [found for tool in tools if (found := _candidate(tool, may_ask=may_ask))]
    if not candidates:
        return None
    best = min(candidates)
    return ["call", computer, best.name, *best.words]


class _Candidate(NamedTuple):
    """Sorted by what speaks against it."""

    may_change: bool
    guesses: int
    name: str
    words: tuple[str, ...]


def _candidate(tool: SMCPTool, *, may_ask: bool) -> _Candidate | None:
    only_reads = _object(tool, MCP_TOOL_ANNOTATION).get("readOnlyHint")
    may_run = may_ask or _object(tool, A2C_TOOL_META).get("auto_apply") is True
    if not may_run or only_reads is False or not (only_reads or _sounds_harmless(tool["name"])):
        return None
    schema = tool["params_schema"]
    properties = schema.get("properties") or {}
    required = [name for name in schema.get("required") or () if isinstance(properties.get(name), Mapping)]
    arguments = {name: _example(properties[name]) for name in required}
    if find_faults(compile_schema(schema), arguments):
        return None
    words = tuple(f"{name}={_word(value)}" for name, value in arguments.items())
    guesses = sum("default" not in properties[name] and not properties[name].get("examples") for name in required)
    return _Candidate(only_reads is not True, guesses, tool["name"], words)


def _sounds_harmless(name: str) -> bool:
    return not _HARMLESS.isdisjoint(word.lower() for word in re.findall("[A-Z]?[a-z]+|[A-Z]+", name))


def _object(tool: SMCPTool, key: str) -> Mapping[str, Any]:
    found = json.loads(str((tool.get("meta") or {}).get(key) or "{}"))
    return found if isinstance(found, Mapping) else {}


def _example(schema: Mapping[str, Any]) -> Any:
    """A value that the schema names, else one of its type."""
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("examples", "enum"):
        if isinstance(schema.get(key), list) and schema[key]:
            return schema[key][0]
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    return schema.get("minimum", _BY_TYPE.get(str(kind)))


def _word(value: Any) -> str:
    """As `a2c-smcp agent call` reads it back: text that would be taken for JSON is quoted."""
    if not isinstance(value, str):
        return json.dumps(value)
    try:
        json.loads(value)
    except ValueError:
        return value
    return json.dumps(value)
