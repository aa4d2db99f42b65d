"""Packets and payloads as bytes: what is read, what is written, what is no packet."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2c_smcp.engine import packets
from a2c_smcp.engine.packets import (
    ACK,
    BINARY_ACK,
    BINARY_EVENT,
    CONNECT,
    CONNECT_ERROR,
    DISCONNECT,
    EVENT,
    LARGE,
    Attachment,
    Malformed,
    Packet,
    ack_packet,
    attach,
    decode_payload,
    detach,
    encode_payload,
    event_packet,
    payload_size,
    read_packet,
)

READ = {
    b"40": Packet(CONNECT, b"/", None, 0, b""),
    b'40{"token":"x"}': Packet(CONNECT, b"/", None, 0, b'{"token":"x"}'),
    b"40/smcp": Packet(CONNECT, b"/smcp", None, 0, b""),
    b"40/smcp,": Packet(CONNECT, b"/smcp", None, 0, b""),
    b'40/smcp,{"token":"x"}': Packet(CONNECT, b"/smcp", None, 0, b'{"token":"x"}'),
    b"40/smcp?token=x,{}": Packet(CONNECT, b"/smcp", None, 0, b"{}"),
    b"41/smcp,": Packet(DISCONNECT, b"/smcp", None, 0, b""),
    b'42["x"]': Packet(EVENT, b"/", None, 0, b'["x"]'),
    b'4212["x"]': Packet(EVENT, b"/", 12, 0, b'["x"]'),
    b'42/smcp,["x"]': Packet(EVENT, b"/smcp", None, 0, b'["x"]'),
    b'42/smcp,007["x"]': Packet(EVENT, b"/smcp", 7, 0, b'["x"]'),
    b'42/smcp,123456789012345["x"]': Packet(EVENT, b"/smcp", 123456789012345, 0, b'["x"]'),
    b"42/smcp,7": Packet(EVENT, b"/smcp", 7, 0, b""),
    b'42abc["x"]': Packet(EVENT, b"/", None, 0, b'abc["x"]'),
    b"43/smcp,0[1]": Packet(ACK, b"/smcp", 0, 0, b"[1]"),
    b"43/smcp,-1[1]": Packet(ACK, b"/smcp", None, 0, b"-1[1]"),
    b'44/smcp,{"message":"no"}': Packet(CONNECT_ERROR, b"/smcp", None, 0, b'{"message":"no"}'),
    b'452-/smcp,7["x"]': Packet(BINARY_EVENT, b"/smcp", 7, 2, b'["x"]'),
    b'452-["x"]': Packet(BINARY_EVENT, b"/", None, 2, b'["x"]'),
    b'45/smcp,7["x"]': Packet(BINARY_EVENT, b"/smcp", 7, 0, b'["x"]'),
    b"461-12[1]": Packet(BINARY_ACK, b"/", 12, 1, b"[1]"),
    b'42/smcp,\xd9\xa1["x"]': Packet(EVENT, b"/smcp", None, 0, b'\xd9\xa1["x"]'),
}


@pytest.mark.parametrize(("text", "packet"), READ.items(), ids=map(repr, READ))
def test_a_packet_is_read(text: bytes, packet: Packet) -> None:
    assert read_packet(text) == packet


@pytest.mark.parametrize("text", [b"4", b"4x", b"4-", b"47/smcp,", b"49", b"4[]", b'42/smcp,%s["x"]' % (b"9" * 101)])
def test_bytes_without_a_type_or_with_an_endless_id_are_no_packet(text: bytes) -> None:
    with pytest.raises(Malformed):
        read_packet(text)


def test_a_number_of_attachments_without_end_is_a_large_one() -> None:
    assert read_packet(b'45%s-/smcp,7["x"]' % (b"9" * 5000)).attachments > 10**12


def test_the_body_of_a_large_packet_is_a_view_of_it() -> None:
    frame = b'42/smcp,1["x","%s"]' % (b"x" * LARGE)
    body = read_packet(frame).body
    assert isinstance(body, memoryview)
    assert body.obj is frame
    assert isinstance(read_packet(frame[:100]).body, bytes)


def test_events_and_acks_are_written_from_parts() -> None:
    assert event_packet(b"/smcp", 7, b'["x",', memoryview(b"{}"), b"]") == b'42/smcp,7["x",{}]'
    assert event_packet(b"/", None, b'["x"]', attachments=1) == b'451-["x"]'
    assert ack_packet(b"/smcp", 7, b"[1]") == b"43/smcp,7[1]"
    assert ack_packet(b"/smcp", 7, b"[1]", attachments=2) == b"462-/smcp,7[1]"


@given(st.lists(st.binary().map(Attachment) | st.text("abc{\0é漢", min_size=0).map(lambda t: b"4" + t.encode())))
def test_a_payload_is_read_again(parts: list[bytes | Attachment]) -> None:
    if parts:
        body = encode_payload(parts)
        assert decode_payload(body, len(parts)) == parts
        assert len(body) == sum(map(payload_size, parts)) - 1


@pytest.mark.parametrize("bad", [b"", b"x", b"9", b"b!!!", b"bAA=A", b"\xff\xfe", b"4\xff", b"4\x1e", b"\x1e4"])
def test_one_malformed_packet_spoils_its_payload(bad: bytes) -> None:
    for body in (bad, b"42[]\x1e" + bad):
        with pytest.raises(Malformed):
            decode_payload(body, 10)


def test_every_kind_of_packet_is_known() -> None:
    assert b"".join(packets.KINDS) == b"0123456"


# Attachments


BINARY = {"a": [b"1", {"b": b"2"}], "c": "text"}
MARKED = {"a": [{"_placeholder": True, "num": 0}, {"b": {"_placeholder": True, "num": 1}}], "c": "text"}


def test_binary_parts_are_taken_out_and_put_back() -> None:
    assert detach(BINARY) == (MARKED, [b"1", b"2"])
    assert attach(MARKED, [b"1", b"2"]) == BINARY
    assert detach((bytearray(b"x"), memoryview(b"y"))) == (
        [{"_placeholder": True, "num": 0}, {"_placeholder": True, "num": 1}],
        [b"x", b"y"],
    )
    assert attach({"_placeholder": 1, "num": 0}, []) == {"_placeholder": 1, "num": 0}


@pytest.mark.parametrize("number", [1, -1, "0", None, 0.0, True, False, [0]])
def test_a_placeholder_names_an_attachment_that_is_there(number: object) -> None:
    with pytest.raises(Malformed):
        attach([{"_placeholder": True, "num": number}], [b"x"])


def test_placeholders_and_attachments_match_one_to_one() -> None:
    mark = {"_placeholder": True, "num": 0}
    with pytest.raises(Malformed):
        attach([mark, mark], [b"x"])
    with pytest.raises(Malformed):
        attach([mark], [b"x", b"y"])


def test_a_value_that_is_nested_without_end_has_no_attachments() -> None:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(Malformed):
        attach(value, [b"x"])
