"""Frames of all sorts, sound and broken, are answered and passed on alike with the fast lane and without it."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterator

import pytest

from a2c_smcp.server import Settings
from tests.conftest import running
from tests.peer import Wire

pytestmark = pytest.mark.covers("fast-lane")

FRAMES = 400
FENCE = 987654
ODD = [
    '""', "null", "true", "0", "-1", "5.0", "1e400", "9007199254740993", "[]", "{}", '"\\ud800"', '"\\u0000"', '" x"',
    f'"{"n" * 129}"', '"é"', '"\\/"', "01", '"\x01"', "NaN", '{"a":1,"a":2}', "1" * 400, "tru",
]  # fmt: skip
FIELDS = ["agent", "robot_id", "req_id", "computer", "office_id", "tool_name", "params", "timeout", "window", "other"]
EVENTS = [
    "client:tool_call", "client:get_tools", "client:get_desktop", "client:newer", "client:", "client:x y", "client:\t",
    "client:\\u0078", "client:é", f"client:{'n' * 1200}", "server:list_room", "notify:x", "", "connect",
]  # fmt: skip
NUMBERS = ["5", "007", "0", "", "-1", "9" * 15, "9" * 16, "9" * 101, "1 "]
HEADS = [*["42/smcp,"] * 20, "42/other,", "42", "42/smcp", "450-/smcp,", "43/smcp,"]
ACKS = [*['[{"content":[]}]'] * 5, "[]", "[1e400]", "[ 1 , 2 ]", "{}", "[", "[1]]", "", "[NaN]", '["\\ud800"]', "[01]"]
NOISE = '[]{}",:\\ 0123456789eE.-tfn\x00\né'


def odd_frames(chance: random.Random) -> Iterator[tuple[str, str]]:
    """Requests, each with the ack that it gets if it is passed on."""
    for turn in range(FRAMES):
        fields = [("agent", '"planner"'), ("req_id", f'"r{turn}"'), ("computer", '"laptop"'), ("tool_name", '"add"')]
        fields += [("params", '{"n":1}'), ("timeout", "5")]
        for _ in range(chance.choice([0, 0, 1, 2])):
            fields[chance.randrange(6)] = (chance.choice(FIELDS), chance.choice(ODD))
        body = ",".join(f'"{name}":{value}' for name, value in fields)
        number = chance.choice([str(turn + 10), chance.choice(NUMBERS)])
        event = chance.choice([*EVENTS[:4], chance.choice(EVENTS)])
        frame = f'{chance.choice(HEADS)}{number}["{event}",{{{body}}}]'
        if chance.random() < 0.25:
            place = chance.randrange(2, len(frame))
            frame = frame[:place] + chance.choice(["", chance.choice(NOISE)]) + frame[place + chance.randrange(2) :]
        yield frame, chance.choice(ACKS)


class Pair:
    """An agent and a computer, and what they hear."""

    def __init__(self, agent: Wire, computer: Wire) -> None:
        self._agent = agent
        self._computer = computer

    @classmethod
    async def meet(cls, url: str) -> Pair:
        pair = cls(await Wire.connect(url), await Wire.connect(url))
        await pair._agent.join("agent", "planner", "office")
        await pair._computer.join("computer", "laptop", "office")
        await pair._agent.receive()
        return pair

    async def outcome(self, frame: str, ack: str) -> list[list[str]]:
        """What is heard of a frame at once, at the other end, and when that has answered."""
        await self._agent.send(frame)
        refused, asked = await until_now(self._agent), await until_now(self._computer)
        for request in asked:
            await self._computer.send(f"43/smcp,{number_of(request)}{ack}")
            await self._computer.send(f'43/smcp,{number_of(request)}["again"]')
        told, answered = await until_now(self._computer), await until_now(self._agent)
        return [refused, [re.sub(r"^(4./smcp,)\d+", r"\1", text) for text in asked], told, answered]

    async def close(self) -> None:
        await self._agent.close()
        await self._computer.close()


async def until_now(wire: Wire) -> list[str]:
    """What has come, and what comes before the answer to a question."""
    await wire.send(f'42/smcp,{FENCE}["no:such_event",{{}}]')
    heard: list[str] = []
    while not (text := await wire.receive()).startswith(f"43/smcp,{FENCE}["):
        assert text, "the connection has ended"
        heard.append(text)
    return sorted(heard)


def number_of(request: str) -> str:
    return request.removeprefix("42/smcp,").partition("[")[0]


async def test_both_lanes_say_the_same() -> None:
    with running(Settings()) as fast, running(Settings(fast_lane=False)) as plain:
        pairs = [await Pair.meet(fast.url), await Pair.meet(plain.url)]
        for frame, ack in odd_frames(random.Random(6)):
            quick, slow = await asyncio.gather(*(pair.outcome(frame, ack) for pair in pairs))
            assert quick == slow, frame
        for pair in pairs:
            await pair.close()
