"""`a2c-smcp import`, as somebody uses them who has the files of other programs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from a2c_smcp.computer.configuration.definitions import render
from a2c_smcp.computer.configuration.files import read_configuration
from a2c_smcp.mcp_host.config.servers import source
from tests.computer.other_programs import FILES, Home, Sample
from tests.computer.pseudo_terminal import on_a_terminal
from tests.computer.supervised import SERVERS, eventually
from tests.on_disk import mode_of
from tests.program import PROGRAM, run_program, start_program
from tests.stage.place import Ended

pytestmark = pytest.mark.covers("program-import")

NO_KEYRING = {"PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    place = Home(tmp_path)
    place.project.mkdir()
    return place


def surroundings(home: Home, **more: str) -> dict[str, str]:
    path = f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}"
    return {"HOME": str(home.path), "PATH": path, "COLUMNS": "200", **NO_KEYRING, **more}


@pytest.fixture
def run(home: Home) -> Callable[..., Ended]:
    def run(*arguments: str, code: int = 0, **environ: str) -> Ended:
        done = run_program("import", *arguments, cwd=home.project, env=surroundings(home, **environ))
        said = done.stdout + done.stderr
        assert (done.returncode, "Traceback" in said) == (code, False), said
        return Ended(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def sample(home: Home) -> Sample:
    """The file of Claude Desktop, which is there."""
    sample = FILES["claude-desktop"]()
    home.put(sample)
    return sample


@pytest.fixture(params=FILES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def written(home: Home) -> dict[str, Any]:
    return dict(json.loads((home.project / "a2c.json").read_text("utf-8")))


def values(home: Home) -> dict[str, str]:
    file = home.project / "a2c.inputs.json"
    return dict(json.loads(file.read_text("utf-8"))) if file.exists() else {}


def started(home: Home, sample: Sample) -> dict[str, Any]:
    """The servers that were written, as they start once all inputs have their values."""
    configuration = read_configuration(home.project / "a2c.json")
    defaults = {id_: getattr(each, "default", None) for id_, each in configuration.inputs.items()}
    known = {**defaults, **sample.environ, **values(home)}
    servers = {name: render(source(config), known) for name, config in configuration.servers.items()}
    shorter = json.dumps(servers).replace(str(home.project), "PROJECT").replace(str(home.path), "/home/of/ann")
    return dict(json.loads(shorter))


# Files of all five kinds


def test_an_import_shows_the_changes_and_writes_nothing(run: Any, home: Home, kind: str) -> None:
    sample = FILES[kind]()
    home.put(sample)
    done = run(kind)
    assert done.out.startswith("--- /dev/null\n+++ a2c.json\n")
    assert all(f'+    "{name}": {{' in done.out for name in sample.servers)
    assert all(words in done.err for words in (*sample.told, "--write"))
    assert [secret for secret in sample.secrets if secret in done.out + done.err] == []
    assert [*home.project.glob("a2c.*")] == []


def test_the_imported_file_starts_the_same_servers_and_holds_no_secret(run: Any, home: Home, kind: str) -> None:
    sample = FILES[kind]()
    file = home.put(sample)
    done = run(kind, "--write")
    text = (home.project / "a2c.json").read_text("utf-8")
    assert [secret for secret in sample.secrets if secret in text + done.out + done.err] == []
    assert set(values(home).values()) >= set(sample.secrets)
    assert mode_of(home.project / "a2c.inputs.json") == 0o600
    assert read_configuration(home.project / "a2c.json").unknown == ()
    found = started(home, sample)
    assert found.keys() == sample.servers.keys()
    for name, server in sample.servers.items():
        assert {key: found[name]["server_parameters"][key] for key in server} == server
    assert file.read_text("utf-8") == sample.text
    assert list(home.path.rglob("was-run")) == []


def test_a_second_time_changes_nothing(run: Any, home: Home, kind: str) -> None:
    home.put(FILES[kind]())
    run(kind, "--write")
    before = written(home), values(home)
    done = run(kind, "--write")
    assert done.out == ""
    assert "already in a2c.json" in done.err
    assert (written(home), values(home)) == before


def test_secrets_may_stay_where_they_are_in_a_file_that_only_its_owner_reads(run: Any, home: Home, kind: str) -> None:
    sample = FILES[kind]()
    home.put(sample)
    done = run(kind, "--write", "--secrets", "keep")
    assert [secret for secret in sample.secrets if secret in done.out + done.err] == []
    assert "***" in done.out
    assert values(home) == {}
    assert mode_of(home.project / "a2c.json") == 0o600
    assert started(home, sample).keys() == sample.servers.keys()
    text = (home.project / "a2c.json").read_text("utf-8")
    assert [secret for secret in sample.secrets if secret not in text] == []


# For programs


def test_a_program_reads_json(run: Any, home: Home, sample: Sample) -> None:
    done = run("claude-desktop", "--json", "--write")
    told = json.loads(done.out)
    assert done.err == ""
    assert (told["from"], told["into"], told["written"]) == ([str(home.path / sample.path)], "a2c.json", True)
    assert told["added"] == list(sample.servers)
    assert told["secrets"]["in_file"] == ["github-personal-access-token", "postgres-password", "search-api-key"]
    assert told["held_back"] == {}
    assert [secret for secret in sample.secrets if secret in done.out] == []


# Where secrets go


def test_values_go_into_the_keyring_and_another_value_there_is_only_replaced_if_wanted(
    run: Any, home: Home, sample: Sample
) -> None:
    drawer, github, search = home.path / "drawer.json", "github-personal-access-token", "a2c-smcp/search-api-key"
    drawer.write_text(json.dumps({search: "of another project"}), "utf-8")
    keyring = {"PYTHON_KEYRING_BACKEND": "paper_keyring.PaperKeyring", "PAPER_KEYRING": str(drawer)}
    environ = {"PYTHONPATH": str(SERVERS), **keyring}
    done = run("claude-desktop", "--write", code=1, **environ)
    assert "another value is kept for input 'search-api-key'" in done.err
    assert json.loads(drawer.read_text("utf-8"))[search] == "of another project"
    done = run("claude-desktop", "--write", "--replace", **environ)
    assert f"in the keyring now: {github}" in done.err
    held = json.loads(drawer.read_text("utf-8"))
    assert (held[f"a2c-smcp/{github}"], held[search]) == (sample.secrets[0], sample.secrets[2])
    assert values(home) == {}


def test_a_keyring_that_keeps_nothing_is_not_trusted(run: Any, home: Home, sample: Sample) -> None:
    run("claude-desktop", "--write", PYTHON_KEYRING_BACKEND="keyring.backends.null.Keyring")
    assert set(values(home).values()) == set(sample.secrets)


def test_values_go_into_the_file_that_is_named(run: Any, home: Home, sample: Sample) -> None:
    done = run("claude-desktop", "--write", "--inputs", "mine/values.json")
    file = home.project / "mine" / "values.json"
    assert set(json.loads(file.read_text("utf-8")).values()) == set(sample.secrets)
    assert mode_of(file) == 0o600
    assert "next: a2c-smcp computer --config a2c.json --inputs mine/values.json" in done.err


def in_project(home: Home) -> list[str]:
    """A shell that runs the import in the project's folder."""
    program = shlex.join([str(PROGRAM), "import", "claude-desktop", "--write"])
    return ["sh", "-c", f"cd {shlex.quote(str(home.project))} && exec {program}"]


