"""Members of another office, who call meanwhile, and the memory of a program."""

from __future__ import annotations

import resource
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.bystander import Waits, calling_meanwhile
from tests.stage.calls import RESULT
from tests.stage.program import Program

MIB = 1024 * 1024


Meets = Callable[..., Any]


def memory(program: Program) -> int:
    """The resident bytes of a process."""
    pages = int(Path(f"/proc/{program.process.pid}/statm").read_text("ascii").split()[1])
    return pages * resource.getpagesize()


@asynccontextmanager
async def neighbours_calling(program: Program, meet: Meets) -> AsyncIterator[Waits]:
    """An agent of another office calls a tool there, again and again, and never waits long."""
    agent, computer = await meet(program), await meet(program)
    await agent.join("agent", "planner", "ours")
    await computer.join("computer", "laptop", "ours")
    computer.answers("client:tool_call", RESULT)

    async def call() -> None:
        assert await agent.call_tool("laptop", timeout=30) == RESULT

    async with calling_meanwhile(call) as waits:
        yield waits
