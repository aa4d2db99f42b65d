"""Sealed requests and replies: what a Server relays and cannot read (WIRE §10).

A request is encrypted by HPKE (X25519, HKDF-SHA256, ChaCha20-Poly1305; single shot, no aad) to the sealing key of a
computer, and begins with the agent's public key and its signature. Replies and notices are encrypted under a key that
is derived from the 32 random bytes that came with the request (`reply`), afresh for each message.
"""

from __future__ import annotations

import base64
import os
from functools import lru_cache
from typing import NamedTuple

from a2c_smcp.devices.identity import Identity, verify
from a2c_smcp.devices.transcript import CallAddress, call_transcript, decoded, encoded, sha256
from a2c_smcp.errors import DeviceMismatch
from a2c_smcp.installation import needs_extra

with needs_extra("devices", "Sealing calls"):
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

__all__ = [
    "ANSWER",
    "OpenedRequest",
    "ReplyKey",
    "SealingKey",
    "key_id",
    "new_reply",
    "open_reply",
    "open_request",
    "reply_key",
    "seal_reply",
    "seal_request",
]

ANSWER = "answer"
"""The kind of a reply that is the answer; its seq is "0". Notices have their name as kind."""

_SHA256 = SHA256()
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
    derived = HKDF(algorithm=_SHA256, length=44, salt=nonce, info=info).derive(reply)
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
