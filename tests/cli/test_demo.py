"""`a2c-smcp demo`: what it claims has happened, and it can be left at any time."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from uuid import uuid4

import pytest

from tests.computer.hosted import pids_with
from tests.computer.pseudo_terminal import on_a_terminal
from tests.program import PROGRAM
from tests.waiting import until

CLAIMS = (
    "a stranger is turned away",
    "tools of two MCP servers and a Python function in one list",
    "a desktop that changes",
    "a tool that asks its owner first",
    "a dead server comes back",
    "a slow call cancelled",
    "a plan over local and remote tools",
    "no process left behind",
)


@pytest.mark.covers("demo")
def test_the_demo_runs_all_steps_lists_what_it_has_proven_and_leads_on_to_commands_that_exist(tmp_path: Path) -> None:
    """`make demo` starts it by its path, with no virtual environment on the PATH."""
    (tmp_path / "bin").symlink_to(PROGRAM.parent)
    folders = [folder for folder in os.environ["PATH"].split(os.pathsep) if Path(folder) != PROGRAM.parent]
    elsewhere = {"env": {**os.environ, "PATH": os.pathsep.join(folders)}, "cwd": tmp_path, "timeout": 60}
    done = subprocess.run(["bin/a2c-smcp", "demo", "--fast"], capture_output=True, text=True, **elsewhere)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    _, _, summary = done.stdout.partition("What has been proven")
    assert [claim for claim in CLAIMS if f"✓ {claim}" not in summary] == []
    commands = done.stdout.splitlines()[-1].removeprefix("next: ").split(", ")
    assert [command.split()[0] for command in commands] == ["bin/a2c-smcp"] * 3
    shown = subprocess.run(commands[0], shell=True, capture_output=True, text=True, check=True, **elsewhere).stdout
    assert "Usage" in shown


@pytest.mark.covers("demo")
async def test_ctrl_c_leaves_no_process_behind() -> None:
    await assert_it_can_be_left(at="'planner' joins")


async def assert_it_can_be_left(*options: str, at: str) -> None:
    """By Ctrl-C, once it has said this: quietly, and with everything that it has started. It has no colours there."""
    marker = uuid4().hex
    environ = {**os.environ, "MARKER": marker, "TERM": "xterm-256color", "NO_COLOR": "1"}
    async with on_a_terminal(str(PROGRAM), "demo", *options, env=environ, lines=60, columns=200) as program:
        await program.shows(at)
        program.types("\x03")
        assert await program.ends() == 1
        assert "Traceback" not in program.screen.text
        assert not program.screen.colours
    await until(lambda: not pids_with(marker))
