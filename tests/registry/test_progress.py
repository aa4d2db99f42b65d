"""Progress on its way from a tool to the caller's `on_progress`, and results that want a sign-in."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from a2c_smcp.errors import AuthorizationRequired
from a2c_smcp.loops import in_thread
from a2c_smcp.registry import (
    MCPRegistry,
    RemoteMCPAdapter,
    ToolFailed,
    ToolNeedsPermission,
    ToolNeedsSignIn,
    report_progress,
)
from a2c_smcp.registry.calls.context import ProgressInLoop
from a2c_smcp.registry.content import value_of
from tests.registry.servers import COMMAND, good
from tests.waiting import until

pytestmark = pytest.mark.covers("registry-progress")


@pytest.fixture
def registry() -> MCPRegistry:
    registry = MCPRegistry()

    @registry.tool
    def count(steps: int) -> str:
        for step in range(1, steps + 1):
            report_progress(step, steps, f"step {step}")
        return "done"

    @registry.tool
    async def count_async(steps: int) -> str:
        for step in range(1, steps + 1):
            report_progress(step, steps, f"step {step}")
            await asyncio.sleep(0)
        return "done"

    return registry


@pytest.mark.parametrize("tool", ["count", "count_async"])
def test_a_function_reports_to_a_caller_that_blocks(registry: MCPRegistry, tool: str) -> None:
    heard: list[Any] = []
    assert registry.call(tool, {"steps": 3}, on_progress=lambda *report: heard.append(report)) == "done"
    assert heard[-1] == (3, 3, "step 3")


@pytest.mark.parametrize("tool", ["count", "count_async"])
async def test_a_function_reports_to_a_caller_in_an_event_loop(registry: MCPRegistry, tool: str) -> None:
    heard: list[Any] = []

    async def on_progress(*report: Any) -> None:
        await asyncio.sleep(0)
        heard.append((*report, threading.get_ident()))

    assert await registry.acall(tool, {"steps": 3}, on_progress=on_progress) == "done"
    assert heard[-1] == (3, 3, "step 3", threading.get_ident())


def test_an_async_callback_is_refused_where_the_call_blocks(registry: MCPRegistry) -> None:
    async def on_progress(*report: Any) -> None: ...

    with pytest.raises(TypeError, match="await acall"):
        registry.call("count", {"steps": 1}, on_progress=on_progress)


def test_a_report_without_a_listener_is_nothing(registry: MCPRegistry) -> None:
    assert registry.call("count", {"steps": 3}) == "done"
    report_progress(1)


@pytest.mark.parametrize("tool", ["count", "count_async"])
async def test_calls_at_the_same_time_hear_only_of_themselves(registry: MCPRegistry, tool: str) -> None:
    heard: dict[int, list[Any]] = {steps: [] for steps in range(1, 6)}

    def listener(steps: int) -> Callable[..., None]:
        return lambda progress, total, message: heard[steps].append(total)

    calls = [registry.acall(tool, {"steps": steps}, on_progress=listener(steps)) for steps in heard]
    await asyncio.gather(*calls)
    assert all(totals and {*totals} == {steps} for steps, totals in heard.items())


async def test_reports_that_do_not_grow_are_dropped() -> None:
    heard: list[float] = []
    progress = ProgressInLoop(lambda progress, *_: heard.append(progress))
    for report in (1, 1, 0.5, float("nan"), 2, -1):
        progress.report(report)
        await until(lambda: not progress._is_delivering)
    await progress.finish()
    progress.report(3)
    assert not progress._is_delivering
    assert heard == [1, 2]


async def test_of_a_large_burst_the_last_reports_are_delivered() -> None:
    heard: list[float] = []
    progress = ProgressInLoop(lambda progress, *_: heard.append(progress))
    for report in range(1000):
        progress.report(report)
    await progress.finish()
    assert heard == [995, 996, 997, 998, 999]


async def test_a_slow_callback_gets_the_newest_report_only() -> None:
    heard, go = list[float](), asyncio.Event()

    async def slow(progress: float, *_: Any) -> None:
        heard.append(progress)
        await go.wait()

    progress = ProgressInLoop(slow)
    progress.report(1)
    await until(lambda: heard)
    for number in range(2, 1000):
        progress.report(number)
    go.set()
    await progress.finish()
    assert heard == [1, 999]


@pytest.mark.parametrize("is_blocking", [False, True])
async def test_a_callback_that_hangs_does_not_keep_the_result(registry: MCPRegistry, is_blocking: bool) -> None:
    begun, go = threading.Event(), threading.Event()

    def hang(*_: Any) -> None:
        begun.set()
        go.wait()

    async def hang_async(*_: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    try:
        async with asyncio.timeout(30):
            if is_blocking:
                result = await in_thread(lambda: registry.call("count", {"steps": 2}, on_progress=hang))
            else:
                result = await registry.acall("count", {"steps": 2}, on_progress=hang_async)
    finally:
        go.set()
    assert result == "done"
    assert begun.is_set()


@pytest.mark.parametrize("is_blocking", [False, True])
async def test_a_callback_that_fails_is_logged(
    registry: MCPRegistry, caplog: pytest.LogCaptureFixture, is_blocking: bool
) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("no")

    if is_blocking:
        assert await in_thread(lambda: registry.call("count", {"steps": 3}, on_progress=fail)) == "done"
    else:
        assert await registry.acall("count", {"steps": 3}, on_progress=fail) == "done"
    assert "on_progress failed" in caplog.text


async def test_a_cancelled_call_cancels_its_callback(registry: MCPRegistry) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def hang(*_: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    @registry.tool
    async def forever() -> None:
        report_progress(1)
        await asyncio.Event().wait()

    call = asyncio.ensure_future(registry.acall("forever", {}, on_progress=hang))
    await begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await ended.wait()


def test_an_mcp_server_reports_to_a_caller_that_blocks(registry: MCPRegistry) -> None:
    heard: list[Any] = []
    with registry.mcp_server(good()):
        arguments = {"steps": 3, "pause": 0.01}
        assert registry.call("slow", arguments, on_progress=lambda *report: heard.append(report)) == {"result": "done"}
    assert heard[-1] == (3, 3, "step 3")


async def test_an_adapter_reports_to_a_caller_in_an_event_loop(registry: MCPRegistry) -> None:
    heard: list[Any] = []
    async with RemoteMCPAdapter("slow", server_cmd=COMMAND) as tool:
        registry.register(tool)
        arguments = {"steps": 3, "pause": 0.01}
        result = await registry.acall("slow", arguments, on_progress=lambda *report: heard.append(report))
    assert result == {"result": "done"}
    assert heard[-1] == (3, 3, "step 3")


@pytest.mark.parametrize(("code", "kind"), [(4006, ToolNeedsSignIn), (4007, ToolNeedsPermission)])
def test_a_result_that_wants_a_sign_in_says_so_and_what_to_do(code: int, kind: type[ToolFailed]) -> None:
    hint = {"action": "user_authorization_required", "message": "the owner runs: a2c-smcp login notes"}
    meta = {"error_code": code, "auth_hint": hint, "mcp_server": "notes"}
    result = {"isError": True, "content": [{"type": "text", "text": "not signed in"}], "_meta": meta}
    with pytest.raises(kind) as caught:
        value_of(result)
    assert caught.value.code == code
    assert "not signed in; the owner runs: a2c-smcp login notes" in str(caught.value)
    assert caught.value.details == {"mcp_server": "notes"}
    assert caught.value.result == result
    assert isinstance(caught.value, AuthorizationRequired), "as if a resource of this server was read"
    assert caught.value.outcome == "not_run"


@pytest.mark.parametrize("meta", [None, "x", {"error_code": True}, {"error_code": "4006"}, {"error_code": 4005}])
def test_any_other_failure_is_a_plain_one(meta: Any) -> None:
    with pytest.raises(ToolFailed) as caught:
        value_of({"isError": True, "content": [], "_meta": meta})
    assert type(caught.value) is ToolFailed


def test_a_result_that_asks_is_no_empty_success() -> None:
    with pytest.raises(ToolFailed, match="asks a question"):
        value_of({"resultType": "input_required", "inputRequests": {}})
