"""Run a plan (001 §6): call the steps of a planner one after the other and keep the outcome of each.

When a tool raises, `clarify` may ask a user for better arguments, `replan` may ask a planner for other steps, and
`on_error` decides if neither helped. The run is one generator that yields the tool calls and questions;
`run_plan` and `run_plan_async` drive it.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, cast, get_args

from a2c_smcp.errors import BadRequest

MAX_REPLANS = MAX_QUESTIONS = 3


class BadPlan(BadRequest, ValueError):
    """Steps that cannot be run. `details["errors"]` has the `index` and a `message` of each fault."""

    title = "Bad plan"


@dataclass(frozen=True, slots=True)
class ToolStep:
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReplyStep:
    text: str


Step: TypeAlias = ToolStep | ReplyStep


def read_plan(steps: object) -> tuple[Step, ...]:
    """The steps as objects. Raises `BadPlan`, which lists every malformed step."""
    if isinstance(steps, str | bytes | Mapping) or not isinstance(steps, Sequence):
        raise BadPlan("it is not a list of steps", errors=[])
    faults = [(index, fault) for index, step in enumerate(steps) if (fault := _fault_in(step))]
    if faults:
        message = "; ".join(f"step {index} {fault}" for index, fault in faults)
        raise BadPlan(message, errors=[{"index": index, "message": fault} for index, fault in faults])
    return tuple(_read(step) for step in steps)


def _fault_in(step: object) -> str | None:
    if isinstance(step, ToolStep | ReplyStep):
        return None
    if not isinstance(step, Mapping):
        return f"is no object but {type(step).__name__}"
    kind = step.get("type")
    fault = _FAULTS.get(kind) if isinstance(kind, str) else None
    return fault(step) if fault else f"has the type {kind!r}, which is none of {', '.join(map(repr, _FAULTS))}"


def _fault_in_tool(step: Mapping[str, Any]) -> str | None:
    if not isinstance(step.get("name"), str) or not step["name"]:
        return "calls a tool and has no name"
    arguments = step.get("arguments")
    if arguments is not None and not isinstance(arguments, Mapping):
        return f"has arguments that are no object but {type(arguments).__name__}"
    return None


_FAULTS: Mapping[str, Callable[[Mapping[str, Any]], str | None]] = {
    "tool": _fault_in_tool,
    "reply": lambda step: None if isinstance(step.get("text"), str) else "is a reply and has no text",
}


def _read(step: Any) -> Step:
    if isinstance(step, ToolStep | ReplyStep):
        return step
    if step["type"] == "reply":
        return ReplyStep(step["text"])
    return ToolStep(step["name"], dict(step.get("arguments") or {}))


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The result or error of a step. `duration` is the tool's own time in seconds; `step` has the last arguments."""

    step: Step
    result: Any = None
    error: Exception | None = None
    duration: float = 0.0
    attempts: int = 1

    @property
    def ok(self) -> bool:
        return self.error is None


@dataclass(frozen=True, slots=True)
class PlanRun:
    """The outcome of a plan. `finished` says whether it ran to its end, even if steps failed."""

    outcomes: tuple[StepOutcome, ...]
    finished: bool
    replans: int
    duration: float

    @property
    def ok(self) -> bool:
        """True only if no step failed. A failed step that was replaced by a new plan counts, too."""
        return self.finished and not self.failures

    @property
    def failures(self) -> list[StepOutcome]:
        return [outcome for outcome in self.outcomes if not outcome.ok]

    @property
    def replies(self) -> list[str]:
        return [outcome.step.text for outcome in self.outcomes if isinstance(outcome.step, ReplyStep)]


@dataclass(frozen=True, slots=True)
class Failure:
    """The argument of a callback: the step and its error, the outcomes so far, and the remaining steps."""

    step: ToolStep
    error: Exception
    done: tuple[StepOutcome, ...]
    remaining: tuple[Step, ...]


class Tools(Protocol):
    """The methods of a registry that a plan needs."""

    def call(self, name: str, arguments: dict[str, Any]) -> Any: ...

    def acall(self, name: str, arguments: dict[str, Any]) -> Awaitable[Any]: ...


Steps: TypeAlias = Sequence[Mapping[str, Any] | Step]
Callback: TypeAlias = Callable[[Failure], Any]
OnStep: TypeAlias = Callable[[StepOutcome], None]
OnError: TypeAlias = Literal["stop", "continue"]


@dataclass(frozen=True, slots=True)
class _Question:
    callback: Callback
    failure: Failure


Result = TypeVar("Result")
_Effect: TypeAlias = ToolStep | _Question
_Flow: TypeAlias = Generator[_Effect, Any, Result]


