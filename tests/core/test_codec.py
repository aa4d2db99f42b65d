"""Strict JSON, and the rule of every field of every event."""

import gc
import json
import math
import weakref
from contextlib import suppress
from copy import deepcopy
from datetime import date
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2c_smcp.errors import BadRequest
from a2c_smcp.protocol.codec import MAX_TIMEOUT, decode, dumps, loads, loads_exactly, timeout_of
from a2c_smcp.protocol.events import EVENTS, lookup
from tests.core.specification import CHECKED as FIELDS

ROWS = [*EVENTS, lookup("client:newer"), lookup("server:update_newer"), lookup("server:tell_newer")]

REQUIRED = [(event, field) for event, (required, _) in FIELDS.items() for field in required.split()]
OWN_CODES = ("blob_handle", "chunk_offset", "eof", "blob", "max_chunk_bytes", "upload_id", "total_size", "sha256")
OWN_CODES += ("name_hint", "rel_path")
"""Fields whose faults have codes of their own, such as 4018: the computer checks them."""
NOT_NULL = [(event, field) for event, field in REQUIRED if field not in ("data", *OWN_CODES)]
OPTIONAL = [(event, field) for event, (_, optional) in FIELDS.items() for field in optional.split()]

NAMES = (
    "name",
    "office_id",
    "agent",
    "req_id",
    "computer",
    "call",
    "question_id",
    "mcp_server",
    "kid",
    "nonce",
    "seat",
)
OBJECTS = ("params", "_meta", "input_responses", "client_capabilities", "content", "request", "arguments")
OBJECTS += ("ref", "argument", "context")
NOT_TEXT = [1, True, 1.5, ["a"], {"a": 1}]
NOT_NAMES = [
    *NOT_TEXT,
    "",
    " ",
    "a ",
    "\ta",
    "a\u3000",
    "a\x00b",
    "a\nb",
    "\x7f",
    "a\x9bb",
    "\u202eb",
    "a\u2066b",
    "\ud800",
    *(f"a{invisible}b" for invisible in "\xad\u034f\u200b\u200d\u200f\u2060\u2064\ufe0f\ufeff\uffa0\u3164\U000e0041"),
]
NOT_OBJECTS = [[], "{}", 0, True]
TEXTS = ("request_state", "logger", "message", "cursor", "sealed", "reason")
BOOLEANS = ("extend", "blobs", "binary", "titles", "approval", "seats", "as_mcp", "states", "frozen")
NOT_INTEGERS = [True, False, 1.0, "1", [], {}]
BAD: dict[str, list[Any]] = {
    **{field: [*NOT_NAMES, "x" * 129] for field in NAMES},
    "tool_name": [*NOT_NAMES, "x" * 257],
    "window": [*NOT_NAMES, "x" * 2049],
    "instance": [*NOT_NAMES, "x" * 15, "x" * 129, "x" * 16 + " "],
    "role": ["", "Agent", "agent ", "server", 0, True, ["agent"], {}],
    **dict.fromkeys(OBJECTS, NOT_OBJECTS),
    **{field: [1, True, [], {}] for field in TEXTS},
    **{field: [0, 1, "true", [], {}] for field in BOOLEANS},
    "client": [*NOT_OBJECTS, {}, *({"name": name} for name in NOT_NAMES), {"name": "a", "version": ""}],
    "timeout": NOT_INTEGERS,
    "desktop_size": NOT_INTEGERS,
    "questions": [0, 1, "true", "results", ["result"], {}],
    "action": ["", "Accept", "yes", 1, True, ["accept"], {}],
    "level": ["", "INFO", "warn", 3, True, ["info"], {}],
    "total": [True, "1", [], {}],
    "since": [True, "1", [], {}],
    "state": ["", "Waiting", "done", 1, True, ["running"], {}],
    "data": [],
    "uri": [*NOT_NAMES, "x" * 2049],
    **{field: [] for field in OWN_CODES},
}
OF_PROGRESS = {"client:tool_call": ([0, 1, 0.5, "true", [], {}], [True, False])}
OF_PROGRESS["server:tell_progress"] = ([True, False, "0.5", [], {}], [0, 1, 0.5, -3, 2**70])
"""A call asks for progress; a computer tells how far it is."""
GOOD: dict[str, list[Any]] = {
    **{field: ["a", "x" * 128, "我的 电脑", "a/b:c#d", "🙂"] for field in NAMES},
    "tool_name": ["t", "x" * 256],
    "window": ["window://h/p?priority=1", "x" * 2048],
    "instance": ["x" * 16, "x" * 128],
    "role": ["agent", "computer"],
    **{field: [{}, {"deep": [{"n": None}]}] for field in OBJECTS},
    **{field: [True, False] for field in BOOLEANS},
    "arguments": [{}, {"who": "x"}],
    "ref": [{"type": "ref/prompt", "name": "p"}, {"type": "ref/resource", "uri": "file:///a"}],
    "argument": [{"name": "who", "value": ""}],
    "client": [{"name": "x" * 128}, {"name": "a", "version": "1.0"}, {"name": "a", "title": 1, "icons": []}],
    "timeout": [30],
    "desktop_size": [5, 0, -1, 2**70],
    "questions": [True, False, "result"],
    "request_state": ["", "x" * 10_000, "\n\ud800"],
    "logger": ["", "a\nb"],
    "message": ["", "a\nb"],
    "reason": ["", "a\nb"],
    "action": ["accept", "decline", "cancel"],
    "level": ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"],
    "total": [0, 1, 0.5, 2**70],
    "since": [0, 1.5],
    "state": ["queued", "waiting", "asked", "running"],
    "data": [{}, [], "text", 1, None],
    "uri": ["file:///a b", "x" * 2048],
    "cursor": ["", "x" * 10_000],
    "sealed": ["", "x" * 10_000],
    **{field: ["text", 1, True, {}] for field in OWN_CODES},
    "rel_path": ["", "a/b.md"],
}


