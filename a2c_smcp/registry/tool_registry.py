"""The registry of 001: `register` tools, `describe` them to a planner, `call` them by name; resources and prompts, too.

Threads: the tools are an immutable `ToolSet`. A change makes another set and puts it in place under a lock; readers
take the current set without a lock and see all of a change or nothing of it. A tool and the registry's rules are
compiled into two functions when it is registered (`calls/pipeline.py`), so a call is a lookup and one function call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any, Generic, Literal, NamedTuple, ParamSpec, TypeAlias, TypeVar, Unpack, overload

from a2c_smcp.errors import SMCPError
from a2c_smcp.protocol.names import did_you_mean, similar_names
from a2c_smcp.protocol.operations import COMPLETE, GET_PROMPT, READ_RESOURCE, MCPOperation
from a2c_smcp.protocol.questions import OnQuestion
from a2c_smcp.registry.calls.arguments import Arguments
from a2c_smcp.registry.calls.context import OnLog, OnProgress, called_from_loop, called_from_thread
from a2c_smcp.registry.calls.pipeline import Limit, Rules, compile_tool, refused_tool
from a2c_smcp.registry.content import envelope as in_envelope
from a2c_smcp.registry.planning.provider_formats import Format
from a2c_smcp.registry.sources import (
    BothWays,
    Entry,
    Following,
    PromptEntry,
    PromptOptions,
    ResourceEntry,
    ResourceOptions,
    TemplateEntry,
    UnknownPrompt,
    UnknownResource,
    completion_of,
    contents_of,
    function_entry,
    messages_of,
    prompt_entry,
    static_entry,
)
from a2c_smcp.registry.tool_info import as_words
from a2c_smcp.registry.toolset import RegisteredTool, ToolSet, unknown_tool

logger = logging.getLogger(__name__)

Event = ParamSpec("Event")


class Listeners(Generic[Event]):
    """Functions that are called after each change, in its thread. Usable from several threads."""

    def __init__(self) -> None:
        self._listeners: dict[object, Callable[Event, None]] = {}
        self._lock = Lock()

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def add(self, listener: Callable[Event, None]) -> Callable[[], None]:
        """Add a listener. Returns its unsubscribe function."""
        token = object()
        with self._lock:
            self._listeners[token] = listener

        def stop() -> None:
            with self._lock:
                self._listeners.pop(token, None)

        return stop

    def notify(self, *arguments: Event.args, **named: Event.kwargs) -> None:
        """Call all listeners. The exception of one is logged."""
        with self._lock:
            listeners = [*self._listeners.values()]
        for listener in listeners:
            try:
                listener(*arguments, **named)
            except Exception:
                logger.exception("A listener to changes failed")


class ToolRegistry:
    """Tools by name."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._tools = ToolSet()
        self._listeners = Listeners[[]]()
        self._lock = Lock()

    def register(self, tool_obj: Any, *, timeout: float | None = None, limit: Limit | None = None) -> None:
        """Adds a tool, in place of one with the same name. Raises `TypeError` without `name` or `call`.

        `timeout` and `limit` replace the registry's own for this tool; `math.inf` is no timeout.
        """
        self._change([compile_tool(tool_obj, self._rules, timeout=timeout, limit=limit)], ())

    def unregister(self, name: str) -> None:
        """Removes a tool. Raises `KeyError` if there is none of this name."""
        if not self._change((), [name]):
            raise unknown_tool(name, [*self])

    def update(self, *, add: Iterable[Any] = (), remove: Iterable[str] = ()) -> None:
        """Adds and removes tools in one step. Names to remove may be unknown."""
        self._change([compile_tool(tool, self._rules) for tool in add], [*remove])

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call the listener after every change, in the thread of the change. Returns its unsubscribe function."""
        return self._listeners.add(listener)

    @overload
    def describe(self, format: None = None, *, tags: Iterable[str] | None = None) -> dict[str, dict[str, Any]]: ...

    @overload
    def describe(self, format: Format, *, tags: Iterable[str] | None = None) -> list[dict[str, Any]]: ...

    def describe(self, format: Format | None = None, *, tags: Iterable[str] | None = None) -> Any:  # noqa: A002
        """Returns `{name: {description, input_schema}}`, or with `format` the `tools` of a provider. Plain JSON.

        With `tags`, only tools that have any of them. The result is cached until the tools change: do not edit it.
        Providers see names that they accept, and `call` knows these too.
        """
        return self._tools.describe(format, as_words(tags))

    # The options of both are not keyword-only: Python would look each of them up in a dict, at every call.

    def call(
        self,
        name: str,
        arguments: Arguments,
        envelope: bool = False,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
        on_question: OnQuestion | None = None,
    ) -> Any:
        """Returns the tool's result, or raises its error. Raises `KeyError` for an unknown name.

        An async tool runs in an event loop of its own; raises `LoopIsRunning` inside a running loop.
        With `envelope`, the result is `{"output": …, "meta": {…}}` (001 §7). `on_progress(progress, total, message)` is
        called, in a thread, when the tool reports progress: tools of computers and MCP servers do, and functions that
        call `report_progress`. `on_log(level, data, logger)` gets log messages of functions with a `ToolContext`.
        `on_question(question)` answers the questions of these and of MCP servers.
        """
        if on_progress is not None or on_log is not None or on_question is not None:
            with called_from_thread(on_progress, on_log, on_question):
                return self.call(name, arguments, envelope=envelope)
        tool = self._tools.allowed.get(name) or self._find(name)
        if not envelope:
            return tool.call(arguments)
        began = perf_counter()
        result = tool.call(arguments)
        return in_envelope(result, tool=tool.info.name, duration=perf_counter() - began)

    async def acall(
        self,
        name: str,
        arguments: Arguments,
        envelope: bool = False,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
        on_question: OnQuestion | None = None,
    ) -> Any:
        """As `call`, without blocking the event loop: async tools are awaited, the others run in a thread.

        The callbacks are called in this event loop; `on_progress` and `on_question` may be async.
        """
        if on_progress is not None or on_log is not None or on_question is not None:
            async with called_from_loop(on_progress, on_log, on_question):
                return await self.acall(name, arguments, envelope=envelope)
        tool = self._tools.allowed.get(name) or self._find(name)
        if not envelope:
            return await tool.acall(arguments)
        began = perf_counter()
        result = await tool.acall(arguments)
        return in_envelope(result, tool=tool.info.name, duration=perf_counter() - began)

    def items(self) -> list[tuple[str, Any]]:
        """Names and tools in the order of registration, as they are now."""
        return [(name, registered.tool) for name, registered in self._tools.allowed.items()]

    def __getitem__(self, name: str) -> Any:
        """The tool of this name."""
        return self._tools.find(name).tool

    def __contains__(self, name: object) -> bool:
        return name in self._tools.allowed

    def is_registered(self, name: str) -> bool:
        """True if there is a tool of this name, also one that is not allowed."""
        return name in self._tools.allowed or name in self._tools.forbidden

    def __len__(self) -> int:
        return len(self._tools.allowed)

    def __iter__(self) -> Iterator[str]:
        """The names in the order of registration, as they are now."""
        return iter(self._tools.allowed)

    def _find(self, name: str) -> RegisteredTool:
        try:
            return self._tools.find(name)
        except SMCPError as error:
            if self._rules.hooks:
                return refused_tool(name, error, self._rules.hooks)
            raise

    def _change(self, add: Iterable[RegisteredTool], remove: Iterable[str]) -> bool:
        """Apply a change. True if the set of tools has changed."""
        with self._lock:
            before, self._tools = self._tools, self._tools.changed(add, remove)
            has_changed = self._tools is not before
        if has_changed:
            self._listeners.notify()
        return has_changed


# A registry of tools that has resources and prompts, too, and reports their changes.
#
# Threads: as with tools, the entries are in an immutable `_Offers`. A change puts another one in place under a lock;
# readers take the current one without a lock. Listeners are called after the change, in its thread.

Function = TypeVar("Function", bound=Callable[..., Any])
ReadableChange: TypeAlias = Literal["resources", "prompts"]
Reference: TypeAlias = str | Mapping[str, Any]
"""A prompt by its name or a template by its URI, or MCP's `ref`."""

