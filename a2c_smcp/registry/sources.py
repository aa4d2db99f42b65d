"""Entries of resources and prompts: of texts, bytes, files and functions of this program, and of other programs."""

from __future__ import annotations

import inspect
import json
import mimetypes
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypedDict
from urllib.parse import parse_qsl, unquote

from a2c_smcp.errors import PromptNotFound, ResourceNotFound
from a2c_smcp.protocol.operations import (
    COMPLETE,
    PROMPTS,
    RESOURCES,
    TEMPLATES,
    MCPList,
    MCPOperation,
    completion_params,
)
from a2c_smcp.registry.calls.arguments import AsyncCall, SyncCall, call_in_thread, run_blocking, tool_methods
from a2c_smcp.registry.content import (
    Content,
    EmbeddedResource,
    PromptMessage,
    RawResult,
    blocks_of,
    json_of,
    resource_contents,
    without_nothing,
)
from a2c_smcp.registry.functions import FunctionTool

# One resource, template of resources or prompt of a registry: its listing, and the functions that read it.
#
# Each is read by two functions, one that blocks and one that is awaited. They return a Python value or a whole MCP
# result (`RawResult`); `contents_of`, `messages_of` and `completion_of` make MCP's results of values.

TEXT, BYTES = "text/plain", "application/octet-stream"
_JSON = "application/json"
MAX_COMPLETIONS = 100
"""As many as MCP allows in one answer."""
MAX_LISTED = 10_000
"""Entries of one list of another program; the rest is left out."""


class Following(NamedTuple):
    """A followed remote resource: `stop` ends it, `begun` is done when changes are received, or cannot be."""

    stop: Callable[[], None]
    begun: Future[None] | None


Follow: TypeAlias = Callable[[str], Following]
"""Begins to follow changes of a remote resource, by its URI. Does not block."""


class UnknownResource(ResourceNotFound, KeyError):
    """No resource has this URI. The function of a template may raise it, too."""


class UnknownPrompt(PromptNotFound, KeyError):
    """No prompt has this name. `details["near"]` lists similar names."""


class BothWays(NamedTuple):
    """A function as one that blocks and one that is awaited."""

    call: SyncCall
    acall: AsyncCall


@dataclass(frozen=True, slots=True)
class ResourceEntry:
    """A resource. `key` is its URI, `listing` its entry in MCP's list. `origin` is the server it comes from.

    `source` is for the program that has registered it, to find there what this entry stands for. The registry does not
    read it. The same holds for the other entries.
    """

    key: str
    listing: dict[str, Any]
    read: BothWays
    origin: str | None = None
    follow: Follow | None = None
    source: object = None


@dataclass(frozen=True, slots=True)
class TemplateEntry:
    """A template of resources. `match` gives the arguments to read a URI with; `None` if it is not for this URI."""

    key: str
    listing: dict[str, Any]
    read: BothWays
    match: Callable[[str], dict[str, Any] | None]
    complete: Mapping[str, BothWays] = field(default_factory=dict)
    origin: str | None = None
    follow: Follow | None = None
    source: object = None


@dataclass(frozen=True, slots=True)
class PromptEntry:
    """A prompt. `key` is its name here."""

    key: str
    listing: dict[str, Any]
    read: BothWays
    complete: Mapping[str, BothWays] = field(default_factory=dict)
    origin: str | None = None
    source: object = None


Entry: TypeAlias = ResourceEntry | TemplateEntry | PromptEntry
ENTRIES: Mapping[MCPList, type[Entry]] = {RESOURCES: ResourceEntry, TEMPLATES: TemplateEntry, PROMPTS: PromptEntry}


