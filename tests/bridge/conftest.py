"""An office with a computer, for each test a new one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp import StdioServerParameters

from tests.stage.bridge import BridgedOffice


@pytest.fixture
async def empty(tmp_path: Path) -> AsyncIterator[BridgedOffice]:
    """Nothing runs yet."""
    office = BridgedOffice(tmp_path)
    yield office
    await office.close()


@pytest.fixture
async def desk(empty: BridgedOffice) -> BridgedOffice:
    """A Server."""
    await empty.start_server()
    return empty


@pytest.fixture
async def bridged(desk: BridgedOffice) -> BridgedOffice:
    """A Server and a computer."""
    await desk.start_computer()
    return desk


@pytest.fixture(params=["stdio", "http", "through the Server"])
async def bridge(request: pytest.FixtureRequest, bridged: BridgedOffice) -> StdioServerParameters | str:
    """A bridge to that office, over each transport."""
    if request.param == "through the Server":
        await bridged.server.kill()
        await bridged.start_server("--mcp")
    if request.param != "http":
        return bridged.stdio()
    _, url = await bridged.start_bridge()
    return url


@pytest.fixture(params=["legacy", "auto"])
def mode(request: pytest.FixtureRequest) -> Any:
    """A client of an older revision, and one of 2026-07-28."""
    return request.param