class Mood(Enum):
    GOOD = "good"


any_text = st.text() | st.sampled_from(["\ud800", "a\udfffb", "\u202e"])
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | any_text
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4), max_leaves=20
)
payloads = st.dictionaries(
    st.sampled_from([*BAD, "robot_id", "_meta", "unknown"]),
    json_values | st.sampled_from(["a", "agent", "computer", {}, 5]),
)


def payload(event: str, **changes: Any) -> dict[str, Any]:
    return {field: good(event, field)[0] for field in FIELDS[event][0].split()} | changes


def bad(event: str, field: str) -> list[Any]:
    if field == "name" and event.startswith("client:"):  # a prompt or a skill, whose names the computer checks
        return NOT_TEXT
    return OF_PROGRESS[event][0] if field == "progress" else BAD[field]


def good(event: str, field: str) -> list[Any]:
    return OF_PROGRESS[event][1] if field == "progress" else GOOD[field]


# JSON


@pytest.mark.covers("strict-json")
@pytest.mark.parametrize("read", [loads, loads_exactly])
@pytest.mark.parametrize(
    "text",
    [
        *("NaN", "Infinity", "-Infinity", '{"x":NaN}', "[1,-Infinity]"),
        *("", " ", "{", "[1,]", "{'a':1}", '{"a":1,}', "01", "+1", ".5", "1.", "0x1", "tru", "undefined", "// x"),
        "\ufeff{}",
        *('"a\nb"', '"\\x"', '"', "{} {}", "{1:2}"),
        *("[" * 100_000, "[" * 100_000 + "]" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000),
    ],
    ids=lambda text: ascii(text[:16]),
)
def test_text_that_is_not_strict_json_is_a_bad_request(read: Any, text: str) -> None:
    with pytest.raises(BadRequest):
        read(text)


@pytest.mark.covers("strict-json")
@pytest.mark.parametrize("number", [2**63, 2**64, -(2**64), 10**30, 10**400])
def test_integers_of_any_size_are_read_and_written_exactly(number: int) -> None:
    assert loads_exactly(dumps({"n": number})) == {"n": number}


