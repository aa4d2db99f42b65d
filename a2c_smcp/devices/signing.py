"""Signed results: `_meta.a2c_sig` = `{key, sig}` in the answer of a computer (WIRE §10).

The signature is over T("result", R, event, SHA-256 of the parameters, SHA-256 of the answer without `a2c_sig`). Both
hashes are of RFC 8785 forms. An answer that this form refuses (integers beyond 2⁵³−1, lone surrogates) is signed as
exact text in `a2c_sig.text`, which then is the answer. Parameters that it refuses are hashed as JSON with sorted keys,
escaped to ASCII, without white space. Hashing a large answer takes long: do it in a thread above `LARGE`.
"""

from __future__ import annotations

import base64
import json
import os
import struct
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from a2c_smcp.devices.identity import Identity, Voucher, verify
from a2c_smcp.devices.transcript import CallAddress, call_transcript, decoded, encoded, sha256, transcript
from a2c_smcp.errors import DeviceMismatch
from a2c_smcp.installation import needs_extra
from a2c_smcp.protocol.codec import Encoded
from a2c_smcp.smcp import TOOL_CALL_EVENT

with needs_extra("devices", "Signing results"):
    import rfc8785


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
    """True if an answer is quick to sign or to check: it has at most about `LARGE` characters."""
    if isinstance(answer, Encoded):
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
    """The signed part of an answer that is known before it. `params` is the `digest` of `parameters`."""
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
    copy = {**bare, "_meta": {**bare.get("_meta", {}), SIGNATURE: signature}}
    written = _written(answer, signature) if isinstance(answer, Encoded) and text is None else None
    return copy if written is None else Encoded(copy, written)


def _written(answer: Encoded, signature: Mapping[str, str]) -> str | None:
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
    """True if there are no floats, and no keys from U+D800. Raises `TypeError` for keys that are not strings."""
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


# Sealed requests and replies: what a Server relays and cannot read (WIRE §10).
#
# A request is encrypted by HPKE (X25519, HKDF-SHA256, ChaCha20-Poly1305; single shot, no aad) to the sealing key of a
# computer, and begins with the agent's public key and its signature. Replies and notices are encrypted under a key that
# is derived from the 32 random bytes that came with the request (`reply`), afresh for each message.

with needs_extra("devices", "Sealing calls"):
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF


ANSWER = "answer"
"""The kind of a reply that is the answer; its seq is "0". Notices have their name as kind."""

_HASH = SHA256()
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
_REPLY, _NONCE, _TAG = 32, 32, 16
_KEY, _SIG = 32, 64
_PEERS = 256  # computers whose sealing keys are kept ready


