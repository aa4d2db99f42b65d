"""The `a2c-smcp agent` program, as people and scripts use it."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import platform
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.cli.commands.agent import agent as group
from a2c_smcp.computer.calls.catalog import FUNCTIONS
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.consent.approval import Grant, approve_all
from a2c_smcp.registry import Image
from a2c_smcp.server import DefaultAuthenticationProvider
from tests.computer.hosted import ready
from tests.computer.supervised import good
from tests.peer import Peer
from tests.program import folder_of_program
from tests.stage.agent import Twin
from tests.stage.guides import example_server
from tests.stage.place import Ended
from tests.waiting import until

PATIENCE = 60.0

pytestmark = pytest.mark.covers("agent-program")


class Desk:
    """A computer, and what has become of the calls of its slow tool."""

    def __init__(self, folder: Path) -> None:
        landing, self.skills = folder / "landing", folder / "skills"
        landing.mkdir()
        self.computer = Computer("laptop", landing=landing, skills=self.skills)
        self.started = self.cancelled = 0
        for tool in (self.wait, self.odd, self.broken, self.screenshot, self.read_pdf):
            self.computer.tool(tool, auto_apply=True)
        self.computer.tool(self.guarded)
        self.computer.add_server(good(default_tool_meta={"auto_apply": True}, tool_meta={"add": {"tags": ["sums"]}}))

    async def wait(self) -> None:
        """Never comes to its end."""
        self.started += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    def odd(self) -> str:
        return "\x1b[31mred \ud800"

    def broken(self) -> None:
        raise ValueError("this tool always fails")

    def screenshot(self) -> Image:
        return Image(b"\x89PNG")

    def read_pdf(self, path: str) -> str:
        return Path(path).read_text("utf-8")

    def guarded(self) -> str:
        return "secret"

    def add_skill(self, *files: str) -> None:
        """A skill of the owner, with these files beside its SKILL.md."""
        folder = self.skills / "user" / "code-review"
        for name in ("SKILL.md", *files):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("---\ndescription: How to review.\n---\nRead it twice.\n", "utf-8")


@pytest.fixture
async def desk(hosts: Any, tmp_path: Path) -> AsyncIterator[Desk]:
    desk = Desk(tmp_path)
    desk.add_skill("scripts/check.py", "images/logo.png")
    async with hosts(desk.computer):
        await ready(desk.computer, "good")
        yield desk


async def test_tools_of_all_computers_are_json_if_asked_for(desk: Desk, run: Any) -> None:
    ended = await run("tools", "--json")
    tools = {tool["name"]: tool for tool in json.loads(ended.out) if tool["computer"] == "laptop"}
    assert ended.code == 0
    assert {"add", "guarded", "slow"} <= tools.keys()
    assert tools["add"]["params_schema"]["required"] == ["a", "b"]
    assert (tools["add"]["tags"], tools["add"]["needs_approval"]) == (["sums"], False)
    assert tools["guarded"]["needs_approval"]


async def test_tools_are_chosen_by_computer_and_tag_and_shown_as_a_table(desk: Desk, run: Any) -> None:
    ended = await run("tools", "laptop", "--tag", "sums")
    assert [line.split() for line in ended.out.splitlines()] == [
        ["tool", "computer", "server", "description", "tags"],
        ["add", "laptop", "good", "Add", "two", "numbers.", "sums"],
    ]


@pytest.mark.covers("program-pipes")
async def test_a_table_of_tools_has_a_line_for_each_with_the_first_sentence_which_only_a_terminal_cuts(
    desk: Desk, run: Any, terminal: Any
) -> None:
    def measured() -> str:
        """Weighs a thing, e.g. an apple,\n        on the kitchen scales. Do not use it for gold.\n\n        More."""
        return ""

    desk.computer.tool(measured)
    desk.computer.tool(lambda: "", name="other")
    ended = await run("tools", COLUMNS="20", FORCE_COLOR="1")
    (line,) = [line for line in ended.out.splitlines() if line.startswith("measured")]
    assert "Weighs a thing, e.g. an apple, on the kitchen scales." in line
    assert "gold" not in ended.out
    assert "\x1b" not in ended.out
    assert {line == line.rstrip() for line in ended.out.splitlines()} == {True}
    async with terminal("tools") as program:
        assert await program.ends() == 0
        (line,) = [line for line in program.screen.text.splitlines() if line.startswith("measured")]
    assert re.search(r"Weighs a .*…", line)
    assert "asks" in line


@pytest.mark.covers("program-pipes")
async def test_in_a_pipe_a_text_of_a_computer_neither_makes_a_row_nor_moves_a_column(
    connect: Any, run: Any, office: str
) -> None:
    peer: Peer = await connect()
    tools = [
        {"name": name, "description": description, "params_schema": {}, "return_schema": None}
        for name, description in (("plain", "Plain."), ("天平", "称重。"), ("forged\nrm  laptop", "\x1b[2J"))
    ]
    peer.answers("client:get_tools", {"tools": tools, "req_id": "r"})
    await peer.join("computer", "odd", office)
    assert (await run("tools", PYTHONUTF8="1")).out.splitlines() == [
        "tool                computer  description  approval",
        "plain               odd       Plain.       asks",
        "天平                odd       称重。       asks",
        "forged\\nrm  laptop  odd       \\u001b[2J    asks",
    ]


@pytest.mark.covers("tools-approved")
async def test_only_what_really_asks_is_shown_as_asking(desk: Desk, run: Any, hosts: Any) -> None:
    desk.computer.approvals.grants = {Grant(f"{getpass.getuser()}@{platform.node()}", FUNCTIONS, "guarded")}
    desk.computer.tool(lambda: "", name="other")
    trusting = Computer("trusting", approve=approve_all)
    trusting.tool(lambda: "", name="anything")
    names = ("guarded", "other", "anything")
    async with hosts(trusting):
        for options, expected in (((), (False, True, False)), (("--name", "x"), (True, True, False))):
            tools = json.loads((await run("tools", "--json", *options)).out)
            asks = {tool["name"]: tool["needs_approval"] for tool in tools}
            assert tuple(asks[name] for name in names) == expected


async def test_a_computer_that_does_not_say_what_it_has_keeps_nothing_back_but_its_own(
    desk: Desk, connect: Any, run: Any, office: str
) -> None:
    broken: Peer = await connect()
    broken.answers("client:get_tools", {"code": 500, "message": "Internal error: no idea"})
    await broken.join("computer", "broken", office)
    ended = await run("tools", "--json")
    assert ended.code == 1
    assert {tool["computer"] for tool in json.loads(ended.out)} == {"laptop"}
    assert "broken gave no list of its tools: Internal error: no idea" in ended.err


GIVEN = {"JSON": (['{"a": 2, "b": 3}'], ""), "pairs": (["a=2", "b=3"], ""), "stdin": (["-"], '{"a": 2,\n"b": 3}\n')}


@pytest.mark.parametrize(("words", "typed"), GIVEN.values(), ids=GIVEN)
async def test_a_call_prints_the_text_of_its_result(desk: Desk, run: Any, words: list[str], typed: str) -> None:
    assert await run("call", "laptop", "add", *words, typed=typed) == Ended(0, "5\n", "")


async def test_a_call_prints_the_whole_result_as_json(desk: Desk, run: Any) -> None:
    ended = await run("call", "laptop", "add", "a=2", "b=3", "--json")
    assert json.loads(ended.out)["content"] == [{"type": "text", "text": "5"}]


async def test_a_failing_tool_speaks_on_stderr_and_fails(desk: Desk, run: Any) -> None:
    ended = await run("call", "laptop", "broken")
    assert (ended.code, ended.out) == (1, "")
    assert "always fails" in ended.err


async def test_a_text_that_utf8_cannot_say_is_escaped_and_a_terminal_obeys_none(
    desk: Desk, run: Any, terminal: Any
) -> None:
    assert (await run("call", "laptop", "odd")).out == "\x1b[31mred \\ud800\n"
    async with terminal("call", "laptop", "odd") as program:
        assert await program.ends() == 0
        await program.shows("[31mred")
        assert "\x1b[31mred" not in program.screen.raw


async def test_the_desktop_is_text_or_json_and_is_cut_as_asked(desk: Desk, run: Any) -> None:
    everything = await run("desktop", "laptop")
    assert everything.out == "window://good/one?priority=5\n\nfirst\n\nwindow://good/two\n\nsecond\n"
    assert json.loads((await run("desktop", "laptop", "--size", "1", "--json")).out) == [
        "window://good/one?priority=5\n\nfirst"
    ]
    assert (await run("desktop", "laptop", "--window", "window://good/two")).out == "window://good/two\n\nsecond\n"


async def test_configuration_and_members_are_shown(desk: Desk, run: Any, office: str) -> None:
    assert "good" in json.loads((await run("config", "laptop", "--json")).out)["servers"]
    table = (await run("config", "laptop")).out
    assert ["good", "stdio"] in [line.split()[:2] for line in table.splitlines()]
    members = json.loads((await run("room", "--name", "planner", "--json")).out)
    assert {(member["role"], member["name"]) for member in members} == {("agent", "planner"), ("computer", "laptop")}
    assert "@" in (await run("room")).out


async def test_options_may_stand_before_or_after_the_command_and_the_later_one_wins(run: Any, office: str) -> None:
    for words in (
        ["--office", "lab", "room"],
        ["room", "--office", "lab"],
        ["--office", "x", "room", "--office", "lab"],
    ):
        ended = await run(*words, "--name", office, "--json")
        assert [(member["office_id"], member["name"]) for member in json.loads(ended.out)] == [("lab", office)]


# What goes wrong

FAILING = {
    "no such computer": (["config", "desktop"], "No such computer: 'desktop'. Office '{office}' has laptop."),
    "no such tool": (["call", "laptop", "ad", "a=1"], "No such tool: 'ad'. Did you mean add"),
    "wrong arguments": (["call", "laptop", "add", "a=1"], "a2c-smcp agent tools laptop --json shows what"),
    "no approval": (["call", "laptop", "guarded"], "Its owner may allow it"),
    "timeout": (
        ["call", "laptop", "wait", "--timeout", "1"],
        "--timeout gives it more time, --extend as much as it needs while it shows progress.",
    ),
    "no Server": (["room", "--url", "http://127.0.0.1:9"], "say with --url where it is."),
    "no TLS": (["room", "--url", "https://127.0.0.1:9"], "https://127.0.0.1:9 cannot be reached"),
}


@pytest.mark.covers("program-errors")
@pytest.mark.parametrize(("arguments", "words"), FAILING.values(), ids=FAILING)
async def test_what_goes_wrong_is_said_with_what_to_do(
    desk: Desk, run: Any, office: str, arguments: list[str], words: str
) -> None:
    ended = await run(*arguments)
    assert (ended.code, ended.out) == (1, "")
    assert words.format(office=office) in ended.err
    assert len(ended.err.splitlines()) == 1


@pytest.mark.covers("program-errors", "office-one-agent")
async def test_a_taken_office_says_that_it_holds_one_agent(planner: Twin, run: Any, office: str) -> None:
    ended = await run("room", "--wait", "0")
    assert ended.code == 1
    held = f"An office holds one agent at a time: office '{office}' has an agent already, 'planner'. Wait until"
    assert ended.err.startswith(held)


@pytest.mark.covers("office-one-agent")
async def test_a_command_waits_until_another_one_has_left_the_office(desk: Desk, run: Any) -> None:
    first = asyncio.create_task(run("call", "laptop", "wait", "--timeout", "1"))
    await until(lambda: desk.started == 1)
    second = await run("room", "--json")
    assert second.code == 0
    assert (await first).code == 1, "it was out of time"
    (name,) = [each["name"] for each in json.loads(second.out) if each["role"] == "agent"]
    assert name == f"{getpass.getuser()}@{platform.node()}"


@pytest.mark.covers("program-errors", "auth-refused")
async def test_a_wrong_key_and_a_wrong_version_are_told(serve: Any, run: Any) -> None:
    hub = await serve(auth=DefaultAuthenticationProvider("the right key"))
    for environ in ({}, {"A2C_API_KEY": "a wrong key"}):
        ended = await run("room", A2C_URL=hub.url, **environ)
        assert ended.code == 1
        assert f"{hub.url} does not accept this key, or wants one. Give" in ended.err
    assert (await run("room", A2C_URL=hub.url, A2C_API_KEY="the right key")).code == 0
    ended = await run("room", "--url", (await serve(require_version="0.3")).url)
    assert ended.code == 1
    assert "Protocol version not supported: this server speaks 0.3, not 0.4.0" in ended.err


async def test_an_empty_office_says_how_to_fill_it(run: Any) -> None:
    ended = await run("desktop", "laptop")
    assert ended.code == 1
    assert "a2c-smcp computer adds this machine" in ended.err


WRONG = {
    "bad JSON": (["call", "laptop", "add", "{a: 1}"], "not JSON"),
    "bad JSON on stdin": (["call", "laptop", "add", "-"], "not JSON"),
    "no object": (["call", "laptop", "add", "[1]"], "JSON object"),
    "no argument": (["call", "laptop", "add", "2"], "a=1 b=2"),
    "no URL": (["room", "--url", "nonsense"], "http://127.0.0.1:7000"),
    "no name": (["room", "--name", " x"], "--name: must not begin"),
    "no such CA": (["room", "--ca", "nowhere.pem"], "--ca"),
    "no such command": (["frobnicate"], "No such command"),
    "too long": (["call", "laptop", "add", "--timeout", "99999"], "3600"),
    "no URI": (["read", "laptop", "library"], "Missing argument"),
    "output and watch": (["read", "laptop", "x", "y:z", "--output", "f", "--watch"], "Leave out --watch and --json."),
    "no argument of a prompt": (
        ["prompt", "laptop", "x", "y", "title"],
        "'title' is no argument of a prompt. Write JSON",
    ),
    "no string": (["prompt", "laptop", "x", "y", '{"title": 1}'], "The argument 'title' is not a string."),
}


@pytest.mark.covers("program-errors")
@pytest.mark.parametrize(("arguments", "words"), WRONG.values(), ids=WRONG)
async def test_wrong_use_ends_before_anything_is_dialled(run: Any, arguments: list[str], words: str) -> None:
    ended = await run(*arguments, A2C_URL="http://127.0.0.1:9")
    assert (ended.code, ended.out) == (2, "")
    assert words in ended.err


# While it happens


async def test_a_watch_tells_of_each_event_in_a_line_and_ends_well(computer: Peer, start: Any, office: str) -> None:
    computer.answers("client:get_tools", {"tools": [{"name": "add", "params_schema": {}}], "req_id": "x"})
    process = await start("watch", "--json")

    async def tells(**wanted: Any) -> None:
        async with asyncio.timeout(PATIENCE):
            while not wanted.items() <= json.loads(await process.stdout.readline()).items():
                pass

    await tells(event="enter", computer="laptop")
    await tells(event="tools", tools=["add"])
    for kind, update in (
        ("config", "config"),
        ("desktop", "desktop"),
        ("resources", "resource_list"),
        ("prompts", "prompts"),
        ("notify:update_mood", "mood"),
    ):
        await computer.ask(f"server:update_{update}", {"computer": "laptop"})
        await tells(event=kind, computer="laptop")
    await computer.ask("server:leave_office", {"office_id": office})
    await tells(event="leave", computer="laptop")
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    assert (process.returncode, err.decode()) == (0, f"watching office {office} (Ctrl-C ends it)\n")


async def test_a_watched_desktop_is_shown_again_when_it_has_changed(computer: Peer, start: Any) -> None:
    desktops = ["window://a.b/c\n\none"]
    computer.answers("client:get_desktop", lambda _: {"desktops": list(desktops), "req_id": "x"})
    process = await start("desktop", "laptop", "--watch", "--json")
    async with asyncio.timeout(PATIENCE):
        assert json.loads(await process.stdout.readline()) == desktops
        desktops[:] = ["window://a.b/c\n\ntwo"]
        await computer.ask("server:update_desktop", {"computer": "laptop"})
        assert json.loads(await process.stdout.readline()) == desktops
        process.send_signal(signal.SIGINT)
        await process.communicate()
    assert process.returncode == 0


# On a terminal


@pytest.mark.parametrize("colour", [True, False], ids=["colour", "NO_COLOR"])
async def test_on_a_terminal_tools_are_a_table(desk: Desk, terminal: Any, colour: bool) -> None:
    async with terminal("tools", **({} if colour else {"NO_COLOR": "1"})) as program:
        assert await program.ends() == 0
        text = await program.shows("Add two numbers.")
        assert text.splitlines()[0].split() == ["tool", "computer", "server", "description", "tags", "approval"]
        assert "connecting" not in text
        assert ("\x1b[36m" in program.screen.raw) is colour


async def test_ctrl_c_cancels_the_call_on_the_computer(desk: Desk, terminal: Any) -> None:
    async with terminal("call", "laptop", "wait") as program:
        await program.shows(lambda screen: re.search(r"wait on laptop \d\.\d s", screen.text))
        await until(lambda: desk.started == 1)
        program.types("\x03")
        assert await program.ends() == 1
        text = await program.shows("wait was cancelled on laptop")
        assert " s Ctrl-C" not in text
        assert "?25h" in program.screen.raw.rpartition("?25l")[2]
    await until(lambda: desk.cancelled == 1)


async def test_a_second_ctrl_c_quits_at_once_though_the_computer_does_not_answer(computer: Peer, terminal: Any) -> None:
    computer.answers("client:tool_call", lambda _: asyncio.Event().wait())
    async with terminal("call", "laptop", "wait") as program:
        await computer.was_asked("client:tool_call")
        program.types("\x03")
        await program.shows("cancelling wait on laptop")
        program.types("\x03")
        assert await program.ends() == 1
        assert "Traceback" not in program.screen.text


# What it says of itself


@pytest.mark.parametrize("command", ["", *(command.callback.__name__ for command in group.registered_commands)])
async def test_the_examples_in_the_help_work_when_pasted(
    command: str, desk: Desk, run: Any, surroundings: dict[str, str], tmp_path: Path
) -> None:
    shown = (await run(*command.split(), "--help")).out
    examples = re.findall(r"^ (?:.* \| )?a2c-smcp agent .*$", shown, re.MULTILINE)
    assert examples
    (tmp_path / "report.pdf").write_text("a report", "utf-8")
    await until(lambda: desk.computer.skills.references())
    if any("library" in line for line in examples):
        await desk.computer.put_server({"name": "library", **example_server("library")})
        await ready(desk.computer, "library")
    for line in examples:
        if not line.rstrip().endswith("--watch") and not re.search(" agent (watch|logs)", line):
            environ = {**surroundings, "PATH": f"{folder_of_program()}{os.pathsep}{surroundings['PATH']}"}
            process = await asyncio.create_subprocess_shell(line, env=environ, cwd=tmp_path, stdout=-1, stderr=-1)
            async with asyncio.timeout(PATIENCE):
                _, err = await process.communicate()
            assert process.returncode == 0, (line, err)
