"""The prompt of `a2c-smcp computer` on a pseudo-terminal, and an agent that calls its tools."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.errors import SMCPError
from tests.computer.pseudo_terminal import OnTerminal, Screen, on_a_terminal
from tests.computer.supervised import eventually
from tests.program import PROGRAM
from tests.stage.computer_program import surroundings

INPUTS = [{"id": "token", "type": "promptString", "description": "Token", "password": True}]
ENTER, TAB, UP, BACKSPACE, CTRL_C, CTRL_D = "\r", "\t", "\x1b[A", "\x7f", "\x03", "\x04"


Shown = str | re.Pattern[str] | Callable[[Screen], Any]


class Dialogue:
    """A program on a terminal that asks, and the person at it."""

    def __init__(self, program: OnTerminal) -> None:
        self.program = program
        self.screen, self.types = program.screen, program.types

    async def shows(self, wanted: Shown) -> str:
        if isinstance(wanted, re.Pattern):
            return await self.program.shows(lambda screen: wanted.search(screen.text))
        return await self.program.shows(wanted)

    async def asks(self, text: str | re.Pattern[str]) -> None:
        """Waits until there is this question in the line of the cursor, with no answer yet."""
        is_asked = text.search if isinstance(text, re.Pattern) else text.__eq__
        await self.program.shows(lambda screen: is_asked(screen.line.rstrip()))

    async def answers(self, question: str | re.Pattern[str], typed: str, shown: Shown = "") -> None:
        """Types this when it is asked, and waits for what is shown then."""
        await self.asks(question)
        self.types(typed + ENTER)
        await self.shows(shown)

    async def exit_code(self) -> int:
        return await self.program.ends()

    @property
    def echoes(self) -> bool:
        return self.program.echoes


class Prompt(Dialogue):
    """A run of `a2c-smcp computer`, as its owner sees it."""

    async def line(self, text: str = "") -> None:
        """Waits until this is what stands on the line, and nothing else."""
        await self.shows(lambda screen: screen.line.rstrip() == f"laptop> {text}".rstrip())

    async def enters(self, command: str, shown: Shown = "") -> str:
        """Enters a line, and waits for what it shows."""
        await self.begins(command)
        self.types(ENTER)
        return await self.shows(shown)

    async def begins(self, text: str) -> None:
        """Types a line, and does not enter it."""
        self.types(text)
        await self.line(text)

    async def interrupts(self) -> None:
        """Gives up what is on the line, or is asked."""
        self.types(CTRL_C)
        await self.line()

    async def decides(self, call: asyncio.Task[Any], shown: str, answer: str) -> Any:
        """Answers the request of a call as soon as it is shown, and returns the result of the call."""
        await self.shows(shown)
        await self.enters(answer)
        return await call

    async def result(self, call: asyncio.Task[Any]) -> Any:
        """The result of a call that needs nothing of the owner. If it fails, the screen says why."""
        try:
            return await call
        except SMCPError as error:
            raise AssertionError(f"{error}\n{self.program.screen.text}") from error

    async def ends(self) -> str:
        """What the screen says in the end."""
        assert await self.exit_code() == 0
        assert self.echoes
        assert "Traceback" not in self.screen.text
        return await self.shows("stopped\n")

    async def quits(self) -> str:
        self.types(CTRL_D)
        return await self.ends()


Opens = Callable[..., Any]


@pytest.fixture
async def opens(shared_hub: Any, office: str, tmp_path: Path) -> AsyncIterator[Opens]:
    """Starts a computer in the test's office, with servers `{name: arguments of python}`; the line is there."""
    async with AsyncExitStack() as stack:

        async def start(
            servers: dict[str, list[str]] | None = None,
            *options: str,
            url: str = "",
            marker: str = "",
            line: bool = True,
            columns: int = 120,
        ) -> Prompt:
            found = {name: python(*words, marker=marker) for name, words in (servers or {}).items()}
            config = tmp_path / "servers.json"
            config.write_text(json.dumps({"mcpServers": found, "inputs": INPUTS}), "utf-8")
            where = ["--name", "laptop", "--url", url or shared_hub.url, "--office", office]
            command = [str(PROGRAM), "computer", *where, "--config", str(config), *options]
            env = {**surroundings(tmp_path), "TERM": "xterm-256color"}
            program = on_a_terminal(*command, env=env, lines=50, columns=columns)
            prompt = Prompt(await stack.enter_async_context(program))
            if line:
                await prompt.line()
            return prompt

        yield start


def python(*words: str, marker: str = "") -> dict[str, Any]:
    return {"command": sys.executable, "args": words, "env": {"MARKER": marker}}


@pytest.fixture
async def planner(shared_hub: Any, office: str) -> AsyncIterator[AsyncSMCPAgentClient]:
    async with AsyncSMCPAgentClient("planner", url=shared_hub.url, office=office) as agent:
        yield agent


async def asks(agent: AsyncSMCPAgentClient, tool: str = "add", timeout: int = 60, **params: Any) -> asyncio.Task[Any]:
    """A call that waits for the owner."""
    await eventually(lambda: agent.computers)
    return asyncio.create_task(agent.emit_tool_call("laptop", tool, params or {"a": 1, "b": 2}, timeout))
