"""The folder of skills of a test, and what its MCP server offers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.skills.offered import Home, Offer


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "skills")


@pytest.fixture
def offer(tmp_path: Path) -> Offer:
    return Offer(tmp_path / "offer.json")
