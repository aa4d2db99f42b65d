"""`a2c-smcp demo`: what it claims has happened, and it can be left at any time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest

from tests.computer.hosted import pids_with

PROGRAM = Path(sys.executable).with_name("a2c-smcp")
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
def test_the_demo_runs_all_steps_and_lists_what_it_has_proven() -> None:
    done = subprocess.run([PROGRAM, "demo", "--fast"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    _, _, summary = done.stdout.partition("What has been proven")
    assert [claim for claim in CLAIMS if f"✓ {claim}" not in summary] == []


@pytest.mark.covers("demo")
def test_ctrl_c_leaves_no_process_behind() -> None:
    assert_it_can_be_left(at="'planner' joins")


def assert_it_can_be_left(*options: str, at: str) -> None:
    """By Ctrl-C, once it has said this: quietly, and with everything that it has started."""
    marker = uuid4().hex
    process = subprocess.Popen(
        [PROGRAM, "demo", *options],
        env={**os.environ, "MARKER": marker, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    while at not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Traceback" not in err
    give_up = time.monotonic() + 10
    while pids_with(marker) and time.monotonic() < give_up:
        time.sleep(0.05)
    assert pids_with(marker) == []
