"""A call on its way through the Computer: how far it has got, and whether its arguments fit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.consent.approval import Caller
from tests.computer.hosted import ready
from tests.computer.supervised import good, quick, text_of
from tests.waiting import until

AGENT = Caller("desk", "planner")
TOOK_STEPS = [(1.0, 3.0, "step 1"), (2.0, 3.0, "step 2"), (3.0, 3.0, "step 3")]


class Follower:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[float, float | None, str | None]] = []

    def plain(self, *news: Any) -> None:
        self.heard.append(news)

    async def patient(self, *news: Any) -> None:
        await asyncio.sleep(0)
        self.heard.append(news)

    def broken(self, *news: Any) -> None:
        self.heard.append(news)
        raise ValueError("a callback that fails")

    async def stuck(self, *news: Any) -> None:
        self.heard.append(news)
        await asyncio.Event().wait()


@pytest.fixture
async def computer() -> AsyncIterator[Computer]:
    """Its tool `slow` takes steps, and reports them."""
    async with Computer("laptop", policy=quick()) as computer:
        await computer.put_server(good(default_tool_meta={"auto_apply": True}))
        yield computer


async def walk(computer: Computer, on_progress: Any, req_id: str = "r1", steps: int = 3, pause: float = 0) -> Any:
    params = {"steps": steps, "pause": pause}
    return await computer.execute_tool(AGENT, req_id, "slow", params, 20, on_progress=on_progress)


@pytest.mark.covers("computer-progress")
@pytest.mark.parametrize("kind", ["plain", "patient", "broken"])
async def test_progress_is_reported_in_order_and_a_failing_callback_harms_nothing(
    computer: Computer, kind: str
) -> None:
    follower = Follower()
    assert text_of(await walk(computer, getattr(follower, kind))) == "done"
    assert follower.heard == TOOK_STEPS


@pytest.mark.covers("computer-progress")
async def test_a_callback_that_never_returns_holds_up_neither_its_call_nor_another(computer: Computer) -> None:
    stuck, other = Follower(), Follower()
    results = await asyncio.gather(walk(computer, stuck.stuck), walk(computer, other.plain, "r2"))
    assert [text_of(result) for result in results] == ["done", "done"]
    assert (stuck.heard, other.heard) == (TOOK_STEPS[:1], TOOK_STEPS)


@pytest.mark.covers("computer-progress", "computer-dedup")
async def test_a_duplicate_of_a_running_call_gets_its_progress_from_then_on(computer: Computer) -> None:
    followers = first, second = Follower(), Follower()
    calls = []
    for follower in followers:
        calls.append(asyncio.create_task(walk(computer, follower.plain, steps=600, pause=0.01)))
        await until(lambda follower=follower: follower.heard)
    computer.calls.cancel(AGENT, "r1")
    assert [(await call)["code"] for call in calls] == [499, 499]
    assert first.heard[-1] == second.heard[-1]
    assert len(computer.history) == 1


def _odd(number: int) -> int:
    if number % 2 == 0:
        raise ValueError(f"{number} is even")
    return number


@pytest.mark.covers("tools-arguments")
async def test_arguments_of_a_function_fit_its_schema_and_then_its_annotations_or_the_call_is_refused() -> None:
    computer, taken = Computer("laptop"), list[Any]()

    @computer.tool(auto_apply=True)
    def take(n: Annotated[int, AfterValidator(_odd)]) -> int:
        taken.append(n)
        return n

    async def call(n: Any, req_id: str) -> dict[str, Any]:
        return await computer.execute_tool(AGENT, req_id, "take", {"n": n}, 5)

    async with computer:
        for number, unfit in enumerate(["5", 4, None]):
            answer = await call(unfit, f"unfit {number}")
            assert (answer["code"], answer["details"]["field"]) == (400, "params")
            assert [fault["path"] for fault in answer["details"]["errors"]] == ["/n"]
        assert (await call(5, "fits"))["content"][0]["text"] == "5"
    assert taken == [5]


@pytest.mark.covers("computer-serves")
async def test_configuration_is_announced_before_the_server_has_started() -> None:
    told: list[str] = []
    async with Computer("laptop", policy=quick()) as computer:
        computer.agents.on_update(told.append)
        await computer.put_server(good())
        await ready(computer, "good")
        assert told[0] == "config"
        assert "tool_list" in told


@pytest.mark.covers("calls-too-late", "calls-outcome")
async def test_a_yes_that_comes_late_runs_nothing_also_if_the_whole_process_stood_still() -> None:
    async def approve(*_: Any) -> bool:
        time.sleep(1.1)  # noqa: ASYNC251, nothing else happens meanwhile, not even a timer
        return True

    computer, runs = Computer("laptop", approve=approve), list[int]()
    computer.tool(lambda: runs.append(1), name="run")
    async with computer:
        answer = await computer.execute_tool(AGENT, "r1", "run", {}, 1)
    assert (answer["code"], answer["details"]["outcome"], runs) == (408, "not_run", [])
