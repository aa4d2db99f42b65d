"""What is signed or sealed holds for one request only, and nothing of it can be changed."""

import base64
import json
from typing import Any

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from a2c_smcp.computer.device import ReplySeal
from a2c_smcp.devices.identity import Identity, Voucher, verify, vouched
from a2c_smcp.devices.signing import (
    LARGE,
    SealingKey,
    TakesLong,
    canonical,
    checked,
    digest,
    new_reply,
    open_reply,
    open_request,
    parameters,
    read_statement,
    seal_reply,
    seal_request,
    signed,
    signed_for,
    state,
    vouchers_from_wire,
)
from a2c_smcp.devices.transcript import CallAddress, decoded
from a2c_smcp.errors import DeviceMismatch
from a2c_smcp.protocol.codec import Encoded, dumps

COMPUTER, AGENT, OTHER = Identity.generate(), Identity.generate(), Identity.generate()
KEY = SealingKey.generate()
ADDRESS = CallAddress("desk", "planner", "laptop", "r-1")
ELSEWHERE = [ADDRESS._replace(**{field: "other"}) for field in ADDRESS._fields]
SEALED = seal_request(AGENT, ADDRESS, KEY.public, COMPUTER.public, b"body")
REPLY = new_reply()
ANSWER = seal_reply(REPLY, ADDRESS, "answer", 0, b"a body of some length")
EVENT = "client:tool_call"
PARAMS = {"tool_name": "add", "params": {"a": 1}}
REQUEST = signed_for(ADDRESS, EVENT, digest(PARAMS))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)

pytestmark = pytest.mark.covers("device-constructions")


@settings(deadline=None)
@given(st.dictionaries(st.text().filter(lambda key: key != "_meta"), JSON), st.dictionaries(st.text(), JSON))
def test_any_answer_comes_out_of_its_signature_as_it_went_in(answer: dict[str, Any], meta: dict[str, Any]) -> None:
    answer = {**answer, "_meta": meta} if meta else answer
    found = checked(REQUEST, signed(COMPUTER, REQUEST, answer))
    assert found == (COMPUTER.public, answer)


@settings(deadline=None)
@given(
    st.dictionaries(st.text().filter(lambda key: key != "_meta"), JSON),
    st.none() | st.dictionaries(st.text() | st.just("a2c_sig"), JSON),
    st.booleans(),
)
def test_an_answer_with_its_text_is_signed_in_its_text_too(
    answer: dict[str, Any], meta: dict[str, Any] | None, is_last: bool
) -> None:
    beside = {} if meta is None else {"_meta": meta}
    answer = {**answer, **beside} if is_last else {**beside, **answer}
    found = signed(COMPUTER, REQUEST, Encoded(answer, dumps(answer)))
    assert list(found.items()) == list(signed(COMPUTER, REQUEST, answer).items())
    if isinstance(found, Encoded):
        assert found.text == dumps(dict(found))


@pytest.mark.parametrize("meta", [{}, {"_meta": {"server": "files"}}])
def test_the_text_of_a_result_is_not_written_again(meta: dict[str, Any]) -> None:
    answer = {"content": [{"type": "text", "text": "é"}], **meta}
    assert isinstance(signed(COMPUTER, REQUEST, Encoded(answer, dumps(answer))), Encoded)


# What people have in JSON, and all that the two writers of RFC 8785 might disagree on.
ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(2**53 - 2, 2**53 + 1)
    | st.floats()
    | st.text(st.characters(exclude_categories=()))
    | st.text('\x00\x1f"\\/\x7f\u2028\ud7ff\ud800\ue000\uffff\U00010000😀é中'),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner)
        | st.dictionaries(st.text() | st.text("az\ud7ff\ue000\U00010000é"), inner)
        | st.dictionaries(st.integers(), inner, max_size=1)
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=300)
@given(ANY)
def test_the_quick_writer_of_canonical_json_writes_what_the_reference_does(value: object) -> None:
    assert canonical(value) == reference_form(value)


def reference_form(value: Any) -> bytes | None:
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError):
        return None


def test_lone_surrogates_and_large_integers_are_signed_as_text() -> None:
    answer = {"structuredContent": {"n": 2**64, "s": "\udc00"}}
    signature = signed(COMPUTER, REQUEST, answer)
    assert "text" in signature["_meta"]["a2c_sig"]
    beside = {**signature, "structuredContent": {"n": 1}}
    assert checked(REQUEST, beside) == (COMPUTER.public, answer)


