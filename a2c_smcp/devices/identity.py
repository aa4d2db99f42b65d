"""The identity of a device: an Ed25519 key pair, and the fingerprint that people compare."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from a2c_smcp.devices.transcript import transcript
from a2c_smcp.errors import DeviceMismatch
from a2c_smcp.installation import needs_extra

with needs_extra("devices", "The identity of a device"):
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

__all__ = ["Identity", "Voucher", "fingerprint", "verify", "vouched"]

_PEERS = 256  # devices whose keys are kept ready


class Identity:
    """A key pair. The private key is in no `repr`."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key().public_bytes_raw()
        self.fingerprint = fingerprint(self.public)

    @classmethod
    def generate(cls) -> Identity:
        """A new one. Its fingerprint does not begin with `-`: a command would take it for an option."""
        while (new := cls(Ed25519PrivateKey.generate())).fingerprint.startswith("-"):
            pass
        return new

    @classmethod
    def from_private(cls, private: bytes) -> Identity:
        """Raises `ValueError` unless it has 32 bytes."""
        return cls(Ed25519PrivateKey.from_private_bytes(private))

    @property
    def private(self) -> bytes:
        return self._key.private_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)

    def vouch_for(self, new: bytes) -> Voucher:
        """This identity says that the next one is `new`."""
        return Voucher(self.public, self.sign(transcript("rotate", self.public, new)))

    def __repr__(self) -> str:
        return f"Identity({self.fingerprint})"


class Voucher(NamedTuple):
    """An old key, and its signature over T("rotate", old, new)."""

    key: bytes
    sig: bytes


def verify(public: bytes, signature: bytes, message: bytes) -> bool:
    try:
        _public_key(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


@lru_cache(_PEERS)
def _public_key(public: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(public)


@lru_cache(_PEERS)
def fingerprint(public: bytes) -> str:
    """The thumbprint of the public key as a JSON Web Key (RFC 7638, RFC 8037), 43 characters."""
    x = base64.urlsafe_b64encode(public).rstrip(b"=").decode("ascii")
    jwk = f'{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}'
    return base64.urlsafe_b64encode(hashlib.sha256(jwk.encode()).digest()).rstrip(b"=").decode("ascii")


def vouched(known: str, new: bytes, was: Sequence[Voucher]) -> bool:
    """Whether `was`, newest first, leads from a new identity back to the one with the fingerprint `known`.

    A peer that was away during several rotations finds its own key further down.
    """
    current = new
    for old, signature in was:
        if not verify(old, signature, transcript("rotate", old, current)):
            raise DeviceMismatch("the signature by which an old key vouches for a new one is wrong")
        if fingerprint(old) == known:
            return True
        current = old
    return False
