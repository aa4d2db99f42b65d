"""Large contents of answers go by the side band: they are spooled, and a mark stands in their place (PROTOCOL-0.4 §7).

An item is a content item of a tool result or of a prompt, or one of the `contents` of a resource. The mark is in its
`_meta`; the field that had the content is empty. Binary is moved for every agent that can fetch it. Text is moved only
for agents that say so, with `blobs: true` (WIRE §9).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from a2c_smcp.computer.blobs.sources import BlobMark
from a2c_smcp.errors import AnswerTooLarge, BadRequest, NotPrivate
from a2c_smcp.loops import in_thread
from a2c_smcp.protocol.chunks import decoded_size, from_base64

__all__ = ["Spooling", "movable", "move_binary", "move_texts"]

logger = logging.getLogger(__name__)

Spooling: TypeAlias = Callable[[bytes, str], Awaitable[BlobMark]]
"""Keeps a content of this MIME type."""


class _Place(NamedTuple):
    """Where an item has its content: in itself, or in its embedded `resource`."""

    field: str
    is_inner: bool
    mime_type: str
    content: str

    def emptied(self, item: Mapping[str, Any], mark: BlobMark) -> dict[str, Any]:
        empty = {self.field: ""}
        new = {"resource": {**item["resource"], **empty}} if self.is_inner else empty
        meta = item.get("_meta")
        return {**item, **new, "_meta": {**(meta if isinstance(meta, dict) else {}), **mark.to_meta()}}


async def move_binary(items: list[Any], inline: int, spool: Spooling) -> list[Any]:
    """The items with binary contents of more than `inline` bytes moved. What cannot be spooled stays."""
    return await _moved_all(items, _BINARY, inline, _decoded, spool)


async def move_texts(items: list[Any], inline: int, spool: Spooling) -> list[Any]:
    """The items with texts of more than `inline` characters moved. What cannot be spooled stays."""
    return await _moved_all(items, _TEXT, inline, _encoded, spool)


def movable(items: list[Any], inline: int, *, texts: bool) -> int:
    """How many characters of the items can be moved."""
    kinds = (_BINARY, _TEXT) if texts else (_BINARY,)
    return sum(len(place.content) for item in items for kind in kinds if (place := _place(item, kind, inline)))


_Read: TypeAlias = Callable[[str], bytes | None]


async def _moved_all(items: list[Any], kind: _ContentKind, inline: int, read: _Read, spool: Spooling) -> list[Any]:
    """The same list if there is nothing to move."""
    places = [_place(item, kind, inline) for item in items]
    if not any(places):
        return items
    pairs = zip(items, places, strict=True)
    return [await _moved(item, place, read, spool) if place else item for item, place in pairs]


async def _moved(item: Any, place: _Place, read: _Read, spool: Spooling) -> Any:
    content = await in_thread(read, place.content)
    if content is None:
        return item
    try:
        mark = await spool(content, place.mime_type)
    except (OSError, NotPrivate, AnswerTooLarge) as error:
        logger.warning("a content of %d bytes could not be kept for an agent: %s", len(content), error)
        return item
    return place.emptied(item, mark)


class _ContentKind(NamedTuple):
    """Where contents of a kind are: in a content item, in the contents of a resource; their size; their MIME type."""

    in_item: str
    in_resource: str
    size: Callable[[str], int]
    mime_type: str


_BINARY = _ContentKind("data", "blob", decoded_size, "application/octet-stream")
_TEXT = _ContentKind("text", "text", len, "text/plain")


def _place(item: Any, kind: _ContentKind, inline: int) -> _Place | None:
    """Where the item has a content of this kind that is larger than `inline`."""
    if not isinstance(item, Mapping):
        return None
    is_inner = isinstance(item.get("resource"), Mapping)
    holder = item["resource"] if is_inner else item
    field = kind.in_resource if "uri" in holder else kind.in_item
    content, mime_type = holder.get(field), holder.get("mimeType")
    if not isinstance(content, str) or kind.size(content) <= inline:
        return None
    return _Place(field, is_inner, mime_type if isinstance(mime_type, str) else kind.mime_type, content)


def _decoded(content: str) -> bytes | None:
    """`None` if it is not base64: then it is no binary content."""
    try:
        return from_base64(content)
    except BadRequest:
        return None


def _encoded(content: str) -> bytes | None:
    """`None` if it has a lone surrogate, which UTF-8 cannot express."""
    try:
        return content.encode()
    except UnicodeEncodeError:
        return None