@pytest.mark.parametrize("content", ["x" * LARGE, ["x"] * LARGE, [0.5] * LARGE, {"n": 2**64, "s": "x" * LARGE}])
def test_large_answers_are_not_checked_quickly(content: object) -> None:
    small, large = (signed(COMPUTER, REQUEST, {"structuredContent": each}) for each in ([0.5, 2**64, "x"], content))
    assert checked(REQUEST, small, quickly=True) == checked(REQUEST, small)
    with pytest.raises(TakesLong):
        checked(REQUEST, large, quickly=True)
    assert checked(REQUEST, large) == (COMPUTER.public, {"structuredContent": content})


@pytest.mark.parametrize("address", ELSEWHERE)
def test_a_signature_is_for_one_office_agent_computer_and_request(address: CallAddress) -> None:
    with pytest.raises(DeviceMismatch):
        checked(signed_for(address, EVENT, digest(PARAMS)), signed(COMPUTER, REQUEST, {"content": []}))


@pytest.mark.parametrize(
    ("event", "params"),
    [("client:get_tools", PARAMS), (EVENT, PARAMS | {"tool_name": "sub"}), (EVENT, PARAMS | {"params": {"a": 2}})],
)
def test_a_signature_is_for_one_event_tool_and_parameters(event: str, params: dict[str, Any]) -> None:
    with pytest.raises(DeviceMismatch):
        checked(signed_for(ADDRESS, event, digest(params)), signed(COMPUTER, REQUEST, {"content": []}))


@pytest.mark.parametrize(
    "sig",
    [1, [], "x", {}, {"key": "", "sig": ""}, {"key": "AAAA", "sig": "AAAA"}, {"sig": "x"}, {"key": None, "sig": None}],
)
def test_malformed_signatures_are_refused(sig: object) -> None:
    with pytest.raises(DeviceMismatch):
        checked(REQUEST, {"content": [], "_meta": {"a2c_sig": sig}})


@pytest.mark.parametrize("text", [1, "", "[]", "{", '{"content": [1]}'])
def test_a_text_that_was_put_in_is_refused(text: object) -> None:
    answer = signed(COMPUTER, REQUEST, {"content": []})
    answer["_meta"]["a2c_sig"]["text"] = text
    with pytest.raises(DeviceMismatch):
        checked(REQUEST, answer)


def test_an_unsigned_answer_has_no_signer() -> None:
    assert checked(REQUEST, {"content": []}) is None
    assert checked(REQUEST, {"content": [], "_meta": "odd"}) is None


def test_parameters_are_those_that_survive_a_published_server() -> None:
    sent = {"agent": "a", "req_id": "r", "computer": "c", "timeout": 30, **PARAMS, "questions": True, "_meta": {}}
    assert parameters(EVENT, sent) == PARAMS
    assert parameters("client:read_resource", {"agent": "a", "uri": "x", "timeout": 1}) == {"uri": "x"}


@pytest.mark.parametrize("address", ELSEWHERE)
def test_a_sealed_request_opens_for_its_own_address_only(address: CallAddress) -> None:
    with pytest.raises(DeviceMismatch):
        open_request(KEY, address, COMPUTER.public, SEALED)


def test_a_sealed_request_opens_at_its_own_computer_only() -> None:
    with pytest.raises(DeviceMismatch):
        open_request(SealingKey.generate(), ADDRESS, COMPUTER.public, SEALED)
    with pytest.raises(DeviceMismatch, match="not signed"):
        open_request(KEY, ADDRESS, OTHER.public, SEALED)  # the agent meant another computer


@pytest.mark.parametrize("position", [0, 31, 32, 60, -1])
def test_no_bit_of_a_sealed_message_can_be_changed(position: int) -> None:
    for sealed, unseal in (
        (SEALED, _open_request),
        (ANSWER, _open_reply),
    ):
        raw = bytearray(base64.b64decode(sealed))
        raw[position] ^= 1
        with pytest.raises(DeviceMismatch):
            unseal(base64.b64encode(raw).decode())


@pytest.mark.parametrize("length", [0, 1, 16, 32, 47, 48, 60])
def test_truncated_messages_are_refused(length: int) -> None:
    for sealed, unseal in ((SEALED, _open_request), (ANSWER, _open_reply)):
        with pytest.raises(DeviceMismatch):
            unseal(base64.b64encode(base64.b64decode(sealed)[:length]).decode())


def test_a_request_sent_back_is_no_reply() -> None:
    with pytest.raises(DeviceMismatch):
        _open_reply(SEALED)


@pytest.mark.parametrize("address", ELSEWHERE)
def test_a_reply_is_for_one_request(address: CallAddress) -> None:
    with pytest.raises(DeviceMismatch):
        open_reply(REPLY, address, "answer", 0, seal_reply(REPLY, ADDRESS, "answer", 0, b"x"))


