"""One resource, template of resources or prompt of a registry: its listing, and the functions that read it.

Each is read by two functions, one that blocks and one that is awaited. They return a Python value or a whole MCP result
(`RawResult`); `contents_of`, `messages_of` and `completion_of` make MCP's results of values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from a2c_smcp.errors import PromptNotFound, ResourceNotFound
from a2c_smcp.protocol.operations import PROMPTS, RESOURCES, TEMPLATES, MCPList
from a2c_smcp.registry.calls.arguments import AsyncCall, SyncCall
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
