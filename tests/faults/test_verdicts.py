"""What a fault run excuses and what it does not: the judge, asked about calls that are made up."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.books import Entry, Run
from tests.faults.calls import ANSWERED, GARBLED
from tests.faults.made_up import BEGUN, PAIR, entry
from tests.faults.verdicts import Outage, World, judge


def run(at: float = BEGUN, computer: str = "left") -> Run:
    return Run("1.office1.0-7", "office1", computer, at)


def world(*outages: Outage, last_answer: float = 0.0, killed: dict[str, float] | None = None) -> World:
    return World(0.0, list(outages), lambda pair, before: last_answer, {"1.office1.0": 0.0}, killed or {})


def outage(begun: float, ended: float, back: float, **more: Any) -> Outage:
    return Outage("kill server", "", [PAIR], begun, ended, back={PAIR: back}, **more)


def kinds(found: list[str]) -> list[str]:
    return [each.partition(":")[0] for each in found]


def test_a_call_that_was_answered_and_ran_once_is_right() -> None:
    assert judge(entry(ANSWERED), [run()], world()) == []


@pytest.mark.parametrize(
    ("made", "runs", "kind"),
    [
        (entry(ANSWERED), [run(), run(BEGUN + 2)], "doubled"),
        (entry(ANSWERED), [run(computer="right")], "misrouted"),
        (entry(ANSWERED), [], "never ran"),
        (entry(GARBLED), [run()], "garbled"),
        (entry(None), [], "lost"),
        (entry(ANSWERED, BEGUN + 30), [run()], "late"),
        (entry(499, cancel_after=0.5), [run(BEGUN + 9)], "started late"),
        (entry(499, outcome="not_run", cancel_after=0.5), [run()], "ran after all"),
        (entry(499, outcome=None, cancel_after=0.5), [], "no outcome"),
        (entry(499), [], "cancelled by nobody"),
        (entry(500), [], "unexpected"),
        (entry(404, text="No such tool"), [], "tool not found"),
        (entry(404), [], "error without an outage"),
        (entry(408, BEGUN + 11), [], "not answered"),
        (entry(410), [], "result gone without a kill"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_no_fault_may_bring_about_is_found(made: Entry, runs: list[Run], kind: str) -> None:
    assert kinds(judge(made, runs, world())) == [kind]


def test_a_call_may_fail_when_an_outage_leaves_no_time_for_it() -> None:
    assert judge(entry(408, BEGUN + 12), [], world(outage(BEGUN, BEGUN + 8, BEGUN + 10))) == []


def test_a_call_that_has_time_left_after_an_outage_must_be_answered() -> None:
    found = judge(entry(408, BEGUN + 12), [], world(outage(BEGUN, BEGUN + 1, BEGUN + 2)))
    assert kinds(found) == ["not answered"]


def test_a_computer_that_was_there_a_moment_ago_is_waited_for() -> None:
    away = outage(BEGUN - 1, BEGUN + 5, BEGUN + 6)
    assert kinds(judge(entry(404), [], world(away, last_answer=BEGUN - 1))) == ["gave up within the grace"]
    assert judge(entry(404), [], world(away, last_answer=BEGUN - 9)) == []


def test_those_who_return_first_wait_for_the_others() -> None:
    restarted = outage(BEGUN - 9, BEGUN, BEGUN + 4, cuts_off=True)
    assert kinds(judge(entry(404, BEGUN + 2), [], world(restarted))) == ["gave up within the grace"]
    assert judge(entry(404, BEGUN + 5), [], world(restarted)) == []


def test_a_result_may_be_gone_when_its_computer_was_killed() -> None:
    killed = outage(BEGUN, BEGUN + 1, BEGUN + 2, killed=["office1/left"])
    assert judge(entry(410), [run()], world(killed)) == []


def test_a_call_of_an_agent_that_was_killed_needs_no_end_and_still_runs_once() -> None:
    gone = world(killed={"1.office1.0": BEGUN + 1})
    assert judge(entry(None), [run()], gone) == []
    assert kinds(judge(entry(None), [run(), run()], gone)) == ["doubled"]


def test_an_agent_that_stood_still_may_be_late() -> None:
    paused = outage(BEGUN, BEGUN + 6, BEGUN + 6, paused=["office1/agent"])
    assert judge(entry(ANSWERED, BEGUN + 20), [run()], world(paused)) == []
