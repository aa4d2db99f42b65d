"""Events, acks and notices of one connection keep their order, and payloads arrive to the last character."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import uuid4

import pytest

from tests.peer import PATIENCE, Peer, Wire
from tests.stage.calls import both

pytestmark = pytest.mark.covers("relay-order")


def request(number: int, event: str = "client:tool_call", **more: Any) -> str:
    payload = {"agent": "planner", "req_id": uuid4().hex, "computer": "laptop", "tool_name": "add", "params": {}}
    return f'42/smcp,{number}["{event}",{json.dumps({**payload, "timeout": 5, **more})}]'


async def frames(wire: Wire, count: int) -> list[str]:
    return [await wire.receive() for _ in range(count)]


async def test_a_call_right_behind_its_join_finds_the_office(connect_wire: Any, computer: Peer, office: str) -> None:
    computer.answers("client:tool_call", {"content": [], "isError": False})
    wire: Wire = await connect_wire()
    join = {"role": "agent", "name": "planner", "office_id": office}
    await wire.send(f'42/smcp,1["server:join_office",{json.dumps(join)}]')
    await wire.send(request(2))
    joined, answered = await frames(wire, 2)
    assert joined == "43/smcp,1[true,null]"
    assert answered.startswith('43/smcp,2[{"content":[]')


async def test_an_answer_does_not_overtake_the_notice_before_it(connect_wire: Any, agent: Peer, office: str) -> None:
    wire: Wire = await connect_wire()
    await wire.join("computer", "laptop", office)
    await agent.hears("notify:enter_office")
    for turn in range(20):
        seen = len(agent.heard)
        call = asyncio.create_task(agent.call_tool("laptop"))
        number = await wire.asked()
        await wire.send(f'42/smcp,["server:update_turn{turn}",{{"computer":"laptop"}}]')
        await wire.send(f"43/smcp,{number}[{turn}]")
        assert await call == turn
        assert [event for event, _ in agent.heard[seen:]] == [f"notify:update_turn{turn}"]


@pytest.mark.parametrize(
    "ack",
    ["43/smcp,99[]", "43/smcp,0[1]", "43/smcp,1[", "43/smcp,[1]", "43/smcp,-1[1]", "43/smcp,1{}", "43/smcp,1[1]]"],
)
async def test_unknown_and_malformed_acks_are_ignored(connect_wire: Any, agent: Peer, office: str, ack: str) -> None:
    wire: Wire = await connect_wire()
    await wire.join("computer", "laptop", office)
    call = asyncio.create_task(agent.call_tool("laptop", timeout=30))
    number = await wire.asked()
    await wire.send(ack.replace(",1", f",{number + 7}"))
    await wire.send(f'43/smcp,{number}["whole"]')
    async with asyncio.timeout(PATIENCE):
        assert await call == "whole"
    await wire.send(f'43/smcp,{number}["again"]')
    assert await agent.heard_until_now() is not None


async def test_payload_and_answer_arrive_to_the_last_character(connect_wire: Any, office: str) -> None:
    agent, computer = await both(connect_wire, None, office)
    await agent.receive()
    numbers = '"x":1e400,"y":123456789012345678901234567890'
    odd = f'{{"agent":"planner", "req_id" : "r1","computer":"laptop",{numbers},"z":"é\\u00e9"}}'
    await agent.send(f'42/smcp,5["client:newer",{odd}]')
    forwarded = await computer.receive()
    assert forwarded.endswith(f'["client:newer",{odd}]')
    number = forwarded.removeprefix("42/smcp,").partition("[")[0]
    await computer.send(f"43/smcp,{number}[ 1e400 ,{odd}]")
    assert await agent.receive() == f"43/smcp,5[ 1e400 ,{odd}]"


async def test_many_calls_at_once_are_answered_each_to_its_own(connect_wire: Any, office: str) -> None:
    agent, computer = await both(connect_wire, None, office)
    await agent.receive()
    for number in range(200):
        await agent.send(request(number + 10, params={"n": number}))
    asked = await frames(computer, 200)
    assert [json.loads(frame[frame.index("[") :])[1]["params"]["n"] for frame in asked] == list(range(200))
    for number, frame in reversed(list(enumerate(asked))):
        await computer.send(f"43/smcp,{frame.removeprefix('42/smcp,').partition('[')[0]}[{number}]")
    assert sorted(await frames(agent, 200)) == sorted(f"43/smcp,{number + 10}[{number}]" for number in range(200))


@pytest.mark.one_process
async def test_a_silent_connection_stays_as_long_as_it_answers_pings(serve: Any, connect: Any, office: str) -> None:
    hub = await serve(limits={"ping_interval": 0.4, "ping_timeout": 0.4})
    agent, computer = await both(connect, hub, office)
    computer.answers("client:tool_call", {"content": [], "isError": False})
    async with asyncio.timeout(PATIENCE):
        for _ in range(12):  # each a quarter of the time after which a silent client would be given up
            assert (await agent.call_tool("laptop"))["isError"] is False
            await asyncio.sleep(0.2)
    assert not [event for event, _ in agent.heard if event == "notify:leave_office"]