@pytest.mark.usefixtures("sample")
def test_in_a_git_repository_values_that_would_be_committed_are_pointed_out(run: Any, home: Home) -> None:
    subprocess.run(["git", "init", "--quiet", str(home.path)], check=True)
    advice = "git does not ignore a2c.inputs.json here: put it on .gitignore"
    assert advice in run("claude-desktop", "--write").err
    (home.path / ".gitignore").write_text("*.inputs.json\n", "utf-8")
    assert "git" not in run("claude-desktop", "--write", "--replace").err.replace("github", "")


async def test_on_a_terminal_each_secret_is_asked_for(home: Home, sample: Sample) -> None:
    environ = {**surroundings(home), "TERM": "xterm-256color", "PWD": str(home.project)}
    async with on_a_terminal(*in_project(home), env=environ, lines=60, columns=1000) as program:
        await program.shows("servers.github.env.GITHUB_PERSONAL_ACCESS_TOKEN holds a secret: make it an input? [Y/n]")
        program.types("\n")
        await program.shows("servers.postgres.args holds a secret")
        program.types("n\n")
        await program.shows("servers.search.args holds a secret")
        program.types("y\n")
        await program.shows("computer --config a2c.json")
        assert await program.ends() == 0
    github, password, api_key = sample.secrets
    assert [secret for secret in sample.secrets if secret in program.screen.raw] == []
    assert set(values(home).values()) == {github, api_key}
    assert password in (home.project / "a2c.json").read_text("utf-8")
    assert mode_of(home.project / "a2c.json") == 0o600


