"""How much agents may make a Computer keep for them, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

from a2c_smcp.protocol.chunks import CHUNK

__all__ = ["BlobLimits"]

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobLimits:
    """Numbers, bytes and seconds. `inline` and `chunk` are those of the published 0.4 generation (PROTOCOL-0.4 §§6-9).

    Contents that agents fetch: at most `most` handles; at most `most_bytes` on disk, of which one has at most
    `largest`; those that were not used for the longest time make room. A handle ends when it was not used for `age`,
    and `longest` after it was made. `age` is more than the ten minutes for which results are kept. `reads` chunks are
    read at a time.
    Files that agents send: at most `uploads` at a time of at most `upload_size` each; one that stands still for
    `upload_idle` is given up.
    """

    most: int = 1000
    most_bytes: int = 512 * _MIB
    largest: int = 100 * _MIB
    age: float = 900.0
    longest: float = 6 * 3600.0
    inline: int = 32_768
    chunk: int = CHUNK
    reads: int = 4
    uploads: int = 4
    upload_size: int = 100 * _MIB
    upload_idle: float = 120.0
