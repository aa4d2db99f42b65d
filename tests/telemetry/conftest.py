"""Fixtures of programs."""

from __future__ import annotations

import pytest

from tests.stage.place import Place


@pytest.fixture
def place(place: Place) -> Place:
    """Private stores are in its folder, too."""
    place.environ["TMPDIR"] = str(place.folder)
    return place
