"""Audit files of several nodes: a call is one line in one of them, also if its members move while it runs."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from a2c_smcp.audit.reading import EntryFilter, entries, verify
from a2c_smcp.loops import OwnedTasks
from a2c_smcp.protocol.offices import Member, join
from a2c_smcp.server import DefaultAuthenticationProvider
from a2c_smcp.server.calls.call import Call
from a2c_smcp.server.cluster.memory import DirectoryListener
from a2c_smcp.server.cluster.node_calls import NodeCalls, NodeRequest
from a2c_smcp.server.cluster.redis import RedisDirectory
from a2c_smcp.server.envelope import Answer
from tests.cluster import STEADY, serving_node
from tests.conftest import Hub
from tests.peer import Peer
from tests.stage.bound_keys import DEVICE, keys_file, session_at, sit
from tests.stage.calls import RESULT, Gate, answer_all, call_by_hand, running_call
from tests.valkey import Valkey
from tests.waiting import until

TOOL = "client:tool_call"


async def nodes(stack: AsyncExitStack, valkey: Valkey, prefix: str, files: list[Path]) -> list[Hub]:
    """One for each file."""
    each = [serving_node(valkey.url, prefix, file.stem, audit=file) for file in files]
    return [await stack.enter_async_context(node) for node in each]


async def member(stack: AsyncExitStack, url: str, role: str, name: str, answer: Any = None) -> Peer:
    peer = await Peer.connect(url)
    stack.push_async_callback(peer.client.disconnect)
    peer.answers(TOOL, answer)
    await peer.join(role, name, "desk", instance=f"instance-of-{name}-0123456789")
    return peer


@pytest.mark.parametrize("first", ["agent", "computer"])
async def test_a_call_whose_agent_and_computer_move_to_another_node_is_one_line(
    valkey: Valkey, prefix: str, tmp_path: Path, first: str
) -> None:
    files = [tmp_path / "n1.jsonl", tmp_path / "n2.jsonl"]
    async with AsyncExitStack() as stack:
        hubs = await nodes(stack, valkey, prefix, files)
        agent = await member(stack, hubs[0].url, "agent", "planner")
        computer = await member(stack, hubs[0].url, "computer", "laptop")
        lost = await running_call(agent, computer, Gate(), req_id="r1", timeout=30)
        await agent.drop()
        await computer.drop()
        lost.cancel()
        gate = Gate(RESULT)
        for role in (first, "computer" if first == "agent" else "agent"):
            if role == "agent":
                agent = await member(stack, hubs[1].url, "agent", "planner")
                again = asyncio.create_task(agent.call_tool("laptop", req_id="r1", timeout=30, sent_before=True))
            else:
                computer = await member(stack, hubs[1].url, "computer", "laptop", gate)
        await computer.was_asked(TOOL)
        gate.open()
        assert await again == RESULT
    found = [entry for file in files for entry in entries(file, EntryFilter({"event": "call"}))]
    assert [(entry["req_id"], entry["outcome"]) for entry in found] == [("r1", "ok")]
    assert all(verify(file)[0] == [] for file in files)


async def test_a_call_names_the_device_of_a_computer_on_another_node(
    valkey: Valkey, prefix: str, tmp_path: Path, path: Path
) -> None:
    auth = DefaultAuthenticationProvider(keys_file=keys_file(tmp_path))
    async with (
        serving_node(valkey.url, prefix, "n1", audit=path, auth=auth) as one,
        serving_node(valkey.url, prefix, "n2", auth=auth) as two,
        session_at(one.url) as agent,
        session_at(two.url) as computer,
    ):
        await sit("desk", agent, computer)
        answering = asyncio.create_task(answer_all(computer.wire))
        for number in (7, 8):
            await agent.wire.ask(call_by_hand(number, f"r{number}"), number)
        answering.cancel()
    found = entries(path, EntryFilter({"event": "call"}))
    assert [(entry["outcome"], entry["computer_device"]) for entry in found] == [("ok", DEVICE.fingerprint)] * 2


class OwnerOfCalls(DirectoryListener):
    """A node whose computer is asked, and answers when the test wants it to."""

    def __init__(self, directory: RedisDirectory) -> None:
        self.requests: asyncio.Queue[NodeRequest] = asyncio.Queue()
        self._node_calls = NodeCalls(
            directory, lambda *answered: None, lambda *told: None, lambda sid: None, OwnedTasks()
        )
        directory.listener = self

    def message_received(self, message: bytes) -> None:
        for request in self._node_calls.receive(message):
            self.requests.put_nowait(request)


def call_of(request: NodeRequest, computer: Member) -> Call:
    """The call as its owner has it that knows no other place of the agent."""
    sids = request.caller.sid, computer.sid
    return Call(
        request.event, request.caller, computer, request.envelope, request.req_id, 0, None, 30, monotonic() + 30, *sids
    )


async def test_an_answer_for_an_agent_that_has_just_gone_to_another_node_is_recorded_once(
    valkey: Valkey, prefix: str, tmp_path: Path
) -> None:
    """Its owner has heard of the change later than the node that it answers."""
    files = [tmp_path / "n1.jsonl", tmp_path / "n3.jsonl"]
    async with AsyncExitStack() as stack:
        one, three = await nodes(stack, valkey, prefix, files)
        directory = RedisDirectory(valkey.url, node="n2", prefix=prefix, pace=STEADY)
        owner = OwnerOfCalls(directory)
        await directory.start()
        stack.push_async_callback(directory.close)
        computer = Member("n2.a-session", "computer", "laptop", "desk", "a-digest", "anybody")
        assert await directory.commit(join(computer, [await directory.office("desk")]))
        agent = await member(stack, one.url, "agent", "planner")
        lost = asyncio.create_task(agent.call_tool("laptop", req_id="r1", timeout=30))
        request = await owner.requests.get()
        await agent.drop()
        lost.cancel()
        agent = await member(stack, three.url, "agent", "planner")
        here = one.app.hub.directory
        await until(lambda: (office := here.cached_office("desk")) and office.agent and office.agent.sid[:3] == "n3.")
        call, answer = call_of(request, computer), Answer(json.dumps([RESULT]).encode())
        request.asker.reply(request.number, request.event, answer, call)
        again = asyncio.create_task(agent.call_tool("laptop", req_id="r1", timeout=30, sent_before=True))
        request = await owner.requests.get()
        call.caller_sid = request.caller.sid
        request.asker.reply(request.number, request.event, answer, call)
        assert await again == RESULT
    found = {file.stem: [each["req_id"] for each in entries(file, EntryFilter({"event": "call"}))] for file in files}
    assert found == {"n1": ["r1"], "n3": []}
