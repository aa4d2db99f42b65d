"""`a2c-smcp server --redis` and `a2c-smcp nodes`: nodes that meet in a store, and what is said when they cannot."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from a2c_smcp.server.directory.store_connection import StoreConnection
from tests.cli.programs import PATIENCE, PROGRAM, Ended, Place
from tests.computer.pseudo_terminal import on_a_terminal
from tests.peer import Peer
from tests.ports import free_port
from tests.server.test_program import Program
from tests.valkey import Valkey, running_valkey

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


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path)
    yield place
    await place.end()


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
    ended = await place.run("nodes", A2C_SERVER_REDIS=redis)
    assert ended.code == 0, ended.err
    listed = {node["name"]: node for node in json.loads(ended.out)}
    assert {name: node["url"] for name, node in listed.items()} == {
        "north": north_url,
        "south": "http://south.example:7000",
    }
    assert all(0 < node["lease"] < 10 and node["members"] == 0 and node["epoch"] for node in listed.values())
    rows = table((await place.run("nodes", "--table", A2C_SERVER_REDIS=redis, COLUMNS="200")).out)
    assert [row[0] for row in rows] == ["north", "south"]
    for program in (north, south):
        program.signal(signal.SIGTERM)
        assert await program.ends() == 0
    assert json.loads((await place.run("nodes", A2C_SERVER_REDIS=redis)).out) == []
    ended = await place.run("nodes", "--table", A2C_SERVER_REDIS=redis)
    assert (ended.code, ended.out) == (0, "")
    assert "no node has a lease there" in ended.err


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
    assert ended.code == 1
    assert "Another process is node 'twin'. Choose another --node" in ended.err


def nobody() -> str:
    return f"redis://127.0.0.1:{free_port()}"


REMOTE = "redis://store.example"
KEY = ("--api-key", "a key of this test")
REFUSED: dict[str, tuple[tuple[str, ...], int, str, str]] = {
    "no URL of a store": (("--redis", "http://store.example"), 2, "not the URL of a Valkey or Redis", "redis://HOST"),
    "a password that breaks the URL": (("--redis", "redis://:hu/sh@store"), 2, "not the URL of a Valkey", "%2F for /"),
    "a password that breaks it elsewhere": (
        ("--redis", "redis://127.0.0.1/hu/sh@store"),
        2,
        "not the URL",
        "%2F for /",
    ),
    "certificates that are not there": (
        ("--redis", "rediss://127.0.0.1?ssl_ca_certs=nowhere.pem"),
        2,
        "names certificates that cannot be used: No such file",
        "PEM",
    ),
    "a name that cannot be one": (("--redis", REMOTE, "--node", "no rth"), 2, "--node: a node's name", "another"),
    "a name of nothing": (("--node", "north"), 2, "have no meaning for a single Server", "Give --redis"),
    "an address of no machine": (
        ("--redis", REMOTE, "--host", "0.0.0.0", *KEY),
        2,
        "no address at which",
        "--node-url",
    ),
    "an address of this machine": (("--redis", REMOTE), 2, "cannot reach this one at 127.0.0.1", "--node-url"),
    "no address": (("--redis", REMOTE, "--node-url", "north:7000"), 2, "is no address", "http://HOST:PORT"),
    "workers out of reach": (("--redis", REMOTE, "--workers", "2"), 2, "one by one", "--node-url"),
    "workers with TLS between them": (
        ("--redis", REMOTE, "--workers", "2", "--node-url", "https://x"),
        2,
        "speak no TLS",
        "http://",
    ),
    "workers beyond the last port": (("--workers", "9", "--node-url", "http://127.0.0.1:65530"), 2, "65530", "lower"),
}


@pytest.mark.covers("program-errors")
@pytest.mark.parametrize("what", REFUSED)
async def test_wrong_options_say_what_is_wrong_and_what_to_do(place: Place, what: str) -> None:
    options, code, problem, remedy = REFUSED[what]
    ended = await place.run("server", "--port", "0", *options)
    assert (ended.code, ended.out) == (code, "")
    assert problem in ended.err
    assert remedy in ended.err
    assert "hu/sh" not in ended.err


@pytest.mark.covers("program-errors")
@pytest.mark.parametrize(
    "command", [("nodes",), ("server", "--port", "0"), ("server", "--port", "0", "--workers", "2")]
)
async def test_a_store_that_cannot_be_reached_is_reported(place: Place, command: tuple[str, ...]) -> None:
    ended = await place.run(*command, A2C_SERVER_REDIS=nobody())
    assert (ended.code, ended.out) == (1, "")
    assert "cannot be reached. Start it, or correct --redis or A2C_SERVER_REDIS." in ended.err


async def test_without_the_extra_it_says_how_to_install_it(place: Place, redis: str) -> None:
    for name in ("redis", "hiredis"):
        (place.folder / f"{name}.py").write_text(f"raise ModuleNotFoundError(name={name!r})\n")
    for command in (("nodes",), ("server", "--port", "0")):
        ended = await place.run_anew(*command, A2C_SERVER_REDIS=redis, PYTHONPATH=str(place.folder))
        assert ended.code == 1
        assert "redis is not installed, and --redis needs it" in ended.err
        assert re.search(r"pip install .+\[redis\]", ended.err)


async def test_a_node_with_tls_needs_a_node_url_with_the_name_of_its_certificate(
    place: Place, redis: str, tmp_path: Path
) -> None:
    options = ("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))
    ended: Ended = await place.run("server", "--port", "0", *options, A2C_SERVER_REDIS=redis)
    assert ended.code == 2
    assert "--node-url" in ended.err


async def test_the_user_that_the_guide_makes_has_enough_commands_keys_and_channels(place: Place) -> None:
    """Two nodes, of which one is killed, and calls between them, in a store where that user may do nothing else."""
    (rule,) = re.findall(r"^ACL (SETUSER .*)$", GUIDE.read_text("utf-8"), re.MULTILINE)
    words = rule.replace(">PASSWORD", f">{PASSWORD}").split()
    with running_valkey() as valkey:
        line = await StoreConnection.open(valkey.url, PATIENCE)
        await line.ask("ACL", *words)
        redis = f"redis://a2c:{PASSWORD.replace('@', '%40')}@127.0.0.1:{valkey.port}"
        nodes = [await started(place, redis, "--node", name) for name in ("north", "south")]
        agent, computer = [await Peer.connect(url) for _, url in nodes]
        computer.answers("client:tool_call", {"content": [], "isError": False})
        await agent.join("agent", "planner", "desk")
        await computer.join("computer", "laptop", "desk", instance="a laptop of this test")
        assert (await agent.call_tool("laptop"))["isError"] is False
        await nodes[1][0].kill()
        await agent.hears("notify:leave_office")
        denied = await line.ask("ACL", "LOG")
        await line.close()
        assert denied == []
        await agent.close()
        await computer.close()


async def test_nodes_prints_a_table_on_a_terminal(place: Place, redis: str) -> None:
    await started(place, redis, "--node", "shown")
    environ = place.environ | {"A2C_SERVER_REDIS": redis, "TERM": "xterm-256color"}
    async with on_a_terminal(str(PROGRAM), "nodes", env=environ, columns=120) as program:
        assert await program.ends() == 0
        assert "shown" in program.screen.raw
        assert "\x1b[" in program.screen.raw
    assert "\x1b[" not in (await place.run("nodes", "--table", A2C_SERVER_REDIS=redis)).out
