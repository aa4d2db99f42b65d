"""Payloads as they are read: the routing fields mean what JSON says they mean, and the rest stays as it came."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2c_smcp.engine.events import Event
from a2c_smcp.errors import BadRequest
from a2c_smcp.server.calls.call import StallDetector
from a2c_smcp.server.envelope import name_in, read_answer, read_payload
from a2c_smcp.server.routing_fields import NAMES
from tests.stage.hub import Client, pair

pytestmark = pytest.mark.covers("relay-order")

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(), below, max_size=3),
    max_leaves=4,
)
known = st.sampled_from([*sorted(NAMES), "other"])
payloads = st.dictionaries(known, values)
names = st.sampled_from(["client:tool_call", "client:newer", "server:join_office", 'client:"x\\', "client:日程"])
spaces = st.sampled_from(["", " ", "\n\t "])


@given(names, payloads, spaces, st.sampled_from([0, 70_000]))
def test_a_payload_means_what_json_makes_of_it(name: str, payload: dict[str, Any], space: str, pad: int) -> None:
    text = json.dumps({**payload, "pad": "x" * pad})
    event = f"{space}[{space}{json.dumps(name)}{space},{space}{text}{space}]{space}".encode()
    envelope = read_payload(event)
    assert name_in(event) == name
    assert json.loads(bytes(envelope.body)) == {**payload, "pad": "x" * pad}
    assert bytes(envelope.body).strip() == text.encode()
    assert envelope.fields.keys() == payload.keys() & NAMES
    for field in envelope.fields:
        if not isinstance(payload[field], dict | list) and not (pad and isinstance(payload[field], str)):
            assert envelope.fields[field] == payload[field]
        assert isinstance(envelope.fields[field], dict) == isinstance(payload[field], dict)


@given(st.lists(values, max_size=3), spaces)
def test_an_answer_stays_as_it_came(arguments: list[Any], space: str) -> None:
    ack = f"{space}{json.dumps(arguments)}{space}".encode()
    assert read_answer(ack).body == ack


@given(st.text(alphabet='[]{}",:0123456789abctruefalsn\\ -.eE/', max_size=40))
def test_a_payload_that_is_accepted_is_json(noise: str) -> None:
    for head, read in (('["client:x",{', read_payload), ("[", read_answer)):
        for text in (f"{head}{noise}", f"{head}{noise}]", f"{head}{noise}}}]"):
            try:
                read(text.encode())  # type: ignore[operator]
            except BadRequest:
                continue
            json.loads(text)


FRAMES = 2000
ODD = [
    '""', "null", "true", "0", "-1", "5.0", "1e400", "9007199254740993", "[]", "{}", '"\\ud800"', '"\\u0000"', '" x"',
    f'"{"n" * 129}"', '"é"', '"\\/"', "01", '"\x01"', "NaN", '{"a":1,"a":2}', "1" * 400, "tru",
]  # fmt: skip
FIELDS = ["agent", "robot_id", "req_id", "computer", "office_id", "tool_name", "params", "timeout", "window", "other"]
EVENTS = [
    "client:tool_call", "client:get_tools", "client:get_desktop", "client:newer", "client:", "client:x y", "client:\t",
    "client:\\u0078", "client:é", f"client:{'n' * 1200}", "server:list_room", "notify:x", "", "connect",
]  # fmt: skip
ACKS = [*['[{"content":[]}]'] * 5, "[]", "[1e400]", "[ 1 , 2 ]", "{}", "[", "[1]]", "", "[NaN]", '["\\ud800"]', "[01]"]
NOISE = '[]{}",:\\ 0123456789eE.-tfn\x00\né'


def odd_events(chance: random.Random) -> Iterator[tuple[str, str]]:
    """Requests, each with the ack that it gets if it is passed on."""
    for turn in range(FRAMES):
        fields = [("agent", '"planner"'), ("req_id", f'"r{turn}"'), ("computer", '"laptop"'), ("tool_name", '"add"')]
        fields += [("params", '{"n":1}'), ("timeout", "5")]
        for _ in range(chance.choice([0, 0, 1, 2])):
            fields[chance.randrange(6)] = (chance.choice(FIELDS), chance.choice(ODD))
        body = ",".join(f'"{name}":{value}' for name, value in fields)
        event = chance.choice([*EVENTS[:4], chance.choice(EVENTS)])
        text = f'["{event}",{{{body}}}]'
        if chance.random() < 0.25:
            place = chance.randrange(1, len(text) - 1)
            text = text[:place] + chance.choice(["", chance.choice(NOISE)]) + text[place + chance.randrange(2) :]
        yield text, chance.choice(ACKS)


def outcome(agent: Client, computer: Client, text: str, ack: str) -> list[Any]:
    """What is heard of an event at once, at the other end, and when that has answered."""
    agent.packets, computer.packets = [], []
    agent.hub.receive(agent.connection, Event(b"/smcp", 5, text.encode()))
    refused, asked = list(agent.packets), list(computer.packets)
    for _ in asked:
        number = computer.connection.last_ack
        computer.ack(number, ack.encode())
        computer.ack(number, b'["again"]')
    return [refused, [packet.partition(b"[")[2] for packet in asked], agent.packets]


async def test_the_fast_path_and_the_slow_path_of_events_have_the_same_result(
    hubs: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With a space at its end an event is read the long way."""
    # On a busy machine the one hub, but not the other, may stand still, and hold calls back.
    monkeypatch.setattr(StallDetector, "is_recent", lambda *_: False)
    short, long = await pair(hubs()), await pair(hubs())
    answered = 0
    for text, ack in odd_events(random.Random(6)):
        quick, slow = outcome(*short, text, ack), outcome(*long, f"{text} ", ack)
        assert quick == slow, text
        assert len(quick[0]) + len(quick[2]) >= 1, text
        answered += bool(quick[1])
        await asyncio.sleep(0)
    assert answered > FRAMES / 4
    assert " failed" not in caplog.text  # an event of a newer version may have any type in our fields
