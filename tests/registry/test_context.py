"""What a tool says to its caller and asks of it, in one process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from a2c_smcp.errors import BadRequest
from a2c_smcp.protocol.questions import InputRequest
from a2c_smcp.registry import (
    Answer,
    AsyncToolContext,
    CannotAsk,
    FunctionTool,
    LoopIsRunning,
    MCPRegistry,
    Question,
    ToolContext,
    ToolTimeout,
)
from a2c_smcp.registry.calls.context import ToolCaller, called_by

pytestmark = pytest.mark.covers("registry-context")

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
BOTH = pytest.mark.parametrize("tool", ["greet", "greet_async"])


@pytest.fixture
def registry() -> MCPRegistry:
    registry = MCPRegistry()

    @registry.tool
    def greet(word: str, context: ToolContext) -> str:
        """Greet.

        Args:
            word: the greeting
        """
        context.progress(1, 2, "asking")
        context.log("info", {"asking": word}, logger="greeter")
        answer = context.ask("Who are you?", NAME)
        return f"{word} {(answer.content or {}).get('name')} ({answer.action})"

    @registry.tool
    async def greet_async(context: AsyncToolContext, word: str) -> str:
        await context.progress(1, 2, "asking")
        context.log("info", {"asking": word}, logger="greeter")
        answer = await context.ask("Who are you?", NAME)
        return f"{word} {(answer.content or {}).get('name')} ({answer.action})"

    return registry


class Listener:
    """Callbacks that keep what they get, and answer."""

    def __init__(self, given: Any = None) -> None:
        self.given = given
        self.progress: list[Any] = []
        self.logs: list[Any] = []
        self.questions: list[Question] = []
        self.threads: set[int] = set()

    @property
    def callbacks(self) -> dict[str, Any]:
        return {"on_progress": self._progress, "on_log": self._log, "on_question": self._answer}

    def _progress(self, *report: Any) -> None:
        self.progress.append(report)

    def _log(self, *message: Any) -> None:
        self.logs.append(message)

    def _answer(self, question: Question) -> Any:
        self.threads.add(threading.get_ident())
        self.questions.append(question)
        return self.given


def assert_heard(listener: Listener) -> None:
    assert listener.progress == [(1, 2, "asking")]
    assert listener.logs == [("info", {"asking": "hi"}, "greeter")]
    assert [(question.message, question.schema) for question in listener.questions] == [("Who are you?", NAME)]


def test_the_schema_does_not_show_the_context(registry: MCPRegistry) -> None:
    for described in registry.describe().values():
        assert [*described["input_schema"]["properties"]] == ["word"]
    with pytest.raises(BadRequest):
        registry.call("greet", {"word": "hi", "context": {}})


@BOTH
def test_a_caller_that_blocks_is_told_and_asked(registry: MCPRegistry, tool: str) -> None:
    listener = Listener({"name": "Ada"})
    assert registry.call(tool, {"word": "hi"}, **listener.callbacks) == "hi Ada (accept)"
    assert_heard(listener)


@BOTH
async def test_a_caller_in_an_event_loop_is_told_and_asked_there(registry: MCPRegistry, tool: str) -> None:
    listener = Listener({"name": "Ada"})
    assert await registry.acall(tool, {"word": "hi"}, **listener.callbacks) == "hi Ada (accept)"
    assert_heard(listener)
    assert listener.threads == {threading.get_ident()}


@BOTH
async def test_the_caller_may_answer_asynchronously(registry: MCPRegistry, tool: str) -> None:
    async def answer(question: Question) -> Answer:
        await asyncio.sleep(0)
        return Answer("decline")

    assert await registry.acall(tool, {"word": "hi"}, on_question=answer) == "hi None (decline)"


@BOTH
@pytest.mark.parametrize(
    ("given", "action"), [(None, "cancel"), (Answer("decline"), "decline"), (Answer("accept", {"name": "B"}), "accept")]
)
def test_each_answer_has_its_action(registry: MCPRegistry, tool: str, given: Any, action: str) -> None:
    assert registry.call(tool, {"word": "hi"}, on_question=lambda _: given).endswith(f"({action})")


@BOTH
@pytest.mark.parametrize("given", [{}, {"name": 7}])
def test_an_answer_that_does_not_fit_is_an_error(registry: MCPRegistry, tool: str, given: Any) -> None:
    with pytest.raises(BadRequest, match="the answer does not fit the question"):
        registry.call(tool, {"word": "hi"}, on_question=lambda _: given)
    with pytest.raises(BadRequest, match="the answer does not fit the question"):
        asyncio.run(registry.acall(tool, {"word": "hi"}, on_question=lambda _: given))


@BOTH
async def test_a_caller_that_does_not_listen_cannot_be_asked(registry: MCPRegistry, tool: str) -> None:
    with pytest.raises(CannotAsk, match="elicitation/create"):
        await registry.acall(tool, {"word": "hi"})
    with pytest.raises(CannotAsk):
        await registry.acall(tool, {"word": "hi"}, on_log=lambda *_: None)


def test_a_tool_knows_what_it_can_ask() -> None:
    registry = MCPRegistry()
    registry.tool(name="can")(can)
    assert registry.call("can", {}) == []
    assert registry.call("can", {}, on_question=lambda _: None) == ["ask"]
    capabilities = {"sampling": {}, "roots": {}, "other": {}}
    with called_by(ToolCaller(on_input=lambda asked: {}, capabilities=capabilities)):
        assert registry.call("can", {}) == ["roots", "sample"]


def can(context: ToolContext) -> list[str]:
    return sorted(context.can)


def test_models_and_roots_are_asked_as_mcp_has_it() -> None:
    asked: list[InputRequest] = []
    registry = MCPRegistry()

    @registry.tool
    def think(context: ToolContext) -> list[Any]:
        sampled = context.sample("What now?", 10, temperature=0.5, systemPrompt=None, key="thought")
        return [sampled["model"], context.roots()]

    def answer(each: InputRequest) -> dict[str, Any]:
        asked.append(each)
        return {"model": "m", "content": {"type": "text", "text": "x"}, "roots": [{"uri": "file:///a"}]}

    with called_by(ToolCaller(on_input=answer, capabilities={"sampling": {}, "roots": {}})):
        assert registry.call("think", {}) == ["m", [{"uri": "file:///a"}]]
    messages = [{"role": "user", "content": {"type": "text", "text": "What now?"}}]
    first = {"messages": messages, "maxTokens": 10, "temperature": 0.5}
    assert asked == [("sampling/createMessage", first, "thought"), ("roots/list", {}, None)]


def test_an_unknown_level_is_refused() -> None:
    registry = MCPRegistry()
    registry.tool(name="shout")(lambda: ToolContext.current().log("loud", "x"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'loud' is not a level"):
        registry.call("shout", {})


def test_tools_that_are_no_functions_have_the_current_context() -> None:
    class Shouts:
        name = "shouts"

        def call(self, arguments: dict[str, Any]) -> None:
            ToolContext.current().log("error", b"\x00 bytes")

    registry, listener = MCPRegistry(), Listener()
    registry.register(Shouts())
    registry.call("shouts", {}, on_log=listener.callbacks["on_log"])
    assert [(level, name) for level, _, name in listener.logs] == [("error", None)]
    registry.call("shouts", {})
    assert len(listener.logs) == 1


def test_a_tool_that_calls_a_tool_passes_its_caller_on(registry: MCPRegistry) -> None:
    registry.tool(name="around")(lambda: registry.call("greet", {"word": "hi"}))
    assert registry.call("around", {}, on_question=lambda _: {"name": "Ada"}) == "hi Ada (accept)"


def sync_tool(context: AsyncToolContext) -> None: ...
async def async_tool(context: ToolContext) -> None: ...


@pytest.mark.parametrize("wrong", [sync_tool, async_tool])
def test_each_kind_of_function_has_its_own_context(wrong: Any) -> None:
    with pytest.raises(TypeError, match="a function takes a ToolContext, an async function an AsyncToolContext"):
        FunctionTool(wrong)


def test_async_callbacks_need_an_event_loop(registry: MCPRegistry) -> None:
    async def answer(question: Question) -> None: ...

    with pytest.raises(TypeError, match="await acall instead"):
        registry.call("greet", {"word": "hi"}, on_question=answer)


async def test_a_log_callback_cannot_be_async(registry: MCPRegistry) -> None:
    async def log(*message: Any) -> None: ...

    with pytest.raises(TypeError, match="cannot be async"):
        await registry.acall("greet", {"word": "hi"}, on_log=log)  # type: ignore[arg-type]


def test_a_callback_that_fails_changes_nothing_but_its_answer(registry: MCPRegistry) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    assert registry.call("greet", {"word": "hi"}, on_log=fail, on_question=lambda _: {"name": "A"}) == "hi A (accept)"
    with pytest.raises(ZeroDivisionError):
        registry.call("greet", {"word": "hi"}, on_question=fail)


async def test_a_sync_tool_in_the_event_loop_does_not_block_it(registry: MCPRegistry) -> None:
    @registry.tool
    async def around(context: AsyncToolContext) -> Any:
        return registry.call("greet", {"word": "hi"})

    with pytest.raises(LoopIsRunning):
        await registry.acall("around", {}, on_question=lambda _: {"name": "Ada"})


async def never(question: Question) -> None:
    await asyncio.Event().wait()


@pytest.fixture
def ended() -> tuple[MCPRegistry, Callable[[], Any]]:
    """A registry with a sync tool whose question is never answered, and how that ended for it."""
    registry, outcome, is_over = MCPRegistry(), list[Any](), threading.Event()

    @registry.tool
    def ask(context: ToolContext) -> None:
        try:
            context.ask("Well?")
        except CannotAsk as error:
            outcome.append(error.message)
            raise
        finally:
            is_over.set()

    def wait() -> Any:
        assert is_over.wait(30)
        return outcome

    return registry, wait


async def test_a_thread_that_waits_for_an_answer_ends_with_its_call(ended: Any) -> None:
    registry, outcome = ended
    asked = asyncio.Event()

    async def answer(question: Question) -> None:
        asked.set()
        await never(question)

    call = asyncio.ensure_future(registry.acall("ask", {}, on_question=answer))
    async with asyncio.timeout(30):
        await asked.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert "the call has ended" in (await asyncio.to_thread(outcome))[0]


async def test_a_timeout_ends_the_question(ended: Any) -> None:
    registry, outcome = ended
    slow = MCPRegistry(timeout=0.05)
    slow.register(registry["ask"])
    with pytest.raises(ToolTimeout):
        await slow.acall("ask", {}, on_question=never)
    assert "the call has ended" in (await asyncio.to_thread(outcome))[0]
