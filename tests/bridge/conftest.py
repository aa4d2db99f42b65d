"""An office with a computer, for each test a new one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp import StdioServerParameters

from tests.bridge.offices import BridgedOffice


@pytest.fixture
async def bridged(tmp_path: Path) -> AsyncIterator[BridgedOffice]:
    """A Server and a computer."""
    office = BridgedOffice(tmp_path)
    try:
        await office.start_server()
        await office.start_computer()
        yield office
    finally:
        await office.close()


@pytest.fixture(params=["stdio", "http"])
async def bridge(request: pytest.FixtureRequest, bridged: BridgedOffice) -> StdioServerParameters | str:
    """A bridge to that office, over each transport."""
    if request.param == "stdio":
        return bridged.stdio()
    _, url = await bridged.start_bridge()
    return url


@pytest.fixture(params=["legacy", "auto"])
def mode(request: pytest.FixtureRequest) -> Any:
    """A client of an older revision, and one of 2026-07-28."""
    return request.param
