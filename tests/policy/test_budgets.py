"""Budgets count exactly, refuse with a time to try again, and forget nothing that is still in use."""

from __future__ import annotations

from typing import Any

import pytest

from a2c_smcp.computer.consent import gate
from a2c_smcp.computer.consent.decision import Subject
from a2c_smcp.computer.consent.gate import Budgets
from a2c_smcp.computer.consent.rules import parse_policy
from a2c_smcp.errors import RateLimited

pytestmark = pytest.mark.covers("policy-budgets")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def subject(agent: str = "planner", server: str = "cad", tool: str = "draw") -> Subject:
    return Subject(agent, "desk", server, tool, tool, {})


def counting(clock: Clock, *entries: dict[str, Any]) -> Budgets:
    return Budgets(parse_policy({"budgets": [*entries]}), clock)


def admitted(known: Budgets, size: int = 0, **of: str) -> Any:
    """The use of a call that is counted."""
    use = known.admit(subject(**of), size)
    assert use
    return use


def refusal(known: Budgets, size: int = 0, **of: str) -> dict[str, Any]:
    with pytest.raises(RateLimited) as caught:
        known.admit(subject(**of), size)
    return caught.value.details


def test_a_minute_slides(clock: Clock) -> None:
    known = counting(clock, {"name": "slow", "calls_per_minute": 2})
    for _ in range(2):
        admitted(known).close()
        clock.now += 20
    assert refusal(known) == {"retry_after": 20, "budget": "slow"}
    clock.now += 20
    assert known.admit(subject())
    assert refusal(known)["retry_after"] == 20


def test_one_seat_is_one_call_until_the_server_has_answered(clock: Clock) -> None:
    known = counting(clock, {"name": "seat", "servers": "cad", "running": 1})
    use = admitted(known)
    assert refusal(known, agent="other")["retry_after"] == 1
    assert known.admit(subject(server="free")) is None
    use.hold()
    clock.now += 8
    use.close()
    assert refusal(known)["budget"] == "seat"
    use.close()
    assert known.admit(subject())
    assert refusal(known)["retry_after"] == 8, "calls have taken so long"


def test_bytes_of_an_hour(clock: Clock) -> None:
    known = counting(clock, {"bytes_per_hour": 1000})
    use = admitted(known, 100)
    assert use.counts_bytes
    use.spend(850)
    use.close()
    assert known.admit(subject(), 50)
    clock.now += 1800
    assert refusal(known, 10)["retry_after"] == 1800
    clock.now += 1801
    assert known.admit(subject(), 1000)


@pytest.mark.parametrize(
    ("per", "of"), [("agent", {"agent": "b"}), ("server", {"server": "b"}), ("tool", {"tool": "b"})]
)
def test_each_has_its_own_count(clock: Clock, per: str, of: dict[str, str]) -> None:
    known = counting(clock, {"running": 1, "per": per})
    assert known.admit(subject())
    assert known.admit(subject(**of))
    refusal(known, **of)


def test_a_call_that_one_budget_refuses_is_counted_in_none(clock: Clock) -> None:
    known = counting(clock, {"name": "all", "calls_per_minute": 2}, {"name": "cad", "servers": "cad", "running": 1})
    assert known.admit(subject())
    for _ in range(5):
        assert refusal(known)["budget"] == "cad"
    assert known.admit(subject(server="other"))
    assert refusal(known, server="other")["budget"] == "all"


def test_the_owner_is_counted_and_not_refused(clock: Clock) -> None:
    known = counting(clock, {"running": 1})
    for _ in range(2):
        assert known.admit(subject(), is_owner=True)
    refusal(known)


def test_another_policy_goes_on_with_the_counts_of_the_same_calls(clock: Clock) -> None:
    known = counting(clock, {"servers": "cad", "running": 1})
    use = admitted(known)
    known.replace(parse_policy({"budgets": [{"calls_per_minute": 9}, {"name": "new", "servers": "cad", "running": 1}]}))
    assert refusal(known)["budget"] == "new"
    use.close()
    assert known.admit(subject())
    assert {(each.budget, each.used) for each in known.state()} >= {("new", "1 of 1 running")}


def test_counts_are_never_forgotten_to_make_room(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "_MOST_COUNTERS", 3)
    known = counting(clock, {"calls_per_minute": 1, "per": "agent"})
    for name in "abc":
        admitted(known, agent=name).close()
    assert refusal(known, agent="d")["retry_after"] == 60
    clock.now += 61
    assert known.admit(subject("d"))
