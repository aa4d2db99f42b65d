"""Chunks of large contents: their size, and bytes as base64 text (PROTOCOL-0.4 §6)."""

from __future__ import annotations

from typing import Any

import msgspec

from a2c_smcp.errors import BadRequest
from a2c_smcp.protocol.codec import Written, dumps

__all__ = ["CHUNK", "decoded_size", "from_base64", "to_base64", "with_blob"]

CHUNK = 262_144
"""Bytes of a chunk, before they are encoded."""


def to_base64(content: bytes | bytearray) -> str:
    """Several times as fast as the standard library."""
    text: str = msgspec.to_builtins(content)
    return text


def from_base64(text: str) -> bytes:
    """Reads the standard alphabet with padding, and nothing else. Raises `BadRequest`."""
    try:
        return msgspec.convert(text, bytes)
    except (msgspec.ValidationError, UnicodeEncodeError):
        raise BadRequest("not base64") from None


def with_blob(message: dict[str, Any], blob: str | bytes) -> dict[str, Any]:
    """The message with a chunk, as it is (an attachment) or in base64.

    Base64 needs no escapes, and to look for some takes longer than the rest.
    """
    if isinstance(blob, bytes):
        return {**message, "blob": blob}
    return Written({**message, "blob": blob}, f'{dumps(message)[:-1]},"blob":"{blob}"}}')


def decoded_size(text: str) -> int:
    """How many bytes base64 stands for, without reading it."""
    return len(text) // 4 * 3 - text[-2:].count("=")
