"""A registry, and the revisions of MCP that its clients speak."""

from __future__ import annotations

from typing import Any

import pytest

from a2c_smcp.registry import MCPRegistry


@pytest.fixture
def registry() -> MCPRegistry:
    return MCPRegistry()


@pytest.fixture(params=["legacy", "auto"])
def mode(request: pytest.FixtureRequest) -> Any:
    """A client of an older revision, and one of 2026-07-28."""
    return request.param
