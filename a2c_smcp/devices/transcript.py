"""The signed or sealed data, as bytes with one reading only (WIRE §10).

`T(label, f…)` is "a2c-smcp/1 " + label and then each field, all as a big-endian u32 length and the bytes. Text is
UTF-8; keys, nonces and digests are raw bytes. In JSON, raw bytes are base64 with padding.
"""

from __future__ import annotations

import binascii
import hashlib
import re
import struct
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import NamedTuple

from a2c_smcp.errors import DeviceMismatch

_LENGTH = struct.Struct(">I").pack
_SHA256 = hashlib.sha256()
_CALLS = 256  # in flight, whose addresses are kept ready
_FINGERPRINT = re.compile(r"[A-Za-z0-9_-]{43}")


class CallAddress(NamedTuple):
    """`R`: what a signature or a seal of one request belongs to."""

    office: str
    agent: str
    computer: str
    req_id: str


def transcript(label: str, *fields: bytes | str) -> bytes:
    """`T(label, f…)`."""
    return _beginning(label) + _fields(fields)


def call_transcript(label: str, address: CallAddress, *fields: bytes | str) -> bytes:
    """`T(label, R, f…)`. A call has several with the same R."""
    return _beginning(label) + _address(address) + _fields(fields)


@cache
def _beginning(label: str) -> bytes:
    return _fields((f"a2c-smcp/1 {label}",))


@lru_cache(_CALLS)
def _address(address: CallAddress) -> bytes:
    return _fields(address)


def _fields(fields: Iterable[bytes | str]) -> bytes:
    parts: list[bytes] = []
    for field in fields:
        raw = field.encode("utf-8", "surrogatepass") if isinstance(field, str) else field
        parts += (_LENGTH(len(raw)), raw)
    return b"".join(parts)


def sha256(raw: bytes) -> bytes:
    """The digest. To copy a hash is quicker than to make one, for which OpenSSL looks up the algorithm."""
    new = _SHA256.copy()
    new.update(raw)
    return new.digest()


def is_fingerprint(text: object) -> bool:
    """True for the form of one: 43 characters of base64url."""
    return isinstance(text, str) and _FINGERPRINT.fullmatch(text) is not None


def encoded(raw: bytes) -> str:
    return binascii.b2a_base64(raw, newline=False).decode("ascii")


def decoded(text: object, what: str, size: int | None = None) -> bytes:
    """The raw bytes of a field in JSON. Raises `DeviceMismatch` if it has another form or size."""
    if isinstance(text, str) and text.isascii():
        try:
            raw = binascii.a2b_base64(text, strict_mode=True)
        except (binascii.Error, ValueError):
            raw = None
        if raw is not None and (size is None or len(raw) == size) and encoded(raw) == text:
            return raw
    raise DeviceMismatch(f"{what} is malformed")
