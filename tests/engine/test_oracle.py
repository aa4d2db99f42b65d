"""The same packets and payloads, read by `engine/` and by python-socketio and python-engineio.

Where both take something, it means the same. Where only one of them takes it, a row of a table says why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

import engineio
import pytest
import socketio
from hypothesis import assume, given
from hypothesis import strategies as st

from a2c_smcp.engine.packets import (
    Attachment,
    Malformed,
    Outgoing,
    Packet,
    ack_packet,
    attach,
    decode_payload,
    detach,
    encode_payload,
    event_packet,
    packet_head,
    read_packet,
)

pytestmark = pytest.mark.covers("engine-oracle")

MOST = 16
"""Packets in a payload; python-engineio's own limit."""

Rows: TypeAlias = dict[str, Callable[[str], object]]


def has_other_digits(text: str) -> bool:
    return any(each.isdigit() and not each.isascii() for each in text)


OURS_ONLY: Rows = {
    "other digits than those of ASCII are part of the body": has_other_digits,
    "a long number of attachments is read, and the packet refused by its id": re.compile(r"\d\d{11,}-").match,
}
THEIRS_ONLY: Rows = {
    "no packet has these types": re.compile(r"[7-9]").match,
    "an id has at most 100 digits": re.compile(r"\d(\d+-)?(/[^,]*,)?\d{101,}").match,
    "a type is an ASCII digit": re.compile(r"[^\x00-\x7f]").match,
}
OTHERWISE: Rows = {"other digits than those of ASCII are part of the body": has_other_digits}
PAYLOADS_THEIRS_ONLY: Rows = {
    "no Engine.IO packet has these types": re.compile(r"(.*\x1e)?[7-9]", re.DOTALL).match,
    "a type is an ASCII digit": re.compile(r"(.*\x1e)?[^\x00-\x7f]", re.DOTALL).match,
    "base64 is strict": re.compile(r"(.*\x1e)?b", re.DOTALL).match,
}


class Text:
    """In place of JSON: a body stays what it is."""

    @staticmethod
    def loads(text: str) -> str:
        return text


class TheirPacket(socketio.packet.Packet):  # type: ignore[misc]
    json: ClassVar[Any] = Text


class TheirFrame(engineio.packet.Packet):  # type: ignore[misc]
    json: ClassVar[Any] = Text


# Packets


def ours(text: str) -> Packet | None:
    try:
        return read_packet(text.encode(), 0)
    except Malformed:
        return None


def theirs(text: str) -> Packet | None:
    try:
        read = TheirPacket(encoded_packet=text)
    except ValueError:
        return None
    namespace = read.namespace or "/"
    body = (read.data or "").encode()
    return Packet(read.packet_type, namespace.encode(), read.id, read.attachment_count, body)


def assert_same(mine: object, other: object, text: str, ours_only: Rows, theirs_only: Rows, otherwise: Rows) -> None:
    """Both read the same, or a row says why they do not."""
    if mine != other:
        rows = ours_only if other is None else theirs_only if mine is None else otherwise
        assert any(applies(text) for applies in rows.values()), (text, mine, other)


texts = st.text(max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(texts, below, max_size=3),
    max_leaves=5,
)
namespaces = st.sampled_from(["/", "/smcp", "/custom", "/a-b", "/ü"])
numbers = st.none() | st.integers(0, 10**14)
noise = st.text(st.sampled_from("0123456789-/,?[]{}\"' ax\x1e\n²٣ü"), max_size=30)
ASCII = st.characters(max_codepoint=127)
heads = st.from_regex(r"[0-9](\d{1,12}-)?(/[a-z?=-]{0,5},?)?(\d{0,18})", fullmatch=True, alphabet=ASCII)


@given(st.sampled_from([socketio.packet.EVENT, socketio.packet.ACK]), namespaces, numbers, st.lists(values, max_size=3))
def test_we_read_what_the_reference_implementation_writes(
    kind: int, namespace: str, number: int | None, arguments: list[Any]
) -> None:
    written = socketio.packet.Packet(kind, arguments, namespace, number).encode()
    packet = read_packet(b"4" + written.encode())
    assert packet[:4] == (kind, namespace.encode(), number, 0)
    assert json.loads(bytes(packet.body)) == arguments


@given(namespaces, st.integers(0, 10**14), st.lists(values, max_size=3))
def test_the_reference_implementation_reads_what_we_write(namespace: str, number: int, arguments: list[Any]) -> None:
    body = json.dumps(arguments).encode()
    for packet, kind, expected in (
        (event_packet(namespace.encode(), number, body), socketio.packet.EVENT, number),
        (event_packet(namespace.encode(), None, body), socketio.packet.EVENT, None),
        (ack_packet(namespace.encode(), number, body), socketio.packet.ACK, number),
        (packet_head(socketio.packet.CONNECT, namespace.encode()) + body, socketio.packet.CONNECT, None),
    ):
        read = socketio.packet.Packet(encoded_packet=packet[1:].decode())
        assert (read.packet_type, read.namespace or "/", read.id) == (kind, namespace, expected)
        assert read.data == arguments


