"""Peers that are not ours, each in a process of its own that ends with its test."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.server import DefaultAuthenticationProvider, Settings, create_app
from a2c_smcp.server.run import address_of, listen, serving
from tests.cluster import Front, serving_node
from tests.interop.driver import Driver
from tests.program import forked
from tests.stage.installed import installed
from tests.valkey import running_valkey

PEERS = Path(__file__).with_name("peers")
KEY = "the right key"
NEEDS = (
    "a2c_smcp.agent.client,a2c_smcp.computer.computer,a2c_smcp.computer.socketio.client,a2c_smcp.server,"
    "mcp.server.fastmcp,uvicorn"
)
"""What the programs in `peers` import, for a second and more."""


def peer_command(version: str, script: str, *words: object) -> list[str]:
    """The command of a program in `peers`, run by the interpreter that has this version of the published package."""
    python = installed(f"peers/{version}", "peers") / "bin/python"
    return forked(PEERS / script, *words, python=python, needs=NEEDS)


def computer_of(version: str, *words: object) -> list[str]:
    """A published computer, with the MCP server of `peers`."""
    return peer_command(
        version, "computer.py", *words, "--mcp-server", json.dumps(peer_command(version, "mcp_server.py"))
    )


def published_agent(version: str, url: str, office: str, *options: str) -> list[str]:
    """The command of a published agent called `planner`."""
    return peer_command(version, "agent.py", "--url", url, "--name", "planner", "--office", office, *options)


async def call(agent: Driver, tool: str, **params: Any) -> Any:
    return await agent.ask("tool_call", computer="laptop", tool=tool, params=params)


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    """Two nodes, of which the next request may come to either."""
    async with AsyncExitStack() as stack:
        store = stack.enter_context(running_valkey())
        nodes = [await stack.enter_async_context(serving_node(store.url, "a2c:", name)) for name in ("n1", "n2")]
        yield await stack.enter_async_context(Front(nodes))


@pytest.fixture
async def drive(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Starts a peer: `await drive(program, argument, …)`."""
    async with AsyncExitStack() as stack:

        async def start(*command: str | Path) -> Driver:
            driver = await Driver.start(*command, home=Path(tempfile.mkdtemp(prefix="home-", dir=tmp_path)))
            stack.push_async_callback(driver.close)
            return driver

        yield start


@asynccontextmanager
async def a_server(make: str, folder: Path, key: str | None = KEY) -> AsyncIterator[str]:
    """The URL of a Server, `ours` or a published one. Without a key, all may enter."""
    if make == "ours":
        listener = listen("127.0.0.1", 0)
        async with serving(create_app(Settings(auth=DefaultAuthenticationProvider(key) if key else None)), listener):
            yield f"http://{address_of(listener)}"
    else:
        words = ("--api-key", key) if key else ()
        async with driven(peer_command(make, "server.py", *words), home=folder) as (_, said):
            yield said["url"]


@asynccontextmanager
async def driven(command: list[str], home: Path) -> AsyncIterator[tuple[Driver, Any]]:
    driver = await Driver.start(*command, home=home)
    try:
        yield driver, await driver.hears("ready")
    finally:
        await driver.close()
