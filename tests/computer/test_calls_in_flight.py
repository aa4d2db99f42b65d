"""Tool calls by req_id: nothing runs twice, and a cancel ends one call and no other."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from a2c_smcp.computer.calls.in_flight import Begin, CallsInFlight, Retention
from a2c_smcp.computer.calls.journal import Journal
from a2c_smcp.computer.consent.approval import Caller
from a2c_smcp.errors import BadRequest, CallCancelled, CallTimeout, ResultGone, TooLarge
from a2c_smcp.protocol.codec import Encoded, dumps

pytestmark = pytest.mark.covers("computer-dedup", "computer-cancel")

AGENT = Caller("desk", "planner")


class Work:
    """Counts its runs, and waits to be let through."""

    def __init__(self) -> None:
        self.runs = 0
        self.go = asyncio.Event()
        self.go.set()

    async def __call__(self, begin: Begin) -> dict[str, Any]:
        begin()
        self.runs += 1
        await self.go.wait()
        return {"run": self.runs}


async def test_a_call_that_comes_again_joins_the_first_and_then_finds_its_result() -> None:
    calls, work = CallsInFlight(), Work()
    work.go.clear()
    both = [asyncio.create_task(calls.run(AGENT, "r", "what", work)) for _ in range(2)]
    await asyncio.sleep(0)
    work.go.set()
    assert await asyncio.gather(*both) == [{"run": 1}, {"run": 1}]
    assert await calls.run(AGENT, "r", "what", work) == {"run": 1}
    assert work.runs == 1


async def test_a_kept_error_does_not_hold_the_arguments_of_its_call() -> None:
    in_hand: list[weakref.ref[Work]] = []

    async def fail(begin: Begin) -> dict[str, Any]:
        payload = Work()
        in_hand.append(weakref.ref(payload))
        try:
            raise ValueError(payload)
        except ValueError:
            raise TooLarge from None

    calls = CallsInFlight()
    for _ in range(2):
        with pytest.raises(TooLarge):
            await calls.run(AGENT, "r", "what", fail)
    gc.collect()
    assert [each() for each in in_hand] == [None]


@pytest.mark.parametrize("other", [Caller("lab", "planner"), Caller("desk", "thinker")])
async def test_equal_req_ids_of_others_are_other_calls(other: Caller) -> None:
    calls, work = CallsInFlight(), Work()
    assert await calls.run(AGENT, "r", "what", work) == {"run": 1}
    assert await calls.run(other, "r", "what", work) == {"run": 2}


@pytest.mark.parametrize(("one", "other"), [(["add", {"a": 1}], ["add", {"a": True}]), (["add", {}], ["sub", {}])])
async def test_a_req_id_is_not_taken_for_another_call(one: Any, other: Any) -> None:
    calls, work = CallsInFlight(), Work()
    await calls.run(AGENT, "r", one, work)
    with pytest.raises(BadRequest):
        await calls.run(AGENT, "r", other, work)
    assert work.runs == 1


async def test_of_a_result_too_large_to_keep_only_that_it_ran_is_known() -> None:
    calls, work = CallsInFlight(Retention(most_bytes=5)), Work()
    await calls.run(AGENT, "r", "what", work)
    with pytest.raises(ResultGone):
        await calls.run(AGENT, "r", "what", work)
    assert work.runs == 1


@pytest.mark.parametrize("text", ["x" * 700, "\u6f22" * 300], ids=["ascii", "other signs"])
async def test_a_result_that_is_kept_as_text_too_counts_twice(text: str) -> None:
    async def work(begin: Begin) -> dict[str, Any]:
        begin()
        return Encoded({"text": text}, dumps({"text": text}))

    calls = CallsInFlight(Retention(most_bytes=1200))
    await calls.run(AGENT, "r", "what", work)
    with pytest.raises(ResultGone):
        await calls.run(AGENT, "r", "what", work)


async def test_results_are_forgotten_in_time_and_when_their_agent_leaves_but_not_that_the_call_ran() -> None:
    now = [0.0]
    calls, work = CallsInFlight(Retention(results=10), lambda: now[0], Journal(keep=20, clock=lambda: now[0])), Work()
    await calls.run(AGENT, "r", "what", work)
    await calls.run(AGENT, "s", "what", work)
    calls.drop(lambda caller: caller.agent == "planner")
    with pytest.raises(ResultGone):
        await calls.run(AGENT, "s", "what", work)
    now[0] = 11
    with pytest.raises(ResultGone):
        await calls.run(AGENT, "r", "what", work)
    assert work.runs == 2
    now[0] = 21
    assert await calls.run(AGENT, "r", "what", work) == {"run": 3}


async def test_an_agent_that_enters_drops_the_results_kept_for_other_agents_only() -> None:
    calls, work = CallsInFlight(), Work()
    await calls.run(AGENT, "r", "what", work)
    calls.drop(lambda caller: caller.agent != "planner")
    assert await calls.run(AGENT, "r", "what", work) == {"run": 1}
    calls.drop(lambda caller: caller.agent != "rival")
    with pytest.raises(ResultGone):
        await calls.run(AGENT, "r", "what", work)
    assert work.runs == 1


async def test_a_call_that_failed_or_was_cancelled_is_not_run_again_either() -> None:
    calls, work, runs = CallsInFlight(), Work(), []

    async def fail(begin: Begin) -> dict[str, Any]:
        begin()
        runs.append("fail")
        raise CallTimeout

    for _ in range(2):
        with pytest.raises(CallTimeout):
            await calls.run(AGENT, "r", "what", fail)
    assert runs == ["fail"]
    work.go.clear()
    first = asyncio.create_task(calls.run(AGENT, "s", "what", work))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    calls.cancel(AGENT, "s")
    for again in (first, calls.run(AGENT, "s", "what", work)):
        with pytest.raises(CallCancelled):
            await again
    assert work.runs == 1


async def test_more_results_than_are_kept_leave_tombstones() -> None:
    calls, work = CallsInFlight(Retention(most=2)), Work()
    for number in range(4):
        await calls.run(AGENT, str(number), "what", work)
    with pytest.raises(ResultGone):
        await calls.run(AGENT, "0", "what", work)
    assert await calls.run(AGENT, "3", "what", work) == {"run": 4}


async def test_a_cancel_ends_one_call_for_all_who_wait_and_no_other() -> None:
    calls, slow, other = CallsInFlight(), Work(), Work()
    slow.go.clear()
    other.go.clear()
    waiting = [asyncio.create_task(calls.run(AGENT, "slow", "what", slow)) for _ in range(2)]
    bystander = asyncio.create_task(calls.run(AGENT, "other", "what", other))
    await asyncio.sleep(0)
    calls.cancel(AGENT, "slow")
    for task in waiting:
        with pytest.raises(CallCancelled):
            await task
    other.go.set()
    assert await bystander == {"run": 1}


async def test_a_cancel_that_overtakes_its_call_still_wins_for_a_while() -> None:
    now = [0.0]
    calls, work = CallsInFlight(Retention(cancels=30), clock=lambda: now[0]), Work()
    calls.cancel(AGENT, "r")
    with pytest.raises(CallCancelled):
        await calls.run(AGENT, "r", "what", work)
    now[0] = 31
    assert await calls.run(AGENT, "r", "what", work) == {"run": 1}


async def test_a_caller_that_gives_up_does_not_end_the_call() -> None:
    calls, work = CallsInFlight(), Work()
    work.go.clear()
    first = asyncio.create_task(calls.run(AGENT, "r", "what", work))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    work.go.set()
    assert await calls.run(AGENT, "r", "what", work) == {"run": 1}
