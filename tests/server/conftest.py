"""What is said to a Server is said to one with the fast lane and to one without: they answer the same."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", params=[True, False], ids=["fast", "plain"])
def fast_lane(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)
