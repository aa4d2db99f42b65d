"""`a2c-smcp demo`: what it claims has happened, and it can be left at any time."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.program import PROGRAM
from tests.stage.place import assert_it_can_be_left

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


@pytest.mark.covers("demo", "code-pages")
def test_a_pipe_whose_encoding_lacks_characters_gets_their_numbers() -> None:
    shown = {"env": {**os.environ, "PYTHONIOENCODING": "latin-1"}, "timeout": 60}
    done = subprocess.run([PROGRAM, "demo", "--fast"], capture_output=True, encoding="latin-1", **shown)
    assert done.returncode == 0, done.stderr
    assert "\\u2713 no process left behind" in done.stdout


@pytest.mark.covers("demo")
@pytest.mark.parametrize("descriptors", [14, 24])
def test_a_demo_that_fails_says_why_and_shows_it_in_full_on_request(descriptors: int, tmp_path: Path) -> None:
    """With so few descriptors it fails at one step or another."""
    line = f'ulimit -n {descriptors}; exec "$0" --debug demo --fast'
    failed = subprocess.run(["sh", "-c", line, PROGRAM], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert failed.returncode == 1
    *_, last = failed.stderr.strip().splitlines()
    assert last.startswith("The demo failed: "), failed.stderr
    assert len(last) > len("The demo failed: . If it fails again, run it as `a2c-smcp --debug demo` and report it.")
    assert failed.stderr.count("Traceback (most recent call last)") > 1


@pytest.mark.covers("demo")
async def test_ctrl_c_leaves_no_process_behind() -> None:
    await assert_it_can_be_left(str(PROGRAM), "demo", at="'planner' joins")
