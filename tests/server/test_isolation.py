"""Hostile members: whatever one sends, calls of other offices are not delayed, and nothing of it is kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.peer import PATIENCE, Peer
from tests.stage.calls import RESULT, both
from tests.stage.frames import BINARY, TEXT, Socket, frame
from tests.stage.neighbours import MIB, Meets, memory, neighbours_calling
from tests.stage.program import Program
from tests.waiting import until

pytestmark = pytest.mark.covers("walls-large-payloads")

NEARLY_ALL = 4 * MIB - 8 * 1024
"""Nearly a whole message."""


def arrays(size: int = NEARLY_ALL) -> str:
    """JSON that takes a hundred times as long to parse as to read."""
    return f"[{','.join(['[]'] * (size // 3 - 2))}]"


def event(name: str, body: str, number: int = 7) -> bytes:
    return frame(TEXT, f'42/smcp,{number}["{name}",{body}]'.encode())


class Hostile:
    """A member whose frames are made beforehand, so that sending them costs this process nothing."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self.answers: list[bytes] = []
        self._listening: asyncio.Task[None] | None = None

    async def join(self, role: str, name: str, office: str) -> None:
        await self._socket.connect()
        self.send(event("server:join_office", json.dumps({"role": role, "name": name, "office_id": office}), 1))
        assert (await self._socket.receive())[1] == b"43/smcp,1[true,null]"

    def listen(self) -> None:
        self._listening = asyncio.create_task(self._listen())

    def send(self, data: bytes) -> None:
        self._socket.writer.write(data)

    async def send_often(self, data: bytes, times: int) -> None:
        """Waits until they have left this process."""
        for _ in range(times):
            self.send(data)
            await self._socket.writer.drain()

    async def end(self) -> None:
        if self._listening:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        await self._socket.end()

    async def _listen(self) -> None:
        while True:
            kind, data = await self._socket.receive()
            if data == b"2":
                self.send(frame(TEXT, b"3"))
            elif kind == TEXT:
                self.answers.append(data[:200])


@pytest.fixture
async def hostile() -> AsyncIterator[Callable[..., Any]]:
    """A hostile member of an office."""
    async with AsyncExitStack() as stack:

        async def come(
            program: Program, role: str, name: str, office: str = "theirs", *, reads: bool = True
        ) -> Hostile:
            host, port = program.url.removeprefix("http://").split(":")
            member = Hostile(Socket(*await asyncio.open_connection(host, int(port))))
            stack.push_async_callback(member.end)
            await member.join(role, name, office)
            if reads:
                member.listen()
            return member

        yield come


async def answered(member: Hostile, times: int) -> None:
    await until(lambda: len(member.answers) >= times, PATIENCE * 3)


@pytest.mark.covers("calls-duplicates")
async def test_large_calls_under_one_req_id_do_not_delay_others(program: Program, meets: Meets, hostile: Any) -> None:
    await hostile(program, "computer", "victim")
    agent = await hostile(program, "agent", "evil")
    call = '{{"agent":"evil","req_id":"r","computer":"victim","tool_name":"t","timeout":600,"params":{{"x":{}}}}}'
    async with neighbours_calling(program, meets):
        await agent.send_often(event("client:tool_call", call.format(arrays())), 12)
        agent.send(event("client:tool_call", call.format(arrays(3 * MIB))))
        await answered(agent, 1)
    assert [b'"code":400' in answer for answer in agent.answers] == [True], "only the one with other params is refused"


SLOW = {
    "an update": ("server:update_desktop", '{{"computer":"evil","x":{}}}'),
    "an update with half a surrogate pair": ("server:update_desktop", '{{"computer":"evil","x":{},"y":"\\ud800"}}'),
    "an update whose name is an array": ("server:update_desktop", '{{"computer":{}}}'),
    "an event with an array": ("server:update_desktop", "{}"),
    "an event with two objects": ("server:update_desktop", '{{"computer":"evil","x":{}}},{{}}'),
    "a request to join": ("server:join_office", '{{"role":"computer","name":"evil","office_id":"theirs","x":{}}}'),
}


@pytest.mark.parametrize(("name", "body"), SLOW.values(), ids=SLOW)
async def test_large_events_of_a_computer_do_not_delay_other_offices(
    program: Program, meets: Meets, hostile: Any, name: str, body: str
) -> None:
    computer = await hostile(program, "computer", "evil")
    async with neighbours_calling(program, meets):
        await computer.send_often(event(name, body.format(arrays())), 8)
        await answered(computer, 8)


async def test_large_cancels_do_not_delay_other_offices(program: Program, meets: Meets, hostile: Any) -> None:
    agent, computer = await hostile(program, "agent", "evil"), await hostile(program, "computer", "laptop")
    cancel = f'{{"agent":"evil","req_id":"r","newer":{arrays()},"half":"\\ud800"}}'
    async with neighbours_calling(program, meets):
        await agent.send_often(event("server:tool_call_cancel", cancel), 8)
        await answered(agent, 8)
        await answered(computer, 8)
    assert all(b"notify:tool_call_cancel" in notice for notice in computer.answers)


