"""Tells: whether the Server carries them, their rates, and progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from a2c_smcp.computer.approval import Caller
from a2c_smcp.computer.tells import Delivery, ProgressTells, Tells
from a2c_smcp.connection import LOST
from a2c_smcp.errors import ComputerNotFound, RateLimited, UnsupportedEvent
from a2c_smcp.mcp_host.rate import Rate
from tests.waiting import until

PLANNER = Caller("desk", "planner")


class Line:
    """A connection whose acks the test decides."""

    def __init__(self, ack: Any = None, *, answers: bool = True) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.ack = ack
        self.answers = answers

    def post(self, event: str, data: dict[str, Any], then: Callable[[Any], None]) -> None:
        self.sent.append((event, data))
        if self.answers:
            asyncio.get_running_loop().call_soon(then, self.ack)


DELIVERED = {"delivered": True}


@pytest.mark.covers("tells-sent")
async def test_a_tell_is_sent_to_its_agent_at_once_and_without_a_connection_not_at_all() -> None:
    tells, line, became = Tells("laptop"), Line(DELIVERED), list[Delivery]()
    tells.tell(PLANNER, "log", {"level": "info"}, became.append)
    assert (became, tells.are_carried("desk")) == ([Delivery.LOST], True)
    with tells.connected("desk", line):
        tells.tell(PLANNER, "log", {"level": "info"}, became.append)
        assert line.sent == [("server:tell_log", {"agent": "planner", "computer": "laptop", "level": "info"})]
        tells.tell(Caller("other", "planner"), "log", {})
        await until(lambda: became == [Delivery.LOST, Delivery.DELIVERED])
    assert len(line.sent) == 1


@pytest.mark.covers("tells-sent")
@pytest.mark.parametrize("ack", [None, {}, [], "yes", {"delivered": False}, (1, 2), UnsupportedEvent("x").to_wire()])
async def test_any_other_ack_means_that_tells_are_not_carried_until_the_next_connection(ack: Any) -> None:
    tells, line, became, told = Tells("laptop"), Line(ack), list[Delivery](), list[str]()
    tells.on_not_carried.append(told.append)
    with tells.connected("desk", line):
        for _ in range(2):
            tells.tell(PLANNER, "question", {}, became.append)
        await until(lambda: len(became) == 2)
        tells.tell(PLANNER, "question", {}, became.append)
        assert (became, told, len(line.sent)) == ([Delivery.NOT_CARRIED] * 3, ["desk"], 2)
        assert not tells.are_carried("desk")
    with tells.connected("desk", Line(DELIVERED)):
        assert tells.are_carried("desk")


@pytest.mark.covers("tells-sent")
@pytest.mark.parametrize(
    ("ack", "became"),
    [
        (ComputerNotFound("x").to_wire(), Delivery.UNDELIVERED),
        (RateLimited("x").to_wire(), Delivery.LATER),
        (LOST, Delivery.LOST),
    ],
)
async def test_an_error_of_a_server_that_carries_tells_loses_one_tell_only(ack: Any, became: Delivery) -> None:
    tells, line, seen = Tells("laptop"), Line(ack), list[Delivery]()
    with tells.connected("desk", line):
        tells.tell(PLANNER, "question", {}, seen.append)
        await until(lambda: seen == [became])
        assert tells.are_carried("desk")


@pytest.mark.covers("tells-sent")
async def test_a_server_that_does_not_answer_within_its_time_does_not_carry_tells() -> None:
    tells, became = Tells("laptop", ack_timeout=0.05), list[Delivery]()
    with tells.connected("desk", Line(answers=False)):
        tells.tell(PLANNER, "question", {}, became.append)
        await until(lambda: became == [Delivery.NOT_CARRIED])
        assert not tells.are_carried("desk")


@pytest.mark.covers("tells-sent")
async def test_progress_and_logs_over_their_rates_are_dropped_and_counted_and_questions_are_not() -> None:
    tells, line = Tells("laptop"), Line(DELIVERED)
    with tells.connected("desk", line):
        for _ in range(200):
            tells.tell(PLANNER, "log", {})
            tells.tell(PLANNER, "progress", {})
        for _ in range(100):
            tells.tell(PLANNER, "question", {})
    kinds = [event for event, _ in line.sent]
    assert 50 <= kinds.count("server:tell_log") <= 60
    assert 90 <= kinds.count("server:tell_progress") <= 120
    assert kinds.count("server:tell_question") == 100
    assert tells.dropped["log"] + kinds.count("server:tell_log") == 200


def test_a_rate_allows_so_many_at_once_and_then_so_many_a_second() -> None:
    now = 0.0
    rate = Rate(10, lambda: now)
    assert [rate.allows() for _ in range(12)] == [True] * 10 + [False] * 2
    now = 0.5
    assert [rate.allows() for _ in range(6)] == [True] * 5 + [False]
    now = 100.0
    assert sum(rate.allows() for _ in range(100)) == 10


@pytest.mark.covers("tells-progress")
async def test_of_many_reports_the_first_are_told_then_five_a_second_and_the_last_one_before_the_end() -> None:
    tells, line = Tells("laptop"), Line(DELIVERED)
    with tells.connected("desk", line):
        progress = ProgressTells(tells, PLANNER, "r1")
        for step in range(1000):
            progress.report(step, 1000, None)
        assert len(line.sent) == 4
        await until(lambda: len(line.sent) == 5)
        progress.report(1000, 1000, "done")
        progress.end()
    told = [data["progress"] for _, data in line.sent]
    assert (told, line.sent[-1][1]["message"]) == ([0, 1, 2, 3, 999, 1000], "done")
