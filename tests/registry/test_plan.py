"""Plans: steps in order, outcomes with durations, and what happens when a tool raises."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from a2c_smcp.registry import FunctionTool, MCPRegistry
from a2c_smcp.registry.planning.plan import (
    BadPlan,
    Failure,
    PlanRun,
    ReplyStep,
    StepOutcome,
    ToolStep,
    read_plan,
    run_plan,
    run_plan_async,
)

Run = Callable[..., PlanRun]


def awaited(steps: Any, registry: MCPRegistry, **options: Any) -> PlanRun:
    return asyncio.run(run_plan_async(steps, registry, **options))


@pytest.fixture(params=[run_plan, awaited], ids=["blocking", "awaited"])
def run(request: pytest.FixtureRequest) -> Run:
    return request.param


@pytest.fixture
def registry() -> MCPRegistry:
    tools = MCPRegistry()

    @tools.tool
    def add(a: int, b: int) -> int:
        return a + b

    @tools.tool
    def divide(a: int, b: int) -> float:
        return a / b

    @tools.tool
    async def later(text: str) -> str:
        await asyncio.sleep(0)
        return text

    return tools


def tool(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool", "name": name, "arguments": arguments}


def reply(text: str) -> dict[str, Any]:
    return {"type": "reply", "text": text}


def test_tools_and_replies_run_in_order(run: Run, registry: MCPRegistry) -> None:
    done = run([tool("add", a=1, b=2), tool("later", text="hi"), reply("three")], registry)
    assert [outcome.result for outcome in done.outcomes] == [3, "hi", "three"]
    assert done.replies == ["three"]
    assert done.ok
    assert done.finished


def test_each_outcome_has_the_duration_of_its_tool(run: Run, registry: MCPRegistry) -> None:
    done = run([tool("add", a=1, b=2), reply("done")], registry)
    assert done.outcomes[0].duration > 0
    assert done.outcomes[1].duration == 0
    assert done.duration >= done.outcomes[0].duration


def test_a_step_without_arguments_gets_an_empty_object(run: Run, registry: MCPRegistry) -> None:
    registry.register(FunctionTool(lambda: "called", name="nothing"))
    assert run([{"type": "tool", "name": "nothing"}], registry).outcomes[0].result == "called"


def test_an_empty_plan_is_finished(run: Run, registry: MCPRegistry) -> None:
    assert run([], registry).ok


def test_a_failing_tool_stops_the_plan(run: Run, registry: MCPRegistry) -> None:
    done = run([tool("divide", a=1, b=0), reply("never")], registry)
    assert not done.finished
    assert not done.ok
    assert isinstance(done.failures[0].error, ZeroDivisionError)
    assert done.replies == []


def test_a_plan_can_continue_after_a_failing_tool(run: Run, registry: MCPRegistry) -> None:
    done = run([tool("divide", a=1, b=0), tool("add", a=1, b=1)], registry, on_error="continue")
    assert done.finished
    assert not done.ok
    assert [outcome.result for outcome in done.outcomes] == [None, 2]


def test_an_unknown_tool_is_a_failure_of_its_step(run: Run, registry: MCPRegistry) -> None:
    done = run([tool("ad", a=1, b=1)], registry)
    assert isinstance(done.failures[0].error, KeyError)
    assert "'add'" in str(done.failures[0].error)


def test_a_planner_is_asked_for_other_steps(run: Run, registry: MCPRegistry) -> None:
    told: list[Failure] = []

    def replan(failure: Failure) -> list[dict[str, Any]]:
        told.append(failure)
        return [tool("divide", a=1, b=2), reply("half")]

    done = run([tool("add", a=0, b=0), tool("divide", a=1, b=0), reply("old")], registry, replan=replan)
    assert done.finished
    assert done.replans == 1
    assert [outcome.result for outcome in done.outcomes] == [0, None, 0.5, "half"]
    assert told[0].step == ToolStep("divide", {"a": 1, "b": 0})
    assert isinstance(told[0].error, ZeroDivisionError)
    assert [outcome.ok for outcome in told[0].done] == [True, False]
    assert told[0].remaining == (ReplyStep("old"),)


def test_a_planner_may_have_no_other_plan(run: Run, registry: MCPRegistry) -> None:
    done = run([tool("divide", a=1, b=0), reply("next")], registry, replan=lambda failure: None, on_error="continue")
    assert done.replies == ["next"]


def test_a_planner_may_end_the_plan(run: Run, registry: MCPRegistry) -> None:
    done = run([tool("divide", a=1, b=0), reply("next")], registry, replan=lambda failure: [])
    assert done.finished
    assert done.replies == []


def test_a_planner_is_asked_a_bounded_number_of_times(run: Run, registry: MCPRegistry) -> None:
    again = [tool("divide", a=1, b=0)]
    done = run(again, registry, replan=lambda failure: again, max_replans=2)
    assert done.replans == 2
    assert len(done.failures) == 3
    assert not done.finished


def test_a_planner_is_told_when_its_new_plan_is_malformed(run: Run, registry: MCPRegistry) -> None:
    answers: list[Any] = ["no plan", [reply("better")]]
    told: list[Exception] = []

    def replan(failure: Failure) -> Any:
        told.append(failure.error)
        return answers.pop(0)

    done = run([tool("divide", a=1, b=0)], registry, replan=replan)
    assert done.replies == ["better"]
    assert [type(error) for error in told] == [ZeroDivisionError, BadPlan]


def test_a_users_answer_is_added_to_the_arguments(run: Run, registry: MCPRegistry) -> None:
    done = run([tool("divide", a=1, b=0)], registry, clarify=lambda failure: {"b": 4})
    assert done.ok
    assert done.outcomes == (
        StepOutcome(ToolStep("divide", {"a": 1, "b": 4}), 0.25, None, done.outcomes[0].duration, attempts=2),
    )


def test_a_user_can_have_the_step_tried_again(run: Run, registry: MCPRegistry) -> None:
    times: list[int] = []

    @registry.tool
    def flaky() -> int:
        times.append(1)
        if len(times) < 3:
            raise OSError("not yet")
        return len(times)

    done = run([tool("flaky")], registry, clarify=lambda failure: True)
    assert done.outcomes[0].result == 3
    assert done.outcomes[0].attempts == 3


@pytest.mark.parametrize("answer", [None, False])
def test_without_a_users_answer_the_planner_is_asked(run: Run, registry: MCPRegistry, answer: Any) -> None:
    done = run(
        [tool("divide", a=1, b=0)], registry, clarify=lambda failure: answer, replan=lambda failure: [reply("sorry")]
    )
    assert done.replies == ["sorry"]
    assert done.outcomes[0].attempts == 1


def test_a_user_is_asked_a_bounded_number_of_times(run: Run, registry: MCPRegistry) -> None:
    done = run([tool("divide", a=1, b=0)], registry, clarify=lambda failure: {}, max_questions=2)
    assert done.failures[0].attempts == 3


def test_a_clarification_of_the_wrong_type_is_a_type_error(run: Run, registry: MCPRegistry) -> None:
    with pytest.raises(TypeError, match="clarify answers with arguments, True or None, not with str"):
        run([tool("divide", a=1, b=0)], registry, clarify=lambda failure: "four")


def test_the_caller_gets_the_exception_of_a_callback(run: Run, registry: MCPRegistry) -> None:
    def replan(failure: Failure) -> Any:
        raise LookupError("no planner")

    with pytest.raises(LookupError, match="no planner"):
        run([tool("divide", a=1, b=0)], registry, replan=replan)


def test_on_step_is_called_with_every_outcome(run: Run, registry: MCPRegistry) -> None:
    told: list[Any] = []
    run([tool("add", a=1, b=1), reply("two")], registry, on_step=lambda outcome: told.append(outcome.result))
    assert told == [2, "two"]


def test_the_arguments_of_a_plan_are_not_changed_by_its_tools(run: Run, registry: MCPRegistry) -> None:
    class Eater:
        name = "eater"

        def call(self, arguments: dict[str, Any]) -> list[str]:
            names = [*arguments]
            arguments.clear()
            return names

    registry.register(Eater())
    done = run([tool("eater", a=1)], registry)
    assert done.outcomes[0].step == ToolStep("eater", {"a": 1})


def test_malformed_steps_are_listed_before_anything_runs(run: Run, registry: MCPRegistry) -> None:
    ran: list[int] = []
    registry.register(FunctionTool(lambda: ran.append(1), name="mark"))
    steps = [
        tool("mark"),
        {"type": "think"},
        {"type": "tool", "arguments": {}},
        {"type": "tool", "name": "add", "arguments": [1]},
        {"type": "reply"},
        "add",
    ]
    with pytest.raises(BadPlan) as caught:
        run(steps, registry)
    assert ran == []
    assert [fault["index"] for fault in caught.value.details["errors"]] == [1, 2, 3, 4, 5]
    assert "step 2 calls a tool and has no name" in str(caught.value)
    assert "step 3 has arguments that are no object but list" in str(caught.value)


@pytest.mark.parametrize("plan", ["steps", {"type": "reply", "text": "x"}, None, 3])
def test_a_plan_must_be_a_list(plan: Any) -> None:
    with pytest.raises(BadPlan, match="not a list of steps"):
        read_plan(plan)


def test_step_objects_are_accepted_as_steps(run: Run, registry: MCPRegistry) -> None:
    assert run(read_plan([reply("x")]), registry).replies == ["x"]


def test_a_system_exit_ends_the_plan(registry: MCPRegistry) -> None:
    def leave() -> None:
        raise SystemExit(3)

    registry.tool(leave)
    with pytest.raises(SystemExit):
        run_plan([tool("leave")], registry, on_error="continue")


def test_an_unknown_on_error_is_refused(run: Run, registry: MCPRegistry) -> None:
    with pytest.raises(ValueError, match="on_error is one of stop, continue, not 'ignore'"):
        run([], registry, on_error="ignore")


async def test_callbacks_may_be_coroutine_functions(registry: MCPRegistry) -> None:
    async def clarify(failure: Failure) -> dict[str, int]:
        await asyncio.sleep(0)
        return {"b": 1}

    done = await run_plan_async([tool("divide", a=1, b=0)], registry, clarify=clarify)
    assert done.ok


def test_a_coroutine_callback_in_a_blocking_plan_is_refused(registry: MCPRegistry) -> None:
    async def clarify(failure: Failure) -> None: ...

    with pytest.raises(TypeError, match="needs run_plan_async"):
        run_plan([tool("divide", a=1, b=0)], registry, clarify=clarify)


async def test_cancelling_a_plan_cancels_its_tool(registry: MCPRegistry) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    @registry.tool
    async def endless() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    running = asyncio.create_task(run_plan_async([tool("endless")], registry, on_error="continue"))
    await started.wait()
    running.cancel()
    await asyncio.wait([running], timeout=10)
    assert running.cancelled()
    assert ended.is_set()


def test_both_run_plan_functions_have_the_same_signature() -> None:
    assert inspect.signature(run_plan) == inspect.signature(run_plan_async)
