"""Signed results: `_meta.a2c_sig` = `{key, sig}` in the answer of a computer (WIRE §10).

The signature is over T("result", R, event, SHA-256 of the parameters, SHA-256 of the answer without `a2c_sig`). Both
hashes are of RFC 8785 forms. An answer that this form refuses (integers beyond 2⁵³−1, lone surrogates) is signed as
exact text in `a2c_sig.text`, which then is the answer. Parameters that it refuses are hashed as JSON with sorted keys,
escaped to ASCII, without white space. Hashing a large answer takes long: do it in a thread above `LARGE`.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from a2c_smcp.devices.identity import Identity, verify
from a2c_smcp.devices.transcript import CallAddress, call_transcript, decoded, encoded, sha256
from a2c_smcp.errors import DeviceMismatch
from a2c_smcp.installation import needs_extra
from a2c_smcp.protocol.codec import Written
from a2c_smcp.smcp import TOOL_CALL_EVENT

with needs_extra("devices", "Signing results"):
    import rfc8785

__all__ = [
    "LARGE",
    "SIGNATURE",
    "SignedAnswer",
    "TakesLong",
    "canonical",
    "checked",
    "digest",
    "is_small",
    "parameters",
    "signed",
    "signed_for",
]

SIGNATURE = "a2c_sig"
LARGE = 256 * 1024
"""Bytes of an answer above which it is signed and checked beside the event loop."""

_SORTED = orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER  # refuses integers beyond 2⁵³−1
_SCALARS = frozenset((int, bool, type(None)))
_LENGTH_OF_DIGEST = struct.pack(">I", 32)
_FIRST_SURROGATE = "\ud800"
_ROUTING = frozenset({"agent", "computer", "office_id", "req_id", "timeout", "extend", "_meta"})
_OF_TOOL_CALLS = frozenset({"tool_name", "params"})  # published Servers take away everything else


class SignedAnswer(NamedTuple):
    """An answer whose signature is right, without the signature, and the public key that made it."""

    key: bytes
    answer: dict[str, Any]


def parameters(event: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a request that its answer is signed for: not where it goes, nor how long it may take."""
    if event == TOOL_CALL_EVENT:
        return {field: request[field] for field in _OF_TOOL_CALLS if field in request}
    return {field: value for field, value in request.items() if field not in _ROUTING}


def is_small(answer: Mapping[str, Any]) -> bool:
    """Whether an answer is quick to sign or to check: it has at most about `LARGE` characters."""
    if isinstance(answer, Written):
        return len(answer.text) <= LARGE
    room, rest = LARGE, [*answer.values()]
    while rest and room >= 0:
        value = rest.pop()
        if isinstance(value, str):
            room -= len(value)
        elif isinstance(value, dict):
            room -= 8 * len(value) + len("".join(map(str, value)))
            rest += value.values()
        elif isinstance(value, (list, tuple)):
            room -= 8 * len(value)
            rest += value
    return room >= 0


def digest(value: object) -> bytes:
    """SHA-256 of the RFC 8785 form, or of sorted ASCII JSON where there is none."""
    form = canonical(value)
    return sha256(_exact(value, sort_keys=True).encode() if form is None else form)


def signed_for(address: CallAddress, event: str, params: bytes) -> bytes:
    """What the answer to a request is signed for, known before the answer. `params` is the `digest` of `parameters`."""
    return call_transcript("result", address, event, params)


