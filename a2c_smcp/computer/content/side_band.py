"""Large contents of answers go by the side band: they are spooled, and a mark stands in their place (PROTOCOL-0.4 §7).

An item is a content item of a tool result or of a prompt, or one of the `contents` of a resource. The mark is in its
`_meta`; the field that had the content is empty. Binary is moved for every agent that can fetch it. Text is moved only
for agents that say so, with `blobs: true` (WIRE §9).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeAlias

from a2c_smcp.errors import AnswerTooLarge, BadRequest, BlobNotAccessible, NotPrivate
from a2c_smcp.files import read_cached
from a2c_smcp.loops import in_thread
from a2c_smcp.protocol.results import decoded_size, from_base64

logger = logging.getLogger(__name__)

# What a blob is read from, and the mark by which an agent finds it.


class BlobSource(Protocol):
    """Bytes that an agent may read in chunks. Equal sources of one agent have one handle, so a source is hashable."""

    @property
    def mime_type(self) -> str: ...
    @property
    def total_size(self) -> int: ...
    @property
    def sha256(self) -> str:
        """Of the whole, in lower-case hexadecimal."""

    def read(self, offset: int, size: int) -> bytes:
        """Called in a thread, for each chunk, inside the bounds of `total_size`.

        Whatever decides whether the agent may read this is checked here, each time. Raises `BlobNotAccessible`, with
        the reason `forbidden` or `gone`; an `OSError` means `gone`. A source may have a method `read_cached` that does
        the same without waiting for a disk, or returns `None`: then `read` is called, in a thread.
        """


class BlobMark(NamedTuple):
    """The description of an item's content that is sent in its place (PROTOCOL-0.4 §7)."""

    handle: str
    total_size: int
    sha256: str

    def to_meta(self) -> dict[str, Any]:
        return {
            "a2c_blob_handle": self.handle,
            "a2c_total_size": self.total_size,
            "a2c_sha256": self.sha256,
        }


@dataclass(frozen=True, slots=True)
class FileBlob:
    """A file that does not change."""

    path: Path
    mime_type: str
    total_size: int
    sha256: str

    def read(self, offset: int, size: int) -> bytes:
        with self._opened() as file:
            file.seek(offset)
            return file.read(size)

    def read_cached(self, offset: int, size: int) -> bytearray | None:
        with self._opened() as file:
            return read_cached(file.fileno(), size, offset)

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        with self.path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != self.total_size:
                raise BlobNotAccessible("the file has changed", reason="gone")
            yield file


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
    """The number of characters of the items that can be moved."""
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
