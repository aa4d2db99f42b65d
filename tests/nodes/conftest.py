"""Nodes that are real processes over a real Valkey: some that a test may hurt, some that tests share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.server.cluster.memory import Pace
from tests.nodes.processes import Cluster, cluster
from tests.valkey import Valkey

Start = Callable[..., Awaitable[Cluster]]
Record = Callable[[str, object], None]
SECRET = "a-secret-of-sixteen-or-more"
CALM = Pace(lease=600, beat=60, patience=10)
"""Nothing is said to the store but what somebody wants of it."""


@pytest.fixture(scope="session")
def lasting_nodes(lasting_valkey: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes for all tests that do not hurt them."""
    nodes = Cluster(lasting_valkey.url, tmp_path_factory.mktemp("nodes"), pace=CALM, limits={"cancel_grace": 0.3})
    try:
        asyncio.run(nodes.start(3))
        yield nodes
        nodes.check_logs()
    finally:
        asyncio.run(nodes.close())


@pytest.fixture
async def shared(lasting_nodes: Cluster) -> AsyncIterator[Cluster]:
    """The lasting nodes, whose clients are gone after the test."""
    yield lasting_nodes
    await lasting_nodes.close_peers()


@pytest.fixture
async def start(valkey: Valkey, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts nodes that the test may hurt: `await start(3, pace=Pace())`."""
    async with AsyncExitStack() as stack:

        async def begin(count: int, **options: Any) -> Cluster:
            return await stack.enter_async_context(cluster(valkey.url, tmp_path, count, **options))

        yield begin
