"""A server in a sandbox that runs any code, for tests that try to leave it."""

from __future__ import annotations

import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from a2c_smcp.mcp_host.config.servers import MCPServerConfig
from a2c_smcp.mcp_host.sessions.session import MCPSession
from a2c_smcp.mcp_host.sessions.tool_request import ToolRequest
from tests.computer.supervised import PATIENCE, script, session, text_of

__all__ = ["Burglar", "burglar", "sandboxed"]


def sandboxed(sandbox: Any = "strict", **extra: Any) -> MCPServerConfig:
    return script("burglar.py", name="burglar", sandbox=sandbox, **extra)


class Burglar:
    """`tries` returns what came of the code: the value of `found`, or the exception with its text."""

    def __init__(self, session: MCPSession) -> None:
        self.session = session

    async def tries(self, code: str, timeout: float = PATIENCE) -> str:
        return text_of(await self.session.call_tool(ToolRequest("run", {"code": textwrap.dedent(code)}, timeout)))

    async def is_refused(self, ways: dict[str, str], *errors: str) -> None:
        """Each way ends in one of these errors."""
        for way, code in ways.items():
            said = await self.tries(code)
            assert said.startswith(errors), (way, said)


@asynccontextmanager
async def burglar(sandbox: Any = "strict", **extra: Any) -> AsyncIterator[Burglar]:
    """The server, which is still usable at the end."""
    async with session(sandboxed(sandbox, **extra)) as one:
        tested = Burglar(one)
        yield tested
        assert await tested.tries("found = 6 * 7") == "42"
