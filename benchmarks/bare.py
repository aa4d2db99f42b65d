"""A bare python-socketio client in an office: it asks everybody alike, and our own agent is measured by it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import socketio

from benchmarks.processes import PATIENCE

__all__ = ["NAMESPACE", "BareAgent", "bare_agent", "joined"]

NAMESPACE = "/smcp"


@asynccontextmanager
async def joined(client: socketio.AsyncClient, url: str, role: str, name: str, office: str) -> AsyncIterator[None]:
    """The client in its office, under this name."""
    await client.connect(url, namespaces=[NAMESPACE], transports=["websocket"], wait_timeout=PATIENCE)
    try:
        seat = {"role": role, "name": name, "office_id": office}
        accepted, reason = await client.call("server:join_office", seat, namespace=NAMESPACE, timeout=PATIENCE)
        if not accepted:
            raise RuntimeError(reason)
        yield
    finally:
        await client.disconnect()


class BareAgent:
    """Says what the protocol asks for, and hands over what comes back."""

    def __init__(self, client: socketio.AsyncClient, name: str) -> None:
        self._client = client
        self._name = name

    async def request(self, event: str, computer: str, **more: Any) -> Any:
        data = {"agent": self._name, "req_id": uuid4().hex, "computer": computer, **more}
        return await self._client.call(event, data, namespace=NAMESPACE, timeout=PATIENCE)

    async def call_tool(self, computer: str, tool: str, params: dict[str, Any], timeout: int = 10) -> Any:
        return await self.request("client:tool_call", computer, tool_name=tool, params=params, timeout=timeout)


@asynccontextmanager
async def bare_agent(url: str, name: str, office: str) -> AsyncIterator[BareAgent]:
    client = socketio.AsyncClient(reconnection=False, websocket_extra_options={"max_msg_size": 0})
    async with joined(client, url, "agent", name, office):
        yield BareAgent(client, name)
