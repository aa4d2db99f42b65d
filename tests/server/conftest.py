"""What is said to a Server is said to one with the fast lane, to one without, and to two nodes, with the same answers."""

from __future__ import annotations

import pytest

SPANNING = {"test_calls", "test_events", "test_lane", "test_offices", "test_resume"}
"""What clients say to each other. All else is a matter of one process."""


@pytest.fixture(scope="session", params=["fast", "plain", "nodes"])
def lane(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept = [item for item in items if not _is_of_one_process(item)]
    config.hook.pytest_deselected(items=[item for item in items if _is_of_one_process(item)])
    items[:] = kept


def _is_of_one_process(item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    if call is None or call.params.get("lane") != "nodes":
        return False
    return item.path.stem not in SPANNING or item.get_closest_marker("one_process") is not None