def as_texts(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Arguments for a prompt of another program: in MCP they are strings."""
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in arguments.items()}


def contents_of(uri: str, listing: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """MCP's result for a resource that was read."""
    if isinstance(value, RawResult):
        return dict(value)
    is_several = isinstance(value, list | tuple) and value and all(isinstance(item, EmbeddedResource) for item in value)
    items: Sequence[Any] = value if is_several else [value]
    return {"contents": [_contents(uri, item, listing) for item in items]}


def messages_of(listing: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """MCP's result for a prompt that was filled in."""
    if isinstance(value, RawResult):
        return dict(value)
    items = value if isinstance(value, list | tuple) else [value]
    messages = [message for item in items for message in _messages(item)]
    return without_nothing({"description": listing.get("description"), "messages": messages})


def completion_of(value: Any) -> dict[str, Any]:
    """MCP's result for the values that an argument may have."""
    if isinstance(value, RawResult):
        return dict(value)
    values = [str(item) for item in value or ()]
    has_more = len(values) > MAX_COMPLETIONS
    return {"completion": {"values": values[:MAX_COMPLETIONS], "total": len(values), "hasMore": has_more}}


def _contents(uri: str, value: Any, listing: Mapping[str, Any]) -> dict[str, Any]:
    mime_type = listing.get("mimeType")
    if isinstance(value, EmbeddedResource):
        return resource_contents(value.uri, value.contents, value.mime_type or mime_type, value.meta)
    if isinstance(value, Content):
        raise TypeError(f"a resource is text, bytes, JSON or EmbeddedResource, not {type(value).__name__}")
    if isinstance(value, str | bytes):
        default = TEXT if isinstance(value, str) else BYTES
        return resource_contents(uri, value, mime_type or default)
    text = "null" if value is None else blocks_of(value)[0]["text"]
    return resource_contents(uri, text, mime_type or _JSON)


def _messages(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, Mapping) and value.keys() == {"role", "content"}:
        return [json_of(dict(value))]
    return (value if isinstance(value, PromptMessage) else PromptMessage(value)).to_mcp()


# Templates of URIs (RFC 6570): the URIs of a template, and the values of its variables.
#
# Of RFC 6570, templates of this program have `{name}` (one segment of a path), `{+name}` (may contain `/`) and, at
# the end, `{?a,b}` (query parameters, each of which may be missing). The values come from strangers and often become
# parts of file names, so a URI with `..` as a segment of a value does not match, and neither does an encoded slash in
# the value of `{name}`.
#
# Templates of other programs may use all of RFC 6570. Only that program knows if a URI belongs to one: `loose_matcher`
# finds the URIs that may, and the program is asked for them.

MAX_URI = 8192
"""Longer URIs match no template. The time to match grows with the length, times the number of variables."""

_PARTS = re.compile(r"\{([^{}]*)\}|([^{}]+)|([{}])")
_ONE = re.compile(r"([+]?)([A-Za-z_]\w*)")
_QUERY = re.compile(r"\?([A-Za-z_]\w*(?:,[A-Za-z_]\w*)*)")
_SLASHES = re.compile(r"[/\\]")
_EXPRESSION = re.compile(r"\{[^{}]*\}")


class URITemplate:
    """A template, compiled. `required` and `optional` are the names of its variables."""

    def __init__(self, template: str) -> None:
        """Raises `ValueError` for a template that is malformed or uses other operators."""
        self.required: list[str] = []
        self.optional: list[str] = []
        self._one_segment: set[str] = set()
        self._literals = [""]  # before the first variable, and after each of them
        for part in _PARTS.finditer(template):
            expression, literal, brace = part.groups()
            if brace or self.optional:
                raise ValueError(f"{template!r} is not a URI template: see the character {part.start() + 1}")
            if expression is None:
                self._literals[-1] = literal
            else:
                self._add(expression)
        names = [*self.required, *self.optional]
        if len({*names}) < len(names):
            raise ValueError(f"{template!r} is not a URI template: a variable has two places")

    def match(self, uri: str) -> dict[str, str] | None:
        """The values of the variables; `None` if the template does not stand for this URI."""
        path, _, query = uri.partition("?") if self.optional else (uri, "", "")
        texts = self._split(path) if len(uri) <= MAX_URI else None
        if texts is None:
            return None
        values = {name: unquote(text) for name, text in zip(self.required, texts, strict=True)}
        values |= {name: value for name, value in parse_qsl(query, keep_blank_values=True) if name in self.optional}
        return values if all(self._is_safe(name, value) for name, value in values.items()) else None

    def _add(self, expression: str) -> None:
        if query := _QUERY.fullmatch(expression):
            self.optional += query[1].split(",")
            return
        one = _ONE.fullmatch(expression)
        if one is None:
            raise ValueError(f"{{{expression}}} is not supported: use {{name}}, {{+name}}, or {{?a,b}} at the end")
        operator, name = one.groups()
        self.required.append(name)
        self._literals.append("")
        if not operator:
            self._one_segment.add(name)

    def _split(self, path: str) -> list[str] | None:
        """Return the texts of the required variables, each as long as it can be, the first ones first.

        Not by a regular expression: with the number of variables its time grows with a power of the length.
        """
        if not self.required:
            return [] if path == self._literals[0] else None
        if not (path.startswith(self._literals[0]) and path.endswith(self._literals[-1])):
            return None
        ends: list[list[int]] = []  # of each variable, the last one first: where it ends at most if it begins there
        follows = [*repeat(False, len(path)), True]  # where the rest may begin
        for name, literal in zip(reversed(self.required), reversed(self._literals), strict=False):
            stops = "/?#" if name in self._one_segment else "\n"
            ends.append(_furthest(path, literal, stops, follows))
            follows = [end > 0 for end in ends[-1]]
        place, texts = len(self._literals[0]), list[str]()
        for furthest, literal in zip(reversed(ends), self._literals[1:], strict=True):
            if not (end := furthest[place]):
                return None
            texts.append(path[place:end])
            place = end + len(literal)
        return texts

    def _is_safe(self, name: str, value: str) -> bool:
        segments = _SLASHES.split(value)
        return ".." not in segments and (name not in self._one_segment or (len(segments) == 1 and value != "."))


def _furthest(path: str, literal: str, stops: str, follows: list[bool]) -> list[int]:
    """Return, for each place, where a variable that begins there may end at most; 0 if there is no such place.

    It holds none of the characters `stops`. After it comes the literal, and then a place that `follows`.
    """
    found, furthest = 0, [0] * len(follows)
    for place in range(len(path), -1, -1):
        if path[place : place + 1] in stops and place < len(path):
            found = 0
        furthest[place] = found
        if not found and path.startswith(literal, place) and follows[place + len(literal)]:
            found = place
    return furthest


def variables_in(template: str) -> list[str]:
    """The names of the variables of any template."""
    return re.findall(r"\w+", "".join(_EXPRESSION.findall(template)))


def loose_matcher(template: str) -> Callable[[str], dict[str, str] | None]:
    """Return `{"uri": …}` for a URI that may belong to the template: its fixed parts occur in their order. Else `None`.

    Not by a regular expression: with the number of variables its time could grow without a bound.
    """
    first, *others = _EXPRESSION.split(template)

    def match(uri: str) -> dict[str, str] | None:
        return {"uri": uri} if len(uri) <= MAX_URI and _has_in_order(uri, first, others) else None

    return match


def _has_in_order(uri: str, first: str, others: list[str]) -> bool:
    if not others:
        return uri == first
    if not uri.startswith(first):
        return False
    place = len(first)
    for part in others[:-1]:
        start = uri.find(part, place)
        if start < 0:
            return False
        place = start + len(part)
    return len(uri) - place >= len(others[-1]) and uri.endswith(others[-1])


# Resources, templates and prompts of other programs, under a key that each has here.

Request: TypeAlias = Callable[[MCPOperation, Callable[[dict[str, Any]], dict[str, Any]]], BothWays]
"""A request as two functions. The second argument makes its MCP parameters of what the functions are given."""


def remote_entry(
    kind: MCPList,
    listing: dict[str, Any],
    own: str,
    request: Request,
    follow: Follow,
    origin: str,
    source: object = None,
    *,
    can_complete: bool,
) -> Entry:
    """The entry of a listing that has its key here; `own` is the URI or the name that the other program knows."""
    key, cls = listing[kind.key], ENTRIES[kind]
    names, ref = variables_in(own), {"type": "ref/resource", "uri": own}
    if cls is PromptEntry:
        listed = listing.get("arguments") or ()
        names = [argument["name"] for argument in listed if is_usable("name", argument)]
        ref = {"type": "ref/prompt", "name": own}

    def params(given: dict[str, Any]) -> dict[str, Any]:
        if cls is PromptEntry:
            return {"name": own, "arguments": as_texts(given)}
        return {"uri": str(given.get("uri", own)).removeprefix(key.removesuffix(own))}

    def completing(name: str) -> BothWays:
        return request(COMPLETE, lambda typed: completion_params(ref, name, typed["value"], typed["arguments"]))

    read = request(kind.read, params)
    if cls is ResourceEntry:
        return ResourceEntry(key, listing, read, origin, follow, source)
    complete = {name: completing(name) for name in names} if can_complete else {}
    if cls is PromptEntry:
        return PromptEntry(key, listing, read, complete, origin, source)
    return TemplateEntry(key, listing, read, loose_matcher(key), complete, origin, follow, source)


def is_usable(key: str, listing: Any) -> bool:
    """True if an item of a list has a usable name. The rest of it is passed on as it came."""
    return isinstance(listing, dict) and isinstance(listing.get(key), str) and 0 < len(listing[key]) <= MAX_URI


_TEXT_TYPES = ("application/json", "application/xml", "application/javascript")
IN_A_LOOP = "await the method whose name begins with `a`"
"""Advice where reading would block an event loop."""

Completions: TypeAlias = Mapping[str, Iterable[str] | Callable[[str, dict[str, str]], Any]]
"""For each argument its possible values, or a function of what was typed and of the other arguments, sync or async."""


class ResourceOptions(TypedDict, total=False):
    """The listing of a resource, with MCP's names, and `complete`, the values of a template's variables."""

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
    """The listing of a prompt, with MCP's names, and `complete`, the values of its arguments."""

    name: str | None
    title: str | None
    description: str | None
    icons: Sequence[Mapping[str, Any]] | None
    meta: Mapping[str, Any] | None
    complete: Completions


def _at_once(call: SyncCall) -> BothWays:
    """A function that never blocks."""

    async def acall(arguments: dict[str, Any]) -> Any:
        return call(arguments)

    return BothWays(call, acall)


def _reader(path: Path, mime_type: str) -> BothWays:
    """Reads a file whenever it is asked for."""
    is_text = mime_type.startswith("text/") or mime_type in _TEXT_TYPES

    def read(arguments: dict[str, Any]) -> str | bytes:
        try:
            return path.read_text("utf-8") if is_text else path.read_bytes()
        except FileNotFoundError:
            raise UnknownResource(f"the file {path.name!r} is gone") from None

    return BothWays(read, partial(call_in_thread, read))


def _completer(values: Any) -> BothWays:
    """Completes an argument by a function, or by its possible values: those that begin with the typed text."""
    if inspect.iscoroutinefunction(values):

        async def acall(arguments: dict[str, Any]) -> Any:
            return await values(arguments["value"], arguments["arguments"])

        return BothWays(run_blocking(values.__name__, acall), acall)

    def call(arguments: dict[str, Any]) -> Any:
        return values(arguments["value"], arguments["arguments"])

    if callable(values):
        return BothWays(call, partial(call_in_thread, call))
    choices = [str(value) for value in values]
    return _at_once(
        lambda arguments: [one for one in choices if one.casefold().startswith(arguments["value"].casefold())]
    )


def _both_ways(tool: FunctionTool) -> BothWays:
    call, acall = tool_methods(tool)
    if acall is None:
        assert call
        acall = partial(call_in_thread, call)
    return BothWays(call or run_blocking(tool.name, acall), acall)


def static_entry(uri: str, content: str | bytes | Path, options: ResourceOptions) -> ResourceEntry:
    """A resource that is a text, bytes, or a file that is read each time."""
    guessed = mimetypes.guess_type(content.name)[0] if isinstance(content, Path) else None
    mime_type = options.get("mime_type") or guessed or (TEXT if isinstance(content, str) else BYTES)
    read = _reader(content, mime_type) if isinstance(content, Path) else _at_once(lambda _: content)
    listing = _listing("uri", uri, uri.rstrip("/").rpartition("/")[2] or uri, "", {**options, "mime_type": mime_type})
    return ResourceEntry(uri, listing, read)


def function_entry(uri: str, function: Callable[..., Any], options: ResourceOptions) -> ResourceEntry | TemplateEntry:
    """A resource that a function reads. If the URI is a template, its variables are the function's parameters.

    Raises `TypeError` if the parameters of the function are others, and `ValueError` for a bad template.
    """
    template = URITemplate(uri) if "{" in uri else None
    tool = FunctionTool(function, name=options.get("name"))
    _require_parameters(tool, template)
    listing = _listing("uriTemplate" if template else "uri", uri, tool.name, tool.description, options)
    if template is None:
        return ResourceEntry(uri, listing, _both_ways(tool))
    return TemplateEntry(uri, listing, _both_ways(tool), template.match, _completions(tool, options.get("complete")))


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
    return PromptEntry(tool.name, listing, _both_ways(tool), _completions(tool, options.get("complete")))


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
    variables, optional = (template.required, template.optional) if template else ([], [])
    properties, required = tool.input_schema.get("properties", {}), tool.input_schema.get("required", ())
    wrong = [name for name in required if name not in variables]
    wrong += [name for name in (*variables, *optional) if name not in properties]
    if wrong:
        raise TypeError(
            f"function {tool.name!r} must have the variables of the URI as its parameters: {', '.join(wrong)}"
        )


def _completions(tool: FunctionTool, complete: Completions | None) -> dict[str, BothWays]:
    """The completions of arguments: the given ones, else the values that their annotation allows."""
    shown: Mapping[str, Any] = tool.input_schema.get("properties", {})
    if unknown := [name for name in complete or {} if name not in shown]:
        raise TypeError(f"function {tool.name!r} has no parameter {', '.join(unknown)} to complete")
    allowed: Completions = {name: part["enum"] for name, part in shown.items() if isinstance(part.get("enum"), list)}
    sources = {**allowed, **(complete or {})}
    return {name: _completer(values) for name, values in sources.items()}