@given(heads, noise)
def test_packets_are_read_alike_whatever_they_hold(head: str, rest: str) -> None:
    text = head + rest
    assert_same(ours(text), theirs(text), text, OURS_ONLY, THEIRS_ONLY, OTHERWISE)


@given(noise)
def test_noise_is_read_alike(text: str) -> None:
    assume(text)  # theirs makes an event without data of nothing
    assert_same(ours(text), theirs(text), text, OURS_ONLY, THEIRS_ONLY, OTHERWISE)


# Attachments

binary = st.recursive(
    st.binary(max_size=5) | st.integers() | texts,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(texts, below, max_size=3),
    max_leaves=6,
)
placeholders = st.fixed_dictionaries(
    {"_placeholder": st.sampled_from([True, True, True, False]), "num": st.sampled_from([0, 1, 2, -1, "0", None])}
)
odd_values = st.recursive(
    placeholders | st.just({"_placeholder": True}) | st.integers(),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.sampled_from(["a", "b"]), below, max_size=2),
    max_leaves=4,
)


@given(st.lists(binary, max_size=3))
def test_binary_parts_are_taken_out_alike_and_put_back(arguments: list[Any]) -> None:
    value, attachments = detach(arguments)
    assert (value, attachments) == socketio.packet.Packet.deconstruct_binary(arguments)
    assert attach(value, attachments) == arguments


def numbers_in(value: Any) -> list[Any]:
    """Of all placeholders in a value. As in JavaScript, only `true` marks one."""
    if isinstance(value, dict):
        if value.get("_placeholder") is True:
            return [value.get("num")]
        return [number for item in value.values() for number in numbers_in(item)]
    return [number for item in value for number in numbers_in(item)] if isinstance(value, list) else []


@given(odd_values, st.lists(st.binary(max_size=3), max_size=3))
def test_placeholders_are_filled_alike_where_each_names_an_attachment_of_its_own(
    value: Any, attachments: list[bytes]
) -> None:
    """Theirs fills one attachment into many places, counts from the end, and drops those that no place is found for."""
    if sorted(numbers_in(value), key=str) == list(range(len(attachments))):
        assert attach(value, attachments) == socketio.packet.Packet.reconstruct_binary(value, attachments)
    else:
        with pytest.raises(Malformed):
            attach(value, attachments)


# Payloads


def our_payload(text: str) -> Sequence[Outgoing] | None:
    try:
        return decode_payload(text.encode(), MOST)
    except Malformed:
        return None


def their_payload(text: str) -> Sequence[Outgoing] | None:
    try:
        frames = [TheirFrame(encoded_packet=packet) for packet in text.split("\x1e")]
    except ValueError:
        return None
    return [Attachment(each.data) if each.binary else f"{each.packet_type}{each.data}".encode() for each in frames]


packets: st.SearchStrategy[Outgoing] = st.one_of(
    st.builds(Attachment, st.binary(max_size=20)),
    st.builds(
        lambda kind, text: f"{kind}{text}".encode(), st.integers(0, 6), texts.map(lambda text: text.replace("\x1e", ""))
    ),
)


@given(st.lists(packets, min_size=1, max_size=MOST))
def test_payloads_are_written_and_read_alike(written: list[Outgoing]) -> None:
    payload = engineio.payload.Payload(
        [
            engineio.packet.Packet(engineio.packet.MESSAGE, each.data)
            if isinstance(each, Attachment)
            else engineio.packet.Packet(int(each[:1]), each[1:].decode())
            for each in written
        ]
    )
    assert encode_payload(written) == payload.encode().encode()
    assert decode_payload(encode_payload(written), MOST) == written
    assert their_payload(encode_payload(written).decode()) == written


@given(
    st.lists(
        st.sampled_from(["4x", "2", "bAAA=", "", "9", "x", "b!", "bA", "٣", "d=4x", "b" + "QUJD" * 3]) | noise,
        max_size=4,
    )
)
def test_odd_payloads_are_read_alike(parts: list[str]) -> None:
    text = "\x1e".join(parts)
    assert_same(our_payload(text), their_payload(text), text, {}, PAYLOADS_THEIRS_ONLY, {})


def test_other_differences_of_payloads() -> None:
    """There is no JSONP, and a payload holds at least one packet."""
    assert our_payload("d=4x") is our_payload("") is None


def test_a_payload_has_as_many_packets_as_they_take() -> None:
    for count, is_taken in ((MOST, True), (MOST + 1, False)):
        text = "\x1e".join(["6"] * count)
        assert (our_payload(text) is not None) == is_taken
        if is_taken:
            engineio.payload.Payload(encoded_payload=text)
        else:
            with pytest.raises(ValueError, match="Too many"):
                engineio.payload.Payload(encoded_payload=text)
