"""MCPRegistry as 001 describes it, changes of the tools in one step, listeners, and attributes of tools."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from a2c_smcp.errors import ToolNotFound
from a2c_smcp.registry import LoopIsRunning
from sage.libs.agents.action.mcp_registry import MCPRegistry
from tests.registry.tools import Bare, EchoTool, Said, raising, tool

pytestmark = pytest.mark.covers("registry-001")


# 001 §8, word for word in behaviour


def test_register_and_describe(registry: MCPRegistry) -> None:
    registry.register(EchoTool())
    desc = registry.describe()
    assert "echo" in desc
    assert "input_schema" in desc["echo"]


def test_call_success(registry: MCPRegistry) -> None:
    registry.register(EchoTool())
    assert registry.call("echo", {"text": "hi"}) == {"output": "hi"}


def test_call_missing_tool(registry: MCPRegistry) -> None:
    with pytest.raises(KeyError):
        registry.call("nope", {})


def test_register_invalid(registry: MCPRegistry) -> None:
    with pytest.raises(TypeError):
        registry.register(object())


# The rest of 001


def test_the_module_path_of_001_is_a_namespace_package() -> None:
    home = sys.modules["sage.libs.agents.action.mcp_registry"].__file__
    assert not [*Path(home).parents[3].rglob("__init__.py")]
    assert MCPRegistry is sys.modules["a2c_smcp.registry"].MCPRegistry


@pytest.mark.parametrize(
    ("tool", "complaint"),
    [
        (Bare("", lambda _: None), "has no name"),
        (Bare(7, lambda _: None), "has no name"),  # type: ignore[arg-type]
        (Bare("x", None), "'x' has no call"),  # type: ignore[arg-type]
        (len, "registry.tool"),
        (None, "has no name"),
    ],
)
def test_an_object_that_is_not_a_tool_is_refused_with_a_reason(
    registry: MCPRegistry, tool: Any, complaint: str
) -> None:
    with pytest.raises(TypeError, match=complaint):
        registry.register(tool)
    assert len(registry) == 0


def test_a_description_is_plain_json(registry: MCPRegistry) -> None:
    schema = MappingProxyType({"type": "object", "properties": MappingProxyType({"x": {"enum": (1, 2)}})})
    registry.register(Bare("frozen", lambda _: None, input_schema=schema))
    described = registry.describe()["frozen"]["input_schema"]
    assert json.loads(json.dumps(described)) == described == {"type": "object", "properties": {"x": {"enum": [1, 2]}}}


@pytest.mark.parametrize("schema", [{"default": object()}, [1], {"enum": {1}}])
def test_a_schema_that_is_not_json_is_refused(registry: MCPRegistry, schema: Any) -> None:
    with pytest.raises(TypeError, match="input_schema of tool 'odd'"):
        registry.register(Bare("odd", lambda _: None, input_schema=schema))


def test_an_unknown_name_is_refused_with_similar_names(registry: MCPRegistry) -> None:
    registry.register(EchoTool())
    with pytest.raises(KeyError, match="'ecko', did you mean 'echo'") as caught:
        registry.call("ecko", {})
    assert isinstance(caught.value, ToolNotFound)
    assert caught.value.details["near"] == ["echo"]


def test_a_long_unknown_name_is_shortened(registry: MCPRegistry) -> None:
    registry.register(EchoTool())
    with pytest.raises(KeyError) as caught:
        registry.call("x" * 1_000_000, {})
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("error", [KeyError("own"), Said("own"), StopIteration("own")])
def test_a_tools_own_exception_passes_unchanged(registry: MCPRegistry, error: Exception) -> None:
    registry.register(Bare("bad", raising(error)))
    with pytest.raises(type(error)) as caught:
        registry.call("bad", {})
    assert caught.value is error


def test_the_tool_gets_the_callers_own_arguments(registry: MCPRegistry) -> None:
    registry.register(Bare("same", lambda arguments: arguments))
    arguments = {"a": 1}
    assert registry.call("same", arguments) is arguments


def test_a_registry_is_a_collection_of_names(registry: MCPRegistry) -> None:
    echo = EchoTool()
    for replaced in (EchoTool(), echo):
        registry.register(replaced)
    registry.register(Bare("b", lambda _: None))
    assert [*registry] == ["echo", "b"]
    assert "echo" in registry
    assert "nope" not in registry
    assert registry["echo"] is echo
    registry.unregister("echo")
    assert [*registry] == ["b"]
    with pytest.raises(KeyError):
        registry.unregister("echo")


def test_tools_may_change_while_another_thread_reads_them(registry: MCPRegistry) -> None:
    failures: list[Exception] = []
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            try:
                json.dumps([registry.describe(), registry.describe("mcp"), [*registry]])
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(300):
        registry.register(Bare(f"t{number % 50}", lambda _: None))
        if number % 3 == 0:
            registry.unregister(f"t{number % 50}")
    stop.set()
    for thread in threads:
        thread.join(10)
    assert failures == []
    assert set(registry.describe()) == set(registry)


# Changes and attributes


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


@pytest.mark.parametrize("tags", [["x", "yes"], ("x", "yes"), {"x", "yes"}, iter(["yes", "x"]), "yes"])
def test_tags_are_any_list_of_words_and_one_word_is_one_tag(registry: MCPRegistry, tags: Any) -> None:
    registry.register(tool("a", tags=tags))
    assert [*registry.describe(tags="yes")] == [*registry.describe(tags=["yes"])] == ["a"]
    assert ("a" in registry.describe(tags=["x"])) is (tags != "yes")
    assert registry.describe(tags=["y"]) == {}


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


@pytest.mark.covers("agent-public-names")
def test_a_call_with_wrong_arguments_names_the_public_class() -> None:
    registry: Any = MCPRegistry()
    for wrong in (registry.call, registry.register, registry.unregister, registry.find_prompt, registry.add_resource):
        with pytest.raises(TypeError, match=r"^MCPRegistry\."):
            wrong()


@pytest.mark.covers("agent-public-names")
def test_methods_of_a_class_of_the_users_own_keep_their_place() -> None:
    class Counting:
        calls = 0

        def call(self, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return super().call(*args, **kwargs)  # type: ignore[misc]

    class Mine(Counting, MCPRegistry):
        pass

    mine = Mine()
    mine.tool(lambda: 7, name="seven")
    assert (mine.call("seven", {}), mine.calls) == (7, 1)
