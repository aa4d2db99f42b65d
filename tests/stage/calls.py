"""Calls of raw clients: a usual result, and a computer that waits before it answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from tests.peer import Peer, Wire

RESULT = {"content": [{"type": "text", "text": "done"}], "isError": False}
MINE, OTHER = "instance-of-this-client", "instance-of-another-client"
HUGE = 123456789012345678901234567890
"""More than 64 bits."""


class Gate:
    """A computer's answer that waits until it is let through."""

    def __init__(self, answer: Any = RESULT) -> None:
        self._open = asyncio.Event()
        self._answer = answer

    def open(self) -> None:
        self._open.set()

    async def __call__(self, data: Any) -> Any:
        await self._open.wait()
        return self._answer


async def call_and_forget(agent: Peer, computer: Peer, req_id: str = "r1", times: int = 1, answer: Any = None) -> None:
    """The agent calls a tool and does not wait; the computer has got so many calls, and answers like this."""
    if answer is not None:
        computer.answers("client:tool_call", answer)
    call = {"agent": "planner", "req_id": req_id, "computer": "laptop", "tool_name": "add", "params": {}, "timeout": 30}
    await agent.client.emit("client:tool_call", call, namespace="/smcp")
    await computer.was_asked("client:tool_call", times)


def verdict(answer: dict[str, Any]) -> tuple[int, str]:
    """The code of a failed call, and whether it ran."""
    return answer["code"], answer["details"]["outcome"]


async def sessions(agent: Peer) -> list[dict[str, Any]]:
    """The members of its office, as an agent sees them."""
    answer = await agent.ask("server:list_room", {"agent": agent.name, "req_id": "r", "office_id": agent.office})
    members: list[dict[str, Any]] = answer["sessions"]
    return members


async def both(connect: Callable[..., Awaitable[Any]], hub: Any, office: str) -> tuple[Any, Any]:
    """An agent called `planner` and a computer called `laptop` in one office, as `connect` makes them.

    Without a hub, they are clients of the shared one.
    """
    agent, computer = await connect(hub), await connect(hub)
    await agent.join("agent", "planner", office)
    await computer.join("computer", "laptop", office)
    return agent, computer


async def running_call(agent: Peer, computer: Peer, answer: Any, **call: Any) -> asyncio.Task[Any]:
    """A call that its computer has been asked for, and answers like this."""
    computer.answers("client:tool_call", answer)
    task = asyncio.create_task(agent.call_tool(computer.name, **call))
    await computer.was_asked("client:tool_call")
    return task


def call_by_hand(number: int, req_id: str, **more: Any) -> str:
    """The frame of a call of `planner`, whose ack has this number."""
    call = {"agent": "planner", "computer": "laptop", "tool_name": "add", "timeout": 5, "params": {}, "req_id": req_id}
    return f'42/smcp,{number}["client:tool_call",{json.dumps(call | more)}]'


async def answer_all(computer: Wire) -> None:
    """Answers every request, without reading more of it than the id of its ack."""
    head = "42/smcp,"
    while frame := await computer.receive():
        if frame.startswith(head) and (number := frame[len(head) :].partition("[")[0]):
            await computer.send(f"43/smcp,{number}[{json.dumps(RESULT)}]")
