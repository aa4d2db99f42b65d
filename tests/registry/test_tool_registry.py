"""Changes of the tools in one step, listeners to them, and the attributes that are read of a tool."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from a2c_smcp.registry import LoopIsRunning, MCPRegistry
from tests.registry.tools import Bare, EchoTool, tool

pytestmark = pytest.mark.covers("registry-001")


@pytest.fixture
def registry() -> MCPRegistry:
    return MCPRegistry()


def test_an_update_is_one_change(registry: MCPRegistry) -> None:
    registry.update(add=[tool("a"), tool("b")])
    seen: list[list[str]] = []
    registry.on_change(lambda: seen.append([*registry]))
    registry.update(add=[tool("c"), tool("d")], remove=["a", "never was"])
    assert seen == [["b", "c", "d"]]


def test_a_tool_removed_and_added_in_one_step_is_there(registry: MCPRegistry) -> None:
    registry.register(Bare("a", lambda _: "old"))
    registry.update(add=[Bare("a", lambda _: "new")], remove=["a"])
    assert registry.call("a", {}) == "new"


def test_an_update_with_an_invalid_tool_changes_nothing(registry: MCPRegistry) -> None:
    registry.register(tool("a"))
    with pytest.raises(TypeError):
        registry.update(add=[tool("b"), object()], remove=["a"])
    assert [*registry] == ["a"]


def test_listeners_are_not_called_without_a_change(registry: MCPRegistry) -> None:
    changes: list[int] = []
    registry.on_change(lambda: changes.append(1))
    registry.update()
    registry.update(remove=["never was"])
    described = registry.describe()
    with pytest.raises(KeyError):
        registry.unregister("never was")
    assert changes == []
    assert registry.describe() is described


def test_listeners_are_called_after_every_change_until_they_stop(registry: MCPRegistry) -> None:
    heard: list[str] = []

    def listen() -> None:
        heard.append("both")

    first, second = registry.on_change(listen), registry.on_change(listen)
    registry.register(tool("a"))
    first()
    first()
    registry.unregister("a")
    second()
    registry.register(tool("b"))
    assert heard == ["both"] * 3


def test_a_listener_that_raises_is_logged(registry: MCPRegistry, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[int] = []
    registry.on_change(lambda: 1 / 0)
    registry.on_change(lambda: heard.append(len(registry)))
    registry.register(tool("a"))
    assert heard == [1]
    assert "ZeroDivisionError" in caplog.text


def test_a_listener_may_change_the_tools(registry: MCPRegistry) -> None:
    """It is called outside the lock, in the thread that changed them."""
    threads: list[threading.Thread] = []

    def listen() -> None:
        threads.append(threading.current_thread())
        registry.update(remove=["a"])

    registry.on_change(listen)
    registry.register(tool("a"))
    assert [*registry] == []
    assert set(threads) == {threading.current_thread()}


def test_a_snapshot_is_not_disturbed_by_later_changes(registry: MCPRegistry) -> None:
    registry.update(add=[tool("a"), tool("b")])
    names = []
    for name in registry:
        names.append(name)
        registry.unregister(name)
    assert names == ["a", "b"]
    assert len(registry) == 0


class Both:
    """A tool with an entrance for each kind of caller."""

    name = "both"

    def call(self, arguments: dict[str, Any]) -> Any:
        return "call", threading.current_thread()

    async def acall(self, arguments: dict[str, Any]) -> Any:
        return "acall", asyncio.get_running_loop()


async def test_a_tool_with_an_acall_is_awaited_by_async_code_and_called_by_sync_code(registry: MCPRegistry) -> None:
    registry.register(Both())
    assert await registry.acall("both", {}) == ("acall", asyncio.get_running_loop())
    assert registry.call("both", {}) == ("call", threading.current_thread())


async def test_an_acall_that_is_not_a_coroutine_function_is_ignored(registry: MCPRegistry) -> None:
    registry.register(Bare("odd", lambda _: "called", acall="a word"))
    assert await registry.acall("odd", {}) == "called"


async def test_a_tool_with_an_async_call_and_acall_runs_in_a_loop_of_its_own(registry: MCPRegistry) -> None:
    async def answer(arguments: dict[str, Any]) -> str:
        return "async"

    registry.register(Bare("a", answer, acall=answer))
    with pytest.raises(LoopIsRunning):
        registry.call("a", {})
    assert await asyncio.to_thread(registry.call, "a", {}) == "async"


def test_the_origin_of_a_tool_is_shown(registry: MCPRegistry) -> None:
    registry.register(tool("a", origin="desk/laptop", meta={"_meta": {"x": 1}}))
    (described,) = registry.describe("mcp")
    assert described["_meta"] == {"x": 1, "origin": "desk/laptop"}
    assert registry["a"].origin == "desk/laptop"


@pytest.mark.parametrize(
    "said",
    [
        {"read_only": True},
        {"meta": {"read_only": True}},
        {"meta": {"annotations": {"readOnlyHint": True}}},
        {"read_only": True, "meta": {"annotations": {"readOnlyHint": False}}},
    ],
)
def test_hints_are_attributes_or_mcp_annotations(registry: MCPRegistry, said: dict[str, Any]) -> None:
    registry.register(tool("a", **said))
    assert registry.describe("mcp")[0]["annotations"] == {"readOnlyHint": True}


@pytest.mark.parametrize("tags", [["x", "y"], ("x", "y"), {"x", "y"}, iter(["y", "x"])])
def test_tags_are_any_list_of_words(registry: MCPRegistry, tags: Any) -> None:
    registry.register(tool("a", tags=tags))
    assert "a" in registry.describe(tags=["x"])
    assert "a" in registry.describe(tags="y")


def test_one_word_is_one_tag(registry: MCPRegistry) -> None:
    registry.register(tool("a", tags="danger"))
    assert [*registry.describe(tags="danger")] == ["a"]
    assert registry.describe(tags=["d"]) == {}


def test_tags_that_are_not_words_are_refused(registry: MCPRegistry) -> None:
    with pytest.raises(TypeError, match="tags of tool 'a'"):
        registry.register(tool("a", tags=7))


def test_the_attributes_of_a_tool_are_read_once(registry: MCPRegistry) -> None:
    echo = EchoTool()
    registry.register(echo)
    before = json.dumps(registry.describe())
    echo.description = "changed"
    registry.register(tool("other"))
    assert json.dumps({"echo": registry.describe()["echo"]}) == before
