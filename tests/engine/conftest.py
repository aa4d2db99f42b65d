"""The echo application on a real socket, and clients of it that write their packets by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import aiohttp
import pytest
from hypothesis import HealthCheck, settings

from tests.engine.by_hand import PATIENCE, Visitor
from tests.engine.echo import PATHS, serving_echo

settings.register_profile("engine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("deep", settings.get_profile("engine"), max_examples=3_000)  # make test-deep
settings.load_profile("engine")

Visits = Callable[..., Awaitable[Visitor]]
QUIET = 60.0
"""A ping interval that no test sees the end of: what is not about pings is not disturbed by them."""


@pytest.fixture
async def visits() -> AsyncIterator[Visits]:
    """Starts an echo application: `await visits("engine.io")`, `await visits("socket.io", ping_interval=0.1)`."""
    timeout = aiohttp.ClientTimeout(PATIENCE)
    async with AsyncExitStack() as stack, aiohttp.ClientSession(timeout=timeout) as http:

        async def start(name: str, **options: float) -> Visitor:
            echo = serving_echo(name, **{"ping_interval": QUIET, "ping_timeout": QUIET, **options})
            return Visitor(http, await stack.enter_async_context(echo), PATHS[name])

        yield start
