"""Calls from one node to another have the same outcomes as on one node: cancelled, repeated, late, large, not read."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from a2c_smcp.errors import NotInOffice
from a2c_smcp.loops import OwnedTasks
from a2c_smcp.protocol.events import lookup
from a2c_smcp.protocol.offices import Member
from a2c_smcp.server.calls.call import Call
from a2c_smcp.server.cluster.node_calls import NodeCalls
from a2c_smcp.server.directory.interface import DirectoryListener
from a2c_smcp.server.directory.redis import RedisDirectory
from a2c_smcp.server.envelope import Envelope
from a2c_smcp.server.outcomes import Outcome, Refused
from tests.nodes.processes import Cluster, NodeProcess, seconds_since
from tests.peer import Peer, Wire
from tests.valkey import Valkey

Record = Callable[[str, object], None]
SECRET = "a-secret-of-sixteen-or-more"
DONE = {"content": [{"type": "text", "text": "done"}], "isError": False}


class Stage:
    """An agent on the first of three nodes, a computer on the second."""

    def __init__(self, nodes: Cluster, office: str) -> None:
        self.nodes, self.office = nodes, office
        self.here, self.there, self.elsewhere = nodes.nodes
        self.go = asyncio.Event()

    async def seat(self) -> None:
        self.agent = await self.nodes.connect(self.here, "agent", "planner", self.office, instance=SECRET)
        self.computer = await self.nodes.connect(self.there, "computer", "laptop", self.office)
        self.computer.answers("client:tool_call", self._work)

    async def resume(self, node: NodeProcess) -> Peer:
        """The agent, back on another node."""
        return await self.nodes.connect(node, "agent", "planner", self.office, instance=SECRET)

    async def _work(self, _: Any) -> Any:
        await self.go.wait()
        return DONE


@pytest.fixture
async def stage(shared: Cluster, office: str) -> AsyncIterator[Stage]:
    stage = Stage(shared, office)
    await stage.seat()
    yield stage
    stage.go.set()


@pytest.mark.covers("nodes-calls")
async def test_a_cancel_reaches_the_computer_and_the_call_ends_without_its_answer(stage: Stage) -> None:
    call = asyncio.create_task(stage.agent.call_tool("laptop", req_id="r1", timeout=20))
    await stage.computer.was_asked("client:tool_call")
    await stage.agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": "r1"})
    await stage.computer.hears("notify:tool_call_cancel", req_id="r1")
    assert (await call)["error"]["code"] == 499


@pytest.mark.covers("nodes-calls")
async def test_a_cancel_from_the_agents_new_node_reaches_the_call_of_its_old_one(
    stage: Stage,
) -> None:
    asyncio.create_task(stage.agent.call_tool("laptop", req_id="r1", timeout=20)).add_done_callback(_retrieved)
    await stage.computer.was_asked("client:tool_call")
    agent = await stage.resume(stage.elsewhere)
    again = asyncio.create_task(agent.call_tool("laptop", req_id="r1", timeout=20))
    await agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": "r1"})
    await stage.computer.hears("notify:tool_call_cancel", req_id="r1")
    assert (await again)["error"]["code"] == 499
    assert len(stage.computer.asked) == 1


def _retrieved(task: asyncio.Task[Any]) -> None:
    """Its caller is on a line that has ended."""
    if not task.cancelled():
        task.exception()


@pytest.mark.covers("nodes-calls")
async def test_a_request_that_comes_again_joins_the_first_from_whatever_node_it_comes(stage: Stage) -> None:
    calls = [asyncio.create_task(stage.agent.call_tool("laptop", req_id="r1", timeout=20)) for _ in range(3)]
    await stage.computer.was_asked("client:tool_call")
    agent = await stage.resume(stage.elsewhere)
    again = asyncio.create_task(agent.call_tool("laptop", req_id="r1", timeout=20))
    await asyncio.sleep(0)
    other = await agent.call_tool("laptop", req_id="r1", tool="other")
    assert other["error"]["code"] == 400
    stage.go.set()
    assert await again == DONE
    assert await agent.call_tool("laptop", req_id="r1", timeout=20) == DONE, "the answer is kept"
    assert len(stage.computer.asked) == 1
    for call in calls:
        call.add_done_callback(_retrieved)


@pytest.mark.covers("nodes-calls")
async def test_a_call_follows_its_computer_after_its_agent_has_resumed_as_well(shared: Cluster, office: str) -> None:
    """The call was begun on a connection of the agent that is gone by now, and joined on the next one."""
    one, two, three = shared.nodes
    before = await shared.connect(one, "agent", "planner", office, instance=office)
    computer = await shared.connect(two, "computer", "laptop", office, instance=office)
    computer.answers("client:tool_call", lambda _: asyncio.Event().wait())
    asyncio.create_task(before.call_tool("laptop", req_id="r1", timeout=20)).add_done_callback(_retrieved)
    await computer.was_asked("client:tool_call")
    await before.drop()
    agent = await shared.connect(one, "agent", "planner", office, instance=office)
    call = asyncio.create_task(agent.call_tool("laptop", req_id="r1", timeout=20))
    other = await agent.call_tool("laptop", req_id="r1", tool="other", timeout=20)
    assert other["error"]["code"] == 400, "it has joined the first"
    await computer.drop()
    moved = await shared.connect(three)
    moved.answers("client:tool_call", DONE)
    await moved.join("computer", "laptop", office, instance=office)
    assert await call == DONE


@pytest.mark.covers("nodes-calls")
async def test_a_call_that_takes_too_long_is_answered_when_its_time_is_over(stage: Stage) -> None:
    begun = time.monotonic()
    answer = await stage.agent.call_tool("laptop", timeout=1)
    assert answer["error"]["code"] == 408
    assert 1.9 <= seconds_since(begun) <= 6, "a second longer than the tool may take"


@pytest.mark.covers("nodes-calls")
async def test_binary_payloads_arrive_as_they_were_sent(stage: Stage) -> None:
    stage.computer.answers("client:tool_call", lambda data: {**DONE, "echo": data["params"], "more": b"\x00\xff"})
    params = {"blob": bytes(range(256)), "text": "ж", "many": [b"", b"1"]}
    answer = await stage.agent.call_tool("laptop", params=params)
    assert (answer["echo"], answer["more"]) == (params, b"\x00\xff")


@pytest.mark.covers("nodes-calls")
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


@pytest.mark.covers("nodes-calls")
async def test_a_computer_that_does_not_read_does_not_delay_others(stage: Stage) -> None:
    """What no longer fits is refused, and the node of the others goes on."""
    slow = await Wire.connect(stage.there.url)
    await slow.join("computer", "slow", stage.office)
    slow.stop_reading()
    stage.go.set()
    calls = [
        asyncio.create_task(stage.agent.call_tool("slow", params={"text": "x" * 1_000_000}, timeout=1))
        for _ in range(40)
    ]
    assert await stage.agent.call_tool("laptop") == DONE
    codes = {(await call)["error"]["code"] for call in calls}
    assert 429 in codes
    assert codes <= {429, 408, 404}
    assert await stage.agent.call_tool("laptop") == DONE
    await slow.close()


@pytest.mark.covers("nodes-calls")
async def test_an_agent_that_does_not_read_does_not_delay_others(stage: Stage, office: str) -> None:
    text = "x" * 1_000_000
    stage.computer.answers("client:tool_call", {"content": [{"type": "text", "text": text}], "isError": False})
    other = await stage.nodes.connect(stage.here, "agent", "other", f"{office}-2")
    other_computer = await stage.nodes.connect(stage.there, "computer", "laptop", f"{office}-2")
    other_computer.answers("client:tool_call", DONE)
    wire = await Wire.connect(stage.here.url)
    await wire.join("agent", "planner", office, instance=SECRET)
    wire.stop_reading()
    call = {"agent": "planner", "computer": "laptop", "tool_name": "t", "params": {}, "timeout": 20}
    for number in range(2, 42):
        await wire.send(f"42/smcp,{number}{json.dumps(['client:tool_call', {**call, 'req_id': f'r{number}'}])}")
    await stage.computer.was_asked("client:tool_call", 40)
    assert await other.call_tool("laptop") == DONE
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


@pytest.mark.covers("nodes-calls", "office-one-agent")
async def test_a_call_for_an_agent_without_a_seat_reaches_no_computer(stage: Stage, valkey: Valkey) -> None:
    stage.go.set()
    async with aclosing_directory(RedisDirectory(valkey.url, node="n9", prefix=stage.nodes.prefix)) as directory:
        asked = {"agent": "rival", "computer": "laptop", "tool_name": "t", "params": {}, "timeout": 5, "req_id": "r"}
        caller = Member("n9.s", "agent", "rival", stage.office)
        target = Member(stage.computer.sid, "computer", "laptop", stage.office)
        envelope = Envelope(json.dumps(asked).encode())
        call = Call(lookup("client:tool_call"), caller, target, envelope, "r", 0, None, 5, 5, caller.sid, target.sid)
        impostor = Impostor(directory)
        impostor.node_calls.ask("n2", call, 5, sent_before=False)
        outcome = await asyncio.wait_for(impostor.outcome, 20)
        assert isinstance(outcome, Refused)
        assert isinstance(outcome.error, NotInOffice)
    assert stage.computer.asked == []
    assert await stage.agent.call_tool("laptop") == DONE


@asynccontextmanager
async def aclosing_directory(directory: RedisDirectory) -> AsyncIterator[RedisDirectory]:
    await directory.start()
    try:
        yield directory
    finally:
        await directory.close()


@pytest.mark.covers("nodes-calls")
async def test_a_call_asks_nothing_of_the_directory(
    stage: Stage, valkey: Valkey, record_testsuite_property: Record
) -> None:
    stage.go.set()
    for _ in range(3):
        assert await stage.agent.call_tool("laptop") == DONE
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
