"""What a blob is read from, and the mark by which an agent finds it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from a2c_smcp.errors import BlobNotAccessible
from a2c_smcp.file_io import read_cached

__all__ = ["BlobMark", "BlobSource", "FileBlob"]


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
    """What an item without its content says about it (PROTOCOL-0.4 §7)."""

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
