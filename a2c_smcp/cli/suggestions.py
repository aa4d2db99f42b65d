"""Commands to try next, ready to be pasted into a shell: how this program is started, and a call of a harmless tool."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from a2c_smcp.computer.calls.table import A2C_TOOL_META, MCP_TOOL_ANNOTATION
from a2c_smcp.registry.schemas.check import Schema, find_faults
from a2c_smcp.smcp import SMCPTool

# fmt: off
_HARMLESS = frozenset({
    "add", "calculate", "check", "count", "current", "describe", "echo", "find", "get", "greet", "hello",
    "help", "info", "list", "look", "ping", "read", "search", "show", "status", "sum", "time", "version",
    "view", "weather",
})
"""Words in the names of tools that probably only read, if their annotations do not say."""
_PRIVATE = frozenset({
    "auth", "cookie", "cookies", "credential", "credentials", "env", "environment", "key", "keys", "mail", "message",
    "messages", "password", "passwords", "secret", "secrets", "token", "tokens",
})
"""Words in the names of tools whose answers may be private: these are not suggested."""
_FREE_TEXT = frozenset({
    "a", "b", "content", "greeting", "input", "keyword", "message", "msg", "name", "phrase", "prompt", "q", "query",
    "search", "sentence", "string", "term", "text", "title", "topic", "value", "word", "words", "x", "y",
})
"""Words in the names of arguments that take any text, unlike a path, a URL or an id."""
# fmt: on
_PLAIN_IN_POWERSHELL = re.compile(r"[\w:/.\\-]+", re.ASCII).fullmatch
_BY_TYPE: dict[str, Any] = {"string": "hello", "integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}


def agent_line(words: Sequence[str], *, url: str, office: str) -> str:
    """`a2c-smcp agent WORDS`, with nothing for a shell to expand: the agent finds the key of a running `up`."""
    return command_line("agent", *words, "--url", url, "--office", office)


def command_line(*words: str) -> str:
    """`a2c-smcp WORDS`, for the shell of this system."""
    return in_shell([*invocation_anywhere(), *words])


def in_shell(command: Sequence[str]) -> str:
    """The command for the shell of this system: PowerShell on Windows."""
    if os.name != "nt":
        return shlex.join(command)
    words = [word if _PLAIN_IN_POWERSHELL(word) else _in_powershell(word) for word in command]
    return " ".join(words if words[0] == command[0] else ("&", *words))


def _in_powershell(word: str) -> str:
    return "'" + word.replace("'", "''") + "'"


def suggested_call(computer: str, tools: Iterable[SMCPTool], *, may_ask: bool) -> list[str] | None:
    """The words of a call that only reads, or seems to, with as few guessed arguments as possible; `None` if none fits.

    `may_ask`: tools that need approval will get it, or their owner is there to be asked.
    """
    candidates = [candidate for tool in tools if (candidate := _candidate(tool, may_ask=may_ask))]
    if not candidates:
        return None
    best = min(candidates)
    return ["call", computer, best.name, *best.words]


class _Candidate(NamedTuple):
    """A possible call. The smallest one is suggested."""

    may_change: bool
    guesses: int
    name: str
    words: tuple[str, ...]


def _candidate(tool: SMCPTool, *, may_ask: bool) -> _Candidate | None:
    only_reads = _object(tool, MCP_TOOL_ANNOTATION).get("readOnlyHint")
    may_run = may_ask or _object(tool, A2C_TOOL_META).get("auto_apply") is True
    if not may_run or only_reads is False or not _is_harmless(tool["name"], only_reads=only_reads is True):
        return None
    arguments, guesses = _example_arguments(tool["params_schema"])
    if arguments is None:
        return None
    words = tuple(f"{name}={_word(value)}" for name, value in arguments.items())
    return _Candidate(only_reads is not True, guesses, tool["name"], words)


def _example_arguments(schema: dict[str, Any]) -> tuple[dict[str, Any] | None, int]:
    """Values for the required arguments that the schema accepts, or `None`; and how many of them are guessed."""
    properties = schema.get("properties") or {}
    required = [name for name in schema.get("required") or () if isinstance(properties.get(name), Mapping)]
    guessed = [name for name in required if not _has_example(properties[name])]
    arguments = {name: _example(properties[name]) for name in required}
    if not all(_is_guessable(name, arguments[name]) for name in guessed):
        return None, 0
    compiled = Schema(schema)
    is_heavy = compiled.ready.validator is None  # it would be checked in another process
    return (None, 0) if is_heavy or find_faults(compiled, arguments) else (arguments, len(guessed))


def _is_harmless(name: str, *, only_reads: bool) -> bool:
    words = _words_in(name)
    return words.isdisjoint(_PRIVATE) and (only_reads or not words.isdisjoint(_HARMLESS))


def _is_guessable(argument: str, value: Any) -> bool:
    """True if any value of the right type will do: a number, or a text if the argument takes any text."""
    words = _words_in(argument)
    if isinstance(value, str):
        return not words.isdisjoint(_FREE_TEXT)
    return isinstance(value, int | float) and "id" not in words


def _words_in(name: str) -> set[str]:
    return {word.lower() for word in re.findall("[A-Z]?[a-z]+|[A-Z]+", name)}


def _object(tool: SMCPTool, key: str) -> Mapping[str, Any]:
    value = json.loads(str((tool.get("meta") or {}).get(key) or "{}"))
    return value if isinstance(value, Mapping) else {}


def _has_example(schema: Mapping[str, Any]) -> bool:
    return "const" in schema or "default" in schema or bool(schema.get("examples") or schema.get("enum"))


def _example(schema: Mapping[str, Any]) -> Any:
    """A value that the schema names, or else one of its type."""
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
    """The value as `a2c-smcp agent call` reads it: text that looks like JSON is quoted."""
    if not isinstance(value, str):
        return json.dumps(value)
    try:
        json.loads(value)
    except ValueError:
        return value
    return json.dumps(value)


_NAME = "a2c-smcp"


def invocation() -> list[str]:
    """The words that start this program again in this folder: the bare name only if the PATH leads to it.

    A virtual environment is often not on the PATH.
    """
    started = Path(sys.argv[0])
    if started.name == "__main__.py":
        return [sys.executable, "-m", "a2c_smcp"]
    installed = shutil.which(_NAME)
    is_on_path = installed is not None and started.exists() and Path(installed).samefile(started)
    return [_NAME] if is_on_path or not started.exists() else [sys.argv[0]]


def invocation_anywhere() -> list[str]:
    """The same for another terminal: in another folder, and without this virtual environment."""
    first, *others = invocation()
    if first == _NAME:
        program, environment = shutil.which(_NAME), os.environ.get("VIRTUAL_ENV")
        return [program] if program and environment and Path(program).is_relative_to(environment) else [_NAME]
    return [str(Path(first).absolute()), *others]


def invocation_for_programs() -> list[str]:
    """The same for a program that starts it: with the whole path, as that program may have another PATH."""
    first, *others = invocation()
    program = shutil.which(first)
    return [str(Path(program).absolute()), *others] if program else [sys.executable, "-m", "a2c_smcp"]
