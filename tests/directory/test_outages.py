"""Nodes whose store is killed, forgets, stands still, or refuses them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from a2c_smcp.errors import ConfigError, OfficeHasAgent, SMCPError, Unavailable
from a2c_smcp.protocol.offices import Member
from a2c_smcp.server.cluster.memory import Pace
from a2c_smcp.server.cluster.store import StoreConnection, StoreRefused, masked
from tests.computer.pace import within
from tests.directory.nodes import LAPTOP, PLANNER, QUICK, Elsewhere, Node, Start, node_elsewhere
from tests.stage.tls import encrypted
from tests.valkey import Valkey, running_valkey
from tests.waiting import until, until_it_goes

SLOW = Pace(lease=3, beat=0.2, margin=0.5, retry=0.1)
HEALING = 5.0  # seconds after the store's return


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    """One that the test may hurt."""
    with running_valkey() as valkey:
        yield valkey


@pytest.fixture
async def two_nodes(start: Start) -> tuple[Node, Node]:
    """An agent on one, a computer on the other."""
    one, two = await start("n1", pace=QUICK), await start("n2", pace=QUICK)
    await one.offices.join(PLANNER)
    await two.offices.join(LAPTOP)
    await until(lambda: (office := one.cached_office("north")) and office.computers)
    for node in (one, two):
        node.ear.changes.clear()
    return one, two


async def test_what_is_frozen_is_read_before_a_node_that_is_back_serves_anybody(valkey: Valkey, start: Start) -> None:
    node, is_serving = await start("n1", pace=QUICK), list[bool]()
    node.ear.freezes_read = lambda text: is_serving.append(node.is_leased)  # type: ignore[method-assign]
    valkey.kill()
    await until(lambda: not node.is_leased)
    valkey.start()
    await until(lambda: node.is_ready, HEALING)
    assert is_serving
    assert not is_serving[0]


async def refused_at_once(node: Node) -> None:
    """Everything that needs the store is refused, quickly."""
    with within(2):
        for work in (node.offices.join(replace(PLANNER, sid="n1.x")), node.office("north"), node.seats("n1.s")):
            with pytest.raises(Unavailable) as refusal:
                await work
            assert refusal.value.code == 503


async def test_a_store_that_is_killed_and_forgets_everything_is_filled_again_without_notices(
    valkey: Valkey, two_nodes: tuple[Node, Node]
) -> None:
    one, two = two_nodes
    known = one.cached_office("north")
    valkey.kill()
    await until(lambda: one.ear.troubles and two.ear.troubles)
    await refused_at_once(one)
    assert (one.cached_office("north"), one.cached_seats("n1.s")) == (known, (PLANNER,)), "still under its lease"
    valkey.start()
    await until(lambda: one.is_ready and two.is_ready, HEALING)
    phone = Member("n2.p", "computer", "phone", "north")
    await until_it_goes(lambda: two.offices.join(phone), HEALING)
    await until(lambda: len(one.ear.said) > 0)
    assert one.ear.said == two.ear.said == [("enter_office", "north", "phone")]
    office = await one.office("north")
    assert (office.agent, set(office.computers.values())) == (PLANNER, {LAPTOP, phone})
    assert await one.holder("i1") == "n1.s"


async def test_node_and_store_agree_on_a_commit_that_was_given_up(valkey: Valkey, two_nodes: tuple[Node, Node]) -> None:
    """It lies in the store's socket when its sender is answered 503. Come true or not, node and store agree on it."""
    one, two = two_nodes
    desktop = Member("n1.d", "computer", "desktop", "north")
    await one.office("north")
    join = asyncio.create_task(one.offices.join(desktop))
    valkey.pause()
    with suppress(SMCPError):
        await join
    valkey.resume()
    await until(lambda: one.is_ready and two.is_ready, HEALING)
    await until_it_goes(lambda: one.offices.join(desktop), HEALING)
    await until(lambda: two.ear.said == [("enter_office", "north", "desktop")])
    assert one.ear.said == two.ear.said
    assert one.cached_seats("n1.d") == await two.seats("n1.d") == (desktop,)


@pytest.fixture
async def stopped(valkey: Valkey, prefix: str) -> AsyncIterator[tuple[Elsewhere, Node]]:
    """Node `n1` with an agent, on a loop that can be stopped."""
    async with node_elsewhere(valkey.url, prefix, SLOW, PLANNER) as found:
        yield found


