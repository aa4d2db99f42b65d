"""Frames that the fast lane reads are those that the library would read, and mean the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from a2c_smcp.server.frames import ack_head, read_ack, read_request, request_head
from a2c_smcp.server.packets import SMCPPacket

pytestmark = pytest.mark.covers("fast-lane")

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(), below, max_size=3),
    max_leaves=4,
)
known = st.sampled_from(
    ["agent", "req_id", "computer", "office_id", "tool_name", "timeout", "params", "window", "other"]
)
payloads = st.dictionaries(known, values)
names = st.sampled_from(["client:tool_call", "client:get_tools", "client:newer"])
FIELDS = {"agent", "req_id", "computer", "office_id", "tool_name", "timeout", "window"}


def by_the_library(frame: str) -> Any:
    return SMCPPacket(encoded_packet=frame[1:])


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 10**9), names, payloads)
def test_a_request_means_what_the_library_makes_of_it(number: int, name: str, payload: dict[str, Any]) -> None:
    frame = f"42/smcp,{number}{json.dumps([name, payload])}"
    request = read_request(frame.encode())
    event = by_the_library(frame)
    if request is None:  # unusual, such as a lone surrogate: the library decides
        return
    assert (request.id, request.event) == (event.id, event.data[0])
    assert (request.payload.text, request.payload.size) == (event.data[1].text, event.data[1].size)
    for field in FIELDS & payload.keys():
        assert request.payload[field] == payload[field]
    assert set(request.payload) == payload.keys() & (FIELDS | {"params"})
    assert isinstance(request.payload.get("params", {}), dict) == isinstance(payload.get("params", {}), dict)
    passed_on = request_head(7, name) + bytes(request.payload.json) + b"]"
    assert by_the_library(passed_on.decode()).data == event.data


def test_an_id_is_a_number_however_it_is_written() -> None:
    request = read_request(b'42/smcp,007["client:x",{}]')
    assert request
    assert ack_head(request.id) == b"43/smcp,7"


def test_an_event_whose_name_is_not_json_has_none() -> None:
    assert by_the_library('42/smcp,7["client:\t",{}]').data[0] == ""


@given(st.integers(1, 10**9), st.lists(values, max_size=3))
def test_an_ack_means_what_the_library_makes_of_it(number: int, arguments: list[Any]) -> None:
    frame = f"43/smcp,{number}{json.dumps(arguments)}"
    ack = read_ack(frame.encode())
    if ack is not None:
        packet = by_the_library(frame)
        assert (ack.id, ack.json) == (packet.id, packet.data[0].json)
        assert ack_head(number) + ack.json == frame.encode()


@given(st.text(alphabet='[]{}",:0123456789abctruefalsn\\ -.eE/', max_size=40))
def test_what_is_read_is_json(noise: str) -> None:
    for head, read in (('42/smcp,1["client:x",{', read_request), ("43/smcp,1[", read_ack)):
        for frame in (f"{head}{noise}", f"{head}{noise}]", f"{head}{noise}}}]"):
            if read(frame.encode()) is not None:
                json.loads(frame[frame.index("[") :])


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "2",
        "42",
        "43/smcp,",
        '42/smcp,["client:x",{}]',
        '42/smcp,1["server:join_office",{}]',
        '42/other,1["client:x",{}]',
        '42/smcp,1["client:\\u0078",{}]',
        '42/smcp,1["client:x",{},{}]',
        '42/smcp,1["client:x",[]]',
        '42/smcp,1["client:x"]',
        '42/smcp,1["client:x",{"a":NaN}]',
        '42/smcp,1["client:x",{"a":1}',
        '42/smcp,١["client:x",{}]',
        "43/smcp,1",
        "43/smcp,x[]",
        "43/smcp,1{}",
        "43/smcp,9999999999999999999999[]",
        '42/smcp,9999999999999999999999["client:x",{}]',
        '42/smcp,1["client:\t",{}]',
        "43/smcp,1[NaN]",
    ],
)
def test_what_is_unusual_is_left_to_the_library(frame: str) -> None:
    assert read_request(frame.encode()) is None
    assert read_ack(frame.encode()) is None
