"""A Computer whose MCP server has resources and prompts, in an office, and an agent that asks for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.computer import Computer
from a2c_smcp.errors import SMCPError
from a2c_smcp.mcp_host.config.servers import MCPServerConfig
from tests.computer.hosted import hosted, ready
from tests.computer.supervised import quick, script
from tests.peer import Peer

SECRET = "tk-4711-library-secret"
ERAS = ("older", "newer")
both = pytest.mark.parametrize("era", ERAS, ids=["2025-11-25", "2026-07-28"])


def library(era: str, folder: Path, mode: str = "", name: str = "the library", **extra: Any) -> MCPServerConfig:
    """Its secret is in everything that it says."""
    config = {"default_tool_meta": {"auto_apply": True}, "env": {"LIBRARY_TOKEN": SECRET}, **extra}
    return script("library.py", era, folder / f"{name}.notes", mode, name=name, **config)


class Library:
    """The computer, what its MCP server has noted, and requests of an agent to it."""

    def __init__(self, computer: Computer, agent: Peer, folder: Path) -> None:
        self.computer = computer
        self._agent = agent
        self._folder = folder

    def notes(self, name: str = "the library") -> list[str]:
        path = self._folder / f"{name}.notes"
        return path.read_text().splitlines() if path.exists() else []

    async def ask(self, event: str, server: str | None = "the library", **more: Any) -> dict[str, Any]:
        about = {} if server is None else {"mcp_server": server}
        return dict(await self._agent.request(f"client:{event}", self.computer.name, **about, **more))

    async def do(self, tool: str, **params: Any) -> str:
        """Have the MCP server do something."""
        result = await self._agent.call_tool(self.computer.name, tool, params=params, timeout=30)
        assert not result.get("isError"), result
        return str(result["content"][0]["text"])


@asynccontextmanager
async def libraries(
    url: str, agent: Peer, folder: Path, *configs: Any, computer: str = "laptop", policy: Any = None, **options: Any
) -> AsyncIterator[Library]:
    """Runs a computer with these MCP servers, in the office of the agent."""
    one = Computer(computer, policy=policy or quick(), **options)
    for config in configs:
        one.add_server(config)
    async with hosted(one, url, agent.office, folder):
        await ready(one, *(config.name for config in configs if not isinstance(config, dict)))
        yield Library(one, agent, folder)


Lend = Callable[..., Awaitable[Library]]


@pytest.fixture
async def lend(shared_hub: Any, agent: Peer, tmp_path: Path) -> AsyncIterator[Lend]:
    """Runs such a computer until the test ends: `await lend("newer")`, or with other MCP servers."""
    async with AsyncExitStack() as stack:

        async def begin(*servers: Any, **options: Any) -> Library:
            configs = [library(each, tmp_path) if isinstance(each, str) else each for each in servers]
            return await stack.enter_async_context(libraries(shared_hub.url, agent, tmp_path, *configs, **options))

        yield begin


def refused(answer: dict[str, Any]) -> SMCPError:
    error = SMCPError.from_wire(answer)
    assert error is not None, answer
    return error