@pytest.mark.covers("strict-json")
@pytest.mark.parametrize("read", [loads, loads_exactly])
@pytest.mark.parametrize("text", [r'"\ud800"', r'"a\udfffb"', '"\ud800"', r'"\ud83d\ude42"', r'"\u0000"'], ids=ascii)
def test_any_string_is_read(read: Any, text: str) -> None:
    value = read(text)
    assert isinstance(value, str)
    assert loads_exactly(dumps(value)) == value


@pytest.mark.covers("strict-json")
@pytest.mark.parametrize(
    "value",
    [
        *(float("nan"), float("inf"), float("-inf"), [float("nan")], {"x": {"y": float("inf")}}, {float("nan"): 1}),
        *({1, 2}, b"bytes", object(), {(1, 2): 3}, 1j),
        *(UUID(int=7), {"x": [Mood.GOOD]}, date(2026, 7, 28)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_that_json_cannot_express_is_a_bad_request(value: object) -> None:
    with pytest.raises(BadRequest):
        dumps(value)


@pytest.mark.covers("strict-json")
@given(st.lists(st.floats() | st.none() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.just((1, None))))
def test_a_number_that_is_not_finite_is_refused_whatever_is_beside_it(values: list[Any]) -> None:
    if all(math.isfinite(each) for each in values if isinstance(each, float)):
        assert json.loads(dumps(values)) == json.loads(json.dumps(values))
    else:
        with pytest.raises(BadRequest):
            dumps(values)


def test_endless_nesting_is_a_bad_request() -> None:
    circle: list[Any] = []
    circle.append(circle)
    well: list[Any] = []
    for _ in range(100_000):
        well = [well]
    for value in (circle, well):
        with pytest.raises(BadRequest):
            dumps(value)


def test_json_is_written_without_white_space() -> None:
    assert dumps({"a": [1, None, "é"]}) == '{"a":[1,null,"é"]}'


@pytest.mark.covers("strict-json")
@given(json_values)
def test_any_json_that_is_written_is_read_back_the_same(value: object) -> None:
    assert loads_exactly(dumps(value)) == value


@given(st.text() | st.text(alphabet='[]{}",:0123456789eE+-.truefalsn \\ud8'))
def test_any_text_is_json_or_a_bad_request(text: str) -> None:
    for read in (loads, loads_exactly):
        with suppress(BadRequest):
            read(text)


# Fields


def test_the_table_above_names_every_row() -> None:
    assert {row.name for row in ROWS} == set(FIELDS)
    for row in ROWS:
        required, optional = (set(fields.split()) for fields in FIELDS[row.name])
        assert (row.required, row.checked) == (required, required | optional)


@pytest.mark.parametrize("event", FIELDS)
@pytest.mark.parametrize("data", [None, True, 5, "{}", [], [{}], b"{}"])
def test_a_payload_that_is_no_object_is_refused(event: str, data: object) -> None:
    with pytest.raises(BadRequest):
        decode(lookup(event), data)


@pytest.mark.parametrize(("event", "field"), REQUIRED)
def test_a_missing_field_is_named(event: str, field: str) -> None:
    data = payload(event)
    del data[field]
    with pytest.raises(BadRequest, match=f"{field}: missing") as refusal:
        decode(lookup(event), data)
    assert refusal.value.details == {"field": field}


@pytest.mark.covers("names-limits")
@pytest.mark.parametrize(("event", "field"), REQUIRED + OPTIONAL)
def test_an_unsound_field_is_refused_and_named(event: str, field: str) -> None:
    for value in bad(event, field):
        with pytest.raises(BadRequest, match=f"{field}: must") as refusal:
            decode(lookup(event), payload(event, **{field: value}))
        assert refusal.value.details == {"field": field}, value


@pytest.mark.covers("names-limits")
@pytest.mark.parametrize(("event", "field"), REQUIRED + OPTIONAL)
def test_a_sound_field_is_taken_up_to_its_limit(event: str, field: str) -> None:
    for value in good(event, field):
        assert decode(lookup(event), payload(event, **{field: value}))[field] == value


@pytest.mark.parametrize(("event", "field"), NOT_NULL)
def test_a_required_field_may_not_be_null(event: str, field: str) -> None:
    with pytest.raises(BadRequest, match=field):
        decode(lookup(event), payload(event, **{field: None}))


@pytest.mark.parametrize(("event", "field"), OPTIONAL)
def test_an_optional_field_may_be_null_or_absent(event: str, field: str) -> None:
    assert decode(lookup(event), payload(event, **{field: None}))[field] is None
    assert field not in decode(lookup(event), payload(event))


WITH_AGENT = [event for event, (required, _) in FIELDS.items() if "agent" in required.split()]


@pytest.mark.covers("older-names")
@pytest.mark.parametrize("event", WITH_AGENT)
def test_robot_id_is_accepted_for_agent(event: str) -> None:
    data = payload(event, robot_id="a")
    del data["agent"]
    assert decode(lookup(event), data) is data
    assert data["robot_id"] == "a"
    assert "agent" not in data, "a payload is never rewritten"


@pytest.mark.covers("older-names", "names-limits")
@pytest.mark.parametrize("event", [*WITH_AGENT, "client:newer"])
def test_an_unsound_robot_id_is_refused_beside_a_sound_agent_too(event: str) -> None:
    for value in BAD["agent"]:
        with pytest.raises(BadRequest) as refusal:
            decode(lookup(event), payload(event, agent="a", robot_id=value))
        assert refusal.value.details == {"field": "robot_id"}


@pytest.mark.covers("older-names")
@pytest.mark.parametrize("event", WITH_AGENT)
def test_a_null_robot_id_does_not_stand_for_an_agent(event: str) -> None:
    data = payload(event, robot_id=None)
    del data["agent"]
    with pytest.raises(BadRequest) as refusal:
        decode(lookup(event), data)
    assert refusal.value.details == {"field": "agent"}


@pytest.mark.parametrize("event", FIELDS)
def test_fields_we_do_not_know_pass_untouched_in_the_very_same_object(event: str) -> None:
    data = payload(event, _meta={"traceparent": "00-…"}, unknown=[None, {"x": 2**70}], None_="", args=" ")
    copy = deepcopy(data)
    assert decode(lookup(event), data) is data
    assert data == copy


@given(data=json_values | payloads)
def test_any_json_is_a_payload_or_a_bad_request(data: object) -> None:
    copy = deepcopy(data)
    for row in ROWS:
        try:
            decoded = decode(row, data)
        except BadRequest:
            pass
        else:
            assert decoded is data
        assert data == copy, row.name


def test_an_event_that_a_client_has_invented_is_not_remembered() -> None:
    event = lookup("client:invented")
    decode(event, {"computer": "pc"})
    forgotten = weakref.ref(event)
    del event
    gc.collect()
    assert forgotten() is None


# Timeouts


@pytest.mark.covers("calls-timeout-field")
@pytest.mark.parametrize("timeout", [1, 30, 3600])
def test_a_timeout_is_whole_seconds_up_to_the_maximum(timeout: int) -> None:
    assert timeout_of(lookup("client:tool_call"), {"timeout": timeout}) == timeout


@pytest.mark.covers("calls-timeout-field")
@pytest.mark.parametrize("timeout", [None, 0, -1, 3601, 10**30, True, 1.0, 0.5, "30", [30], {}])
def test_any_other_timeout_of_a_tool_call_is_refused(timeout: object) -> None:
    with pytest.raises(BadRequest) as refusal:
        timeout_of(lookup("client:tool_call"), {"timeout": timeout})
    assert refusal.value.details == {"field": "timeout"}


@pytest.mark.covers("calls-timeout-field")
def test_the_maximum_is_the_deployers_choice() -> None:
    event = lookup("client:tool_call")
    assert MAX_TIMEOUT == 3600
    assert timeout_of(event, {"timeout": 60}, 60) == 60
    assert timeout_of(event, {"timeout": 7200}, 7200) == 7200
    with pytest.raises(BadRequest, match="from 1 to 60"):
        timeout_of(event, {"timeout": 61}, 60)


@pytest.mark.covers("calls-timeout-field")
@pytest.mark.parametrize("event", ["client:get_tools", "client:get_config", "client:get_desktop", "client:newer"])
def test_a_request_that_says_no_timeout_has_none(event: str) -> None:
    assert timeout_of(lookup(event), payload(event)) is None