def run_plan(
    steps: Steps,
    registry: Tools,
    *,
    on_error: OnError = "stop",
    clarify: Callback | None = None,
    replan: Callback | None = None,
    max_questions: int = MAX_QUESTIONS,
    max_replans: int = MAX_REPLANS,
    on_step: OnStep | None = None,
) -> PlanRun:
    """Runs `{"type": "tool", "name", "arguments"}` and `{"type": "reply", "text"}` steps in their order.

    After a failure, `clarify(failure)` returns arguments to add before the step is tried again, `True` to try it
    unchanged, or `None`. Then `replan(failure)` returns all steps that replace the remaining ones, or `None`. They are
    asked at most `max_questions` and `max_replans` times. `on_step` is called with every outcome. Raises `BadPlan` for
    malformed steps, before anything runs.
    """
    flow = _Run(on_error, clarify, replan, max_questions, max_replans, on_step).run(read_plan(steps))
    try:
        effect = next(flow)
        while True:
            try:
                answer = _perform(effect, registry)
            except Exception as error:
                effect = flow.throw(error)
            else:
                effect = flow.send(answer)
    except StopIteration as end:
        return cast("PlanRun", end.value)


async def run_plan_async(
    steps: Steps,
    registry: Tools,
    *,
    on_error: OnError = "stop",
    clarify: Callback | None = None,
    replan: Callback | None = None,
    max_questions: int = MAX_QUESTIONS,
    max_replans: int = MAX_REPLANS,
    on_step: OnStep | None = None,
) -> PlanRun:
    """As `run_plan`, without blocking the loop. `clarify` and `replan` may be coroutine functions."""
    flow = _Run(on_error, clarify, replan, max_questions, max_replans, on_step).run(read_plan(steps))
    try:
        effect = next(flow)
        while True:
            try:
                answer = await _perform_async(effect, registry)
            except Exception as error:
                effect = flow.throw(error)
            else:
                effect = flow.send(answer)
    except StopIteration as end:
        return cast("PlanRun", end.value)


@dataclass
class _Run:
    """The run of a plan, as a generator. It yields the tool calls and questions that have to be waited for."""

    on_error: OnError
    clarify: Callback | None
    replan: Callback | None
    max_questions: int
    max_replans: int
    on_step: OnStep | None
    questions: int = 0
    replans: int = 0
    outcomes: list[StepOutcome] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.on_error not in get_args(OnError):
            raise ValueError(f"on_error is one of {', '.join(get_args(OnError))}, not {self.on_error!r}")

    def run(self, steps: tuple[Step, ...]) -> _Flow[PlanRun]:
        began, stopped = perf_counter(), False
        while steps and not stopped:
            step, steps = steps[0], steps[1:]
            outcome = yield from self._attempted(step, steps)
            self.outcomes.append(outcome)
            if self.on_step:
                self.on_step(outcome)
            if outcome.error is not None:
                instead = yield from self._replanned(outcome, steps)
                stopped = instead is None and self.on_error == "stop"
                steps = steps if instead is None else instead
        return PlanRun(tuple(self.outcomes), not stopped, self.replans, perf_counter() - began)

    def _attempted(self, step: Step, remaining: tuple[Step, ...]) -> _Flow[StepOutcome]:
        if isinstance(step, ReplyStep):
            return StepOutcome(step, step.text)
        attempts, spent = 0, 0.0
        while True:
            attempts, began, result, fault = attempts + 1, perf_counter(), None, None
            try:
                result = yield step
            except Exception as error:
                fault = error
            spent += perf_counter() - began
            outcome = StepOutcome(step, result, fault, spent, attempts)
            better = None if fault is None else (yield from self._clarified(step, fault, remaining))
            if better is None:
                return outcome
            step = better

    def _clarified(self, step: ToolStep, error: Exception, remaining: tuple[Step, ...]) -> _Flow[ToolStep | None]:
        if self.clarify is None or self.questions >= self.max_questions:
            return None
        self.questions += 1
        answer = yield _Question(self.clarify, Failure(step, error, tuple(self.outcomes), remaining))
        if answer is None or isinstance(answer, bool):
            return step if answer else None
        if not isinstance(answer, Mapping):
            raise TypeError(f"clarify answers with arguments, True or None, not with {type(answer).__name__}")
        return ToolStep(step.name, {**step.arguments, **answer})

    def _replanned(self, outcome: StepOutcome, remaining: tuple[Step, ...]) -> _Flow[tuple[Step, ...] | None]:
        """A planner that returns a malformed plan gets `BadPlan` and is asked again."""
        step, error = outcome.step, outcome.error
        assert isinstance(step, ToolStep)
        while self.replan is not None and error is not None and self.replans < self.max_replans:
            self.replans += 1
            answer = yield _Question(self.replan, Failure(step, error, tuple(self.outcomes), remaining))
            try:
                return None if answer is None else read_plan(answer)
            except BadPlan as fault:
                error = fault
        return None


def _perform(effect: _Effect, registry: Tools) -> Any:
    if isinstance(effect, ToolStep):
        return registry.call(effect.name, dict(effect.arguments))
    answer = effect.callback(effect.failure)
    if inspect.iscoroutine(answer):
        answer.close()
        raise TypeError("a callback that is a coroutine function needs run_plan_async")
    return answer


async def _perform_async(effect: _Effect, registry: Tools) -> Any:
    if isinstance(effect, ToolStep):
        return await registry.acall(effect.name, dict(effect.arguments))
    answer = effect.callback(effect.failure)
    return await answer if inspect.isawaitable(answer) else answer
