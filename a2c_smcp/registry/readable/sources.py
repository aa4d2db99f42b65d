"""Resources and prompts of the program itself: texts, bytes, files and Python functions, made into entries."""

from __future__ import annotations

import inspect
import mimetypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypedDict

from a2c_smcp.registry.calls.methods import call_in_thread, run_blocking, tool_methods
from a2c_smcp.registry.content import without_nothing
from a2c_smcp.registry.functions import FunctionTool
from a2c_smcp.registry.readable.entries import (
    BYTES,
    TEXT,
    BothWays,
    PromptEntry,
    ResourceEntry,
    TemplateEntry,
    UnknownResource,
)
from a2c_smcp.registry.readable.uri_templates import URITemplate, is_template

__all__ = [
    "IN_A_LOOP",
    "Completions",
    "PromptOptions",
    "ResourceOptions",
    "both_ways",
    "function_entry",
    "prompt_entry",
    "static_entry",
]

_TEXT_TYPES = ("application/json", "application/xml", "application/javascript")
IN_A_LOOP = "await the method whose name begins with `a`"
"""What to do where reading would block an event loop."""

Completions: TypeAlias = Mapping[str, Iterable[str] | Callable[[str, dict[str, str]], Any]]
"""For each argument its possible values, or a function of what was typed and of the other arguments, sync or async."""


class ResourceOptions(TypedDict, total=False):
    """What is listed of a resource, as MCP names it, and `complete`, the values of a template's variables."""

    name: str | None
    title: str | None
    description: str | None
    mime_type: str | None
    size: int | None
    icons: Sequence[Mapping[str, Any]] | None
    annotations: Mapping[str, Any] | None
    meta: Mapping[str, Any] | None
    complete: Completions


class PromptOptions(TypedDict, total=False):
    """What is listed of a prompt, as MCP names it, and `complete`, the values of its arguments."""

    name: str | None
    title: str | None
    description: str | None
    icons: Sequence[Mapping[str, Any]] | None
    meta: Mapping[str, Any] | None
    complete: Completions


class _Constant:
    """Reads a value that is always the same."""

    def __init__(self, value: Any) -> None:
        self.name, self._value = "constant", value

    def call(self, arguments: dict[str, Any]) -> Any:
        return self._value

    async def acall(self, arguments: dict[str, Any]) -> Any:
        return self._value


class _File:
    """Reads a file whenever it is asked for."""

    def __init__(self, path: Path, mime_type: str) -> None:
        self.name, self._path = path.name, path
        self._is_text = mime_type.startswith("text/") or mime_type in _TEXT_TYPES

    def call(self, arguments: dict[str, Any]) -> str | bytes:
        try:
            return self._path.read_text("utf-8") if self._is_text else self._path.read_bytes()
        except FileNotFoundError:
            raise UnknownResource(f"the file {self._path.name!r} is gone") from None


class _Choices:
    """Completes an argument by its possible values: those that begin with what was typed, in any case."""

    def __init__(self, values: Iterable[str]) -> None:
        self.name, self._values = "choices", [str(value) for value in values]

    def call(self, arguments: dict[str, Any]) -> list[str]:
        typed = arguments["value"].casefold()
        return [value for value in self._values if value.casefold().startswith(typed)]

    async def acall(self, arguments: dict[str, Any]) -> list[str]:
        return self.call(arguments)


class _CompletionFunction:
    """Completes an argument by a function of what was typed and of the other arguments."""

    def __init__(self, function: Callable[[str, dict[str, str]], Any]) -> None:
        self.name, self._function = getattr(function, "__name__", "complete"), function
        self.call = self._call_async if inspect.iscoroutinefunction(function) else self._call

    def _call(self, arguments: dict[str, Any]) -> Any:
        return self._function(arguments["value"], arguments["arguments"])

    async def _call_async(self, arguments: dict[str, Any]) -> Any:
        return await self._function(arguments["value"], arguments["arguments"])


def both_ways(source: Any) -> BothWays:
    """An object with the `name` and `call` or `acall` of a tool, as functions to block on and to await."""
    call, acall = tool_methods(source)
    if acall is None:
        assert call
        acall = partial(call_in_thread, call)
    return BothWays(call or run_blocking(source.name, acall), acall)


