"""Peers that are not ours, each in a process of its own that ends with its test."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Front, serving_node
from tests.interop.driver import Driver
from tests.program import forked
from tests.valkey import running_valkey

CACHE = Path(__file__).parents[2] / ".cache"
"""Where `make peers` and `make node-client` install what is driven here."""


PEERS = Path(__file__).with_name("peers")
NEEDS = (
    "a2c_smcp.agent.client,a2c_smcp.computer.computer,a2c_smcp.computer.socketio.client,a2c_smcp.server,"
    "mcp.server.fastmcp,uvicorn"
)
"""What the programs in `peers` import, for a second and more."""


def peer_command(version: str, script: str, *words: object) -> list[str]:
    """The command of a program in `peers`, run by the interpreter that has this version of the published package."""
    home = CACHE / "peers" / version
    assert (home / ".ready").exists(), f"{home} is missing, run `make peers`"
    return forked(PEERS / script, *words, python=home / "bin/python", needs=NEEDS)


def computer_of(version: str, *words: object) -> list[str]:
    """A published computer, with the MCP server of `peers`."""
    return peer_command(
        version, "computer.py", *words, "--mcp-server", json.dumps(peer_command(version, "mcp_server.py"))
    )


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
