"""Content that is more than a plain value: images, sounds, resources and links, for results of tools and for prompts.

Each class stands for one content block of MCP and needs no MCP package. `annotations` are MCP's: `audience`, `priority`
and `lastModified`. `meta` is the block's `_meta`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import mimetypes
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Awaitable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeAlias

from pydantic_core import to_jsonable_python

from a2c_smcp.errors import AuthorizationFailed, AuthorizationRequired, SMCPError, kind_of
from a2c_smcp.loops import is_cancelled
from a2c_smcp.protocol.questions import is_input_required

logger = logging.getLogger(__name__)

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

    kind: ClassVar[str]
    data: bytes = field(repr=False)
    mime_type: str

    @classmethod
    def read(cls, path: str | Path, mime_type: str | None = None) -> Self:
        """The contents of a file. The type is guessed from its name, unless it is given."""
        return cls(Path(path).read_bytes(), mime_type or mimetypes.guess_type(str(path))[0] or _UNKNOWN_TYPE)

    def to_mcp(self) -> dict[str, Any]:
        return self._block(self.kind, data=b64encode(self.data).decode(), mimeType=self.mime_type)


@dataclass(frozen=True, slots=True)
class Image(_Media):
    """An image: its bytes and their type. `Image.read(path)` takes both from a file."""

    kind = "image"
    mime_type: str = "image/png"


@dataclass(frozen=True, slots=True)
class Audio(_Media):
    """A sound: its bytes and their type. `Audio.read(path)` takes both from a file."""

    kind = "audio"
    mime_type: str = "audio/wav"


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
    """True if a value is content, or a list that has some in it."""
    items = value if isinstance(value, list | tuple) else (value,)
    return any(isinstance(item, Content) for item in items)


def blocks_of(value: Any) -> list[dict[str, Any]]:
    """MCP's content blocks for a value. Only a list with content in it becomes several blocks."""
    if isinstance(value, list | tuple) and has_content(value):
        return [block for item in value for block in blocks_of(item)]
    if isinstance(value, Content):
        return [value.to_mcp()]
    if value is None:
        return []
    text = value if isinstance(value, str) else json.dumps(json_of(value), ensure_ascii=False)
    return [{"type": "text", "text": text}]


def _blocks_of_each(content: Any) -> list[dict[str, Any]]:
    """As `blocks_of`, but each item of a list becomes a block of its own."""
    items = content if isinstance(content, list | tuple) else [content]
    return [block for item in items for block in blocks_of(item)]


