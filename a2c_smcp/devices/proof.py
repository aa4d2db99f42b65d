"""The proof, in a CONNECT, that a client has the private key of the device that its token is bound to (WIRE §10).

`auth.device = {key, at, sig}`, sig over T("connect", origin, Engine.IO sid, at, SHA-256(token)). `at` is whole seconds
since 1970, in the transcript as decimal digits. The Server compares with origins from its own configuration: a proof
that a client made for another Server is of no use here. The sid was given by this Server, to this session.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from a2c_smcp.devices.identity import Identity, fingerprint, verify
from a2c_smcp.devices.transcript import decoded, encoded, transcript
from a2c_smcp.errors import DeviceMismatch

__all__ = ["CLOCK_TOLERANCE", "ClockDiffers", "check_proof", "make_proof"]

CLOCK_TOLERANCE = 600
"""Seconds by which the clocks of a client and a Server may differ."""

_FIELDS = {"key", "at", "sig"}
_LATEST = 2**53


class ClockDiffers(DeviceMismatch):
    """The proof is right, its time is not."""


def make_proof(identity: Identity, *, origin: str, sid: str, at: int, token: str) -> dict[str, Any]:
    digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
    sig = identity.sign(_message(origin, sid, at, digest))
    return {"key": encoded(identity.public), "at": at, "sig": encoded(sig)}


def check_proof(
    proof: object, *, device: str, origins: Iterable[str], sid: str, now: float, token_digests: Iterable[bytes]
) -> None:
    """Raises `DeviceMismatch` unless this device (a fingerprint) made the proof, now, for this session."""
    if not isinstance(proof, Mapping):
        raise DeviceMismatch("this key is bound to a device, and the client proved none")
    at = proof.get("at")
    if set(proof) != _FIELDS or type(at) is not int or not 0 <= at < _LATEST:
        raise DeviceMismatch("auth.device is malformed")
    key, sig = decoded(proof["key"], "auth.device.key", 32), decoded(proof["sig"], "auth.device.sig", 64)
    if fingerprint(key) != device:
        raise DeviceMismatch("this key is bound to another device")
    digests = list(token_digests)
    if not any(verify(key, sig, _message(origin, sid, at, token)) for origin in origins for token in digests):
        raise DeviceMismatch("the proof of this device is for another session, origin or token")
    if abs(at - now) > CLOCK_TOLERANCE:
        raise ClockDiffers("the clocks of this device and of the Server differ by more than ten minutes")


def _message(origin: str, sid: str, at: int, token_digest: bytes) -> bytes:
    return transcript("connect", origin, sid, str(at), token_digest)
