"""What is signed or sealed, as bytes that can be read in one way only (WIRE §10).

`T(label, f…)` is "a2c-smcp/1 " + label and then each field, all as a big-endian u32 length and the bytes. Text is
UTF-8; keys, nonces and digests are raw bytes. In JSON, raw bytes are base64 with padding.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import NamedTuple

from a2c_smcp.errors import DeviceMismatch

__all__ = ["CallAddress", "decoded", "encoded", "is_fingerprint", "transcript"]

_FINGERPRINT = re.compile(r"[A-Za-z0-9_-]{43}")


class CallAddress(NamedTuple):
    """`R`: what a signature or a seal of one request belongs to."""

    office: str
    agent: str
    computer: str
    req_id: str


def transcript(label: str, *fields: bytes | str) -> bytes:
    parts = [f"a2c-smcp/1 {label}".encode()]
    parts += [field.encode("utf-8", "surrogatepass") if isinstance(field, str) else field for field in fields]
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def is_fingerprint(text: object) -> bool:
    """Whether it has the form of one: 43 characters of base64url."""
    return isinstance(text, str) and _FINGERPRINT.fullmatch(text) is not None


def encoded(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def decoded(text: object, what: str, size: int | None = None) -> bytes:
    """The raw bytes of a field in JSON. Raises `DeviceMismatch` if it has another form or size."""
    if isinstance(text, str) and text.isascii():
        try:
            raw = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raw = None
        if raw is not None and (size is None or len(raw) == size) and encoded(raw) == text:
            return raw
    raise DeviceMismatch(f"{what} is malformed")
