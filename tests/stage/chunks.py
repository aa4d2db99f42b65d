"""Large contents as a raw computer gives them: what stands for a content in an answer, and its chunks."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from typing import Any

from tests.computer.servers.contents import binary

__all__ = ["CHUNK", "CONTENT", "SHA256", "chunk", "marks_of"]

CHUNK = 262_144
CONTENT = binary(1_000_001)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def marks_of(content: bytes = CONTENT, handle: str = "h", **lies: Any) -> dict[str, Any]:
    """The true `_meta` of a content that stayed on the computer, except where it lies."""
    sha256 = hashlib.sha256(content).hexdigest()
    return {"a2c_blob_handle": handle, "a2c_total_size": len(content), "a2c_sha256": sha256, **lies}


def chunk(data: dict[str, Any], content: bytes = CONTENT, most: int = CHUNK, **lies: Any) -> dict[str, Any]:
    """The true answer to `client:get_blob`, except where it lies."""
    offset = data["chunk_offset"]
    part = content[offset : offset + min(most, data["max_chunk_bytes"])]
    return {
        "blob_handle": data["blob_handle"],
        "mime_type": "image/png",
        "total_size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "chunk_offset": offset,
        "eof": offset + len(part) == len(content),
        "blob": b64encode(part).decode(),
        "req_id": data["req_id"],
        **lies,
    }