@pytest.mark.usefixtures("sample")
async def test_without_an_answer_nothing_changes(home: Home) -> None:
    environ = {**surroundings(home), "TERM": "xterm-256color"}
    async with on_a_terminal(*in_project(home), env=environ, columns=200) as program:
        await program.shows("make it an input? [Y/n]")
        program.types("\x04")
        assert await program.ends() == 1
    assert "Traceback" not in program.screen.text
    assert list(home.project.iterdir()) == []


# What is there already


@pytest.mark.usefixtures("sample")
def test_existing_servers_stay_and_clashing_names_are_reported(run: Any, home: Home) -> None:
    token = uuid4().hex
    mine = {"type": "stdio", "server_parameters": {"command": "mine", "env": {"MY_TOKEN": token}}}
    path = home.project / "a2c.json"
    path.write_text(json.dumps({"server": {"port": 1}, "servers": {"mine": mine, "github": mine}}), "utf-8")
    path.chmod(0o640)
    done = run("claude-desktop", "--write", code=1)
    assert "github is not imported, it is there with other content: --replace" in done.err
    assert token not in done.out + done.err
    data = written(home)
    assert (data["server"], data["servers"]["github"], data["servers"]["mine"]) == ({"port": 1}, mine, mine)
    assert "filesystem" in data["servers"]
    assert "github-personal-access-token" not in values(home)
    done = run("claude-desktop", "--write", "--replace")
    assert "MY_TOKEN" in re.sub(r"(?m)^[^-].*\n", "", done.out)
    assert token not in done.out + done.err
    assert written(home)["servers"]["github"] != mine
    assert values(home)["github-personal-access-token"]


def test_an_input_with_another_definition_holds_its_servers_back(run: Any, home: Home) -> None:
    home.put(FILES["vscode"]())
    other = {"id": "token", "type": "promptString", "description": "Another"}
    (home.project / "a2c.json").write_text(json.dumps({"servers": {}, "inputs": [other]}), "utf-8")
    done = run("vscode", "--write", code=1)
    assert "hub is not imported, its input 'token' is there with another definition" in done.err
    assert written(home)["servers"].keys() == {"files"}
    assert other in written(home)["inputs"]
    assert values(home) == {}


def test_lost_comments_are_announced(run: Any, home: Home) -> None:
    home.put(FILES["cursor"]())
    (home.project / "a2c.json").write_text('{"servers": {}} // mine', "utf-8")
    assert "comments in a2c.json would be lost" in run("cursor").err


