"""Several calls at the same time, and results in an envelope."""

from __future__ import annotations

import asyncio
import threading
import traceback
from typing import Any

import pytest

from a2c_smcp.registry import MCPRegistry
from tests.registry.tools import Bare, EchoTool, registry_of, tool

HI = {"output": "hi"}


@pytest.fixture
def registry() -> MCPRegistry:
    return registry_of(EchoTool())


@pytest.mark.covers("registry-envelope")
@pytest.mark.parametrize(
    ("result", "output", "meta"),
    [
        (7, 7, {}),
        (None, None, {}),
        ({"output": 7}, 7, {}),
        ({"output": 7, "meta": {"cost": 0.5}}, 7, {"cost": 0.5}),
        ({"output": 7, "meta": {"duration": 3.0}}, 7, {"duration": 3.0}),
        ({"output": 7, "meta": "words"}, {"output": 7, "meta": "words"}, {}),
        ({"output": 7, "more": 8}, {"output": 7, "more": 8}, {}),
        ({"meta": {}}, {"meta": {}}, {}),
    ],
)
async def test_a_result_is_wrapped_in_an_envelope_once(result: Any, output: Any, meta: dict[str, Any]) -> None:
    registry = registry_of(Bare("give", lambda _: result))
    for enveloped in (registry.call("give", {}, envelope=True), await registry.acall("give", {}, envelope=True)):
        assert enveloped["output"] == output
        assert enveloped["meta"].keys() == {"tool", "duration", *meta}
        assert enveloped["meta"] | meta == enveloped["meta"]
        assert enveloped["meta"]["duration"] >= 0


@pytest.mark.covers("registry-envelope")
def test_an_envelope_does_not_change_the_tools_result(registry: MCPRegistry) -> None:
    own = {"output": 1, "meta": {"cost": 2}}
    registry.register(Bare("give", lambda _: own))
    registry.call("give", {}, envelope=True)
    assert own == {"output": 1, "meta": {"cost": 2}}


@pytest.mark.covers("registry-envelope")
def test_an_exception_is_raised_without_an_envelope(registry: MCPRegistry) -> None:
    with pytest.raises(KeyError, match="text"):
        registry.call("echo", {}, envelope=True)


@pytest.mark.covers("registry-async")
async def test_results_are_in_the_order_of_the_calls(registry: MCPRegistry) -> None:
    others = [asyncio.Event() for _ in range(4)]

    @registry.tool
    async def backwards(place: int) -> int:
        if place < 3:
            await others[place + 1].wait()
        others[place].set()
        return place

    async with asyncio.timeout(30):
        assert await registry.call_many([("backwards", {"place": place}) for place in range(4)]) == [0, 1, 2, 3]


@pytest.mark.covers("registry-async")
async def test_an_exception_is_in_the_place_of_its_result(registry: MCPRegistry) -> None:
    calls = [("echo", {"text": "hi"}), {"name": "nope", "arguments": {}}, {"name": "echo"}]
    hi, unknown, failed = await registry.call_many(calls)
    assert hi == HI
    assert isinstance(unknown, KeyError)
    assert isinstance(failed, KeyError)


@pytest.mark.covers("registry-async")
async def test_call_many_limits_the_calls_at_once(registry: MCPRegistry) -> None:
    running, most = 0, 0

    @registry.tool
    async def count() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    await registry.call_many([("count", {})] * 50, at_once=3)
    assert most == 3


@pytest.mark.covers("registry-async")
async def test_call_many_takes_no_calls_and_makes_envelopes(registry: MCPRegistry) -> None:
    assert await registry.call_many([]) == []
    (result,) = await registry.call_many([("echo", {"text": "hi"})], envelope=True)
    assert result["output"] == "hi"
    assert result["meta"]["tool"] == "echo"
    with pytest.raises(ValueError, match="at least one"):
        await registry.call_many([], at_once=0)


@pytest.mark.covers("registry-async")
async def test_cancelling_call_many_cancels_the_running_calls(registry: MCPRegistry) -> None:
    started, cancelled = asyncio.Event(), 0

    @registry.tool
    async def wait() -> None:
        nonlocal cancelled
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled += 1
            raise

    calls = asyncio.ensure_future(registry.call_many([("wait", {})] * 5, at_once=2))
    async with asyncio.timeout(30):
        await started.wait()
        calls.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calls
    assert cancelled == 2


@pytest.mark.covers("registry-cost")
def test_a_registry_without_options_calls_the_tool_directly() -> None:
    """Everything is compiled when a tool is registered, and what is off is not there."""
    registry = MCPRegistry()

    def fail(arguments: dict[str, Any]) -> None:
        raise LookupError

    registry.register(Bare("fail", fail))
    with pytest.raises(LookupError) as caught:
        registry.call("fail", {})
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames == ["test_a_registry_without_options_calls_the_tool_directly", "call", "fail"]


@pytest.mark.covers("registry-cost")
def test_a_sync_call_runs_in_the_callers_thread() -> None:
    registry = registry_of(Bare("where", lambda _: threading.current_thread()), validate=True)
    assert registry.call("where", {}) is threading.current_thread()


@pytest.mark.covers("registry-async")
async def test_a_call_that_cancels_itself_is_one_outcome(registry: MCPRegistry) -> None:
    """As a remote call is whose connection ends. Those that come after it are made all the same."""

    async def cancelled(arguments: dict[str, Any]) -> None:
        raise asyncio.CancelledError

    registry.register(Bare("cancelled", cancelled))
    calls = [("cancelled", {}), ("echo", {"text": "hi"}), ("cancelled", {}), ("echo", {"text": "hi"})]
    outcomes = await registry.call_many(calls, at_once=1)
    assert outcomes[1::2] == [HI, HI]
    assert [type(outcome) for outcome in outcomes[::2]] == [asyncio.CancelledError] * 2


@pytest.mark.covers("registry-async")
async def test_null_arguments_are_an_empty_object(registry: MCPRegistry) -> None:
    registry.register(tool("same"))
    assert await registry.call_many([{"name": "same", "arguments": None}, {"name": "same"}]) == [{}, {}]
