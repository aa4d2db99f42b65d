"""Ends of a Computer in Windows' own Python: by a key, by a kill, by a crash of a server. No process is left."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.errors import SMCPError
from tests.stage.program import Program
from tests.waiting import until
from tests.windows.conftest import PYTHON, OnWindows, is_clean, on_windows, windows_processes

LONG = 240.0
LEAVES = Path(__file__).with_name("leaves.py")
PROCESSES = 5
"""Of a server that tries to leave: itself, and three or four of its children, depending on what it is allowed."""

Starts = Callable[..., Awaitable[tuple[Program, str]]]


@pytest.fixture
def starts(windows: OnWindows, shared_hub: Any, office: str) -> Starts:
    """Starts a computer with a server whose children try to leave, and returns the mark of these processes."""

    mark = f"mark-{uuid4().hex}"

    async def start(*words: str | Path, **streams: int) -> tuple[Program, str]:
        server = {"command": PYTHON, "args": [on_windows(LEAVES), mark]}
        (windows.folder / "servers.json").write_text(json.dumps({"servers": {"leaves": server}}))
        options = ["--name", "laptop", "--url", shared_hub.url, "--office", office, "--config", "servers.json", "--yes"]
        program = await windows.start(*(words or ("-m", "a2c_smcp")), "computer", *options, **streams)
        await program.says("leaves: ready", LONG)
        await program.says("joined", LONG)
        assert len(windows_processes(mark)) >= PROCESSES - 1
        return program, mark

    return start


async def none_is_left(mark: str) -> None:
    await until(lambda: not windows_processes(mark), LONG)


@pytest.mark.covers("windows-owner")
async def test_ctrl_c_ends_a_computer_cleanly(starts: Starts) -> None:
    computer, mark = await starts()
    computer.signal(signal.SIGINT)  # Wine makes it a Ctrl-C of the console
    assert await computer.ends(LONG) == 0, computer.said
    assert is_clean(computer.said)
    await none_is_left(mark)


BREAKS = """
import signal, sys, threading
from a2c_smcp.cli import main
threading.Thread(target=lambda: sys.stdin.readline() and signal.raise_signal(signal.SIGBREAK), daemon=True).start()
main()
"""
"""Wine has no Ctrl-Break: this raises the signal that the C library raises for it."""


@pytest.mark.covers("windows-owner")
async def test_ctrl_break_ends_a_computer_cleanly(starts: Starts) -> None:
    computer, mark = await starts("-c", BREAKS, stdin=asyncio.subprocess.PIPE)
    assert computer.process.stdin
    computer.process.stdin.write(b"now\n")
    assert await computer.ends(LONG) == 0, computer.said
    assert is_clean(computer.said)
    await none_is_left(mark)


@pytest.mark.covers("windows-processes")
async def test_a_computer_that_is_terminated_leaves_no_process(starts: Starts, windows: OnWindows) -> None:
    computer, mark = await starts()
    (lock,) = (windows.folder / "state" / "a2c-smcp" / "instances").glob("*.lock")
    pid = lock.read_text()  # as Windows numbers it
    killer = await windows.start("-c", f"import os, signal; os.kill({pid}, signal.SIGTERM)")  # TerminateProcess
    assert await killer.ends(LONG) == 0
    await computer.ends(LONG)
    await none_is_left(mark)


@pytest.mark.covers("windows-processes")
async def test_a_server_that_crashes_leaves_no_process(starts: Starts, shared_hub: Any, office: str) -> None:
    _, mark = await starts()
    before = windows_processes(mark)
    async with AsyncSMCPAgentClient("planner", url=shared_hub.url, office=office) as agent:
        with pytest.raises(SMCPError):
            await agent.emit_tool_call("laptop", "crash", {}, timeout=60)
    await until(lambda: not {*before} & {*windows_processes(mark)}, LONG)


@pytest.mark.covers("windows-programs")
async def test_a_second_computer_of_the_same_name_ends_at_once_and_says_why(starts: Starts) -> None:
    first, mark = await starts()
    before = windows_processes(mark)
    with pytest.raises(AssertionError, match="runs already as process"):
        await starts()
    assert windows_processes(mark) == before
    assert first.process.returncode is None
