"""Agents and computers in the office of a test, and the `a2c-smcp agent` program."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer.computer import Computer
from tests.computer.hosted import hosted, ready
from tests.computer.pseudo_terminal import on_a_terminal
from tests.computer.supervised import quick, script
from tests.peer import Peer
from tests.program import PROGRAM, Running, run_program, start_program
from tests.stage.agent import KINDS, Line, Twin, at_work
from tests.stage.place import Ended
from tests.stage.worker import mortal

__all__ = ["mortal"]


@pytest.fixture(params=KINDS, ids=["async", "blocking"])
def kind(request: pytest.FixtureRequest) -> Any:
    """Both clients, one after the other."""
    return request.param


@pytest.fixture
def planning(shared_hub: Any, office: str) -> Callable[..., AbstractAsyncContextManager[Twin]]:
    """An agent in the test's office, unless its options say otherwise: `async with planning(kind) as agent`."""

    def begin(
        kind: Any = AsyncSMCPAgentClient, name: str = "planner", **options: Any
    ) -> AbstractAsyncContextManager[Twin]:
        return at_work(kind, name, **{"url": shared_hub.url, "office": office, **options})

    return begin


@pytest.fixture
async def agent(kind: Any, planning: Any) -> AsyncIterator[Twin]:
    """An agent of either kind, in the test's office."""
    async with planning(kind) as agent:
        yield agent


@pytest.fixture
async def planner(planning: Any) -> AsyncIterator[Twin]:
    """The async agent, in the test's office."""
    async with planning() as agent:
        yield agent


@pytest.fixture
async def relay(shared_hub: Any) -> AsyncIterator[Line]:
    """A line to the Server that can be cut, for whom `relay.url` is the Server."""
    async with Line.opened(shared_hub.url) as line:
        yield line


@pytest.fixture
async def far_agent(kind: Any, planning: Any, relay: Line) -> AsyncIterator[Twin]:
    """An agent of either kind, in the test's office, at the end of the relay."""
    async with planning(kind, url=relay.url) as agent:
        yield agent


@pytest.fixture
async def far_planner(planning: Any, relay: Line) -> AsyncIterator[Twin]:
    """The async one."""
    async with planning(url=relay.url) as agent:
        yield agent


@pytest.fixture
def hosts(shared_hub: Any, office: str, tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[list[str]]]:
    """A computer that runs in the test's office: `async with hosts(computer)`."""

    def begin(computer: Computer, url: str = "", **connection: Any) -> AbstractAsyncContextManager[list[str]]:
        return hosted(computer, url or shared_hub.url, office, tmp_path, **connection)

    return begin


@pytest.fixture
async def computer(computer: Peer) -> Peer:
    """A bare computer called `laptop`, in the test's office, without tools."""
    computer.answers("client:get_tools", {"tools": [], "req_id": "x"})
    return computer


@pytest.fixture
async def landing(hosts: Any, tmp_path: Path) -> AsyncIterator[Path]:
    """Where files land on a computer called `laptop`, with the MCP server of `contents.py`."""
    folder = tmp_path / "landing"
    computer = Computer("laptop", policy=quick(largest_message=16 * 1024 * 1024), landing=folder)
    computer.add_server(script("contents.py", name="contents", default_tool_meta={"auto_apply": True}))
    async with hosts(computer, state_folder=tmp_path / "state"):
        await ready(computer, "contents")
        yield folder


# The program


@pytest.fixture
def surroundings(shared_hub: Any, office: str) -> dict[str, str]:
    known = {name: value for name, value in os.environ.items() if not name.startswith(("A2C_", "NO_COLOR"))}
    return {**known, "A2C_URL": shared_hub.url, "A2C_OFFICE": office, "COLUMNS": "200"}


@pytest.fixture
def start(surroundings: dict[str, str]) -> Callable[..., Any]:
    async def run(*arguments: str, **environ: str) -> Running:
        return await start_program("agent", *arguments, env={**surroundings, **environ}, stdin=asyncio.subprocess.PIPE)

    return run


@pytest.fixture
def run(surroundings: dict[str, str]) -> Callable[..., Any]:
    async def run(*arguments: str, typed: str = "", **environ: str) -> Ended:
        env = {**surroundings, **environ}
        done = await asyncio.to_thread(run_program, "agent", *arguments, env=env, typed=typed)
        assert "Traceback" not in done.stderr
        return Ended(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def terminal(surroundings: dict[str, str]) -> Callable[..., Any]:
    def run(*arguments: str, **environ: str) -> Any:
        environ = {**surroundings, "TERM": "xterm-256color", **environ}
        del environ["COLUMNS"]
        return on_a_terminal(str(PROGRAM), "agent", *arguments, env=environ)

    return run
