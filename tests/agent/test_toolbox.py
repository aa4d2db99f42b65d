"""After any sequence of events an agent's registry shows exactly the tools that its computers offer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.agent.toolbox import RemoteTool
from a2c_smcp.agent.types import Seat
from tests.agent.twins import SOON
from tests.computer.hosted import Relay
from tests.peer import Peer
from tests.waiting import until

TOOLS = ("add", "sub", "laptop__add")

seats = st.builds(Seat, st.sampled_from(["desk", "home"]), st.sampled_from(["laptop", "tower"]))
tools = st.sets(st.sampled_from(TOOLS))
steps = st.one_of(
    st.tuples(st.just("enter"), seats, tools),
    st.tuples(st.just("leave"), seats),
    st.tuples(st.just("vanish"), seats),
    st.tuples(st.just("update"), seats, tools),
    st.tuples(st.just("update_unheard"), seats, tools),
    st.tuples(st.just("cut")),
    st.tuples(st.just("add_local"), st.sampled_from(TOOLS)),
    st.tuples(st.just("remove_local"), st.sampled_from(TOOLS)),
)


class World:
    """Computers that come and go, and an agent whose connection can be cut. The offices are used by nothing else."""

    def __init__(self, url: str, relay: Relay) -> None:
        self.url, self.relay = url, relay
        self.suffix = uuid4().hex[:8]
        self.peers: dict[Seat, Peer] = {}
        self.offered: dict[Seat, set[str]] = {}
        self.local: set[str] = set()
        self.agent: AsyncSMCPAgentClient

    def here(self, seat: Seat) -> Seat:
        return Seat(f"{seat.office}-{self.suffix}", seat.computer)

    async def enter(self, seat: Seat, offered: set[str]) -> None:
        if seat in self.peers:
            return
        peer = self.peers[seat] = await Peer.connect(self.url, transports=["websocket"])
        self.offered[seat] = offered
        peer.answers("client:get_tools", lambda request: {"tools": self.listing(seat), "req_id": request["req_id"]})
        await peer.join("computer", seat.computer, seat.office)

    def listing(self, seat: Seat) -> list[dict[str, Any]]:
        empty = {"description": "", "params_schema": {}, "return_schema": None}
        return [{"name": name, **empty} for name in self.offered.get(seat, ())]

    async def leave(self, seat: Seat) -> None:
        if peer := self.forget(seat):
            await peer.ask("server:leave_office", {"office_id": seat.office})
            await peer.close()

    async def vanish(self, seat: Seat) -> None:
        if peer := self.forget(seat):
            await peer.drop()

    def forget(self, seat: Seat) -> Peer | None:
        self.offered.pop(seat, None)
        return self.peers.pop(seat, None)

    async def update(self, seat: Seat, offered: set[str]) -> None:
        if peer := self.peers.get(seat):
            self.offered[seat] = offered
            await peer.ask("server:update_tool_list", {"computer": seat.computer})

    async def update_unheard(self, seat: Seat, offered: set[str]) -> None:
        """The agent's connection is cut when the notice is sent."""
        self.relay.close()
        await self.update(seat, offered)
        self.relay.reopen()

    async def cut(self) -> None:
        self.relay.cut()

    async def add_local(self, name: str) -> None:
        self.agent.registry.tool(lambda: name, name=name)
        self.local.add(name)

    async def remove_local(self, name: str) -> None:
        if name in self.local:
            self.local.discard(name)
            self.agent.registry.unregister(name)

    def is_in_step(self) -> bool:
        """Each tool is shown once, under one of its own names, and nothing else is; local tools are untouched."""
        items = self.agent.registry.items()
        remote = {name: tool for name, tool in items if isinstance(tool, RemoteTool)}
        shown = sorted((str(tool.seat), tool.tool["name"]) for tool in remote.values())
        offered = sorted((str(seat), tool) for seat, tools in self.offered.items() for tool in tools)
        local = {name for name, _ in items} - remote.keys()
        return shown == offered and local == self.local and all(map(self.is_rightly_named, remote.items()))

    def is_rightly_named(self, named: tuple[str, RemoteTool]) -> bool:
        (name, remote), (office, computer) = named, named[1].seat
        tool = remote.tool["name"]
        if name == tool:
            others = {seat.computer for seat in self.offered} - {computer}
            return not any(name.startswith(f"{other}__") for other in others)
        return name in (f"{computer}__{tool}", f"{office}__{computer}__{tool}")


@asynccontextmanager
async def a_world(url: str) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        relay = Relay(url)
        world = World(url, relay)
        offices = {world.here(Seat(office, "")).office for office in ("desk", "home")}
        line = await stack.enter_async_context(relay.open())
        world.agent = AsyncSMCPAgentClient("planner", url=line, office=offices, reconnect=SOON)
        await stack.enter_async_context(world.agent)
        yield world
        await asyncio.gather(*(peer.close() for peer in world.peers.values()))


async def live_through(url: str, history: list[tuple[Any, ...]]) -> None:
    async with a_world(url) as world:
        for what, *about in history:
            await getattr(world, what)(*(world.here(each) if isinstance(each, Seat) else each for each in about))
        await until(world.is_in_step)


@pytest.mark.covers("agent-registry", "agent-reacts", "agent-rejoins")
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.lists(steps, max_size=12))
def test_the_registry_equals_what_the_computers_offer(shared_hub: Any, history: list[tuple[Any, ...]]) -> None:
    asyncio.run(live_through(shared_hub.url, history))
