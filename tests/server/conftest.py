"""What is said to a Server is said to one with the fast lane, one without, and two nodes, with the same answers."""

from __future__ import annotations

import pytest

from tests.server.test_program import meets, starts  # noqa: F401, for all who want a program

TALK = {"test_calls", "test_events", "test_lane", "test_offices", "test_outcomes", "test_resume"}
"""What clients say to each other."""

MODULES = {"plain": TALK | {"test_failures", "test_limits", "test_polling"}, "nodes": TALK}
"""Where it may matter how requests travel. All else is asked of a Server as people run it."""


@pytest.fixture(scope="session", params=["fast", "plain", "nodes"])
def lane(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    dropped = [item for item in items if not _matters(item)]
    config.hook.pytest_deselected(items=dropped)
    items[:] = [item for item in items if _matters(item)]


def _matters(item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    lane = call.params.get("lane", "fast") if call else "fast"
    if lane == "nodes" and item.get_closest_marker("one_process"):
        return False
    return lane == "fast" or item.path.stem in MODULES[lane]
