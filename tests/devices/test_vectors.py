"""Every construction of WIRE §10, recomputed from `vectors.json`, for other makes to compare with."""

import base64
import hashlib
import json
from pathlib import Path

import pytest

from a2c_smcp.devices.identity import Identity, Voucher, check_proof, fingerprint, make_proof, vouched
from a2c_smcp.devices.signing import (
    SealingKey,
    checked,
    digest,
    open_reply,
    open_request,
    read_statement,
    seal_reply,
    seal_request,
    signed,
    signed_for,
    state,
)
from a2c_smcp.devices.transcript import CallAddress, decoded, transcript
from a2c_smcp.errors import DeviceMismatch

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text("utf-8"))
ADDRESS = CallAddress(*VECTORS["address"])
COMPUTER, AGENT, ROTATED = (
    Identity.from_private(bytes.fromhex(VECTORS["keys"][name]["private"]))
    for name in ("computer", "agent", "computer_rotated")
)
SEALING = SealingKey.from_private(bytes.fromhex(VECTORS["keys"]["sealing"]["private"]))

pytestmark = pytest.mark.covers("device-vectors")


def test_keys_have_the_fingerprints_of_their_vectors() -> None:
    for name, identity in (("computer", COMPUTER), ("agent", AGENT), ("computer_rotated", ROTATED)):
        keys = VECTORS["keys"][name]
        assert (identity.public.hex(), identity.fingerprint) == (keys["public"], keys["fingerprint"])
    assert (SEALING.public.hex(), SEALING.kid) == (
        VECTORS["keys"]["sealing"]["public"],
        VECTORS["keys"]["sealing"]["kid"],
    )


def test_a_fingerprint_is_the_thumbprint_of_rfc_7638() -> None:
    example = VECTORS["rfc7638"]
    assert fingerprint(base64.urlsafe_b64decode(example["public_base64url"] + "=")) == example["fingerprint"]


@pytest.mark.parametrize("vector", VECTORS["transcript"], ids=lambda vector: vector["label"])
def test_transcripts(vector: dict) -> None:
    assert transcript(vector["label"], *vector["fields"]).hex() == vector["hex"]


def test_fields_of_a_transcript_cannot_be_moved_into_one_another() -> None:
    assert transcript("a", "bc", "d") != transcript("a", "b", "cd") != transcript("ab", "c", "d")


def test_the_proof_of_a_connect() -> None:
    vector = VECTORS["connect"]
    known = {"origin": vector["origin"], "sid": vector["sid"], "token": vector["token"]}
    assert make_proof(COMPUTER, at=vector["at"], **known) == vector["proof"]
    check_proof(
        vector["proof"],
        device=COMPUTER.fingerprint,
        origins=["http://127.0.0.1", vector["origin"]],
        sid=vector["sid"],
        now=vector["at"] + 599,
        token_digests=[hashlib.sha256(vector["token"].encode()).digest()],
    )


def test_the_old_key_vouches_for_the_new_one() -> None:
    voucher = COMPUTER.vouch_for(ROTATED.public)
    assert voucher == Voucher(COMPUTER.public, decoded(VECTORS["rotate"]["sig"], "sig"))
    assert vouched(COMPUTER.fingerprint, ROTATED.public, [voucher])


def test_the_statement_of_a_device() -> None:
    vector = VECTORS["device"]
    names = {"office": ADDRESS.office, "agent": ADDRESS.agent, "computer": ADDRESS.computer}
    nonce = bytes.fromhex(vector["nonce"])
    assert state(COMPUTER, SEALING, nonce=nonce, e2e=vector["e2e"], **names) == vector["answer"]
    read = read_statement(vector["answer"], nonce=nonce, **names)
    assert (read.identity, read.kem, read.kid, read.e2e) == (COMPUTER.public, SEALING.public, SEALING.kid, "prefer")


@pytest.mark.parametrize("vector", VECTORS["result"])
def test_signed_results(vector: dict) -> None:
    event, params, answer = vector["event"], vector["parameters"], vector["answer"]
    assert digest(params).hex() == vector["parameters_sha256"]
    assert signed(COMPUTER, signed_for(ADDRESS, event, digest(params)), answer) == vector["signed"]
    assert checked(signed_for(ADDRESS, event, digest(params)), vector["signed"]) == (COMPUTER.public, answer)


def test_a_sealed_request_opens_and_another_is_sealed_differently() -> None:
    vector = VECTORS["request"]
    body = vector["body"].encode()
    assert open_request(SEALING, ADDRESS, COMPUTER.public, vector["sealed"])[:2] == (AGENT.public, body)
    again = seal_request(AGENT, ADDRESS, SEALING.public, COMPUTER.public, body)
    assert again != vector["sealed"]
    assert open_request(SEALING, ADDRESS, COMPUTER.public, again)[:2] == (AGENT.public, body)


@pytest.mark.parametrize("vector", VECTORS["reply"], ids=lambda vector: vector["kind"])
def test_sealed_replies(vector: dict) -> None:
    reply, nonce, body = bytes.fromhex(vector["reply"]), bytes.fromhex(vector["nonce"]), vector["body"].encode()
    kind, seq = vector["kind"], vector["seq"]
    assert seal_reply(reply, ADDRESS, kind, seq, body, nonce=nonce) == vector["sealed"]
    assert open_reply(reply, ADDRESS, kind, seq, vector["sealed"]) == body
    with pytest.raises(DeviceMismatch):
        open_reply(reply, ADDRESS, kind, seq + 1, vector["sealed"])
