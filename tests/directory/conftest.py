"""One Valkey for all tests that do not hurt it, and nodes that are closed with the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.directory.nodes import LONG, Node
from tests.valkey import Valkey


@pytest.fixture
async def start(valkey: Valkey, prefix: str) -> AsyncIterator[Callable[..., Awaitable[Node]]]:
    """Starts a node: `await start("n1", pace=QUICK)`. Its lease is long unless told otherwise."""
    async with AsyncExitStack() as stack:

        async def start(name: str | None = None, **options: Any) -> Node:
            node = Node(valkey.url, node=name, **{"prefix": prefix, "pace": LONG, **options})
            await node.start()
            stack.push_async_callback(node.close)
            return node

        yield start
