"""The rates of what a computer tells, over time."""

from __future__ import annotations

import pytest

from a2c_smcp.mcp_events import TELL_LOG_EVENT, TELL_PROGRESS_EVENT
from a2c_smcp.server.settings import Limits, TellPace

pytestmark = pytest.mark.covers("tell-rates")


def test_no_second_holds_more_than_ten_of_a_kind_for_a_call() -> None:
    pace, admitted = TellPace(Limits()), []
    for step in range(1000):
        now = step / 100
        if pace.admits(TELL_PROGRESS_EVENT, "r1", now):
            admitted.append(now)
    assert len(admitted) == 100
    assert all(later - earlier >= 1 for earlier, later in zip(admitted, admitted[10:], strict=False))


def test_a_computer_tells_two_hundred_a_second_and_nothing_is_kept_of_the_rest() -> None:
    pace = TellPace(Limits())
    assert sum(pace.admits(f"server:tell_{number}", f"r{number}", 0.0) for number in range(10_000)) == 200
    assert (len(pace._recent), len(pace._counts)) == (200, 200)
    assert pace.admits(TELL_PROGRESS_EVENT, "r1", 1.0)
    assert (len(pace._recent), len(pace._counts)) == (1, 1)


def test_the_rates_are_the_deployers_choice() -> None:
    pace = TellPace(Limits(tells_per_call=2, tells_per_second=5, logs_per_second=1))
    assert [pace.admits(TELL_PROGRESS_EVENT, "r1", 0.0) for _ in range(3)] == [True, True, False]
    assert [pace.admits(TELL_LOG_EVENT, None, 0.0) for _ in range(2)] == [True, False]
    assert [pace.admits("server:tell_x", None, 0.0) for _ in range(3)] == [True, True, False]
