"""The `a2c-smcp computer` program, as its owner uses it."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from a2c_smcp.server import DefaultAuthenticationProvider
from tests.bystander import calling_meanwhile
from tests.computer.hosted import pids_with
from tests.computer.pace import within
from tests.computer.pseudo_terminal import OnTerminal, Screen, on_a_terminal
from tests.computer.supervised import SERVERS, all_gone, eventually
from tests.peer import Peer
from tests.program import PROGRAM
from tests.stage.computer_program import HANGS, surroundings
from tests.stage.place import Place, good
from tests.stage.program import Program
from tests.stage.prompt import python

NAUGHTY = str(SERVERS / "naughty.py")
WIDE = {"COLUMNS": "200"}
Start = Callable[..., Awaitable[Program]]


@pytest.fixture
def start(place: Place, shared_hub: Any, office: str) -> Start:
    """Starts it in the test's office, with these MCP servers."""

    async def run(servers: dict[str, Any], *options: str, url: str = "", **config: Any) -> Program:
        file = place.write(servers, **config)
        where = ("--name", "laptop", "--url", url or shared_hub.url, "--office", office, "--config", str(file))
        return await place.start("computer", *where, *options, **WIDE)

    return run


@pytest.mark.covers("computer-serves", "supervise-isolation", "supervise-states")
async def test_without_a_terminal_it_prints_a_line_for_each_change_serves_and_ends_cleanly(
    start: Start, agent: Peer, office: str
) -> None:
    program = await start({"good": good(), "missing": {"command": "no-such-command"}})
    await program.says("good: ready")
    await agent.hears("notify:enter_office", computer="laptop")
    answer = await agent.call_tool("laptop", "add", params={"a": 2, "b": 3}, timeout=60)
    assert answer["content"][0]["text"] == "5"
    program.signal(signal.SIGINT)
    assert await program.ends() == 0
    assert await agent.hears("notify:leave_office", computer="laptop")
    what, remedy = "Command not found: 'no-such-command' is not on PATH", "Install it, or write its whole path"
    missing = f"missing: failed ({what}. {remedy} in the configuration.)"
    changes = ["good: starting", "missing: starting", missing, "good: ready", "good: stopped", "missing: stopped"]
    assert sorted(program.err) == sorted([*changes, f"joined {office}", "stopped"])


@pytest.mark.covers("mcp-bounded", "mcp-robust")
async def test_schemas_that_are_too_heavy_harm_neither_other_calls_nor_its_end(start: Start, agent: Peer) -> None:
    program = await start({"good": good(), "heavy": good(args=[NAUGHTY, "heavy_schemas"])})
    for line in ("good: ready", "heavy: ready", "joined"):
        await program.says(line)

    async def call(tool: str, **params: Any) -> Any:
        return await agent.call_tool("laptop", tool, params=params, timeout=20)

    async def work() -> None:
        assert (await call("add", a=2, b=3))["content"][0]["text"] == "5"

    deep: Any = 1
    for _ in range(30):
        deep = {"a": deep}
    async with calling_meanwhile(work):
        assert "too large to say where" in (await call("branching", **deep))["content"][0]["text"]
        refused = await call("doubling", a=5)
        assert refused["code"] == 413
        assert "its schema is too heavy to check" in refused["content"][0]["text"]
        assert (await call("pattern7", p0="word"))["content"][0]["text"] == '{"p0": "word"}'
        assert (await call("echo", a=1))["content"][0]["text"] == '{"a": 1}'
    await program.says("tool 'doubling' of server 'heavy': This tool cannot be called")
    last = asyncio.create_task(call("branching", **deep))
    program.signal(signal.SIGTERM)
    with within(3):
        assert await program.ends() == 0
    await asyncio.wait([last])


@pytest.mark.covers("auth-refused", "program-errors")
async def test_a_wrong_key_or_a_taken_name_ends_it_with_a_sentence(
    serve: Any, connect: Any, office: str, place: Place
) -> None:
    hub = await serve(auth=DefaultAuthenticationProvider("the right key"))
    namesake = await connect(hub, auth={"token": "the right key"})
    await namesake.join("computer", "laptop", office)
    for key, words in (("a wrong key", "does not accept this key"), ("the right key", "Name is taken")):
        where = ("--name", "laptop", "--url", hub.url, "--office", office)
        ended = await place.run("computer", *where, A2C_API_KEY=key, **WIDE)
        assert ended.code == 1
        assert words in ended.err