@pytest.mark.covers("office-one-agent")
async def test_a_restarted_store_does_not_give_away_seats_that_a_forgotten_node_may_still_serve(
    valkey: Valkey, prefix: str, stopped: tuple[Elsewhere, Node], start: Start
) -> None:
    place, one = stopped
    two = await start("n2", pace=SLOW)
    await place.pause()
    valkey.kill()
    valkey.start()
    rival = Member("n2.r", "agent", "rival", "north")
    await until(lambda: two.is_ready, HEALING)
    with within(4):
        with pytest.raises(Unavailable):
            await two.offices.join(rival)
        assert one.is_leased, "it does not know, and serves its members"
        await until_it_goes(lambda: two.offices.join(rival), HEALING)
        assert not one.is_leased
    place.resume()
    await until(lambda: one.is_ready and two.ear.losses)
    assert [(member, type(why)) for member, why in two.ear.losses] == [(rival, OfficeHasAgent)]


async def test_a_node_that_is_back_opens_the_store_again_without_waiting_for_its_lease(
    valkey: Valkey, stopped: tuple[Elsewhere, Node], start: Start
) -> None:
    place, one = stopped
    two = await start("n2", pace=QUICK)
    await place.pause()
    valkey.kill()
    valkey.start()
    await until(lambda: two.is_ready, HEALING)
    place.resume()
    rival = Member("n2.r", "agent", "rival", "north")
    with pytest.raises(OfficeHasAgent):
        await until_open(two, rival)
    assert one.is_ready


async def until_open(node: Node, newcomer: Member) -> None:
    while True:
        with suppress(Unavailable):
            await node.offices.join(newcomer)
            return
        await asyncio.sleep(0.01)


async def test_a_store_that_keeps_its_data_over_a_restart_is_not_filled_again(prefix: str) -> None:
    with running_valkey("--appendonly", "yes", "--appendfsync", "always") as valkey:
        one = Node(valkey.url, node="n1", prefix=prefix, pace=QUICK)
        await one.start()
        await one.offices.join(PLANNER)
        before = await one.office("north")
        valkey.kill()
        valkey.start()
        await until(lambda: one.ear.troubles and one.is_ready, HEALING)
        assert await one.office("north") == before
        await one.close()


async def test_a_node_whose_store_is_not_there_is_not_ready_and_says_why(
    prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    with running_valkey() as valkey:
        pass
    node = Node(valkey.url.replace("redis://", "redis://ann:hunter2@"), prefix=prefix)
    await node.start()
    assert not node.is_ready
    with pytest.raises(Unavailable):
        await node.nodes()
    await node.close()
    assert "hunter2" not in caplog.text
    assert str(valkey.port) in caplog.text


async def test_a_node_that_the_store_refuses_does_not_start(prefix: str) -> None:
    with running_valkey("--requirepass", "hunter2") as valkey, pytest.raises(StoreRefused):
        await Node(valkey.url, prefix=prefix).start()


ACL = "~test-* &test-* +@read +@write +@pubsub +@scripting +@connection +time -@dangerous +info"


async def test_an_acl_user_needs_only_its_own_keys_and_channels(prefix: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with running_valkey(*f"--user ann on >hunter2 {ACL} --user default off".split()) as valkey:
        url = valkey.url.replace("redis://", "valkey://ann:hunter2@")
        node = Node(url, prefix=prefix)
        await node.start()
        await node.offices.join(PLANNER)
        assert len(await node.nodes()) == 1
        await node.offices.leave("n1.s", "north")
        await node.close()
        for wrong in (url.replace("hunter2", "hunter3"), url.replace("ann:hunter2@", "")):
            with pytest.raises(Unavailable) as refusal:
                await Node(wrong, prefix=prefix).start()
            assert "hunter" not in str(refusal.value)
        with pytest.raises(Unavailable):
            await Node(url, prefix="other:").start()
    assert "hunter" not in caplog.text


async def test_the_certificate_of_a_store_behind_tls_is_checked(
    valkey: Valkey, prefix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with encrypted(valkey.port, tmp_path) as port:
        node = Node(f"rediss://127.0.0.1:{port}?ssl_ca_certs={tmp_path}/cert.pem", prefix=prefix)
        await node.start()
        assert [each.name for each in await node.nodes()] == [node.node]
        await node.close()
        stranger = Node(f"rediss://127.0.0.1:{port}", prefix=prefix)
        await stranger.start()
        assert not stranger.is_ready
        await stranger.close()
        assert "self-signed certificate" in caplog.text


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense", "redis://ann:hunter2@host:port"])
async def test_an_invalid_url_of_a_store_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        await StoreConnection.open(url, 1)
    assert "hunter2" not in str(refusal.value)


def test_a_url_is_shown_without_its_secrets() -> None:
    assert masked("rediss://ann:hunter2@host:6380/2?ssl_ca_certs=x&password=y") == "rediss://host:6380/2"