async def test_a_large_and_unusual_payload_arrives_as_it_was_sent(agent: Peer, computer: Peer, office: str) -> None:
    unusual = {"half": "\ud800", "huge": 10**40, "pad": "x" * 100_000}
    assert await computer.ask("server:update_newer", {"computer": "laptop", **unusual}) is None
    assert await agent.hears("notify:update_newer") == {"computer": "laptop", "office_id": office, **unusual}
    computer.answers("client:tool_call", lambda data: {"content": [], "echo": data["params"]})
    assert (await agent.call_tool("laptop", params=unusual))["echo"] == unusual
    assert (await agent.call_tool("laptop\ud800", params=unusual))["code"] == 400


async def test_much_json_beside_binary_attachments_is_refused(program: Program, meets: Meets, hostile: Any) -> None:
    agent = await hostile(program, "agent", "evil")
    body = f'{{"computer":"x","x":{arrays()},"b":{{"_placeholder":true,"num":0}}}}'
    packet = frame(TEXT, f'451-/smcp,7["client:newer",{body}]'.encode()) + frame(BINARY, b"x")
    async with neighbours_calling(program, meets):
        await agent.send_often(packet, 8)
        await answered(agent, 8)
    assert all(b'"code":413' in answer for answer in agent.answers)


@pytest.mark.covers("limit-seats")
async def test_a_connection_has_at_most_64_seats_and_keeps_those_it_has(agent: Peer, office: str) -> None:
    for number in range(63):
        await agent.join("agent", "planner", f"{office}-{number}")
    refused, why = await agent.ask_to_join("agent", "planner", f"{office}-one-more")
    assert (refused, why) == (False, "429 Too much at once: a connection has at most 64 seats, leave an office first")
    await agent.join("agent", "planner", office)
    assert await agent.ask("server:leave_office", {"office_id": f"{office}-7"}) == (True, None)
    await agent.join("agent", "planner", f"{office}-one-more")


@pytest.mark.covers("limit-updates")
async def test_large_notices_have_a_budget_of_which_every_copy_counts(serve: Any, connect: Any, office: str) -> None:
    hub = await serve(limits={"told_bytes": MIB})
    agent, computer = await both(connect, hub, office)
    large = {"computer": "laptop", "pad": "x" * 200 * 1024}
    answers = [await computer.ask("server:update_newer", large) for _ in range(3)]
    assert answers[:2] == [None, None]
    assert answers[2]["code"] == 429
    assert (await computer.ask("server:update_newer", {"computer": "laptop", "pad": "x" * 600 * 1024}))["code"] == 413
    cancel = {"agent": "planner", "req_id": "r", "pad": "x" * 600 * 1024}
    assert (await agent.ask("server:tool_call_cancel", cancel))["code"] == 413
    assert await computer.ask("server:update_newer", {"computer": "laptop"}) is None, "small ones are never held up"


@pytest.mark.covers("walls-refused-calls")
async def test_nothing_is_kept_of_calls_that_are_refused(program: Program, hostile: Any) -> None:
    await hostile(program, "computer", "sloth", reads=False)
    agent = await hostile(program, "agent", "evil")
    before = memory(program)
    for number in range(60):
        call = f'{{"agent":"evil","req_id":"r{number}","computer":"sloth","tool_name":"t","timeout":600,"params":'
        agent.send(event("client:tool_call", f'{call}{{"x":"{"x" * NEARLY_ALL}"}}}}', number))
    await until(lambda: sum(b'"code":429' in answer for answer in agent.answers) >= 50, PATIENCE * 3)
    await until(lambda: memory(program) - before < 100 * MIB, PATIENCE)  # half of what was refused


@pytest.mark.covers("calls-kept-answer")
async def test_an_office_with_many_kept_answers_costs_no_other_its_own(serve: Any, connect: Any, office: str) -> None:
    hub = await serve(limits={"max_kept": 8, "max_kept_bytes": 8 * 1024})
    pairs = []
    for where in (office, f"{office}-greedy"):
        agent, computer = await connect(hub), await connect(hub)
        await agent.join("agent", "planner", where, instance=f"instance-of-{where}")
        await computer.join("computer", "laptop", where)
        computer.answers("client:tool_call", lambda data: {**RESULT, "n": data["req_id"], "pad": "x" * 500})
        pairs.append((agent, computer))
    (agent, computer), (greedy, _) = pairs
    first = await agent.call_tool("laptop", req_id="mine")
    for number in range(40):
        await greedy.call_tool("laptop", req_id=f"r{number}")
    assert await agent.call_tool("laptop", req_id="mine") == first
    assert len(computer.asked) == 1, "the answer was still there"
