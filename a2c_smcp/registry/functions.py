"""Python functions as tools: schema and description are read from the signature and the docstring."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from a2c_smcp.registry.parameters import Fit, Parameters, by_name, object_schema

__all__ = ["Documentation", "FunctionTool", "read_docstring"]


class FunctionTool:
    """A tool that calls a function, sync or async. `call` of an async function is a coroutine function.

    Pydantic checks and converts the arguments before the function is called; `call` raises `InvalidArguments`.
    A parameter that is annotated with `ToolContext` (`AsyncToolContext` in an async function) is given the context of
    the call. `meta` is anything else known of the tool; MCP clients see `title`, `icons`, `annotations` and `_meta`.
    """

    call: Callable[[dict[str, Any]], Any]

    def __init__(
        self, function: Callable[..., Any], *, name: str | None = None, description: str | None = None, **meta: Any
    ) -> None:
        """Raises `TypeError` with the reason if the function cannot be a tool."""
        if not inspect.isroutine(function):
            raise TypeError(f"{function!r} is not a function")
        self.name = name or _name_of(function)
        documentation = read_docstring(inspect.getdoc(function))
        self.description = documentation.description if description is None else description
        try:
            self._parameters = Parameters(function, documentation.parameters)
        except TypeError as error:
            raise TypeError(f"function {self.name!r} cannot be a tool: {error}") from None
        self.input_schema = deepcopy(self._parameters.schema)
        self.output_schema = object_schema(function)
        self.function = function
        self._by_name = by_name(function)
        self.meta = meta
        is_async, takes_context = inspect.iscoroutinefunction(function), bool(self._parameters.contexts)
        if takes_context:
            self.call = self._call_async_in_context if is_async else self._call_in_context
        else:
            self.call = self._call_async if is_async else self._call

    def __repr__(self) -> str:
        return f"FunctionTool({self.name!r})"

    @property
    def fit(self) -> Fit | None:
        """A fast check for arguments that fit; `None` if only the schema can tell."""
        return self._parameters.fit if self.fills_defaults else None

    @property
    def fills_defaults(self) -> bool:
        """Whether the schema is still the function's own: then Python fills in the defaults."""
        return self.input_schema == self._parameters.schema

    def _call(self, arguments: dict[str, Any]) -> Any:
        return self._by_name(**self._parameters.bind(arguments))

    async def _call_async(self, arguments: dict[str, Any]) -> Any:
        return await self._by_name(**self._parameters.bind(arguments))

    def _call_in_context(self, arguments: dict[str, Any]) -> Any:
        return self._by_name(**self._parameters.bind(arguments), **self._parameters.context())

    async def _call_async_in_context(self, arguments: dict[str, Any]) -> Any:
        return await self._by_name(**self._parameters.bind(arguments), **self._parameters.context())


def _name_of(function: Callable[..., Any]) -> str:
    name: str = function.__name__
    if not name.isidentifier():
        raise TypeError(f"{name} is no name for a tool: give one with name=")
    return name


_SECTION = re.compile(
    r"(args|arguments|parameters|params|attributes|examples?|notes?|raises|returns?|references|see also|todo"
    r"|warnings?|warns|yields?|keyword args|keyword arguments|other parameters):\s*$",
    re.IGNORECASE,
)
_ARGUMENTS = ("args", "arguments", "parameters", "params", "keyword args", "keyword arguments", "other parameters")
_ENTRY = re.compile(r"(?P<name>\w+)\s*(\([^:]*\))?\s*:(\s+(?P<text>.*))?$")


@dataclass(frozen=True)
class Documentation:
    description: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def read_docstring(docstring: str | None) -> Documentation:
    """Reads a docstring as `inspect.getdoc` gives it: without the indentation of the code around it."""
    lines = (docstring or "").splitlines()
    return Documentation(_first_paragraph(lines), dict(_entries(lines)))


def _first_paragraph(lines: list[str]) -> str:
    paragraph = []
    for line in lines:
        if not line.strip() or _SECTION.match(line):
            break
        paragraph.append(line.strip())
    return " ".join(paragraph)


def _entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    """A line at the section's own depth begins an entry, what is deeper continues it."""
    depth, name, words = 0, "", list[str]()
    for line in _argument_lines(lines):
        indent = len(line) - len(line.lstrip())
        depth = depth or indent
        entry = _ENTRY.match(line.strip()) if indent <= depth else None
        if entry is None:
            words.append(line.strip())
            continue
        if name:
            yield name, " ".join(words)
        name, words = entry["name"], [entry["text"]] if entry["text"] else []
    if name:
        yield name, " ".join(words)


def _argument_lines(lines: list[str]) -> Iterator[str]:
    inside = False
    for line in lines:
        if line and not line[0].isspace():
            section = _SECTION.match(line)
            inside = section is not None and section[1].lower() in _ARGUMENTS
        elif inside and line.strip():
            yield line
