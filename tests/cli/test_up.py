"""`a2c-smcp up`, as a person uses it: what it prints works when it is pasted."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import signal
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from os import pathsep
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from a2c_smcp.cli.suggestions import suggested_call
from tests.computer.hosted import pids_with
from tests.computer.pseudo_terminal import OnTerminal, on_a_terminal
from tests.computer.supervised import SERVERS, all_gone
from tests.program import folder_of_program
from tests.stage.mcp_clients import called, client_at
from tests.stage.place import PROGRAM, Place, good
from tests.stage.program import Program
from tests.stage.strangers import answering

GOOD = str(SERVERS / "good.py")

pytestmark = pytest.mark.covers("up")


async def suggested(program: Program) -> str:
    """The line to try."""
    return (await program.says(" --url ")).strip()


async def url_of(program: Program) -> str:
    return (await program.says("listening on ")).removeprefix("listening on ")


async def begun(place: Place, *options: str) -> Program:
    """`up`, with one server, `good`, where no other configuration is written."""
    if not (place.folder / "mcp.json").exists():
        place.write({"good": good()})
    return await place.start("up", "--port", "0", *options)


async def started(place: Place, *options: str) -> tuple[Program, str]:
    """`up` when it has printed the line to try."""
    program = await begun(place, *options)
    return program, await suggested(program)


@asynccontextmanager
async def up_on_terminal(place: Place, *options: str) -> AsyncIterator[OnTerminal]:
    command = [str(PROGRAM), "up", "--port", "0", "--config", str(place.folder / "mcp.json"), *options]
    async with on_a_terminal(*command, env={**place.environ, "TERM": "xterm-256color"}, columns=300) as program:
        yield program


def key_file(place: Place) -> Path:
    (found,) = (place.state / "a2c-smcp" / "up").glob("*.key")
    return found


async def test_the_command_that_up_prints_calls_a_tool_when_pasted(place: Place) -> None:
    program, line = await started(place, "--name", "laptop")
    assert "agent call laptop add a=1 b=1 " in line
    ended = await place.paste(line)
    assert (ended.code, ended.out) == (0, "2\n")
    await program.stops(signal.SIGINT)
    assert program.err[-1] == "stopped"


async def test_an_mcp_client_uses_the_office_and_an_agent_is_told_of_it(place: Place) -> None:
    program, line = await started(place, "--name", "laptop")
    url = re.search(r"http\S+/mcp/desk", await program.says("or from an MCP client"))
    assert url
    connect = await program.says("connect claude-code")
    assert connect.endswith(f"connect claude-code --url {url[0].removesuffix('/mcp/desk')} --office desk")
    async with client_at(url[0], key_file(place).read_text().strip()) as session:
        assert await called(session, "add", a=1, b=2) == "3"
        ended, told = await place.paste(f"{line} --wait 0"), "an MCP client leaves a minute after its last request"
        ended.refused(1, "office 'desk' has an agent already, 'mcp:", told)


async def test_the_suggested_command_waits_for_slow_servers(place: Place) -> None:
    """Longer than the ten seconds after which it no longer waits where there is something to try."""
    script = (
        f"import runpy, sys, time; time.sleep(11); sys.argv = [{GOOD!r}]; runpy.run_path({GOOD!r}, None, '__main__')"
    )
    place.write({"slow": good(args=["-c", script])})
    program = await place.start("up", "--port", "0", "--name", "laptop")
    await program.says("still starting: slow; a line to try follows")
    await program.says("slow: ready")
    assert "agent call laptop add a=1 b=1 " in await suggested(program)


async def test_the_key_stays_the_same_and_only_its_owner_can_read_it(place: Place) -> None:
    place.write({})
    program, _ = await started(place)
    path = key_file(place)
    key = path.read_text().strip()
    assert str(path) in await program.says("API key: ")
    assert key.startswith("a2c_")
    assert key not in program.said
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (place.state / "a2c-smcp").rglob("*")}
    assert modes == {0o600, 0o700}
    await program.stops(signal.SIGINT)
    path.chmod(0o644)
    program, line = await started(place)
    assert path.read_text().strip() == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (await place.paste(line)).code == 0


async def test_connections_on_this_machine_use_no_proxy(place: Place) -> None:
    nowhere = {"HTTP_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
    place.environ |= {**nowhere, "VIRTUAL_ENV": str(PROGRAM.parent.parent)}
    _, line = await started(place)
    assert line.startswith(f"{shlex.quote(str(PROGRAM))} agent "), "another terminal does not have it on its PATH"
    assert (await place.paste(line)).out == "2\n"


async def test_without_the_key_connections_are_refused(place: Place) -> None:
    url = await url_of(await begun(place))
    for environ in ({"XDG_STATE_HOME": str(place.folder / "another user's")}, {"A2C_API_KEY": "another key"}):
        (await place.run("agent", "tools", "--url", url, **environ)).refused(1, "does not accept this key")


async def test_an_agent_of_the_same_user_finds_the_key_while_it_runs(place: Place) -> None:
    program, _ = await started(place, "--name", "laptop")
    url = await url_of(program)
    for way in (url, url.replace("127.0.0.1", "localhost")):
        ended = await place.run("agent", "call", "laptop", "add", "a=2", "b=3", "--url", way)
        assert (ended.code, ended.out) == (0, "5\n")
    seen = await place.run("doctor", "--url", url)
    assert "The Server accepts the key." in seen.out
    lost = await place.run("agent", "tools")
    assert f"a2c-smcp up is running at {url}: give that with --url.\n" in lost.err
    elsewhere = await place.run("agent", "tools", "--url", "http://127.0.0.1:9")
    assert "a2c-smcp up" not in elsewhere.err
    assert "nothing listens there" in elsewhere.err
    port = int(url.rpartition(":")[2])
    await program.stops(signal.SIGINT)
    async with answering("404 Not Found", port=port) as stranger:
        (await place.run("agent", "tools", "--url", url)).refused(1)
    assert stranger.heard
    assert key_file(place).read_text().strip() not in "".join(stranger.heard)


async def test_a_second_up_in_the_same_folder_says_where_the_first_runs(place: Place) -> None:
    program, _ = await started(place)
    url = await url_of(program)
    second = await place.run("up", "--port", "0")
    second.refused(1, f"is up already: {url}, process {program.process.pid}", "Ctrl-C")
    line = next(line for line in second.err.splitlines() if "a2c-smcp agent" in line)
    assert "add" in (await place.paste(line)).out
    await program.stops(signal.SIGINT)
    await started(place)


async def test_up_starts_after_another_was_killed(place: Place) -> None:
    place.write({})
    program, _ = await started(place)
    await program.kill()
    await started(place)


async def test_the_file_is_watched_while_up_runs(place: Place) -> None:
    program, line = await started(place, "--trust-changes")
    line = re.sub(r"agent .*? --url", "agent tools --url", line)
    path = place.write({"good": good(), "other": good(tool_meta={"add": {"alias": "plus"}})})
    await program.says("other: ready")
    assert {"add", "plus"} <= {tool["name"] for tool in json.loads((await place.paste(f"{line} --json")).out)}
    path.write_text("{not json", "utf-8")
    await program.says("the configuration is not taken: ")
    assert "add" in (await place.paste(line)).out
    place.write({"other": good()})
    await program.says("good: stopped")
    await program.stops(signal.SIGINT)


def evil(place: Place) -> dict[str, Any]:
    """A server that an agent with a tool that writes files would like to have run."""
    command = {"command": "sh", "args": ["-c", f"touch '{place.folder}/was-run'"]}
    return {**command, "env": {"API_TOKEN": "t0ken-0123456789"}}


@pytest.mark.covers("config-consent")
async def test_a_changed_file_runs_nothing_new_if_the_owner_cannot_be_asked(place: Place) -> None:
    program = await begun(place)
    await program.says("good: ready")
    place.write({"good": good(forbidden_tools=["add"]), "evil": evil(place)})
    said = await program.says("a change of the configuration is not applied, since nobody can be asked: ")
    assert 'servers.evil.command: "sh"; servers.evil.args: ["-c", "touch ' in said
    assert 'servers.evil.env.API_TOKEN: "***"' in said
    assert "--trust-changes applies such changes" in said
    await program.stops(signal.SIGINT)
    assert "evil: " not in program.said
    ended = await place.run("up", "--port", "0")
    assert (ended.code, "a change that its owner has not agreed to: servers.evil.type" in ended.err) == (1, True)
    assert not (place.folder / "was-run").exists()
    place.write({"good": good()})
    program = await begun(place)
    await program.says("good: ready")
    await program.stops(signal.SIGINT)


@pytest.mark.covers("config-consent")
async def test_a_new_setup_file_is_not_run_instead_of_the_one_that_was_run(place: Place) -> None:
    program, _ = await started(place)
    await program.stops(signal.SIGINT)
    (own,) = place.folder.glob("*.json")
    evil = place.folder / "a2c.toml"
    evil.write_text('[servers.evil]\ncommand = "sh"\nargs = ["-c", "touch ran"]\n', "utf-8")
    program, _ = await started(place)
    assert f"{own.name} is used, and not a2c.toml, which --config a2c.toml would run" in program.err
    await program.stops(signal.SIGINT)
    own.unlink()
    ended = await place.run("up", "--port", "0")
    ended.refused(2, f"{own.name}, which was run here before, is gone. --config a2c.toml runs the other")
    assert not (place.folder / "ran").exists()


async def test_on_a_terminal_a_change_waits_for_a_yes_and_a_no_holds_until_the_next_change(place: Place) -> None:
    place.write({"good": good()})
    async with up_on_terminal(place) as program:
        await program.shows("a2c-smcp agent ")
        for turn, (answer, more) in enumerate({"n": {}, "y": {"off": good(disabled=True)}}.items(), 1):
            place.write({"good": good(), "evil": evil(place), **more})
            await program.shows(lambda screen, turn=turn: screen.text.count("apply it? [y/N]") == turn)
            assert 'servers.evil.command: "sh"' in program.screen.text
            assert not (place.folder / "was-run").exists()
            program.types(f"{answer}\r")
            await program.shows("was declined" if answer == "n" else "is applied")
        await program.shows(lambda _: (place.folder / "was-run").exists())
        assert "t0ken-0123456789" not in program.screen.raw
        program.types("\x04")
        assert await program.ends() == 0


async def test_ctrl_c_leaves_no_child_process(place: Place) -> None:
    marker = uuid4().hex
    place.write({"good": good(marker), "hangs": {**good(marker), "args": ["-c", "import time; time.sleep(600)"]}})
    program = await begun(place)
    await program.says("good: ready")
    children = pids_with(marker)
    assert len(children) >= 2
    await program.stops(signal.SIGINT)
    await all_gone([*children, *pids_with(marker)], within=5.0)


@pytest.mark.parametrize("words", [(), ("--no-input",)], ids=["with a prompt", "without one"])
async def test_nothing_is_suggested_once_it_stops(place: Place, words: tuple[str, ...]) -> None:
    place.write({"hangs": {**good(), "args": ["-c", "import time; time.sleep(600)"]}})
    async with up_on_terminal(place, *words) as program:
        await program.shows("joined desk")
        program.types("\x03")
        assert await program.ends() == 0
    assert "hangs: stopped" in program.screen.text
    assert "try in another terminal" not in program.screen.text


async def test_on_a_terminal_up_shows_the_key_has_a_prompt_with_grants_and_ctrl_c_stops_it(place: Place) -> None:
    marker = uuid4().hex
    place.write({"good": good(marker, default_tool_meta=None)})
    async with up_on_terminal(place, "--name", "laptop") as program:
        text = await program.shows("a2c-smcp agent call laptop add a=1 b=1 ")
        assert f"API key: {key_file(place).read_text().strip()} (kept in " in text
        await program.shows("laptop>")
        line = next(line for line in text.splitlines() if "a2c-smcp agent call" in line)
        pasted = asyncio.create_task(place.paste(line.strip()))
        await program.shows("always")
        program.types("always tool\r")
        assert (await pasted).out == "2\n"
        assert (await place.paste(line.strip())).out == "2\n", "always holds for the next run, too"
        program.types("half a line")
        await program.shows("laptop> half a line")
        program.types("\x03")
        await program.shows(lambda screen: screen.line.rstrip() == "laptop>")
        program.types("\x03")
        assert await program.ends() == 0
        await program.shows("stopped\n")
    await all_gone(pids_with(marker), within=5.0)


async def test_tools_that_need_approval_are_not_suggested_unless_all_may_run(place: Place) -> None:
    place.write({"good": good(default_tool_meta=None)})
    program, line = await started(place)
    assert "agent tools --url" in line
    await program.says("--yes lets all run")
    await program.stops(signal.SIGINT)
    program, line = await started(place, "--yes")
    assert " add a=1 b=1 " in line
    assert (await place.paste(line)).out == "2\n"


@pytest.mark.covers("approval-by-client")
async def test_with_approve_by_client_the_person_who_calls_approves(place: Place) -> None:
    place.write({"good": good(default_tool_meta=None)})
    _, line = await started(place, "--name", "laptop", "--approve-by", "client")
    assert "agent call laptop add a=1 b=1 " in line
    nobody = await place.paste(line)
    nobody.refused(1, "elicitation")
    path = f"{folder_of_program()}{pathsep}{place.environ['PATH']}"
    for choice, code in (("2", 0), ("1", 1)):
        env = {**place.environ, "PATH": path, "TERM": "xterm-256color"}
        async with on_a_terminal("sh", "-c", line, env=env, columns=300) as caller:
            await caller.shows("The computer laptop asks:")
            await caller.shows("wants to run add of the MCP server good on the computer laptop, with")
            await caller.shows('{"a": 1, "b": 1}')
            await caller.shows("Let it run?")
            caller.types(f"{choice}\r")
            assert await caller.ends() == code


async def test_options_win_over_the_server_table(place: Place) -> None:
    place.write({}, "mcp.json")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    table = f'[server]\nport = {port}\noffice = "lab"\nname = "bench"\n'
    (place.folder / "a2c.toml").write_text(f"{table}\n[servers]\n", "utf-8")
    program = await place.start("up", "--office", "hall")
    line = await suggested(program)
    assert line == f"a2c-smcp agent tools --url http://127.0.0.1:{port} --office hall"
    members = json.loads((await place.paste(line.replace(" tools ", " room ") + " --json")).out)
    assert [each["name"] for each in members if each["role"] == "computer"] == ["bench"]


WRONG = {
    "no such file": ({}, ["--config", "nowhere.json"], 2, ("nowhere.json", "there is no such file")),
    "a wrong server": ({"mcp.json": '{"mcpServers": {"a": {"command": 5}}}'}, [], 2, ("server 'a'", "command")),
    "no such setting": ({"a2c.toml": "[server.files]\ncommand = 'x'"}, [], 2, ("server.files", "`servers`")),
    "a wrong setting": ({"a2c.toml": "[server]\nport = 'x'\n[servers]"}, [], 2, ("server.port", "65535")),
    "not an address": ({"mcp.json": '{"servers": {}}'}, ["--host", "192.0.2.1"], 1, ("192.0.2.1", "--host")),
    "a wrong name": ({"mcp.json": '{"servers": {}}'}, ["--name", ""], 2, ("--name",)),
}


@pytest.mark.parametrize(("files", "options", "code", "words"), WRONG.values(), ids=WRONG)
async def test_wrong_use_ends_at_once_and_says_what_to_do(
    place: Place, files: dict[str, str], options: list[str], code: int, words: tuple[str, ...]
) -> None:
    for name, text in files.items():
        (place.folder / name).write_text(text, "utf-8")
    (await place.run("up", *options)).refused(code, *words)


async def test_a_state_folder_that_cannot_be_made_is_named(place: Place) -> None:
    place.write({})
    place.state.write_text("not a folder", "utf-8")
    (await place.run("up", "--port", "0")).refused(1, str(place.state))


# Which call is suggested


def tool(name: str, properties: dict[str, Any] | None = None, read_only: bool | None = None) -> Any:
    hints = {} if read_only is None else {"MCP_TOOL_ANNOTATION": json.dumps({"readOnlyHint": read_only})}
    schema = {"type": "object", "properties": properties or {}, "required": [*(properties or {})]}
    return {"name": name, "description": "", "params_schema": schema, "return_schema": None, "meta": hints}


TEXT = {"type": "string"}
CHOSEN = {
    "one that only reads goes first": ([tool("add"), tool("walk", read_only=True)], ["walk"]),
    "what may do harm is never chosen": ([tool("crash"), tool("remove"), tool("list_all", read_only=False)], None),
    "names tell where nothing else does": ([tool("crash"), tool("getTime")], ["getTime"]),
    "fewer guesses are better": ([tool("add", {"a": TEXT}), tool("list_files")], ["list_files"]),
    "values come from the schema": ([tool("get", {"a": {"enum": ["1", "2"]}, "b": TEXT})], ["get", 'a="1"', "b=hello"]),
    "what cannot be guessed is left out": ([tool("get", {"a": {"type": "string", "pattern": "^[0-9]+$"}})], None),
    "a path, a URL or an id is not guessed": (
        [tool("read_file", {"path": TEXT}, read_only=True), tool("get", {"pageId": {"type": "integer"}})],
        None,
    ),
    "a schema that would take long to check is left out": (
        [tool("get", {"text": {**TEXT, "allOf": [{"$ref": "#/properties/text"}, {"$ref": "#/properties/text"}]}})],
        None,
    ),
    "nothing private comes onto the screen": ([tool("get-env", read_only=True), tool("list_tokens")], None),
}


@pytest.mark.parametrize(("tools", "words"), CHOSEN.values(), ids=CHOSEN)
def test_the_suggested_call(tools: list[Any], words: list[str] | None) -> None:
    assert suggested_call("laptop", tools, may_ask=True) == (words and ["call", "laptop", *words])
    assert suggested_call("laptop", tools, may_ask=False) is None


async def test_an_imported_secret_works_without_a_keyring_and_without_a_question(place: Place) -> None:
    secret = f"ghp_{uuid4().hex}"
    claude = {key: value for key, value in good().items() if key != "default_tool_meta"}
    claude["env"] = {"GITHUB_TOKEN": secret}
    place.write({"good": claude}, "claude_desktop_config.json")
    imported = await place.run("import", "claude_desktop_config.json", "--write", "--secrets", "inputs")
    assert (imported.code, secret in imported.out + imported.err) == (0, False)
    assert secret not in (place.folder / "a2c.json").read_text()
    assert stat.S_IMODE((place.folder / "a2c.inputs.json").stat().st_mode) == 0o600
    program, line = await started(place, "--name", "laptop", "--yes", "--no-input")
    seen = await place.paste(re.sub(r"agent call laptop .*? --url", "agent call laptop environment --url", line))
    assert '"GITHUB_TOKEN": "***"' in seen.out
    await program.stops(signal.SIGINT)
