"""What is said to the program, to a mounted Server and to two nodes is answered alike."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.peer import PATIENCE
from tests.stage.hub import hubs
from tests.stage.lines import dials
from tests.stage.program import Program, Starts, meets, starts

__all__ = ["dials", "hubs", "meets", "starts"]

TALK = {
    "test_calls",
    "test_events",
    "test_freezes",
    "test_offices",
    "test_order",
    "test_outcomes",
    "test_resume",
    "test_seats",
    "test_tells",
}
"""What clients say to each other."""

MODULES = {"mounted": TALK | {"test_failures", "test_limits", "test_polling"}, "nodes": TALK}
"""Where it may matter how a Server is served. All else is asked of the program, as people run it."""


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE)) as session:
        yield session


@pytest.fixture
async def program(starts: Starts) -> Program:
    """A Server as people run it, without options."""
    return await starts()


@pytest.fixture(scope="session", params=["program", "mounted", "nodes"])
def hosting(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    dropped = [item for item in items if not _matters(item)]
    config.hook.pytest_deselected(items=dropped)
    items[:] = [item for item in items if _matters(item)]


def _matters(item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    hosting = call.params.get("hosting", "program") if call else "program"
    if hosting == "nodes" and item.get_closest_marker("one_process"):
        return False
    if hosting == "mounted" and item.get_closest_marker("own_web_server"):
        return False
    if hosting != "program" and item.config.option.fast:
        return False
    return hosting == "program" or item.path.stem in MODULES[hosting]