def test_a_server_that_cannot_be_used_is_named_and_the_others_are_taken(run: Any, home: Home) -> None:
    servers = {"socket": {"type": "ws", "url": "wss://x.example"}, "odd": 7, "fine": {"command": "fine"}}
    (home.project / "some.json").write_text(json.dumps({"mcpServers": servers}), "utf-8")
    done = run("some.json", "--write", code=1)
    assert "socket is not imported: type: must be one of stdio, streamable, sse" in done.err
    assert "odd is not imported: must be an object" in done.err
    assert written(home)["servers"].keys() == {"fine"}
    (home.project / "usual").touch()
    assert mode_of(home.project / "a2c.json") == mode_of(home.project / "usual")


# Wrong use

WRONG = {
    "nothing": ([], 2, "PROGRAM|FILE"),
    "no such file": (["nowhere.json"], 2, "Name one, or one of claude-desktop"),
    "no such program here": (["cursor"], 1, ".cursor/mcp.json and "),
    "no answer possible": (["own.json", "--secrets", "ask"], 2, "Say --secrets inputs"),
    "not JSON": (["broken.json"], 1, "line 1, column 2"),
    "no servers": (["empty.json"], 1, "There are no MCP servers in empty.json"),
    "into a list": (["own.json", "--into", "list.json"], 2, "--into"),
    "into TOML": (["own.json", "--into", "own.toml"], 2, "--into"),
    "into what is no folder": (["own.json", "--into", "own.json/a2c.json", "--write"], 1, "cannot be written"),
}


@pytest.mark.parametrize(("arguments", "code", "words"), WRONG.values(), ids=WRONG)
def test_wrong_use_says_what_to_do(run: Any, home: Home, arguments: list[str], code: int, words: str) -> None:
    own = '{"mcpServers": {"a": {"command": "a"}}}'
    for name, text in {"broken": "{", "empty": '{"mcpServers": {}}', "list": "[]", "own": own}.items():
        (home.project / f"{name}.json").write_text(text, "utf-8")
    (home.project / "own.toml").write_text('[servers.a]\ncommand = "a"\n', "utf-8")
    assert words in run(*arguments, code=code).err


# Claude Code keeps servers in three places


def test_servers_of_this_project_go_before_others_in_claude_code(run: Any, home: Home) -> None:
    def servers(**commands: str) -> dict[str, Any]:
        return {"mcpServers": {name: {"command": command} for name, command in commands.items()}}

    projects = {str(home.project): {**servers(a="own"), "allowedTools": []}, "/elsewhere": servers(z="z")}
    everywhere = {"numStartups": 7, **servers(b="mine", c="mine"), "projects": projects}
    (home.project / ".mcp.json").write_text(json.dumps(servers(a="shared", b="shared")), "utf-8")
    (home.path / ".claude.json").write_text(json.dumps(everywhere), "utf-8")
    done = run("claude-code", "--write")
    commands = {name: each["server_parameters"]["command"] for name, each in written(home)["servers"].items()}
    assert commands == {"a": "own", "b": "shared", "c": "mine"}
    assert "b: taken from" in done.err
    assert "servers of other projects are not taken, run it there: /elsewhere" in done.err
    assert "left out: numStartups" in done.err


# And then


async def test_an_imported_configuration_runs(run: Any, home: Home) -> None:
    received, token, key = home.path / "received.json", uuid4().hex, uuid4().hex
    arguments = [str(SERVERS / "parrot.py"), str(received), "--api-key", key]
    server = {"command": sys.executable, "args": arguments, "env": {"CANARY_TOKEN": token}}
    home.put(replace(FILES["claude-desktop"](), text=json.dumps({"mcpServers": {"parrot": server}})))
    done = run("claude-desktop", "--write")
    line = done.err.rpartition("next: a2c-smcp ")[2].split()
    words, silent = (*line, "--url", "http://127.0.0.1:9", "--no-input"), asyncio.subprocess.DEVNULL
    process = await start_program(*words, cwd=home.project, env=surroundings(home), stdout=silent, stderr=silent)
    try:
        await eventually(lambda: received.exists() and received.read_text("utf-8"), within=30)
    finally:
        process.terminate()
        await process.wait()
    assert json.loads(received.read_text("utf-8")) == ["--api-key", key, token]
