"""A registry of tools that has resources and prompts, too, and tells of their changes.

Threads: as with tools, what there is is an immutable `_Offers`. A change puts another one in place under a lock;
readers take the current one without a lock. Listeners are called after the change, in its thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from threading import Lock
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, Unpack, overload

from a2c_smcp.registry.readable.entries import (
    BothWays,
    Entry,
    Following,
    PromptEntry,
    ResourceEntry,
    TemplateEntry,
    UnknownPrompt,
    UnknownResource,
    completion_of,
    contents_of,
    messages_of,
)
from a2c_smcp.registry.readable.sources import (
    PromptOptions,
    ResourceOptions,
    function_entry,
    prompt_entry,
    static_entry,
)
from a2c_smcp.registry.rules import Rules
from a2c_smcp.registry.tool_registry import ToolRegistry

__all__ = ["ReadableChange", "ReadableRegistry"]

logger = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])
ReadableChange: TypeAlias = Literal["resources", "prompts"]
Reference: TypeAlias = str | Mapping[str, Any]
"""A prompt by its name or a template by its URI, or MCP's `ref`."""

_PROMPT_REF = "ref/prompt"
MAX_QUOTED = 256


@dataclass(frozen=True, slots=True)
class _Offers:
    """What there is to read, by URI or name, in the order of registration."""

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
"""Where entries of a class are kept, and what has changed with them."""


class ReadableRegistry(ToolRegistry):
    """Tools, resources and prompts. `MCPRegistry` adds functions and MCP servers to it."""

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self._offers = _Offers()
        self._offers_lock = Lock()
        self._offer_listeners: tuple[Callable[[ReadableChange], None], ...] = ()
        self._watches: dict[str, dict[object, Callable[[str], None]]] = {}
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
        return [entry.listing for entry in self._offers.resources.values()]

    def resource_templates(self) -> list[dict[str, Any]]:
        """The templates of resources as MCP lists them."""
        return [entry.listing for entry in self._offers.templates.values()]

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
        with self._offers_lock:
            listeners = [*self._watches.get(uri, {}).values()]
        for listener in listeners:
            _call(listener, uri)

    def watch_resource(self, uri: str, listener: Callable[[str], None]) -> Callable[[], None]:
        """Calls the listener with the URI after each change of the resource. Returns how to stop that.

        Changes of the program's own resources are those that it reports with `resource_updated`.
        """
        token = object()
        with self._offers_lock:
            self._watches.setdefault(uri, {})[token] = listener

        def stop() -> None:
            with self._offers_lock:
                watches = self._watches.get(uri, {})
                watches.pop(token, None)
                if not watches:
                    self._watches.pop(uri, None)
            self._follow(uri)

        self._follow(uri)
        return stop

    async def until_watched(self, uri: str) -> None:
        """Waits until changes of a watched resource are heard of, also if it is remote; or cannot be."""
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
        return [entry.listing for entry in self._offers.prompts.values()]

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

    # Changes

    def on_readable_change(self, listener: Callable[[ReadableChange], None]) -> Callable[[], None]:
        """Calls the listener with `resources` or `prompts` after every change of what there is, in its thread.

        Returns how to stop that.
        """

        def notify(change: ReadableChange) -> None:
            listener(change)

        def stop() -> None:
            with self._offers_lock:
                self._offer_listeners = tuple(other for other in self._offer_listeners if other is not notify)

        with self._offers_lock:
            self._offer_listeners = (*self._offer_listeners, notify)
        return stop

    def entry(self, kind: type[Entry], key: str) -> Entry | None:
        """The entry of a class by its URI or name, if there is one."""
        found: Entry | None = getattr(self._offers, _KINDS[kind][0]).get(key)
        return found

    def entries(self, kind: type[Entry]) -> list[Entry]:
        """All entries of a class, in the order of registration."""
        return [*getattr(self._offers, _KINDS[kind][0]).values()]

    def update_readable(self, *, add: Iterable[Entry] = (), remove: Iterable[Entry] = ()) -> None:
        """Adds and removes entries in one step. An entry that was replaced meanwhile is not removed."""
        changes: dict[ReadableChange, None] = {}
        with self._offers_lock:
            kept: dict[str, dict[str, Any]] = {}
            for entry, is_new in [*((each, False) for each in remove), *((each, True) for each in add)]:
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
            listeners, watched = self._offer_listeners, [*self._watches]
        for uri in watched if "resources" in changes else ():
            self._follow(uri)
        for change in changes:
            for listener in listeners:
                _call(listener, change)

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
            near = get_close_matches(shown, prompts)
            meant = f", did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise UnknownPrompt(f"{shown!r}{meant}", name=shown, near=near)
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


def _call(listener: Callable[[Any], None], about: Any) -> None:
    try:
        listener(about)
    except Exception:
        logger.exception("A listener to changes of resources or prompts failed")


def _no_resource(uri: object) -> UnknownResource:
    shown = str(uri)[:MAX_QUOTED]
    return UnknownResource(repr(shown), uri=shown)
