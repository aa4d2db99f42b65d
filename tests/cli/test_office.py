"""`a2c-smcp office` and the commands of `a2c-smcp key`: a running Server, looked into and steered."""

from __future__ import annotations

import json
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.cli.agent.run import pause_before_next_attempt
from a2c_smcp.server import DefaultAuthenticationProvider
from a2c_smcp.server.auth.api_keys import hash_key, key_id
from tests.conftest import Hub
from tests.peer import Peer
from tests.stage.cases import cases
from tests.stage.place import Ended, Place
from tests.waiting import until

pytestmark = pytest.mark.covers("operators")

ADMIN, ALICE = "operator-0123456789", "alice-key-0123456789"
Run = Callable[..., Awaitable[Ended]]


@pytest.fixture
async def hub(serve: Callable[..., Any], tmp_path: Path) -> Hub:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({hash_key(ALICE): {"principal": "alice"}}), "utf-8")
    hub: Hub = await serve(auth=DefaultAuthenticationProvider(keys_file=keys), admin_key=ADMIN)
    return hub


@pytest.fixture
async def laptop(hub: Hub, connect: Callable[..., Any]) -> Peer:
    peer: Peer = await connect(hub, auth={"token": ALICE})
    await peer.join("computer", "laptop", "desk")
    return peer


@pytest.fixture
def run(place: Place, hub: Hub) -> Run:
    async def run(*words: str, **environ: str) -> Ended:
        return await place.run(*words, **{"A2C_URL": hub.url, "A2C_ADMIN_KEY": ADMIN, "COLUMNS": "200", **environ})

    return run


async def test_offices_and_members_are_shown_as_tables_and_as_json(run: Run, laptop: Peer) -> None:
    ended = await run("office", "ls")
    assert (ended.code, ended.out.split()) == (0, ["office", "computers", "desk", "1"])
    shown = await run("office", "show", "desk")
    head, row = (line.split()[:3] for line in shown.out.splitlines())
    assert (head, row) == (["name", "role", "principal"], ["laptop", "computer", "alice"])
    found = json.loads((await run("office", "show", "desk", "--json")).out)
    assert [row["name"] for row in found["members"]] == ["laptop"]
    (await run("office", "show", "nowhere")).refused(1, "has no members")


async def test_what_happens_is_printed_until_ctrl_c(place: Place, hub: Hub, laptop: Peer) -> None:
    program = await place.start("office", "watch", "desk", A2C_URL=hub.url, A2C_ADMIN_KEY=ADMIN)
    await until(lambda: hub.app.operations and hub.app.operations.source.readers)
    await laptop.ask("server:leave_office", {"office_id": "desk"})
    assert "left office=desk role=computer name=laptop principal=alice" in await program.says("left")
    program.process.send_signal(signal.SIGINT)
    assert await program.process.wait() == 1


async def test_watching_for_an_event_that_does_not_exist_is_a_wrong_use(run: Run) -> None:
    refused = await run("office", "watch", "--event", "joind")
    words = "there is no 'joind', did you mean 'joined'? There are call, "
    assert (refused.code, words in " ".join(refused.err.split())) == (2, True)


async def test_events_that_another_node_has_missed_do_not_end_it(place: Place, hub: Hub, laptop: Peer) -> None:
    program = await place.start("office", "watch", A2C_URL=hub.url, A2C_ADMIN_KEY=ADMIN)
    source = hub.app.operations.source
    await until(lambda: source.readers)
    (reader,) = source._readers
    reader.put({"node": "south", "event": "dropped", "at": 0.0, "missed": 1001})
    assert "[south] dropped missed=1001" in await program.says("dropped")
    await laptop.ask("server:leave_office", {"office_id": "desk"})
    await program.says("left office=desk")
    reader.put({"event": "dropped", "at": 0.0, "missed": 7})
    assert await program.process.wait() == 1
    assert "missed 7 events" in "".join(program.err)


async def test_a_member_is_disconnected_by_name(run: Run, laptop: Peer) -> None:
    assert (await run("office", "disconnect", "desk", "nobody")).code == 1
    ended = await run("office", "disconnect", "desk", "laptop")
    assert (ended.code, ended.err.strip()) == (0, "laptop is disconnected")
    await until(lambda: not laptop.client.connected)


async def test_keys_are_listed_rotated_and_revoked(run: Run, laptop: Peer) -> None:
    alice = key_id(hash_key(ALICE))
    rows = [line.split() for line in (await run("key", "ls")).out.splitlines()]
    assert [alice, "alice", "any", "any", "any", "never", "1", "now", "keys", "file"] in rows
    rotated = await run("key", "rotate", alice)
    assert rotated.out.startswith("a2c_")
    assert "expires in 3600 s" in rotated.err
    assert laptop.client.connected
    assert (await run("key", "revoke", alice)).code == 0
    await until(lambda: not laptop.client.connected)
    assert [row["principal"] for row in json.loads((await run("key", "ls", "--json")).out)["keys"]] == ["alice"]


@cases(
    "environ, code, says",
    ({"A2C_ADMIN_KEY": ""}, 2, "--admin-key"),
    ({"A2C_ADMIN_KEY": ALICE}, 1, "does not accept this admin key"),
    ({"A2C_URL": "http://127.0.0.1:9"}, 1, "cannot be reached, nothing listens there"),
)
async def test_a_mistake_says_what_to_do(run: Run, environ: dict[str, str], code: int, says: str) -> None:
    assert ALICE not in (await run("office", "ls", **environ)).refused(code, says)


async def test_a_server_without_the_interface_says_how_to_switch_it_on(place: Place, serve: Callable[..., Any]) -> None:
    ended = await place.run("office", "ls", A2C_URL=(await serve()).url, A2C_ADMIN_KEY=ADMIN)
    ended.refused(1, "switched off", "A2C_SERVER_ADMIN_KEY")


@pytest.mark.parametrize(("admin", "key"), [("short", "x" * 16), ("same-key-0123456789", "same-key-0123456789")])
async def test_an_admin_key_that_is_short_or_a_clients_is_refused(place: Place, admin: str, key: str) -> None:
    ended = await place.run("server", "--port", "0", "--admin-key", admin, "--api-key", key)
    assert admin not in ended.refused(2, "Here is")


async def test_an_agent_waits_for_a_seat_and_says_so(place: Place, hub: Hub, laptop: Peer) -> None:
    holder = await Peer.connect(hub.url, auth={"token": ALICE}, transports=["websocket"])
    await holder.join("agent", "planner", "desk")
    environ = {"A2C_URL": hub.url, "A2C_API_KEY": ALICE, "A2C_OFFICE": "desk"}
    stopped = await place.start("agent", "--wait", "room", **environ)
    waits = await place.start("agent", "room", "--json", "--wait", **environ)
    for program in (stopped, waits):
        assert "'planner': waiting until it has left" in await program.says("waiting")
    stopped.process.send_signal(signal.SIGINT)
    assert await stopped.process.wait() == 1
    await holder.close()
    assert await waits.process.wait() == 0
    assert "laptop" in "".join(waits.out)
    assert (await place.run("agent", "--wait", "x", "room", **environ)).code == 2


@pytest.mark.parametrize(("wait", "most"), [(1.0, 6), (60.0, 24), (3600.0, 380)])
def test_an_agent_that_waits_long_tries_seldom_and_once_more_at_the_end(wait: float, most: int) -> None:
    """The Server records each attempt that it refuses."""
    waited, attempts = 0.0, 1
    while waited < wait:
        waited += pause_before_next_attempt(waited, wait - waited)
        attempts += 1
    assert waited == pytest.approx(wait)
    assert attempts <= most
