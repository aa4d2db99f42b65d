"""What hooks get to know of calls."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from a2c_smcp.errors import ToolForbidden
from a2c_smcp.registry import Hook, Limit, MCPRegistry, Policy, ToolCall
from tests.registry.tools import Bare, EchoTool, registry_of, tool

pytestmark = pytest.mark.covers("registry-telemetry")

CANARY = "canary-51d0e2"


class Listening(Hook):
    def __init__(self) -> None:
        self.heard: list[tuple[str, ToolCall]] = []

    def before(self, call: ToolCall) -> None:
        self.heard.append(("before", call))

    def after(self, call: ToolCall) -> None:
        self.heard.append(("after", call))

    def error(self, call: ToolCall) -> None:
        self.heard.append(("error", call))

    @property
    def last(self) -> ToolCall:
        return self.heard[-1][1]

    @property
    def moments(self) -> list[str]:
        return [moment for moment, _ in self.heard]


@pytest.fixture
def hook() -> Listening:
    return Listening()


@pytest.fixture
def registry(hook: Listening) -> MCPRegistry:
    return registry_of(EchoTool(), hooks=[hook])


async def test_hooks_are_called_before_and_after_a_call(registry: MCPRegistry, hook: Listening) -> None:
    assert registry.call("echo", {"text": "hi"}) == {"output": "hi"}
    assert await registry.acall("echo", {"text": "hi"}) == {"output": "hi"}
    assert hook.moments == ["before", "after"] * 2
    (_, first), (_, same), (_, second), _ = hook.heard
    assert first is same
    assert first is not second
    for call in (first, second):
        assert (call.name, call.outcome, call.error_type, call.error_code) == ("echo", "ok", None, None)
        assert call.duration > 0
        assert call.arguments_size == len('{"text":"hi"}')
        assert call.result_size == len('{"output":"hi"}')


async def test_hooks_get_the_type_of_a_failure(registry: MCPRegistry, hook: Listening) -> None:
    with pytest.raises(KeyError):
        registry.call("echo", {})
    with pytest.raises(KeyError):
        await registry.acall("echo", {})
    assert hook.moments == ["before", "error"] * 2
    assert (hook.last.outcome, hook.last.error_type, hook.last.error_code) == ("error", "KeyError", None)
    assert hook.last.result_size is None
    assert hook.last.duration > 0


def test_hooks_get_description_tags_and_cost_of_the_tool(registry: MCPRegistry, hook: Listening) -> None:
    answer = {"output": 1, "meta": {"cost": 0.25}}
    registry.register(Bare("dear", lambda _: answer, tags=["paid"], origin="desk/laptop", description="costs"))
    registry.call("dear", {})
    call = hook.last
    assert (call.cost, call.tags, call.origin, call.description) == (0.25, {"paid"}, "desk/laptop", "costs")


@pytest.mark.parametrize("result", [None, 7, {"meta": 7}, {"meta": {}}, [{"meta": {"cost": 1}}]])
def test_a_tool_that_reports_no_cost_has_none(registry: MCPRegistry, hook: Listening, result: Any) -> None:
    registry.register(Bare("free", lambda _: result))
    registry.call("free", {})
    assert hook.last.cost is None


def test_sizes_are_in_bytes_of_json(registry: MCPRegistry, hook: Listening) -> None:
    registry.register(Bare("odd", lambda _: object()))
    registry.call("odd", {"x": object()})
    assert (hook.last.arguments_size, hook.last.result_size) == (None, None)


def test_arguments_and_results_are_only_revealed_on_request(registry: MCPRegistry, hook: Listening) -> None:
    registry.call("echo", {"text": CANARY})
    public = {name: getattr(hook.last, name) for name in dir(hook.last) if not name.startswith("_")}
    del public["reveal"]
    assert CANARY not in f"{hook.last!r} {public}"
    assert hook.last.reveal().arguments == {"text": CANARY}
    assert hook.last.reveal().result == {"output": CANARY}


def test_a_hook_that_raises_is_logged_and_changes_nothing(caplog: pytest.LogCaptureFixture, hook: Listening) -> None:
    class Broken(Hook):
        def before(self, call: ToolCall) -> None:
            raise ValueError("broken")

        after = error = before

    registry = registry_of(EchoTool(), hooks=[Broken(), hook, Broken()])
    assert registry.call("echo", {"text": "hi"}) == {"output": "hi"}
    with pytest.raises(KeyError, match="text"):
        registry.call("echo", {})
    assert hook.moments == ["before", "after", "before", "error"]
    assert "broken" in caplog.text


def test_hooks_end_in_the_reverse_order() -> None:
    told: list[str] = []

    class Named:
        """Any object will do, with any of the three methods."""

        def __init__(self, name: str) -> None:
            self._name = name

        def before(self, call: ToolCall) -> None:
            told.append(f"before {self._name}")

        def after(self, call: ToolCall) -> None:
            told.append(f"after {self._name}")

    only_after = SimpleNamespace(after=lambda call: told.append(f"after {call.name}"))
    registry = registry_of(tool("x"), hooks=[Named("a"), Named("b"), Hook(), only_after])
    registry.call("x", {})
    assert told == ["before a", "before b", "after x", "after b", "after a"]


async def test_hooks_get_the_code_of_a_refusal(hook: Listening) -> None:
    registry = registry_of(
        EchoTool(), tool("rm"), hooks=[hook], validate=True, policy=Policy(deny=["rm"]), limit=Limit(1, waiting=0)
    )
    attempts: list[tuple[Callable[[], Any], str, int]] = [
        (lambda: registry.call("echo", {"text": 7}), "InvalidArguments", 400),
        (lambda: registry.call("rm", {}), "ToolForbidden", 403),
        (lambda: registry.call("nope", {}), "UnknownTool", 404),
    ]
    for attempt, error, code in attempts:
        with pytest.raises(Exception, match=str(code)):
            attempt()
        assert (hook.last.outcome, hook.last.error_type, hook.last.error_code) == ("refused", error, code)
    with pytest.raises(ToolForbidden):
        await registry.acall("rm", {})
    assert (hook.last.name, hook.last.outcome) == ("rm", "refused")


async def test_hooks_distinguish_a_timeout_from_a_cancel(hook: Listening) -> None:
    started = asyncio.Event()

    async def wait(arguments: dict[str, Any]) -> None:
        started.set()
        await asyncio.Event().wait()

    registry = MCPRegistry(hooks=[hook])
    registry.register(Bare("wait", wait), timeout=0.01)
    with pytest.raises(TimeoutError):
        await registry.acall("wait", {})
    assert (hook.last.outcome, hook.last.error_code) == ("timeout", 408)
    registry.register(Bare("wait", wait))
    started.clear()
    call = asyncio.ensure_future(registry.acall("wait", {}))
    await started.wait()
    assert hook.last.outcome == "running"
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert hook.last.outcome == "cancelled"


def test_a_call_that_a_hook_keeps_does_not_keep_the_error_alive(registry: MCPRegistry, hook: Listening) -> None:
    class Large(Exception):
        pass

    def fail(arguments: dict[str, Any]) -> None:
        raise Large

    registry.register(Bare("fail", fail))
    with pytest.raises(Large) as caught:
        registry.call("fail", {})
    gone = weakref.ref(caught.value)
    del caught
    gc.collect()
    assert gone() is None
    assert hook.last.reveal().error is None


@pytest.mark.parametrize("wrong", [object(), Listening, None, print])
def test_an_object_without_hook_methods_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="is not a hook"):
        MCPRegistry(hooks=[wrong])
