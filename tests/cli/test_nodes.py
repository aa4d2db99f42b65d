"""`a2c-smcp server --redis` and `a2c-smcp nodes`: nodes that meet in a store, and what is said when they cannot."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest

from a2c_smcp.server.cluster.store import StoreConnection
from tests.computer.pseudo_terminal import on_a_terminal
from tests.ports import free_port
from tests.stage.calls import RESULT
from tests.stage.place import PATIENCE, PROGRAM, Place
from tests.stage.program import Program
from tests.stage.web import fetch
from tests.valkey import Valkey, running_valkey
from tests.waiting import until_it_goes

pytestmark = pytest.mark.covers("program-nodes")

PASSWORD = "hush@hush"
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "cluster.md"


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    with running_valkey("--requirepass", PASSWORD) as valkey:
        yield valkey


@pytest.fixture
def redis(valkey: Valkey) -> str:
    return f"redis://:{PASSWORD.replace('@', '%40')}@127.0.0.1:{valkey.port}"


async def started(place: Place, redis: str, *options: str) -> tuple[Program, str]:
    """A node that listens, and where."""
    program = await place.start("server", "--port", "0", *options, A2C_SERVER_REDIS=redis)
    return program, (await program.says("listening on ")).split()[2]


def table(said: str) -> list[list[str]]:
    return [re.split(r"\s{2,}", line.strip()) for line in said.splitlines()[1:]]


async def test_nodes_are_listed_while_they_run_and_not_when_they_have_left(place: Place, redis: str) -> None:
    north, north_url = await started(place, redis, "--node", "north")
    south, _ = await started(place, redis, "--node", "south", "--node-url", "http://south.example:7000")
    assert await north.says("listening on ") == f"listening on {north_url} as node north"
    ended = await place.run("nodes", "--json", A2C_SERVER_REDIS=redis)
    assert ended.code == 0, ended.err
    listed = {node["name"]: node for node in json.loads(ended.out)}
    urls = {name: node["url"] for name, node in listed.items()}
    assert urls == {"north": north_url, "south": "http://south.example:7000"}
    assert all(0 < node["lease"] < 10 and node["members"] == 0 and node["epoch"] for node in listed.values())
    rows = table((await place.run("nodes", A2C_SERVER_REDIS=redis, COLUMNS="200")).out)
    assert [row[0] for row in rows] == ["north", "south"]
    for program in (north, south):
        await program.stops()
    assert json.loads((await place.run("nodes", "--json", A2C_SERVER_REDIS=redis)).out) == []
    ended = await place.run("nodes", A2C_SERVER_REDIS=redis)
    assert (ended.code, ended.out, "no node has a lease there" in ended.err) == (0, "", True)


async def test_what_a_node_logs_carries_its_name(place: Place, redis: str) -> None:
    lines, _ = await started(place, redis, "--node", "lines")
    objects, _ = await started(place, redis, "--node", "objects", "--log-json")
    assert "[lines] no authentication" in await lines.says("no authentication")
    assert json.loads(await objects.says("no authentication"))["node"] == "objects"


async def test_the_password_of_the_store_is_never_printed(place: Place, redis: str, valkey: Valkey) -> None:
    program, _ = await started(place, redis, "--log-level", "debug")
    program.signal(signal.SIGTERM)
    await program.ends()
    ended = await place.run("nodes", "--redis", redis.replace("hush", "wrong"))
    assert f"redis://127.0.0.1:{valkey.port}" in ended.err
    said = f"{program.said} {ended}"
    assert not [word for word in ("hush", "wrong") if word in said]


async def test_a_name_that_is_in_use_is_refused(place: Place, redis: str) -> None:
    await started(place, redis, "--node", "twin")
    ended = await place.run("server", "--port", "0", "--node", "twin", A2C_SERVER_REDIS=redis)
    ended.refused(1, "Another process is node 'twin'. Choose another --node")


def nobody() -> str:
    return f"redis://127.0.0.1:{free_port()}"


@pytest.mark.covers("program-errors")
async def test_a_store_that_cannot_be_reached_is_reported(place: Place) -> None:
    ended = await place.run("nodes", A2C_SERVER_REDIS=nobody())
    ended.refused(1, "cannot be reached. Start it, or correct --redis or A2C_SERVER_REDIS.")


@pytest.mark.covers("store-comes-later")
@pytest.mark.parametrize("words", [("--node", "north"), ("--node", "w", "--workers", "2")])
async def test_a_server_without_its_store_starts_is_not_ready_and_joins_when_the_store_is_there(
    place: Place, connect: Any, words: tuple[str, ...]
) -> None:
    with TemporaryDirectory() as folder:
        valkey = Valkey(Path(folder))
        program, url = await started(place, valkey.url, *words, "--metrics")
        assert "it is tried again until it answers" in await program.says("is unreachable")
        ready = await fetch(f"{url}/readyz")
        assert (ready.status, ready.json["status"]) == (503, "degraded")
        assert [(await fetch(f"{url}{page}")).status for page in ("/healthz", "/metrics")] == [200, 200]
        valkey.start()
        try:

            async def is_ready() -> None:
                assert (await fetch(f"{url}/readyz")).status == 200

            for _ in range(8):  # each worker
                await until_it_goes(is_ready)
            agent, computer = [await connect(SimpleNamespace(url=url)) for _ in range(2)]
            computer.answers("client:tool_call", RESULT)
            await until_it_goes(lambda: agent.join("agent", "planner", "desk"))
            await until_it_goes(lambda: computer.join("computer", "laptop", "desk"))
            assert await agent.call_tool("laptop") == RESULT
            await program.stops()
        finally:
            valkey.kill()


@pytest.mark.covers("store-comes-later")
async def test_a_server_that_waits_for_its_store_ends_when_it_is_asked_to(place: Place) -> None:
    program, _ = await started(place, nobody())
    await program.stops()


async def test_without_the_extra_it_says_how_to_install_it(place: Place, redis: str) -> None:
    for name in ("redis", "hiredis"):
        (place.folder / f"{name}.py").write_text(f"raise ModuleNotFoundError(name={name!r})\n")
    for command in (("nodes",), ("server", "--port", "0")):
        ended = await place.run_anew(*command, A2C_SERVER_REDIS=redis, PYTHONPATH=str(place.folder))
        said = ended.refused(1, "redis is not installed, and --redis needs it")
        assert re.search(r"pip install .+\[redis\]", said)


async def test_the_user_that_the_guide_makes_has_enough_commands_keys_and_channels(place: Place, connect: Any) -> None:
    """Two nodes, of which one is killed, and calls between them, in a store where that user may do nothing else."""
    (rule,) = re.findall(r"^ACL (SETUSER .*)$", GUIDE.read_text("utf-8"), re.MULTILINE)
    words = rule.replace(">PASSWORD", f">{PASSWORD}").split()
    with running_valkey() as valkey:
        line = await StoreConnection.open(valkey.url, PATIENCE)
        await line.ask("ACL", *words)
        redis = f"redis://a2c:{PASSWORD.replace('@', '%40')}@127.0.0.1:{valkey.port}"
        nodes = [await started(place, redis, "--node", name) for name in ("north", "south")]
        agent, computer = [await connect(SimpleNamespace(url=url)) for _, url in nodes]
        computer.answers("client:tool_call", RESULT)
        await agent.join("agent", "planner", "desk")
        await computer.join("computer", "laptop", "desk", instance="a laptop of this test")
        assert await agent.call_tool("laptop") == RESULT
        await nodes[1][0].kill()
        await agent.hears("notify:leave_office")
        denied = await line.ask("ACL", "LOG")
        await line.close()
        assert denied == []


async def test_nodes_prints_a_table_on_a_terminal(place: Place, redis: str) -> None:
    await started(place, redis, "--node", "shown")
    environ = place.environ | {"A2C_SERVER_REDIS": redis, "TERM": "xterm-256color"}
    async with on_a_terminal(str(PROGRAM), "nodes", env=environ, columns=120) as program:
        assert await program.ends() == 0
        assert [each for each in ("shown", "\x1b[") if each not in program.screen.raw] == []
    assert "\x1b[" not in (await place.run("nodes", A2C_SERVER_REDIS=redis)).out