class SealingKey:
    """The key pair that requests to a computer are sealed to. It lives in memory only."""

    def __init__(self, key: X25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key().public_bytes_raw()
        self.kid = key_id(self.public)

    @classmethod
    def generate(cls) -> SealingKey:
        return cls(X25519PrivateKey.generate())

    @classmethod
    def from_private(cls, private: bytes) -> SealingKey:
        return cls(X25519PrivateKey.from_private_bytes(private))

    def decrypt(self, sealed: bytes, info: bytes) -> bytes:
        """Raises `DeviceMismatch`."""
        try:
            return _SUITE.decrypt(sealed, self._key, info)
        except (InvalidTag, ValueError):
            raise DeviceMismatch("a sealed request cannot be opened: it was changed, or is for another call") from None

    def __repr__(self) -> str:
        return f"SealingKey({self.kid})"


class OpenedRequest(NamedTuple):
    agent: bytes
    """The agent's public key, which has signed the body. Whether it is the known one is for the caller to check."""
    body: bytes
    digest: bytes
    """SHA-256 of the body."""


@lru_cache(_PEERS)
def key_id(kem: bytes) -> str:
    """`kid`: 22 characters that name a sealing key."""
    return base64.urlsafe_b64encode(sha256(kem)[:16]).rstrip(b"=").decode("ascii")


def new_reply() -> bytes:
    """The secret under which replies to one `req_id` are sealed."""
    return os.urandom(_REPLY)


def seal_request(identity: Identity, address: CallAddress, kem: bytes, computer: bytes, body: bytes) -> str:
    """The `sealed` of a request. `kem` is the computer's sealing key, `computer` its identity.

    Raises `DeviceMismatch` if `kem` is not a key.
    """
    kid = key_id(kem)
    signature = identity.sign(_request(address, kid, computer, sha256(body)))
    try:
        sealed = _SUITE.encrypt(
            identity.public + signature + body, _public_key(kem), call_transcript("seal", address, kid)
        )
    except ValueError:
        raise DeviceMismatch("the sealing key of the computer is not a key") from None
    return encoded(sealed)


@lru_cache(_PEERS)
def _public_key(kem: bytes) -> X25519PublicKey:
    return X25519PublicKey.from_public_bytes(kem)


def open_request(key: SealingKey, address: CallAddress, computer: bytes, sealed: object) -> OpenedRequest:
    """Raises `DeviceMismatch` if it cannot be opened or is not signed by the key that it names."""
    plain = key.decrypt(decoded(sealed, "sealed"), call_transcript("seal", address, key.kid))
    if len(plain) < _KEY + _SIG:
        raise DeviceMismatch("a sealed request is too short")
    agent, signature, body = plain[:_KEY], plain[_KEY : _KEY + _SIG], plain[_KEY + _SIG :]
    digest = sha256(body)
    if not verify(agent, signature, _request(address, key.kid, computer, digest)):
        raise DeviceMismatch("a sealed request is not signed by the agent's key that it names")
    return OpenedRequest(agent, body, digest)


class ReplyKey(NamedTuple):
    """The key of one answer or notice. It seals once: with the same nonce twice, both texts could be read."""

    nonce: bytes
    cipher: ChaCha20Poly1305
    iv: bytes

    def seal(self, body: bytes) -> str:
        return encoded(self.nonce + self.cipher.encrypt(self.iv, body, None))


def reply_key(reply: bytes, address: CallAddress, kind: str, seq: int, *, nonce: bytes | None = None) -> ReplyKey:
    """A new key, which does not depend on what it will seal; with `nonce`, that of a message that has it."""
    nonce = nonce or os.urandom(_NONCE)
    info = call_transcript("reply", address, kind, str(seq))
    derived = HKDF(algorithm=_HASH, length=44, salt=nonce, info=info).derive(reply)
    return ReplyKey(nonce, ChaCha20Poly1305(derived[:32]), derived[32:])


def seal_reply(
    reply: bytes, address: CallAddress, kind: str, seq: int, body: bytes, *, nonce: bytes | None = None
) -> str:
    """The `sealed` of an answer (`ANSWER`, 0) or a notice. `nonce` is for test vectors: leave it out."""
    return reply_key(reply, address, kind, seq, nonce=nonce).seal(body)


def open_reply(reply: bytes, address: CallAddress, kind: str, seq: int, sealed: object) -> bytes:
    """Raises `DeviceMismatch`."""
    raw = decoded(sealed, "sealed")
    if len(raw) < _NONCE + _TAG:
        raise DeviceMismatch("a sealed reply is too short")
    key = reply_key(reply, address, kind, seq, nonce=raw[:_NONCE])
    try:
        return key.cipher.decrypt(key.iv, raw[_NONCE:], None)
    except InvalidTag:
        raise DeviceMismatch("a sealed reply cannot be opened: it was changed, or belongs to another request") from None


def _request(address: CallAddress, kid: str, computer: bytes, digest: bytes) -> bytes:
    return call_transcript("request", address, kid, computer, digest)


# The answer to `client:get_device`: a computer's identity and its sealing key, signed for one question (WIRE §10).
#
# `{identity, kid, kem, e2e, was?, sig}`, sig over T("device", nonce, office, agent, computer, identity, kid, kem, e2e).

NONCE_SIZE = 32
_MODES = ("off", "prefer", "require")
_MOST_VOUCHERS = 16


class DeviceStatement(NamedTuple):
    identity: bytes
    kem: bytes
    kid: str
    e2e: str
    was: tuple[Voucher, ...]


def state(
    identity: Identity,
    key: SealingKey,
    *,
    nonce: bytes,
    office: str,
    agent: str,
    computer: str,
    e2e: str,
    was: Sequence[Voucher] = (),
) -> dict[str, Any]:
    """The answer of this computer to one nonce of one agent."""
    sig = identity.sign(_statement_message(nonce, office, agent, computer, identity.public, key.kid, key.public, e2e))
    answer: dict[str, Any] = {
        "identity": encoded(identity.public),
        "kid": key.kid,
        "kem": encoded(key.public),
        "e2e": e2e,
        "sig": encoded(sig),
    }
    return {**answer, "was": vouchers_to_wire(was)} if was else answer


def read_statement(
    answer: Mapping[str, Any], *, nonce: bytes, office: str, agent: str, computer: str
) -> DeviceStatement:
    """A computer's statement about itself. The caller has to compare its identity with the known one.

    Raises `DeviceMismatch` if it is malformed, or an answer to another question.
    """
    identity, kem = decoded(answer.get("identity"), "identity", 32), decoded(answer.get("kem"), "kem", 32)
    kid, e2e = answer.get("kid"), answer.get("e2e")
    if not isinstance(kid, str) or kid != key_id(kem):
        raise DeviceMismatch("kid does not name the sealing key beside it")
    if not isinstance(e2e, str) or e2e not in _MODES:
        raise DeviceMismatch("e2e is malformed")
    message = _statement_message(nonce, office, agent, computer, identity, kid, kem, e2e)
    if not verify(identity, decoded(answer.get("sig"), "sig", 64), message):
        raise DeviceMismatch("a device's statement does not fit its signature: it was changed, or is an old one")
    return DeviceStatement(identity, kem, kid, e2e, vouchers_from_wire(answer.get("was")))


def vouchers_to_wire(was: Sequence[Voucher]) -> list[dict[str, str]]:
    return [{"key": encoded(key), "sig": encoded(sig)} for key, sig in was]


def vouchers_from_wire(was: object) -> tuple[Voucher, ...]:
    """Raises `DeviceMismatch`."""
    if was is None:
        return ()
    if not isinstance(was, list) or len(was) > _MOST_VOUCHERS or not all(isinstance(old, dict) for old in was):
        raise DeviceMismatch("was is malformed")
    return tuple(Voucher(decoded(old.get("key"), "was", 32), decoded(old.get("sig"), "was", 64)) for old in was)


def _statement_message(
    nonce: bytes, office: str, agent: str, computer: str, identity: bytes, kid: str, kem: bytes, e2e: str
) -> bytes:
    return transcript("device", nonce, office, agent, computer, identity, kid, kem, e2e)
