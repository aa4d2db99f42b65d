"""Several nodes over one store: races, leases, the dead and the paused."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from typing import Any

import pytest

from a2c_smcp.errors import ConfigError, NameTaken, OfficeHasAgent, Unavailable
from a2c_smcp.protocol.offices import Change, Member, Office
from a2c_smcp.server.cluster.memory import LeaseLost, NameInUse, new_sid, node_of
from a2c_smcp.server.cluster.store import Store, StoreConnection
from tests.directory.nodes import LAPTOP, PLANNER, QUICK, Elsewhere, Node, Start, node_elsewhere
from tests.valkey import Valkey
from tests.waiting import until, until_it_goes

FACTS = {"url": "", "started_at": "0"}


@pytest.fixture
async def store(valkey: Valkey, prefix: str) -> AsyncIterator[Store]:
    line = await StoreConnection.open(valkey.url, 10)
    yield Store(line, prefix)
    await line.close()


async def seen(store: Store, office_id: str) -> Office:
    _, found = await store.look(office_id)
    assert found
    return found[0]


async def outcome_of(work: Awaitable[Change]) -> type:
    try:
        return type(await work)
    except Exception as error:
        return type(error)


@pytest.mark.covers("office-one-agent")
async def test_one_of_thirty_agents_on_three_nodes_gets_the_office(start: Start) -> None:
    nodes = [await start(f"n{i}") for i in range(3)]
    for round_ in range(20):
        agents = [Member(f"n{i % 3}.{i}", "agent", f"agent-{i}", f"office-{round_}") for i in range(30)]
        outcomes = await asyncio.gather(*(outcome_of(nodes[i % 3].offices.join(each)) for i, each in enumerate(agents)))
        assert Counter(outcomes) == {Change: 1, OfficeHasAgent: 29}
        winner = agents[outcomes.index(Change)]
        assert {(await node.office(winner.office_id)).agent for node in nodes} == {winner}


async def test_one_of_many_computers_on_three_nodes_gets_a_name(start: Start) -> None:
    nodes = [await start(f"n{i}") for i in range(3)]
    computers = [Member(f"n{i % 3}.{i}", "computer", f"name-{i // 6}", "north") for i in range(30)]
    outcomes = await asyncio.gather(*(outcome_of(nodes[i % 3].offices.join(each)) for i, each in enumerate(computers)))
    assert Counter(outcomes) == {Change: 5, NameTaken: 25}
    office = await nodes[0].office("north")
    assert sorted(office.computers) == [f"name-{i}" for i in range(5)]
    for node in nodes:
        await until(lambda node=node: node.cached_office("north") == office)


@pytest.mark.covers("office-resume")
async def test_one_client_on_three_nodes_at_once_ends_up_on_one_connection_with_every_seat(start: Start) -> None:
    nodes = [await start(f"n{i}") for i in range(3)]
    seats = [replace(PLANNER, sid=f"n{i % 3}.{i}", office_id=f"office-{i}") for i in range(9)]
    await asyncio.gather(*(nodes[i % 3].offices.join(each) for i, each in enumerate(seats)))
    holder = await nodes[0].holder("i1")
    agents = {(await nodes[0].office(each.office_id)).agent for each in seats}
    assert agents == {replace(each, sid=holder) for each in seats}
    assert len(await nodes[0].seats(str(holder))) == 9


async def test_a_resume_is_refused_if_the_older_connection_has_taken_another_seat_meanwhile(start: Start) -> None:
    one, two = await start("n1"), await start("n2")
    await one.offices.join(PLANNER)
    newcomer = replace(PLANNER, sid="n2.s")
    late = Change({"north": (await two.office("north")).version}, (PLANNER,), (newcomer,), replaces="n1.s")
    await one.offices.join(replace(PLANNER, office_id="south"))
    assert await two.commit(late) is False
    change = await two.offices.join(newcomer)
    assert {seat.office_id for seat in change.enters} == {"north", "south"}


@pytest.mark.covers("office-resume")
async def test_the_node_of_a_replaced_connection_learns_which_one_replaced_it(start: Start) -> None:
    one, two = await start("n1"), await start("n2")
    for i in range(20):
        ghost = replace(PLANNER, office_id=f"office-{i}", instance=f"i{i}")
        await one.offices.join(ghost)
        one.ear.changes.clear()
        takeover = asyncio.create_task(two.offices.join(replace(ghost, sid="n2.s")))
        while not (await one.office(ghost.office_id)).seat_of("n2.s"):
            pass
        await takeover
        await until(lambda: one.ear.changes)
        assert [(change.replaces, change.notices) for change in one.ear.changes] == [("n1.s", ())]
        await two.offices.vacate("n2.s")


async def test_notices_tell_a_lost_member_from_one_that_left(start: Start) -> None:
    one, two = await start("n1"), await start("n2")
    await one.offices.join(PLANNER)
    await two.offices.join(LAPTOP)
    await two.offices.leave("n2.c", "north")
    await two.offices.join(LAPTOP)
    await two.offices.leave("n2.c", "north", is_lost=True)
    await until(lambda: len(one.ear.changes) == 5)
    assert [change.is_lost for change in one.ear.changes] == [False, False, False, False, True]


async def test_calls_are_routed_without_asking_the_store(start: Start) -> None:
    one, two = await start("n1"), await start("n2")
    await one.offices.join(PLANNER)
    await two.offices.join(LAPTOP)
    await until(lambda: (office := one.cached_office("north")) and office.computers)
    assert one.cached_office("north") == two.cached_office("north")
    assert one.cached_seats("n1.s") == (PLANNER,)
    assert one.cached_seats("n1.nobody") == (), "no other node could have seated it"
    assert one.cached_seats("n2.c") is None
    assert one.cached_office("nowhere") is None


async def test_announcements_of_another_node_are_heard_in_order_with_changes(start: Start) -> None:
    one, two = await start("n1"), await start("n2")
    await one.offices.join(PLANNER)
    heard: list[Any] = []
    one.ear.office_changed = lambda office, change: heard.append(change.notices[0].event)  # type: ignore[method-assign]
    one.ear.notice_announced = lambda office_id, text: heard.append((office_id, text))  # type: ignore[method-assign]
    await two.offices.join(LAPTOP)
    assert await two.announce("north", "an update") == 2
    await two.offices.leave("n2.c", "north")
    await until(lambda: len(heard) == 3)
    assert heard == ["notify:enter_office", ("north", "an update"), "notify:leave_office"]


def test_a_session_id_names_its_node() -> None:
    assert node_of(new_sid("n1")) == "n1"
    assert [node_of(sid) for sid in ("", "abc", ".abc", "../x.y", "n 1.abc")] == [None] * 5


async def test_a_node_needs_a_name_that_fits_into_a_session_id(valkey: Valkey) -> None:
    with pytest.raises(ConfigError, match="node's name"):
        Node(valkey.url, node="n.1")


async def test_nodes_are_listed_with_their_leases_and_members(start: Start) -> None:
    one = await start("n1", node_url="http://10.0.0.1:7000")
    await start("n2")
    await one.offices.join(PLANNER)
    listed = {node.name: node for node in await one.nodes()}
    assert {name: node.members for name, node in listed.items()} == {"n1": 1, "n2": 0}
    assert listed["n1"].url == "http://10.0.0.1:7000"
    assert 500 < listed["n1"].lease <= 600
    assert listed["n1"].epoch < listed["n2"].epoch
    assert listed["n1"].started_at > 0


# Leases


async def test_an_ended_or_superseded_lease_writes_nothing(store: Store) -> None:
    join = Change({"north": 0}, enters=(PLANNER,))
    lapsed, _ = await store.register("n1", "p", "run", "", 0.01, FACTS, [])
    await asyncio.sleep(0.02)
    with pytest.raises(LeaseLost):
        await store.commit(lapsed, join)
    with pytest.raises(LeaseLost):
        await store.beat(lapsed, 60)
    superseded, _ = await store.register("n1", "p", "run", "", 60, FACTS, [])
    current, _ = await store.register("n1", "p", "run", "", 60, FACTS, [])
    for work in (store.commit(superseded, join), store.beat(superseded, 60), store.restore(superseded, [], [])):
        with pytest.raises(LeaseLost):
            await work
    assert (await seen(store, "north")).members == ()
    assert await store.commit(current, join)


async def test_a_name_is_not_given_to_another_process_while_its_lease_lasts(store: Store) -> None:
    await store.register("n1", "one", "run", "", 60, FACTS, [])
    with pytest.raises(NameInUse) as refusal:
        await store.register("n1", "another", "run", "", 60, FACTS, [])
    assert 59 < refusal.value.seconds <= 60


async def test_a_successor_of_the_same_name_waits_for_the_lease_and_frees_the_seats(start: Start, store: Store) -> None:
    lease, _ = await store.register("n1", "died", "run", "", 60, FACTS, [])
    await store.commit(lease, Change({"north": 0}, enters=(PLANNER,)))
    await store.beat(lease, 0.3)
    successor = await start("n1", pace=QUICK)
    assert (await successor.office("north")).members == ()
    assert await successor.seats("n1.s") == ()


async def test_seats_of_dead_nodes_are_freed_once(start: Start, store: Store, caplog: pytest.LogCaptureFixture) -> None:
    survivors = [await start(f"n{i}", pace=QUICK) for i in range(3)]
    for i, node in enumerate(survivors):
        await node.offices.join(Member(f"n{i}.c", "computer", f"c{i}", "office-0"))
    lease, _ = await store.register("dead", "p", "run", "", 60, FACTS, [])
    for i in range(300):
        office_id = f"office-{i % 3}"
        member, version = Member(f"d.{i}", "computer", f"d{i}", office_id), (await seen(store, office_id)).version
        await store.commit(lease, Change({office_id: version}, enters=(member,)))
    await store.beat(lease, 0.01)
    for node in survivors:
        await until(lambda node=node: len([each for each in node.ear.said if each[0] == "leave_office"]) == 100)
        assert all(node.ear.count("leave_office", "office-0", f"d{i}") == 1 for i in range(0, 300, 3))
    for office_id in ("office-1", "office-2"):
        await until_it_goes(lambda office_id=office_id: nobody_in(survivors[0], office_id))
    await until(lambda: "dead is gone" in caplog.text)
    freed = [record.args[2] for record in caplog.records if "is gone" in record.msg]
    assert sum(freed) == 300, "each seat was freed by one of them"
    assert {node.name for node in await survivors[0].nodes()} == {"n0", "n1", "n2"}


async def nobody_in(node: Node, office_id: str) -> None:
    if (await node.office(office_id)).members:
        raise Unavailable


@pytest.mark.covers("office-resume")
async def test_a_client_resumes_on_another_node_before_its_own_is_buried(start: Start, store: Store) -> None:
    two = await start("n2", pace=QUICK)
    lease, _ = await store.register("n1", "p", "run", "", 60, FACTS, [])
    await store.commit(lease, Change({"north": 0}, enters=(PLANNER,)))
    await two.offices.join(LAPTOP)
    change = await two.offices.join(replace(PLANNER, sid="n2.s"))
    assert (change.notices, change.replaces) == ((), "n1.s")
    await store.beat(lease, 0.01)
    await until_it_goes(lambda: buried(two, "n1"))
    assert two.ear.said == [("enter_office", "north", "laptop")]
    assert (await two.office("north")).agent == replace(PLANNER, sid="n2.s")


async def buried(node: Node, name: str) -> None:
    if name in {each.name for each in await node.nodes()}:
        raise Unavailable


async def test_the_seats_of_a_node_that_shuts_down_stay_for_a_while(start: Start, valkey: Valkey, prefix: str) -> None:
    one = Node(valkey.url, node="n1", prefix=prefix, pace=QUICK)
    await one.start()
    two = await start("n2", pace=QUICK)
    await one.offices.join(PLANNER)
    await two.offices.join(LAPTOP)
    await one.close()
    assert (await two.office("north")).agent == PLANNER
    with pytest.raises(Unavailable):
        await one.office("north")
    await until(lambda: two.ear.count("leave_office", "north", "planner") == 1)


async def test_a_node_without_members_goes_at_once(start: Start, valkey: Valkey, prefix: str) -> None:
    two = await start("n2")
    one = Node(valkey.url, node="n1", prefix=prefix)
    await one.start()
    await one.close()
    assert [node.name for node in await two.nodes()] == ["n2"]


# A node that stands still, and knows nothing of it


@pytest.fixture
async def paused(valkey: Valkey, prefix: str) -> AsyncIterator[tuple[Elsewhere, Node]]:
    """Node `n1` on a loop of its own, with an agent and a computer in `north`."""
    desktop = Member("n1.c", "computer", "desktop", "north")
    async with node_elsewhere(valkey.url, prefix, QUICK, PLANNER, desktop) as found:
        yield found


async def test_a_node_paused_past_its_lease_cannot_commit(paused: tuple[Elsewhere, Node], start: Start) -> None:
    place, one = paused
    two = await start("n2", pace=QUICK)
    await two.offices.join(LAPTOP)
    await place.pause()
    rename = asyncio.wrap_future(place.start(one.offices.join(replace(PLANNER, name="renamed"))))
    assert not await is_there(two, "renamed")
    await until(lambda: two.ear.count("leave_office", "north", "planner"))
    assert not one.is_leased, "by its own clock, before anybody else"
    rival = Member("n2.r", "agent", "rival", "north")
    await two.offices.join(rival)
    place.resume()
    with pytest.raises(Unavailable):
        await rename
    await until(lambda: one.is_ready and two.ear.losses)
    assert [type(error) for error in one.ear.troubles]
    ((loser, why),) = two.ear.losses
    assert (loser, type(why)) == (rival, OfficeHasAgent), "the older keeps the seat, the newer is told why it lost it"
    office = await two.office("north")
    assert (office.agent, sorted(office.computers)) == (PLANNER, ["desktop", "laptop"])
    await until(lambda: two.cached_office("north") == office)
    balance = Counter(name for event, _, name in two.ear.said if event == "enter_office")
    balance.subtract(name for event, _, name in two.ear.said if event == "leave_office")
    assert balance == {"laptop": 1, "planner": 0, "desktop": 0, "rival": 0}, "what was told adds up"


async def is_there(node: Node, name: str) -> bool:
    return name in {member.name for member in (await node.office("north")).members}


async def test_a_node_that_was_paused_comes_back_to_seats_that_its_clients_hold_elsewhere(
    paused: tuple[Elsewhere, Node], start: Start
) -> None:
    place, one = paused
    two = await start("n2", pace=QUICK)
    await place.pause()
    await until_it_goes(lambda: buried(two, "n1"))
    resumed = replace(PLANNER, sid="n2.s")
    await two.offices.join(resumed)
    place.resume()
    await until(lambda: one.is_ready and one.ear.losses)
    ((loser, why),) = one.ear.losses
    assert (loser, "another connection" in why.message) == (PLANNER, True)
    assert (await two.office("north")).agent == resumed
