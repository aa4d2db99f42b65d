"""All commands of `a2c-smcp`: completion, colours, names of options, exit codes."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from a2c_smcp import __version__
from a2c_smcp.cli.app import COMMANDS, build
from tests.computer.pseudo_terminal import on_a_terminal
from tests.program import PROGRAM, folder_of_program
from tests.stage.cases import cases
from tests.stage.computer_program import surroundings
from tests.stage.place import Place

PATIENCE = 120

pytestmark = pytest.mark.covers("commands")


def around(**more: str) -> dict[str, str]:
    return {**surroundings(Path()), "PATH": f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}", **more}


def ran(*words: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, env=around(**environ), capture_output=True, text=True, timeout=PATIENCE)


def bash(script: str, **environ: str) -> str:
    done = ran("bash", "--norc", "-c", script, **environ)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


COMPLETED = {
    "a2c-smcp ": set(COMMANDS),
    "a2c-smcp co": {"computer", "connect"},
    "a2c-smcp --debug serve": {"server"},
    "a2c-smcp agent ca": {"call"},
    "a2c-smcp server --po": {"--port"},
    "a2c-smcp computer --desktop ": {"subscribed", "any"},
}


@pytest.fixture(scope="module")
def completion() -> subprocess.CompletedProcess[str]:
    """The script for the shell that the program was started in. The modules that it imported are on stderr."""
    words = [sys.executable, "-X", "importtime", str(PROGRAM), "--show-completion"]
    return ran("bash", "--norc", "-c", f"{shlex.join(words)}; :")


def test_bash_completes_commands_options_and_choices(completion: subprocess.CompletedProcess[str]) -> None:
    script = completion.stdout
    for words in (line.split(" ") for line in COMPLETED):
        script += f"""
            COMP_WORDS=({" ".join(f"'{word}'" for word in words)}); COMP_CWORD={len(words) - 1}
            _a2c_smcp_completion a2c-smcp
            echo "${{COMPREPLY[@]}}"
            """
    found = bash(script, PATH=f"{folder_of_program()}{os.pathsep}{os.environ['PATH']}")
    assert [set(line.split()) for line in found.splitlines()] == [*COMPLETED.values()]


def test_the_script_for_a_shell_is_shown_without_importing_a_command(
    completion: subprocess.CompletedProcess[str],
) -> None:
    assert "_a2c_smcp_completion" in completion.stdout
    assert "a2c_smcp.server" not in completion.stderr
    assert "a2c_smcp.computer" not in completion.stderr


@cases(
    "typed, completed, needed, others",
    ("a2c-smcp agent ca", "call", {"a2c_smcp.cli.agent.run"}, {"a2c_smcp.cli.local_computer", "a2c_smcp.server"}),
    ("a2c-smcp serve", "server", set(), {"a2c_smcp.server", "a2c_smcp.cli.commands.server"}),
    ids=["inside a command", "the name of a command"],
)
def test_completing_imports_no_command_but_the_one_that_is_typed(
    typed: str, completed: str, needed: set[str], others: set[str]
) -> None:
    completing = {"_A2C_SMCP_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    done = ran(sys.executable, "-X", "importtime", PROGRAM, **completing)
    assert done.stdout == f"{completed}\n"
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert needed <= imported
    assert not (others | {"mcp"}) & imported


def test_version_prints_the_version() -> None:
    assert bash("a2c-smcp --version") == f"a2c-smcp {__version__}\n"
    assert bash("python -m a2c_smcp --version") == f"a2c-smcp {__version__}\n"


LOUD = {"a table": ("doctor",), "an error": ("agent", "room", "--url", "http://127.0.0.1:9")}


@pytest.mark.parametrize("words", LOUD.values(), ids=LOUD)
@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}], ids=["colour", "NO_COLOR"])
async def test_output_has_colours_on_a_terminal_unless_no_color_is_set(
    words: tuple[str, ...], variables: dict[str, str], tmp_path: Path
) -> None:
    environ = around(TERM="xterm-256color", **variables)
    async with on_a_terminal(str(PROGRAM), *words, env=environ, cwd=tmp_path) as program:
        await program.ends()
        assert bool(program.screen.colours) is not bool(variables)


# One name, one meaning


def commands() -> Iterator[tuple[str, Any]]:
    pending: list[tuple[str, Any]] = [("a2c-smcp", typer.main.get_command(build()))]
    while pending:
        path, command = pending.pop()
        yield path, command
        pending += [(f"{path} {name}", below) for name, below in getattr(command, "commands", {}).items()]


def options() -> Iterator[tuple[str, Any]]:
    for path, command in commands():
        yield from ((path, each) for each in command.params if each.param_type_name == "option")


FILTERS = "a2c-smcp key"
"""Its --office, --role and --name say what the holder of a key may do, and are not taken from the environment."""
WITHOUT_VARIABLE = {
    ("a2c-smcp add", "--url"),
    ("a2c-smcp connect", "--name"),
    *((f"a2c-smcp {command}", option) for command in ("freeze", "thaw") for option in ("--office", "--name")),
    *(("a2c-smcp bridge", option) for option in ("--name", "--host", "--port")),
}
"""The URL of an MCP server is not the Server's. The name of an entry in a client's file is not that of a member. A
bridge is neither this machine's Computer, which A2C_NAME names, nor its Server. Nobody freezes an office by a variable
that was set for something else."""


def variable(prefix: str, option: Any) -> str:
    return f"{prefix}{option.opts[0].lstrip('-').replace('-', '_').upper()}"


def test_an_option_has_the_same_variable_in_all_commands_except_the_server() -> None:
    variables = defaultdict(set)
    for path, option in options():
        is_other = path in (FILTERS, "a2c-smcp server") or (path, option.opts[0]) in WITHOUT_VARIABLE
        if not is_other and len(path.split()) < 3:  # `agent` repeats its own
            variables[option.opts[0]].add(option.envvar)
    assert {name: found for name, found in variables.items() if len(found) > 1} == {}


def test_a_variable_has_the_name_of_its_option() -> None:
    for option in (option for _, option in options() if option.envvar):
        assert option.envvar in (variable("A2C_", option), variable("A2C_SERVER_", option))


def test_every_option_of_the_server_has_a_variable_that_no_client_reads() -> None:
    ours = {option.envvar for path, option in options() if path == "a2c-smcp server" and option.name != "help"}
    clients = {option.envvar for path, option in options() if path.split()[1:2] in (["agent"], ["computer"])}
    assert all(name.startswith("A2C_SERVER_") for name in ours)
    assert not ours & clients


def test_every_option_has_a_long_name_and_a_help_text() -> None:
    assert [(path, option.name) for path, option in options() if not option.help] == []
    assert [name for _, option in options() for name in option.opts if not name.startswith("--")] == []


def test_the_help_of_every_command_has_an_example() -> None:
    assert [path for path, command in commands() if " " in path and path not in (command.help or "")] == []


async def test_a_typed_option_of_the_server_goes_before_the_variable_of_another(place: Place) -> None:
    secret = "s" * 40
    for words, environ in (
        (("--jwt-secret", secret), {"A2C_SERVER_API_KEY": "k" * 20}),
        (("--api-key", "k" * 20), {"A2C_SERVER_JWT_SECRET": secret}),
    ):
        server = await place.start("server", "--port", "0", *words, **environ)
        await server.says("listening on")
        await server.stops()
    both = await place.run("server", "--port", "0", A2C_SERVER_API_KEY="k" * 20, A2C_SERVER_JWT_SECRET=secret)
    assert (both.code, "Give either, not both" in both.err) == (2, True)
