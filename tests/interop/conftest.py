"""Peers that are not ours, each in a process of its own that ends with its test."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Front, serving_node
from tests.interop.driver import Driver
from tests.valkey import running_valkey

CACHE = Path(__file__).parents[2] / ".cache"
"""Where `make peers` and `make node-client` install what is driven here."""


def python_of(version: str) -> Path:
    """The interpreter that has this version of the published package."""
    home = CACHE / "peers" / version
    assert (home / ".ready").exists(), f"{home} is missing, run `make peers`"
    return home / "bin/python"


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
