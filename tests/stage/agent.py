"""Both clients behind one interface, so that a test runs with either."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Self

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient, SMCPAgentClient
from a2c_smcp.endpoint import Reconnect
from a2c_smcp.loops import in_thread
from tests.computer.hosted import Relay
from tests.waiting import until

KINDS = (AsyncSMCPAgentClient, SMCPAgentClient)
both = pytest.mark.parametrize("kind", KINDS, ids=["async", "blocking"])
SOON = Reconnect(first=0.1, longest=0.2)


class Twin:
    """A client whose methods are awaited as those of the async one: those of the blocking one run in a thread."""

    def __init__(self, client: AsyncSMCPAgentClient | SMCPAgentClient) -> None:
        self.client = client
        self.registry = client.registry

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.client, name)
        waits = inspect.iscoroutinefunction(getattr(AsyncSMCPAgentClient, name, None))
        if isinstance(self.client, AsyncSMCPAgentClient) or not waits:
            return found
        return lambda *args, **options: in_thread(partial(found, *args, **options))

    async def watch_desktop(self, computer: str, **options: Any) -> AsyncIterator[list[str]]:
        frames = self.client.watch_desktop(computer, **options)
        if isinstance(self.client, AsyncSMCPAgentClient):
            async for frame in frames:
                yield frame
            return
        while (frame := await asyncio.to_thread(next, frames, None)) is not None:
            yield frame

    async def use(self, tool: str, /, **arguments: Any) -> Any:
        """Calls a tool through the registry, the way that the client's users would."""
        if isinstance(self.client, AsyncSMCPAgentClient):
            return await self.registry.acall(tool, arguments)
        return await in_thread(self.registry.call, tool, arguments)


@asynccontextmanager
async def at_work(kind: type[Any], name: str = "planner", **options: Any) -> AsyncIterator[Twin]:
    """An agent of either kind, from coming to leaving."""
    client = kind(name, **{"reconnect": SOON, **options})
    twin = Twin(client)
    await twin.connect()
    try:
        yield twin
    finally:
        await twin.disconnect()


class Line(Relay):
    """An agent's line to the Server: to the agent, `url` is the Server."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = ""

    @classmethod
    @asynccontextmanager
    async def opened(cls, url: str) -> AsyncIterator[Self]:
        line = cls(url)
        async with line.open() as line.url:
            yield line

    async def lose(self, agent: Twin) -> None:
        """Let nobody through any more, and wait until the agent has noticed."""
        self.close()
        await until(lambda: not agent.is_connected)
