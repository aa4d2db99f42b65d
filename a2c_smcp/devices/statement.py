"""The answer to `client:get_device`: a computer's identity and its sealing key, signed for one question (WIRE §10).

`{identity, kid, kem, e2e, was?, sig}`, sig over T("device", nonce, office, agent, computer, identity, kid, kem, e2e).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from a2c_smcp.devices.identity import Identity, Voucher, verify
from a2c_smcp.devices.signing import SealingKey, key_id
from a2c_smcp.devices.transcript import decoded, encoded, transcript
from a2c_smcp.errors import DeviceMismatch

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
    sig = identity.sign(_message(nonce, office, agent, computer, identity.public, key.kid, key.public, e2e))
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
    message = _message(nonce, office, agent, computer, identity, kid, kem, e2e)
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


def _message(
    nonce: bytes, office: str, agent: str, computer: str, identity: bytes, kid: str, kem: bytes, e2e: str
) -> bytes:
    return transcript("device", nonce, office, agent, computer, identity, kid, kem, e2e)
