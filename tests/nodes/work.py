"""Our own Computer and Agent: a tool that counts how often it ran for whom, and somebody who calls it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer.computer import Computer
from tests.agent.twins import SOON

__all__ = ["Worker", "at_work"]


class Worker:
    """A computer whose tool waits until it may go on, or for as long as it is told."""

    def __init__(self, name: str = "laptop") -> None:
        self.computer = Computer(name)
        self.runs: Counter[int] = Counter()
        self.go = asyncio.Event()
        self.computer.tool(auto_apply=True)(self.work)

    async def work(self, number: int = 0, seconds: float = -1) -> int:
        self.runs[number] += 1
        await (self.go.wait() if seconds < 0 else asyncio.sleep(seconds))
        return number


@asynccontextmanager
async def at_work(url: str, office: str, name: str = "planner") -> AsyncIterator[AsyncSMCPAgentClient]:
    """An agent, from coming to leaving."""
    agent = AsyncSMCPAgentClient(name, url=url, office=office, reconnect=SOON)
    await agent.connect()
    try:
        yield agent
    finally:
        await agent.disconnect()
