"""Names of tools in an agent's registry, which shows exactly the tools that its computers offer, whatever happens."""

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
from a2c_smcp.agent.desktops import Seat
from a2c_smcp.agent.toolbox import Offer, RemoteTool, ToolNames
from tests.computer.hosted import Relay
from tests.peer import Peer
from tests.stage.agent import SOON
from tests.waiting import until

pytestmark = pytest.mark.covers("agent-registry")

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


@pytest.mark.covers("agent-reacts", "agent-rejoins")
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.lists(steps, max_size=12))
def test_the_registry_equals_what_the_computers_offer(shared_hub: Any, history: list[tuple[Any, ...]]) -> None:
    asyncio.run(live_through(shared_hub.url, history))


@pytest.mark.covers("agent-reacts")
async def test_a_tool_is_back_after_a_local_one_of_its_name_has_come_and_gone_at_once(shared_hub: Any) -> None:
    async with a_world(shared_hub.url) as world:
        await world.enter(world.here(LAPTOP), {"sub"})
        await until(world.is_in_step)
        await world.add_local("sub")
        await world.remove_local("sub")
        await until(lambda: "sub" in world.agent.registry)
        assert world.is_in_step()


LAPTOP, TOWER = Seat("desk", "laptop"), Seat("desk", "tower")
ELSEWHERE = Seat("home", "laptop")

words = st.sampled_from(["a", "b", "a__b", "a__a", "b__a__b"])
offers = st.dictionaries(st.builds(Seat, words, words), st.lists(words, unique=True), max_size=6)


def test_a_tool_that_is_offered_later_takes_no_name_of_another() -> None:
    names = ToolNames()
    for seat in (LAPTOP, TOWER):
        names.enter(seat)
    mail, late = Offer(TOWER, "send_mail"), Offer(LAPTOP, "send_mail")
    names.change(come=[mail], number=1)
    assert names.change(come=[late], number=2) == (set(), {"laptop__send_mail": late})
    assert names.change(gone=[mail]) == ({"send_mail", "laptop__send_mail"}, {"send_mail": late})


def test_a_name_with_the_prefix_of_a_computer_belongs_to_that_computer() -> None:
    names = ToolNames()
    names.enter(TOWER)
    lookalike = Offer(TOWER, "laptop__add")
    assert names.change(come=[lookalike]).won == {"laptop__add": lookalike}
    assert names.enter(LAPTOP) == ({"laptop__add"}, {"tower__laptop__add": lookalike})
    assert names.leave(LAPTOP) == ({"tower__laptop__add"}, {"laptop__add": lookalike})


@given(st.lists(st.tuples(offers, st.sets(words)), min_size=1, max_size=5))
def test_names_follow_the_rule_after_any_changes(history: list[tuple[dict[Seat, list[str]], set[str]]]) -> None:
    names, here, held, numbers = ToolNames(), set[Offer](), dict[str, Offer](), dict[Offer, int]()
    for number, (offered, local) in enumerate(history):
        now = {Offer(seat, tool) for seat, tools in offered.items() for tool in tools}
        seats, seats_before = {offer.seat for offer in now}, {offer.seat for offer in here}
        numbers = {offer: numbers.get(offer, number) for offer in now}
        for renaming in (
            *map(names.enter, seats - seats_before),
            names.change(come=now - here, number=number, gone=here - now, local=local),
            *map(names.leave, seats_before - seats),
        ):
            held = {name: offer for name, offer in held.items() if name not in renaming.lost} | renaming.won
        here = now
        assert {offer: name for name, offer in held.items()} == plainly(numbers, local)
        assert all(names.of(offer) == name for name, offer in held.items())


def plainly(numbers: dict[Offer, int], local: set[str]) -> dict[Offer, str]:
    """The rule, word for word: at each length a name goes to the first of those who may have it."""
    named: dict[Offer, str] = {}
    seats = {offer.seat for offer in numbers}
    for length in (1, 2, 3):
        taken = local | {*named.values()}
        for offer in sorted(numbers.keys() - named.keys(), key=lambda offer: (numbers[offer], offer)):
            name = "__".join((*offer.seat, offer.tool)[-length:])
            if name not in taken and may_have(offer, name, seats):
                named[offer] = name
                taken.add(name)
    return named


def may_have(offer: Offer, name: str, seats: set[Seat]) -> bool:
    begins = [(len(start), seat) for seat in seats for start in beginnings(seat) if name.startswith(f"{start}__")]
    longest = max((length for length, _ in begins), default=0)
    return not begins or offer.seat in {seat for length, seat in begins if length == longest}


def beginnings(seat: Seat) -> tuple[str, str]:
    return seat.computer, f"{seat.office}__{seat.computer}"


def test_a_change_among_many_computers_renames_only_what_it_concerns() -> None:
    names = ToolNames()
    for number in range(200):
        seat = Seat("desk", f"computer-{number}")
        names.enter(seat)
        names.change(come=[Offer(seat, f"tool-{tool}") for tool in range(50)], number=number)
    mine = [Offer(Seat("desk", "computer-7"), f"tool-{tool}") for tool in range(50)]
    assert names.change(gone=mine) == ({f"computer-7__tool-{tool}" for tool in range(50)}, {})
    assert names.change(come=mine, number=200).won == {f"computer-7__{offer.tool}": offer for offer in mine}
    first = Offer(Seat("desk", "computer-0"), "tool-0")
    assert names.change(local=["tool-0"]) == ({"tool-0"}, {"computer-0__tool-0": first})
