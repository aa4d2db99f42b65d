"""Both clients behind one interface, so that a test runs with either."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from a2c_smcp.agent import AsyncSMCPAgentClient, SMCPAgentClient
from a2c_smcp.endpoint import Reconnect
from a2c_smcp.loops import in_thread

KINDS = (AsyncSMCPAgentClient, SMCPAgentClient)
SOON = Reconnect(first=0.1, longest=0.2)


class Twin:
    """A client whose methods are all awaited: those of the blocking one run in a thread."""

    def __init__(self, client: AsyncSMCPAgentClient | SMCPAgentClient) -> None:
        self.client = client
        self.registry = client.registry

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.client, name)
        if isinstance(self.client, AsyncSMCPAgentClient) or not callable(found):
            return found
        return lambda *args, **options: in_thread(partial(found, *args, **options))

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
