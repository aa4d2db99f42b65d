"""Content that is more than a plain value: images, sounds, resources and links, for results of tools and for prompts.

Each class stands for one content block of MCP and needs no MCP package. `annotations` are MCP's: `audience`, `priority`
and `lastModified`. `meta` is the block's `_meta`.
"""

from __future__ import annotations

import json
import math
import mimetypes
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

from pydantic_core import to_jsonable_python

__all__ = [
    "Audio",
    "Content",
    "EmbeddedResource",
    "Image",
    "PromptMessage",
    "ResourceLink",
    "Role",
    "Text",
    "ToolResult",
    "blocks_of",
    "has_content",
    "json_of",
    "resource_contents",
    "without_nothing",
]

Role: TypeAlias = Literal["user", "assistant"]

_UNKNOWN_TYPE = "application/octet-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Content(ABC):
    """One content block."""

    annotations: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] | None = None

    @abstractmethod
    def to_mcp(self) -> dict[str, Any]:
        """The block as MCP writes it."""

    def _block(self, kind: str, **fields: Any) -> dict[str, Any]:
        return without_nothing({"type": kind, **fields, "annotations": self.annotations, "_meta": self.meta})


@dataclass(frozen=True, slots=True)
class Text(Content):
    """A text. A plain string means the same; this class is for annotations."""

    text: str

    def to_mcp(self) -> dict[str, Any]:
        return self._block("text", text=self.text)


@dataclass(frozen=True, slots=True)
class _Media(Content):
    """Bytes of some type. `read` takes them from a file."""

    data: bytes = field(repr=False)
    mime_type: str

    @classmethod
    def read(cls, path: str | Path, mime_type: str | None = None) -> Self:
        """The contents of a file. The type is guessed from its name, unless it is given."""
        return cls(Path(path).read_bytes(), mime_type or _type_of(path))

    def _encoded(self, kind: str) -> dict[str, Any]:
        return self._block(kind, data=b64encode(self.data).decode(), mimeType=self.mime_type)


@dataclass(frozen=True, slots=True)
class Image(_Media):
    """An image: its bytes and their type. `Image.read(path)` takes both from a file."""

    mime_type: str = "image/png"

    def to_mcp(self) -> dict[str, Any]:
        return self._encoded("image")


@dataclass(frozen=True, slots=True)
class Audio(_Media):
    """A sound: its bytes and their type. `Audio.read(path)` takes both from a file."""

    mime_type: str = "audio/wav"

    def to_mcp(self) -> dict[str, Any]:
        return self._encoded("audio")


@dataclass(frozen=True, slots=True)
class EmbeddedResource(Content):
    """A resource with its contents, text or bytes. Also one item of what a function of a resource returns."""

    uri: str
    contents: str | bytes = field(repr=False)
    mime_type: str | None = None

    def to_mcp(self) -> dict[str, Any]:
        return self._block("resource", resource=resource_contents(self.uri, self.contents, self.mime_type))


@dataclass(frozen=True, slots=True)
class ResourceLink(Content):
    """A link to a resource that the client can read. Without a `name`, it is the URI."""

    uri: str
    name: str = ""
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    icons: Sequence[Mapping[str, Any]] | None = None

    def to_mcp(self) -> dict[str, Any]:
        return self._block(
            "resource_link",
            uri=self.uri,
            name=self.name or self.uri,
            title=self.title,
            description=self.description,
            mimeType=self.mime_type,
            size=self.size,
            icons=self.icons,
        )


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A whole result of a tool: content for people and models beside structured content for programs.

    `content` is one item or a list: strings, the classes of this module, or values that are written as JSON. Without
    it, the structured content is written as JSON text. `meta` is the result's `_meta`.
    """

    content: Any = None
    structured: Any = None
    is_error: bool = False
    meta: Mapping[str, Any] | None = None

    def to_mcp(self) -> dict[str, Any]:
        structured = None if self.structured is None else json_of(self.structured)
        content = blocks_of(structured) if self.content is None else _blocks_of_each(self.content)
        result: dict[str, Any] = {"content": content, "isError": self.is_error}
        if structured is not None:
            result["structuredContent"] = structured
        if self.meta:
            result["_meta"] = json_of(dict(self.meta))
        return result


@dataclass(frozen=True, slots=True)
class PromptMessage:
    """A message of a prompt. `content` is a string, one of the classes of this module, or a list of these."""

    content: Any
    role: Role = "user"

    def to_mcp(self) -> list[dict[str, Any]]:
        """MCP's messages have one block each, so a list of content becomes several messages."""
        return [{"role": self.role, "content": block} for block in _blocks_of_each(self.content)]


def has_content(value: Any) -> bool:
    """Whether a value is content, or a list that has some in it."""
    return isinstance(value, Content) or (
        isinstance(value, list | tuple) and any(isinstance(each, Content) for each in value)
    )


def blocks_of(value: Any) -> list[dict[str, Any]]:
    """MCP's content blocks for a value. Only a list with content in it becomes several blocks."""
    if isinstance(value, list | tuple) and has_content(value):
        return [block for each in value for block in blocks_of(each)]
    if isinstance(value, Content):
        return [value.to_mcp()]
    if value is None:
        return []
    text = value if isinstance(value, str) else json.dumps(json_of(value), ensure_ascii=False)
    return [{"type": "text", "text": text}]


def _blocks_of_each(content: Any) -> list[dict[str, Any]]:
    """As `blocks_of`, but each item of a list becomes a block of its own."""
    items = content if isinstance(content, list | tuple) else [content]
    return [block for each in items for block in blocks_of(each)]


def resource_contents(
    uri: str, contents: str | bytes, mime_type: str | None = None, meta: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """MCP's contents of a resource: text, or bytes as base64."""
    inside = {"text": contents} if isinstance(contents, str) else {"blob": b64encode(contents).decode()}
    return without_nothing({"uri": uri, "mimeType": mime_type, **inside, "_meta": meta})


def json_of(value: Any) -> Any:
    """A value made of JSON types. What has no such form becomes a string."""
    return _without_nan(to_jsonable_python(value, bytes_mode="base64", fallback=str))


def without_nothing(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that have a value, as plain JSON."""
    return {key: json_of(value) for key, value in fields.items() if value is not None}


def _without_nan(value: Any) -> Any:
    """JSON has no NaN and no infinities: they become null, as in JavaScript."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _type_of(path: str | Path) -> str:
    return mimetypes.guess_type(str(path))[0] or _UNKNOWN_TYPE
