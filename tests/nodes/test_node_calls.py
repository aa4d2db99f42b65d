"""Calls from one node to another have the same outcomes as on one node: cancelled, repeated, late, large, not read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from a2c_smcp.errors import NotInOffice
from a2c_smcp.loops import OwnedTasks
from a2c_smcp.protocol.events import lookup
from a2c_smcp.protocol.offices import Member
from a2c_smcp.server.calls.call import Call
from a2c_smcp.server.cluster.memory import DirectoryListener
from a2c_smcp.server.cluster.node_calls import NodeCalls
from a2c_smcp.server.cluster.redis import RedisDirectory
from a2c_smcp.server.envelope import Envelope, Outcome, Refused
from tests.nodes.conftest import SECRET, Record
from tests.nodes.processes import Cluster, NodeProcess
from tests.peer import Peer, Wire
from tests.stage.calls import RESULT, Gate, call_and_forget
from tests.valkey import Valkey

pytestmark = pytest.mark.covers("nodes-calls")


@dataclass
class Stage:
    """An agent on the first of three nodes, a computer on the second."""

    nodes: Cluster
    office: str
    agent: Peer
    computer: Peer
    gate: Gate

    def __post_init__(self) -> None:
        self.here, self.there, self.elsewhere = self.nodes
        self.computer.answers("client:tool_call", self.gate)

    async def resume(self, node: NodeProcess) -> Peer:
        """The agent, back on another node."""
        return await self.nodes.connect(node, "agent", "planner", self.office, instance=SECRET)


@pytest.fixture
async def stage(shared: Cluster, office: str) -> AsyncIterator[Stage]:
    here, there, _ = shared
    agent = await shared.connect(here, "agent", "planner", office, instance=SECRET)
    stage = Stage(shared, office, agent, await shared.connect(there, "computer", "laptop", office), Gate())
    yield stage
    stage.gate.open()


async def test_a_cancel_from_the_agents_new_node_reaches_the_call_of_its_old_one(stage: Stage) -> None:
    await call_and_forget(stage.agent, stage.computer)
    agent = await stage.resume(stage.elsewhere)
    again = asyncio.create_task(agent.call_tool("laptop", req_id="r1", timeout=20))
    await agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": "r1"})
    await stage.computer.hears("notify:tool_call_cancel", req_id="r1")
    assert (await again)["error"]["code"] == 499
    assert len(stage.computer.asked) == 1


async def test_a_request_that_comes_again_joins_the_first_from_whatever_node_it_comes(stage: Stage) -> None:
    for _ in range(3):
        await call_and_forget(stage.agent, stage.computer)
    agent = await stage.resume(stage.elsewhere)
    again = asyncio.create_task(agent.call_tool("laptop", req_id="r1", timeout=20))
    await asyncio.sleep(0)
    other = await agent.call_tool("laptop", req_id="r1", tool="other")
    assert other["error"]["code"] == 400
    stage.gate.open()
    assert await again == RESULT
    assert await agent.call_tool("laptop", req_id="r1", timeout=20) == RESULT, "the answer is kept"
    assert len(stage.computer.asked) == 1


async def test_a_call_follows_its_computer_after_its_agent_has_resumed_as_well(shared: Cluster, office: str) -> None:
    """The call was begun on a connection of the agent that is gone by now, and joined on the next one."""
    one, two, three = shared
    before = await shared.connect(one, "agent", "planner", office, instance=office)
    computer = await shared.connect(two, "computer", "laptop", office, instance=office)
    await call_and_forget(before, computer, answer=Gate())
    await before.drop()
    agent = await shared.connect(one, "agent", "planner", office, instance=office)
    call = asyncio.create_task(agent.call_tool("laptop", req_id="r1", timeout=20))
    other = await agent.call_tool("laptop", req_id="r1", tool="other", timeout=20)
    assert other["error"]["code"] == 400, "it has joined the first"
    await computer.drop()
    moved = await shared.connect(three)
    moved.answers("client:tool_call", RESULT)
    await moved.join("computer", "laptop", office, instance=office)
    assert await call == RESULT


async def test_large_results_arrive_whole_and_in_a_crowd_too(stage: Stage) -> None:
    text = "x" * 3_900_000
    agents = []
    for number in range(12):
        office = f"{stage.office}-{number}"
        computer = await stage.nodes.connect(stage.there, "computer", "laptop", office)
        computer.answers("client:tool_call", {"content": [{"type": "text", "text": text}], "isError": False})
        agents.append(await stage.nodes.connect(stage.here, "agent", "planner", office))
    for callers in (agents[:1], agents):
        answers = await asyncio.gather(*(agent.call_tool("laptop", timeout=30) for agent in callers))
        assert all(answer.get("content", [{}])[0].get("text") == text for answer in answers), answers


async def test_a_computer_that_does_not_read_does_not_delay_others(stage: Stage) -> None:
    """What no longer fits is refused, and the node of the others goes on."""
    slow = await Wire.connect(stage.there.url)
    await slow.join("computer", "slow", stage.office)
    slow.stop_reading()
    stage.gate.open()
    asked = [stage.agent.call_tool("slow", params={"text": "x" * 1_000_000}, timeout=1) for _ in range(40)]
    calls = [asyncio.create_task(each) for each in asked]
    assert await stage.agent.call_tool("laptop") == RESULT
    codes = {(await call)["error"]["code"] for call in calls}
    assert 429 in codes
    assert codes <= {429, 408, 404}
    assert await stage.agent.call_tool("laptop") == RESULT
    await slow.close()


async def test_an_agent_that_does_not_read_does_not_delay_others(stage: Stage, office: str) -> None:
    text = "x" * 1_000_000
    stage.computer.answers("client:tool_call", {"content": [{"type": "text", "text": text}], "isError": False})
    other = await stage.nodes.connect(stage.here, "agent", "other", f"{office}-2")
    other_computer = await stage.nodes.connect(stage.there, "computer", "laptop", f"{office}-2")
    other_computer.answers("client:tool_call", RESULT)
    wire = await Wire.connect(stage.here.url)
    await wire.join("agent", "planner", office, instance=SECRET)
    wire.stop_reading()
    call = {"agent": "planner", "computer": "laptop", "tool_name": "t", "params": {}, "timeout": 20}
    for number in range(2, 42):
        await wire.send(f"42/smcp,{number}{json.dumps(['client:tool_call', {**call, 'req_id': f'r{number}'}])}")
    await stage.computer.was_asked("client:tool_call", 40)
    assert await other.call_tool("laptop") == RESULT
    await wire.close()


class Impostor(DirectoryListener):
    """A node that speaks for an agent who does not sit there, as one might that has missed how it lost its seat."""

    def __init__(self, directory: RedisDirectory) -> None:
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.node_calls = NodeCalls(
            directory,
            lambda call, sid, outcome: self.outcome.set_result(outcome),
            lambda sid, office_id, packet: None,
            lambda sid: None,
            OwnedTasks(),
        )
        directory.listener = self

    def message_received(self, message: bytes) -> None:
        assert not list(self.node_calls.receive(message))


@pytest.mark.covers("office-one-agent")
async def test_a_call_for_an_agent_without_a_seat_reaches_no_computer(stage: Stage, valkey: Valkey) -> None:
    stage.gate.open()
    directory = RedisDirectory(valkey.url, node="n9", prefix=stage.nodes.prefix)
    async with AsyncExitStack() as stack:
        await directory.start()
        stack.push_async_callback(directory.close)
        asked = {"agent": "rival", "computer": "laptop", "tool_name": "t", "params": {}, "timeout": 5, "req_id": "r"}
        caller = Member("n9.s", "agent", "rival", stage.office)
        target = Member(stage.computer.sid, "computer", "laptop", stage.office)
        envelope = Envelope(json.dumps(asked).encode())
        call = Call(lookup("client:tool_call"), caller, target, envelope, "r", 0, None, 5, 5, caller.sid, target.sid)
        impostor = Impostor(directory)
        impostor.node_calls.ask("n2", call, 5, sent_before=False)
        outcome = await asyncio.wait_for(impostor.outcome, 20)
        assert (type(outcome), type(getattr(outcome, "error", None))) == (Refused, NotInOffice)
    assert stage.computer.asked == []
    assert await stage.agent.call_tool("laptop") == RESULT


async def test_calls_ask_nothing_of_the_store(stage: Stage, valkey: Valkey, record_testsuite_property: Record) -> None:
    stage.gate.open()
    for _ in range(3):
        assert await stage.agent.call_tool("laptop") == RESULT
    before, total = commands(valkey), 300
    for _ in range(total // 10):
        await asyncio.gather(*(stage.agent.call_tool("laptop") for _ in range(10)))
    grown = {name: count - before.get(name, 0) for name, count in commands(valkey).items()}
    asked = {name: count for name, count in grown.items() if count and name not in ("info", "pubsub|numsub")}
    record_testsuite_property("commands to the store for 300 calls between nodes", asked)
    assert asked.keys() == {"publish"}
    assert asked["publish"] <= 2 * total, "a question and an answer"
    assert grown.get("pubsub|numsub", 0) <= total / 10, "whether the other node is there is asked by the clock"


def commands(valkey: Valkey) -> dict[str, int]:
    lines = [line for line in valkey.ask("INFO", "commandstats").splitlines() if line.startswith("cmdstat_")]
    pairs = [line.removeprefix("cmdstat_").partition(":calls=") for line in lines]
    return {name: int(rest.partition(",")[0]) for name, _, rest in pairs}
