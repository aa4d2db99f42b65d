"""One Valkey for all tests that do not hurt it, and nodes that are closed with the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any
from uuid import uuid4

import pytest

from tests.directory.nodes import LONG, Node
from tests.valkey import Valkey, running_valkey


@pytest.fixture(scope="session")
def shared_valkey() -> Iterator[Valkey]:
    with running_valkey() as valkey:
        yield valkey


@pytest.fixture
def valkey(shared_valkey: Valkey) -> Valkey:
    """The store of the test's nodes."""
    return shared_valkey


@pytest.fixture
def prefix() -> str:
    """A place in the store that no other test knows."""
    return f"test-{uuid4().hex[:12]}:"


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