@pytest.mark.covers("service")
async def test_the_key_for_the_server_comes_from_a_file_in_place_of_the_line(
    serve: Any, connect: Any, office: str, place: Place, tmp_path: Path
) -> None:
    right, wrong = "the right key of 24 chars".replace(" ", "-"), "a-wrong-key-of-some-length"
    hub = await serve(auth=DefaultAuthenticationProvider(right))
    namesake = await connect(hub, auth={"token": right})
    await namesake.join("computer", "laptop", office)
    where = ("--name", "laptop", "--url", hub.url, "--office", office)
    for key, words in ((wrong, "does not accept this key"), (right, "Name is taken")):
        file = tmp_path / "hub.key"
        file.write_text(f"{key}\n")
        ended = await place.run("computer", *where, "--key-file", str(file), **WIDE)
        assert ended.code == 1
        assert words in ended.err
        assert key not in ended.err


WRONG = {
    "a key twice": (["--api-key", "k" * 20, "--key-file", "x"], "--api-key and --key-file do not go together"),
    "no file of a key": (["--key-file", "nowhere.key"], "--key-file: nowhere.key"),
    "no such file": (["--config", "nowhere.json"], "there is no such file"),
    "not a time": (["--idle-stop", "soon"], "10m"),
    "no such CA": (["--ca", "nowhere.pem"], "--ca"),
    "no such option": (["--frobnicate"], "No such option"),
    "an empty name": (["--name", ""], "--name: must have 1 to 128 characters"),
    "an office with a control character": (["--office", "desk\x07"], "--office: must not hold control"),
    "not a URL": (["--url", "hub.example"], "--url"),
    "no such desktop": (["--desktop", "all"], "'subscribed', 'any'"),
}


@pytest.mark.covers("program-errors")
@pytest.mark.parametrize(("arguments", "words"), WRONG.values(), ids=WRONG)
async def test_wrong_use_ends_at_once_with_a_remedy(place: Place, arguments: list[str], words: str) -> None:
    ended = await place.run("computer", *arguments, **WIDE)
    assert ended.code == 2
    assert words in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.covers("inputs-sources", "program-errors")
async def test_a_missing_input_is_named_with_how_to_give_it(start: Start) -> None:
    inputs = [{"id": "token", "type": "promptString", "description": "A token", "password": True}]
    program = await start({"needs": {"command": "x", "args": ["${input:token}"]}}, "--no-input", inputs=inputs)
    await program.says("needs: failed")
    assert "token" in await program.says("A2C_INPUT_TOKEN")


@pytest.mark.covers("desktop-watch")
@pytest.mark.parametrize("desktop", ["subscribed", "any"])
async def test_servers_without_subscriptions_take_part_in_the_desktop_if_any_may(
    start: Start, agent: Peer, desktop: str
) -> None:
    silent = python(NAUGHTY, "unsubscribable")
    program = await start({"silent": silent, "strict": {**silent, "desktop": "subscribed"}}, "--desktop", desktop)
    for server in ("silent", "strict"):
        await program.says(f"{server}: ready")
    await agent.hears("notify:enter_office", computer="laptop")
    desktops = (await agent.request("client:get_desktop", "laptop"))["desktops"]
    assert len(desktops) == (desktop == "any")


@pytest.mark.skipif(sys.platform != "linux", reason="needs a subreaper")
@pytest.mark.covers("supervise-orphans")
async def test_when_it_is_killed_no_process_of_its_servers_is_left_after_two_seconds(start: Start) -> None:
    marker, modes = uuid4().hex, ("fine", "ignores_sigterm", "ignores_eof", "hangs_at_initialize")
    servers = {mode: python(NAUGHTY, mode, marker=marker) for mode in modes}
    program = await start(servers, url="http://127.0.0.1:9")
    for mode in modes[:3]:
        await program.says(f"{mode}: ready")
    children = pids_with(marker)
    assert len(children) >= len(modes)
    with within(2):
        program.process.kill()
        await program.process.wait()
        await all_gone(children)
    assert pids_with(marker) == []


# On a terminal