def static_entry(uri: str, content: str | bytes | Path, options: ResourceOptions) -> ResourceEntry:
    """A resource that is a text, bytes, or a file that is read each time."""
    mime_type = options.get("mime_type") or _type_of(content)
    source = _File(content, mime_type) if isinstance(content, Path) else _Constant(content)
    listing = _listing("uri", uri, _last_part(uri), "", {**options, "mime_type": mime_type})
    return ResourceEntry(uri, listing, both_ways(source))


def function_entry(uri: str, function: Callable[..., Any], options: ResourceOptions) -> ResourceEntry | TemplateEntry:
    """A resource that a function reads. If the URI is a template, its variables are the function's parameters.

    Raises `TypeError` if the parameters of the function are others, and `ValueError` for a bad template.
    """
    template = URITemplate(uri) if is_template(uri) else None
    tool = FunctionTool(function, name=options.get("name"))
    _require_parameters(tool, template)
    listing = _listing("uriTemplate" if template else "uri", uri, tool.name, tool.description, options)
    if template is None:
        return ResourceEntry(uri, listing, both_ways(tool))
    return TemplateEntry(uri, listing, both_ways(tool), template.match, _completions(tool, options.get("complete")))


def prompt_entry(function: Callable[..., Any], options: PromptOptions) -> PromptEntry:
    """A prompt whose arguments are the function's parameters. Raises `TypeError` if these have no schema."""
    tool = FunctionTool(function, name=options.get("name"), description=options.get("description"))
    required = tool.input_schema.get("required", ())
    arguments = [
        without_nothing({"name": name, "description": shown.get("description"), "required": name in required})
        for name, shown in tool.input_schema.get("properties", {}).items()
    ]
    listing = without_nothing(
        {
            "name": tool.name,
            "title": options.get("title"),
            "description": tool.description or None,
            "arguments": arguments or None,
            "icons": options.get("icons"),
            "_meta": options.get("meta"),
        }
    )
    return PromptEntry(tool.name, listing, both_ways(tool), _completions(tool, options.get("complete")))


def _listing(key: str, uri: str, name: str, description: str, options: Mapping[str, Any]) -> dict[str, Any]:
    return without_nothing(
        {
            key: uri,
            "name": options.get("name") or name,
            "title": options.get("title"),
            "description": options.get("description") or description or None,
            "mimeType": options.get("mime_type"),
            "size": options.get("size") if key == "uri" else None,
            "icons": options.get("icons"),
            "annotations": options.get("annotations"),
            "_meta": options.get("meta"),
        }
    )


def _require_parameters(tool: FunctionTool, template: URITemplate | None) -> None:
    given, optional = (template.required, template.optional) if template else ([], [])
    properties, required = tool.input_schema.get("properties", {}), tool.input_schema.get("required", ())
    wrong = [name for name in required if name not in given]
    wrong += [name for name in (*given, *optional) if name not in properties]
    if wrong:
        raise TypeError(
            f"function {tool.name!r} must have the variables of the URI as its parameters: {', '.join(wrong)}"
        )


def _completions(tool: FunctionTool, complete: Completions | None) -> dict[str, BothWays]:
    """How arguments are completed: as it is given, else by the values that their annotation allows."""
    shown: Mapping[str, Any] = tool.input_schema.get("properties", {})
    if unknown := [name for name in complete or {} if name not in shown]:
        raise TypeError(f"function {tool.name!r} has no parameter {', '.join(unknown)} to complete")
    allowed: Completions = {name: each["enum"] for name, each in shown.items() if isinstance(each.get("enum"), list)}
    sources = {**allowed, **(complete or {})}
    return {
        name: both_ways(_CompletionFunction(values) if callable(values) else _Choices(values))
        for name, values in sources.items()
    }


def _type_of(content: str | bytes | Path) -> str:
    if isinstance(content, Path):
        return mimetypes.guess_type(content.name)[0] or BYTES
    return TEXT if isinstance(content, str) else BYTES


def _last_part(uri: str) -> str:
    return uri.rstrip("/").rpartition("/")[2] or uri