_PROMPT_REF = "ref/prompt"
MAX_QUOTED = 256


@dataclass(frozen=True, slots=True)
class _Offers:
    """The resources, templates and prompts, by URI or name, in the order of registration."""

    resources: Mapping[str, ResourceEntry] = field(default_factory=dict)
    templates: Mapping[str, TemplateEntry] = field(default_factory=dict)
    prompts: Mapping[str, PromptEntry] = field(default_factory=dict)


class _Followed(NamedTuple):
    """A remote resource that is watched, and the entry by which it is followed."""

    entry: ResourceEntry | TemplateEntry
    following: Following


_KINDS: Mapping[type[Entry], tuple[str, ReadableChange]] = {
    ResourceEntry: ("resources", "resources"),
    TemplateEntry: ("templates", "resources"),
    PromptEntry: ("prompts", "prompts"),
}
"""For each class of entries, its field in `_Offers`, and the change to report."""


class ReadableRegistry(ToolRegistry):
    """Tools, resources and prompts. `MCPRegistry` adds functions and MCP servers to it."""

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self._offers = _Offers()
        self._offers_lock = Lock()
        self._offer_listeners = Listeners[[ReadableChange]]()
        self._watches: dict[str, Listeners[[str]]] = {}
        self._followed: dict[str, _Followed] = {}

    # Resources

    def add_resource(
        self, uri: str, content: str | bytes | Path | Callable[..., Any], **options: Unpack[ResourceOptions]
    ) -> None:
        """Adds a resource, in place of one with the same URI: a text, bytes, a file, or a function that reads it.

        A file is read each time. A function, sync or async, returns a text, bytes, anything that is JSON, or
        `EmbeddedResource`s. If the URI is a template such as `notes://{id}`, the function has its variables as
        parameters. Raises `TypeError` if they do not agree, and `ValueError` for a malformed template.
        """
        entry = function_entry(uri, content, options) if callable(content) else static_entry(uri, content, options)
        self.update_readable(add=[entry])

    def resource(self, uri: str, **options: Unpack[ResourceOptions]) -> Callable[[Function], Function]:
        """Registers the function below as a resource or, for a URI like `notes://{id}`, as a template of resources."""

        def register(function: Function) -> Function:
            self.add_resource(uri, function, **options)
            return function

        return register

    def remove_resource(self, uri: str) -> None:
        """Removes a resource or a template. Raises `UnknownResource`."""
        offers = self._offers
        entry = offers.resources.get(uri) or offers.templates.get(uri)
        if entry is None:
            raise _no_resource(uri)
        self.update_readable(remove=[entry])

    def resources(self) -> list[dict[str, Any]]:
        """The resources as MCP lists them, in the order of registration."""
        return self.listings(ResourceEntry)

    def resource_templates(self) -> list[dict[str, Any]]:
        """The templates of resources as MCP lists them."""
        return self.listings(TemplateEntry)

    def read_resource(self, uri: str) -> dict[str, Any]:
        """Returns MCP's result: `{"contents": [{"uri": …, "text": …}]}`. Raises `UnknownResource`, a `KeyError`.

        A function that is async runs in an event loop of its own; raises `LoopIsRunning` inside a running loop.
        """
        entry, arguments = self.find_resource(uri)
        return contents_of(uri, entry.listing, entry.read.call(arguments))

    async def aread_resource(self, uri: str) -> dict[str, Any]:
        """As `read_resource`, without blocking the event loop."""
        entry, arguments = self.find_resource(uri)
        return contents_of(uri, entry.listing, await entry.read.acall(arguments))

    def resource_updated(self, uri: str) -> None:
        """Says that the contents of a resource have changed: those who watch or subscribed to it are told."""
        if listeners := self._watches.get(uri):
            listeners.notify(uri)

    def watch_resource(self, uri: str, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call the listener with the URI after each change of the resource. Returns its unsubscribe function.

        Changes of the program's own resources are those that it reports with `resource_updated`.
        """
        with self._offers_lock:
            listeners = self._watches.setdefault(uri, Listeners())
            end = listeners.add(listener)

        def stop() -> None:
            with self._offers_lock:
                end()
                if not listeners and self._watches.get(uri) is listeners:
                    del self._watches[uri]
            self._follow(uri)

        self._follow(uri)
        return stop

    async def until_watched(self, uri: str) -> None:
        """Wait until changes of a watched resource are received, also if it is remote; or cannot be."""
        followed = self._followed.get(uri)
        if followed and followed.following.begun:
            await asyncio.wait([asyncio.wrap_future(followed.following.begun)])

    # Prompts

    @overload
    def prompt(self, function: Function, /) -> Function: ...

    @overload
    def prompt(self, function: None = None, /, **options: Unpack[PromptOptions]) -> Callable[[Function], Function]: ...

    def prompt(self, function: Any = None, /, **options: Unpack[PromptOptions]) -> Any:
        """Registers a function as a prompt and returns it unchanged: `@registry.prompt` or `@registry.prompt(title=…)`.

        Its parameters are the arguments of the prompt, which MCP clients give as strings. It returns a text, a
        `PromptMessage`, content such as `Image`, or a list of these.
        """

        def register(function: Function) -> Function:
            self.update_readable(add=[prompt_entry(function, options)])
            return function

        return register if function is None else register(function)

    def remove_prompt(self, name: str) -> None:
        """Raises `UnknownPrompt`."""
        self.update_readable(remove=[self.find_prompt(name)])

    def prompts(self) -> list[dict[str, Any]]:
        """The prompts as MCP lists them, in the order of registration."""
        return self.listings(PromptEntry)

    def get_prompt(self, name: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Returns MCP's result: `{"description": …, "messages": […]}`. Raises `UnknownPrompt`, `InvalidArguments`."""
        entry = self.find_prompt(name)
        return messages_of(entry.listing, entry.read.call(dict(arguments or {})))

    async def aget_prompt(self, name: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """As `get_prompt`, without blocking the event loop."""
        entry = self.find_prompt(name)
        return messages_of(entry.listing, await entry.read.acall(dict(arguments or {})))

    # Completion

    def complete(
        self, reference: Reference, argument: str, value: str = "", arguments: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """The values that an argument may have, given what was typed: `{"completion": {"values": […]}}`.

        `reference` is a prompt's name, a template's URI, or MCP's `ref`; `arguments` are those that are filled in
        already. Raises `UnknownPrompt` or `UnknownResource`.
        """
        call = self._find_completion(reference, argument)
        typed = {"value": value, "arguments": dict(arguments or {})}
        return completion_of(call.call(typed) if call else ())

    async def acomplete(
        self, reference: Reference, argument: str, value: str = "", arguments: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """As `complete`, without blocking the event loop."""
        call = self._find_completion(reference, argument)
        typed = {"value": value, "arguments": dict(arguments or {})}
        return completion_of(await call.acall(typed) if call else ())

    # Requests of MCP clients

    async def answer(self, operation: MCPOperation, params: Mapping[str, Any]) -> dict[str, Any]:
        """MCP's result of a client's request. Raises what the methods above raise."""
        return await ANSWERS[operation](self, params)

    # Changes

    def on_readable_change(self, listener: Callable[[ReadableChange], None]) -> Callable[[], None]:
        """Call the listener with `resources` or `prompts` after every change of these, in its thread.

        Returns its unsubscribe function.
        """
        return self._offer_listeners.add(listener)

    def entry(self, kind: type[Entry], key: str) -> Entry | None:
        """The entry of a class by its URI or name, if there is one."""
        entry: Entry | None = getattr(self._offers, _KINDS[kind][0]).get(key)
        return entry

    def entries(self, kind: type[Entry]) -> list[Entry]:
        """All entries of a class, in the order of registration."""
        return [*getattr(self._offers, _KINDS[kind][0]).values()]

    def listings(self, kind: type[Entry]) -> list[dict[str, Any]]:
        """All entries of a class as MCP lists them, in the order of registration."""
        return [entry.listing for entry in self.entries(kind)]

    def update_readable(self, *, add: Iterable[Entry] = (), remove: Iterable[Entry] = ()) -> None:
        """Adds and removes entries in one step. An entry that was replaced meanwhile is not removed."""
        changes: dict[ReadableChange, None] = {}
        with self._offers_lock:
            kept: dict[str, dict[str, Any]] = {}
            for entry, is_new in [*((entry, False) for entry in remove), *((entry, True) for entry in add)]:
                attribute, change = _KINDS[type(entry)]
                entries = kept.setdefault(attribute, dict(getattr(self._offers, attribute)))
                if is_new:
                    entries[entry.key] = entry
                elif entries.get(entry.key) is entry:
                    del entries[entry.key]
                else:
                    continue
                changes[change] = None
            self._offers = replace(self._offers, **kept)
            watched = [*self._watches]
        for uri in watched if "resources" in changes else ():
            self._follow(uri)
        for change in changes:
            self._offer_listeners.notify(change)

    def find_resource(self, uri: str) -> tuple[ResourceEntry | TemplateEntry, dict[str, Any]]:
        """The entry to read a URI by, and the arguments for it. Raises `UnknownResource`."""
        offers = self._offers
        if resource := offers.resources.get(uri):
            return resource, {}
        for template in offers.templates.values():
            if (arguments := template.match(uri)) is not None:
                return template, arguments
        raise _no_resource(uri)

    def find_prompt(self, name: str) -> PromptEntry:
        """Raises `UnknownPrompt`."""
        prompts = self._offers.prompts
        if name not in prompts:
            shown = str(name)[:MAX_QUOTED]
            near = similar_names(shown, prompts)
            raise UnknownPrompt(f"{shown!r}{did_you_mean(near)}", name=shown, near=near)
        return prompts[name]

    def _find_completion(self, reference: Reference, argument: str) -> BothWays | None:
        offers = self._offers
        if isinstance(reference, Mapping):
            is_prompt = reference.get("type") == _PROMPT_REF
            key = str(reference.get("name" if is_prompt else "uri"))
        else:
            is_prompt, key = reference in offers.prompts, reference
        if is_prompt:
            return self.find_prompt(key).complete.get(argument)
        if template := offers.templates.get(key):
            return template.complete.get(argument)
        self.find_resource(key)
        return None

    def _follow(self, uri: str) -> None:
        """Follow a remote resource exactly while it is watched, by the entry that it has now."""
        with self._offers_lock:
            try:
                entry = self.find_resource(uri)[0] if uri in self._watches else None
            except UnknownResource:
                entry = None
            followed = self._followed.get(uri)
            if followed and followed.entry is not entry:
                followed.following.stop()
                del self._followed[uri]
            if entry and entry.follow and uri not in self._followed:
                self._followed[uri] = _Followed(entry, entry.follow(uri))


def _no_resource(uri: object) -> UnknownResource:
    shown = str(uri)[:MAX_QUOTED]
    return UnknownResource(repr(shown), uri=shown)


ANSWERS: dict[MCPOperation, Callable[[ReadableRegistry, Mapping[str, Any]], Awaitable[dict[str, Any]]]] = {
    READ_RESOURCE: lambda registry, params: registry.aread_resource(params["uri"]),
    GET_PROMPT: lambda registry, params: registry.aget_prompt(params["name"], params.get("arguments")),
    COMPLETE: lambda registry, params: registry.acomplete(
        params["ref"],
        params["argument"]["name"],
        params["argument"]["value"],
        (params.get("context") or {}).get("arguments"),
    ),
}