def test_every_answer_has_a_key_of_its_own_also_one_that_was_prepared() -> None:
    address = ADDRESS._replace(req_id='"r"\\')
    seal = ReplySeal(REPLY, address)
    seal.prepare()
    seal.prepare()
    answers = [seal.answer(b"x") for _ in range(3)]
    assert len({base64.b64decode(answer["sealed"])[:32] for answer in answers}) == len(answers)
    for answer in answers:
        assert json.loads(answer.text) == answer
        assert open_reply(REPLY, address, "answer", 0, answer["sealed"]) == b"x"


def test_a_notice_is_no_answer_and_has_its_place() -> None:
    sealed = seal_reply(REPLY, ADDRESS, "notify:tell_progress", 3, b"x")
    for kind, seq in (("answer", 0), ("notify:tell_progress", 4), ("notify:tell_log", 3)):
        with pytest.raises(DeviceMismatch):
            open_reply(REPLY, ADDRESS, kind, seq, sealed)


def test_a_key_of_small_order_is_refused() -> None:
    with pytest.raises(DeviceMismatch):
        seal_request(AGENT, ADDRESS, bytes(32), COMPUTER.public, b"body")


@pytest.mark.parametrize("field", ["identity", "kid", "kem", "e2e", "sig"])
def test_a_statement_holds_as_a_whole(field: str) -> None:
    names = {"office": "desk", "agent": "planner", "computer": "laptop"}
    mine = state(COMPUTER, KEY, nonce=bytes(32), e2e="require", **names)
    other = state(OTHER, SealingKey.generate(), nonce=bytes(32), e2e="off", **names)
    assert read_statement(mine, nonce=bytes(32), **names).e2e == "require"
    for answer in ({**mine, field: other[field]}, {**mine, field: None}, {k: v for k, v in mine.items() if k != field}):
        with pytest.raises(DeviceMismatch):
            read_statement(answer, nonce=bytes(32), **names)


@pytest.mark.parametrize("field", ["nonce", "office", "agent", "computer"])
def test_a_statement_answers_one_question(field: str) -> None:
    asked: dict[str, Any] = {"nonce": bytes(32), "office": "desk", "agent": "planner", "computer": "laptop"}
    answer = state(COMPUTER, KEY, e2e="off", **asked)
    with pytest.raises(DeviceMismatch):
        read_statement(answer, **asked | {field: bytes([1] * 32) if field == "nonce" else "other"})


def test_a_chain_of_rotations_leads_back_to_every_key_in_it() -> None:
    first, second, third = Identity.generate(), Identity.generate(), Identity.generate()
    was = [second.vouch_for(third.public), first.vouch_for(second.public)]
    assert vouched(first.fingerprint, third.public, was)
    assert vouched(second.fingerprint, third.public, was)
    assert not vouched(OTHER.fingerprint, third.public, was)
    with pytest.raises(DeviceMismatch):
        vouched(first.fingerprint, OTHER.public, was)
    with pytest.raises(DeviceMismatch):
        vouched(first.fingerprint, third.public, [Voucher(first.public, was[1].sig)])


@pytest.mark.parametrize("was", [1, {}, ["x"], [{}], [{"key": "", "sig": ""}], [{}] * 17])
def test_malformed_vouchers_are_refused(was: object) -> None:
    with pytest.raises(DeviceMismatch):
        vouchers_from_wire(was)


@pytest.mark.parametrize("text", [None, 1, "x", "QQ", "QR==", "Q Q=", "QQ==\n", "é"])
def test_bytes_have_one_spelling(text: object) -> None:
    with pytest.raises(DeviceMismatch):
        decoded(text, "field")


def test_odd_keys_and_signatures_verify_nothing() -> None:
    signature = AGENT.sign(b"x")
    assert verify(AGENT.public, signature, b"x")
    for public, sig in (
        (b"", signature),
        (AGENT.public, b""),
        (AGENT.public[:31], signature),
        (OTHER.public, signature),
    ):
        assert not verify(public, sig, b"x")


def test_private_keys_are_in_no_repr() -> None:
    assert repr(COMPUTER) == f"Identity({COMPUTER.fingerprint})"
    assert repr(KEY) == f"SealingKey({KEY.kid})"


def _open_request(sealed: str) -> object:
    return open_request(KEY, ADDRESS, COMPUTER.public, sealed)


def _open_reply(sealed: str) -> object:
    return open_reply(REPLY, ADDRESS, "answer", 0, sealed)
