"""Real computers of ours in one office, each with so many tools and windows, and a cheap agent that asks them."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.configuration import stdio_server, written
from benchmarks.load import Agent, upgraded
from benchmarks.machine import measured_core
from benchmarks.processes import PATIENCE, PROGRAM, Running, hub, running

__all__ = ["Desk", "Request", "Spent", "desks"]

OFFICE, AGENT, SERVER = "desk", "planner", "things"
SMALLEST_ENTRY = 100
"""A tool or window in an answer is larger than that, in bytes."""

POLL = 0.1


@dataclass(frozen=True, slots=True)
class Request:
    """What is said, with places for the ack id and the req_id, and how large the answer is at least."""

    text: bytes
    smallest: int = 0


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of CPU per request."""

    server: float
    computer: float


@dataclass(frozen=True, slots=True)
class Desk:
    """A computer, and who asks it."""

    tools: int
    windows: int
    agent: Agent
    server: Running
    computer: Running

    def tool_call(self) -> Request:
        """The last tool of all."""
        tool = {"tool_name": f"{SERVER}_{self.tools - 1}", "params": {"text": "tea"}, "timeout": 10}
        return self._request("client:tool_call", 0, **tool)

    def get_tools(self) -> Request:
        return self._request("client:get_tools", self.tools * SMALLEST_ENTRY)

    def get_desktop(self) -> Request:
        return self._request("client:get_desktop", self.windows * SMALLEST_ENTRY)

    async def spent(self, request: Request, *, in_flight: int, seconds: float) -> Spent:
        """Asks for so long."""
        server, computer, until = self.server.cpu, self.computer.cpu, time.perf_counter() + seconds
        async with asyncio.timeout(seconds + PATIENCE):
            asked = len(await self.agent.calls(request.text, in_flight, until, request.smallest))
        return Spent((self.server.cpu_since(server) or 0) / asked, (self.computer.cpu_since(computer) or 0) / asked)

    async def complete(self) -> None:
        """Waits until it shows everything that it has."""
        async with asyncio.timeout(PATIENCE):
            for request in (self.get_tools(), self.get_desktop()):
                while True:
                    if await self._answers(request):
                        break
                    await asyncio.sleep(POLL)

    async def _answers(self, request: Request) -> bool:
        """With the first entry of a list, that is: neither with an error nor with an empty one."""
        head = await self.agent.ask(request.text % (0, time.monotonic_ns()), b"43/smcp,0[")
        return head.startswith((b'43/smcp,0[{"tools":[{', b'43/smcp,0[{"desktops":["'))

    def _request(self, event: str, smallest: int, **more: Any) -> Request:
        data = {"agent": AGENT, "req_id": "req-%d", "computer": _name(self.tools), **more}
        return Request(f"42/smcp,%d{json.dumps([event, data])}".encode(), smallest)


@asynccontextmanager
async def desks(sizes: Iterable[tuple[int, int]]) -> AsyncIterator[list[Desk]]:
    """A computer for every number of tools and windows."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url, server = await stack.enter_async_context(hub())
        server.pin(measured_core())
        session = await stack.enter_async_context(aiohttp.ClientSession())
        agent = await stack.enter_async_context(upgraded(Agent, session, url))
        await agent.join("agent", AGENT, OFFICE)
        found = []
        for tools, windows in sizes:
            servers = [stdio_server(SERVER, "mcp_server.py", SERVER, tools, windows, 0)]
            config = written(folder / f"{tools}.json", servers)
            seat = ("--name", _name(tools), "--url", url, "--office", OFFICE, "--config", config)
            starting = running(PROGRAM, "computer", "--no-input", *seat, environment={"HOME": str(folder)})
            found.append(Desk(tools, windows, agent, server, await stack.enter_async_context(starting)))
        for desk in found:
            await desk.complete()
        yield found


def _name(tools: int) -> str:
    return f"computer-{tools}"