def signed(identity: Identity, request: bytes, answer: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of an answer with `_meta.a2c_sig`. `request` is what it is `signed_for`."""
    bare = _bare(answer)
    form, text = canonical(bare), None
    if form is None:
        text = _exact(bare)
        form = text.encode()
    signature = {"key": encoded(identity.public), "sig": encoded(identity.sign(_message(request, form)))}
    if text is not None:
        signature["text"] = text
    complete = {**bare, "_meta": {**bare.get("_meta", {}), SIGNATURE: signature}}
    written = _written(answer, signature) if isinstance(answer, Written) and text is None else None
    return complete if written is None else Written(complete, written)


def _written(answer: Written, signature: Mapping[str, str]) -> str | None:
    """The text of an answer with its signature, if `_meta` is its last member, or missing."""
    member = f'"{SIGNATURE}":{{"key":"{signature["key"]}","sig":"{signature["sig"]}"}}'
    last = next(reversed(answer), None)
    if last == "_meta":
        meta = answer["_meta"]
        is_simple = isinstance(meta, dict) and meta and SIGNATURE not in meta
        return f"{answer.text[:-2]},{member}}}}}" if is_simple else None
    return f'{answer.text[:-1]},"_meta":{{{member}}}}}' if last is not None and "_meta" not in answer else None


class TakesLong(Exception):
    """An answer is large. To be checked beside the event loop."""


def checked(request: bytes, answer: Mapping[str, Any], *, quickly: bool = False) -> SignedAnswer | None:
    """The signed content of an answer; `None` if it has no signature. `request` is what it has to be `signed_for`.

    Whether the key is the known one is for the caller to check. Raises `DeviceMismatch` if the signature is malformed
    or does not fit, and, if this is to be done `quickly`, `TakesLong` for an answer that is not small.
    """
    meta = answer.get("_meta")
    signature = meta.get(SIGNATURE) if isinstance(meta, dict) else None
    if signature is None:
        return None
    if not isinstance(signature, dict):
        raise DeviceMismatch("a signature is malformed")
    key, sig = decoded(signature.get("key"), "the key of a signature", 32), decoded(signature.get("sig"), "sig", 64)
    text = signature.get("text")
    bare, form = _signed_content(answer, quickly) if text is None else _signed_text(text, quickly)
    if not verify(key, sig, _message(request, form)):
        raise DeviceMismatch(
            "an answer does not fit its signature: it was changed on the way, or is the answer to another request"
        )
    return SignedAnswer(key, bare)


def _signed_content(answer: Mapping[str, Any], quickly: bool) -> tuple[dict[str, Any], bytes]:
    bare = _bare(answer)
    form = _quick_form(bare, LARGE)
    if form is None:
        if quickly and not is_small(answer):
            raise TakesLong
        form = canonical(bare)
    if form is None:
        raise DeviceMismatch("an answer was signed in a form that cannot express it")
    return bare, form


def _signed_text(text: object, quickly: bool) -> tuple[dict[str, Any], bytes]:
    if not isinstance(text, str):
        raise DeviceMismatch("the text of a signature is malformed")
    if quickly and len(text) > LARGE:
        raise TakesLong
    try:
        content, form = json.loads(text), text.encode()
    except (ValueError, RecursionError):
        content, form = None, b""
    if not isinstance(content, dict):
        raise DeviceMismatch("the text of a signature is not an answer")
    return content, form


def _bare(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Without the signature. An empty `_meta` counts as none, so that adding and removing one changes nothing."""
    bare = {**answer}
    if "_meta" not in bare:
        return bare
    meta = bare["_meta"]
    if isinstance(meta, dict):
        bare["_meta"] = meta = {key: value for key, value in meta.items() if key != SIGNATURE}
    if not meta:
        del bare["_meta"]
    return bare


def _message(request: bytes, form: bytes) -> bytes:
    return request + _LENGTH_OF_DIGEST + sha256(form)


def canonical(value: object) -> bytes | None:
    """The RFC 8785 form; `None` where there is none."""
    form = _quick_form(value, sys.maxsize)
    if form is not None:
        return form
    try:
        return rfc8785.dumps(value)  # type: ignore[arg-type]  # it refuses what it does not know
    except (rfc8785.CanonicalizationError, UnicodeEncodeError):
        return None


def _quick_form(value: object, room: int) -> bytes | None:
    """The RFC 8785 form, if orjson writes it, which is many times faster, and it has at most about `room` characters.

    orjson writes floats otherwise, and sorts keys by code points instead of UTF-16; below U+D800 both orders are the
    same. It refuses integers that are too large, and lone surrogates.
    """
    try:
        return orjson.dumps(value, option=_SORTED) if _is_plain(value, room) else None
    except TypeError:
        return None


def _is_plain(value: Any, room: int) -> bool:
    """Whether there are no floats, and no keys from U+D800. Raises `TypeError` for keys that are not strings."""
    rest = [value]
    while rest:
        value = rest.pop()
        kind = type(value)
        if kind is str:
            room -= len(value)
        elif kind is dict:
            keys = "".join(value)
            if not keys.isascii() and max(keys) >= _FIRST_SURROGATE:
                return False
            room -= 8 * len(value) + len(keys)
            rest += value.values()
        elif kind is list:
            room -= 8 * len(value)
            rest += value
        elif kind not in _SCALARS:
            return False
        if room < 0:
            return False
    return True


def _exact(value: object, *, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"), sort_keys=sort_keys)
