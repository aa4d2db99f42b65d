"""The `a2c-smcp agent` program, run in the office of a test."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.computer.pseudo_terminal import on_a_terminal
from tests.program import PROGRAM, Running, run_program, start_program


class Ended(NamedTuple):
    """What became of a run."""

    code: int
    out: str
    err: str


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


@pytest.fixture
def complete(surroundings: dict[str, str]) -> Callable[..., Any]:
    async def complete(line: str, **environ: str) -> list[str]:
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
        env = {**surroundings, "_A2C_SMCP_COMPLETE": "complete_bash", **words, **environ}
        done = await asyncio.to_thread(run_program, env=env)
        assert (done.returncode, done.stderr) == (0, "")
        return [name for name in done.stdout.split("\n") if name]

    return complete