@pytest.fixture
async def run_on_terminal(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Starts it with servers `{name: arguments of python}`, which know a marker."""
    async with AsyncExitStack() as stack:

        async def run(
            servers: dict[str, list[str]], *options: str, marker: str = "", lines: int = 24, **environ: str
        ) -> OnTerminal:
            found = {name: python(*arguments, marker=marker) for name, arguments in servers.items()}
            path = tmp_path / "servers.json"
            path.write_text(json.dumps({"servers": found, "inputs": INPUTS}), "utf-8")
            command = [str(PROGRAM), "computer", "--url", "http://127.0.0.1:9", "--config", str(path), *options]
            environ = {**surroundings(tmp_path), "TERM": "xterm-256color", **environ}
            return await stack.enter_async_context(on_a_terminal(*command, env=environ, lines=lines))

        yield run


INPUTS = [
    {"id": "colour", "type": "pickString", "description": "Colour", "options": ["red", "green"]},
    {"id": "name", "type": "promptString", "description": "Name", "default": "Bob"},
    {"id": "printed", "type": "command", "command": "echo printed"},
    {"id": "token", "type": "promptString", "description": "Token", "password": True},
]
FINE, ASKING = [NAUGHTY, "fine"], "${input:colour} ${input:name} ${input:printed} ${input:token}"


def listed(*servers: str) -> Callable[[Screen], bool]:
    """The display is gone, for the cursor is shown again, and these lines are where it was."""

    def is_so(screen: Screen) -> bool:
        left = screen.raw.rpartition("?25h")[2]
        return "?25l" not in left and all(re.search(line, screen.text) for line in servers)

    return is_so


@pytest.mark.covers("supervise-states")
@pytest.mark.parametrize("colour", [True, False], ids=["colour", "NO_COLOR"])
async def test_on_a_terminal_each_server_has_a_line_until_all_have_settled(run_on_terminal: Any, colour: bool) -> None:
    environ = {} if colour else {"NO_COLOR": "1"}
    program = await run_on_terminal({"fine": FINE, "broken": ["-c", "exit('\x1b[7mno')"]}, **environ)
    await program.shows(lambda screen: "starting" in screen.raw)
    await program.shows(listed(r"fine +ready +\d+\.\d s  1 tool", r"broken +(backoff|starting)"))
    await program.shows(lambda screen: "\\u001b[7mno" in screen.raw)
    assert ("\x1b[32mready" in program.screen.raw) is colour
    assert bool(re.search(r"\x1b\[[\d;]*[1-9]m", program.screen.raw)) is colour
    await program.shows("broken: starting")
    program.types("\x04")
    assert await program.ends() == 0


@pytest.mark.covers("supervise-states")
async def test_more_servers_than_lines_are_counted_and_listed_in_the_end(run_on_terminal: Any) -> None:
    program = await run_on_terminal({f"server-{number}": FINE for number in range(12)}, lines=8)
    await program.shows(lambda screen: "12 servers: " in screen.raw)
    text = await program.shows(listed(*(rf"server-{number} +ready" for number in range(12))))
    assert "12 servers: " not in text


@pytest.mark.covers("inputs-sources", "inputs-command")
async def test_questions_are_not_torn_and_wrong_answers_are_asked_for_again(run_on_terminal: Any) -> None:
    program = await run_on_terminal({"asks": [*FINE, ASKING], "hangs": HANGS}, "--log-level", "debug")
    await program.shows("Colour: ")
    for wrong, times in (("", 1), ("blue", 2), ("3", 3)):
        program.types(f"{wrong}\n")
        await program.shows(lambda screen, times=times: screen.text.count("choose a number from 1 to 2") == times)
    await program.shows(lambda screen: screen.text.count("Colour: ") == 4)
    program.types("green\n")
    await program.shows("Name [Bob]: ")
    program.types("\n")
    await program.shows("runs echo printed: let it? [y/N]: ")
    program.types("y\n")
    await program.shows("Token: ")
    await eventually(lambda: not program.echoes)
    program.types("never seen\n")
    text = await program.shows(lambda screen: "hangs" in screen.text.rpartition("Token:")[2])
    first, others = text.index("  1. red"), text.index("Name [Bob]: ")
    asked = text[first : text.rindex("Colour: ")] + text[others : text.index("Token:")]
    assert "hangs" not in asked
    await program.shows(lambda screen: re.search(r"asks +ready", screen.text))
    program.types("\x03")
    assert await program.ends() == 0
    assert "never seen" not in program.screen.raw


@pytest.mark.covers("inputs-sources")
async def test_without_an_answer_the_owner_is_shown_the_alternatives(run_on_terminal: Any) -> None:
    program = await run_on_terminal({"asks": [*FINE, "${input:token}"]})
    await program.shows("Token: ")
    await eventually(lambda: not program.echoes)
    program.types("\x04")
    await program.shows("A2C_INPUT_TOKEN")
    await program.shows(lambda screen: screen.line.endswith(">"))
    program.types("\x04")
    assert await program.ends() == 0
    assert "Traceback" not in program.screen.text


@pytest.mark.covers("supervise-orphans")
@pytest.mark.parametrize("question", ["", "Name [Bob]: ", "Token: "], ids=["starting", "asked", "asked for a secret"])
async def test_ctrl_c_while_servers_start_leaves_no_process_and_an_echoing_terminal(
    run_on_terminal: Any, question: str
) -> None:
    marker = uuid4().hex
    asks = {"Name [Bob]: ": [*FINE, "${input:name}"], "Token: ": [*FINE, "${input:token}"]}
    servers = {"hangs": HANGS, "fine": FINE, **({"asks": asks[question]} if question else {})}
    program = await run_on_terminal(servers, marker=marker)
    await program.shows(lambda screen: (question or "starting") in screen.raw)
    await eventually(lambda: len(pids_with(marker)) >= 2)
    if question == "Token: ":
        await eventually(lambda: not program.echoes)
    children = pids_with(marker)
    program.types("\x03")
    assert await program.ends() == 0
    assert program.echoes
    await program.shows(listed("\nstopped\n"))
    await all_gone([*children, *pids_with(marker)])