def resource_contents(
    uri: str, contents: str | bytes, mime_type: str | None = None, meta: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """MCP's contents of a resource: text, or bytes as base64."""
    inside = {"text": contents} if isinstance(contents, str) else {"blob": b64encode(contents).decode()}
    return without_nothing({"uri": uri, "mimeType": mime_type, **inside, "_meta": meta})


def json_of(value: Any) -> Any:
    """A value made of JSON types. A value without such a form becomes a string."""
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


# Results of tools: 001 §7's envelope, an MCP result as a Python value, a Python value as an MCP result.
#
# The Python value of an MCP result leaves things out, such as content beside `structuredContent`. A program that passes
# results on shall lose nothing, so a remote tool also says what its whole result was (`note_result`). `mcp_result` uses
# that if this tool, and not a function around it, was called.

MAX_REASON = 1000

_ENVELOPE_KEYS = frozenset({"output", "meta"})


class ToolFailed(SMCPError):
    """A remote tool answered that it failed. `result` is its answer."""

    title = "Tool failed"

    def __init__(self, about: str = "", *, result: Mapping[str, Any] | None = None, **details: Any) -> None:
        super().__init__(about, **details)
        self.result = dict(result or {})


class ToolNeedsSignIn(ToolFailed, AuthorizationRequired):
    """The owner of the tool's MCP server has to sign in there before the tool can be used."""

    title = "The owner of this tool has to sign in"


class ToolNeedsPermission(ToolFailed, AuthorizationFailed):
    """The tool's MCP server is signed in to, but without a permission that the tool needs."""

    title = "The owner of this tool has to give it a permission"


class ContentBlocks(list[dict[str, Any]]):
    """Content blocks of an MCP result, such as images. `mcp_result` passes them on unchanged."""


class RawResult(dict[str, Any]):
    """A whole MCP result. `mcp_result` passes it on unchanged."""


def envelope(result: Any, *, tool: str, duration: float) -> dict[str, Any]:
    """Returns `{"output": …, "meta": {…}}` (001 §7).

    A result that has this shape is completed, not wrapped again. Its own `meta` wins over `tool` and `duration`.
    """
    measured = {"tool": tool, "duration": duration}
    if not _is_envelope(result):
        return {"output": result, "meta": measured}
    return {"output": result["output"], "meta": measured | result.get("meta", {})}


def value_of(result: Mapping[str, Any]) -> Any:
    """The Python value of an MCP result: `structuredContent`, else the text, else the content; `None` if it is empty.

    Raises `ToolFailed` for an error result; `ToolNeedsSignIn` and `ToolNeedsPermission` say what the owner has to do.
    """
    if result.get("isError"):
        raise _failure(result)
    if is_input_required(result):
        raise ToolFailed("it asks a question, and this caller cannot answer", result=result)
    if result.get("structuredContent") is not None:
        return result["structuredContent"]
    content = result.get("content") or []
    if all(_is_text(block) for block in content):
        return text_of(result) if content else None
    return ContentBlocks(content)


def _failure(result: Mapping[str, Any]) -> ToolFailed:
    meta = result.get("_meta")
    meta = meta if isinstance(meta, Mapping) else {}
    kind = next((kind for kind in (ToolNeedsSignIn, ToolNeedsPermission) if kind.code == meta.get("error_code")), None)
    if kind is None:
        return ToolFailed(text_of(result) or _structured_reason(result.get("structuredContent")), result=result)
    hint, server = meta.get("auth_hint"), meta.get("mcp_server")
    advice = hint.get("message") if isinstance(hint, Mapping) else None
    reasons = dict.fromkeys(filter(None, (text_of(result), str(advice or ""))))  # often they are the same
    details = {"mcp_server": server} if isinstance(server, str) else {}
    return kind("; ".join(reasons), result=result, **details)


def text_of(result: Mapping[str, Any]) -> str:
    """The text blocks of an MCP result, one line each."""
    return "\n".join(block["text"] for block in result.get("content") or [] if _is_text(block))


@dataclass(slots=True)
class _Noted:
    """The last whole result of a remote tool in the call that is being made."""

    tool: object = None
    result: Mapping[str, Any] | None = None


_NOTED: ContextVar[_Noted | None] = ContextVar("noted_result", default=None)


def note_result(tool: object, result: Mapping[str, Any]) -> None:
    """Keep the whole result of a remote tool, whose value its caller gets."""
    if noted := _NOTED.get():
        noted.tool, noted.result = tool, result


async def mcp_result(
    name: str, call: Awaitable[Any], tool: object = None, *, passing: tuple[type[Exception], ...] = ()
) -> dict[str, Any]:
    """Awaits a call of the tool `name` and returns its outcome as an MCP result: errors become error results.

    If `tool` is a remote one, its own result is returned. Raises errors of the classes in `passing`, and
    `CancelledError` if the current task is cancelled.
    """
    noted = _Noted()
    token = _NOTED.set(noted)
    try:
        value = await call
        return _success(value) if noted.result is None or noted.tool is not tool else dict(noted.result)
    except passing:
        raise
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        return _error("The tool was cancelled.")
    except ToolFailed as failure:
        return dict(failure.result) or _error(failure.message)
    except SMCPError as error:
        return _error(error.message)
    except (Exception, SystemExit) as error:  # a function that exits must not end the program that hosts it
        logger.warning("Tool %r failed", name, exc_info=True)
        return _error(str(error) or kind_of(type(error)))
    finally:
        _NOTED.reset(token)


def _is_envelope(result: Any) -> bool:
    return (
        isinstance(result, dict)
        and "output" in result
        and result.keys() <= _ENVELOPE_KEYS
        and isinstance(result.get("meta", {}), dict)
    )


def _structured_reason(structured: Any) -> str:
    """The reason of a failure without text: computers of 0.4.2 put it under `error`."""
    reason = structured.get("error", structured) if isinstance(structured, Mapping) else None
    if not reason or isinstance(reason, str):
        return reason or ""
    return json.dumps(reason, ensure_ascii=False, default=str)[:MAX_REASON]


def _success(value: Any) -> dict[str, Any]:
    if isinstance(value, RawResult):
        return dict(value)
    if isinstance(value, ToolResult):
        return value.to_mcp()
    if isinstance(value, ContentBlocks):
        return {"content": [*value], "isError": False}
    if has_content(value):
        return {"content": blocks_of(value), "isError": False}
    plain = json_of(value)
    if plain is None or isinstance(plain, str):
        return {"content": blocks_of(plain), "isError": False}
    return {
        "content": blocks_of(plain),
        "structuredContent": plain if isinstance(plain, dict) else {"result": plain},
        "isError": False,
    }


def _error(text: str) -> dict[str, Any]:
    return {"content": blocks_of(text), "isError": True}


def _is_text(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str)
