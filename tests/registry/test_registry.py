"""MCPRegistry as 001 describes it, calls from async code, and results for MCP."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from mcp.types import CallToolResult, Tool
from pydantic import BaseModel

from a2c_smcp.errors import ToolNotFound
from a2c_smcp.loops import LoopIsRunning
from a2c_smcp.registry.results import mcp_result
from sage.libs.agents.action.mcp_registry import MCPRegistry
from tests.registry.tools import Bare, EchoTool


class BadTool:
    pass


class Said(Exception):
    pass


def raising(error: BaseException) -> Callable[[dict[str, Any]], Any]:
    def call(arguments: dict[str, Any]) -> Any:
        raise error

    return call


@pytest.fixture
def registry() -> MCPRegistry:
    return MCPRegistry()


# 001 §8, word for word in behaviour


@pytest.mark.covers("registry-001")
def test_register_and_describe() -> None:
    reg = MCPRegistry()
    reg.register(EchoTool())
    desc = reg.describe()
    assert "echo" in desc
    assert "input_schema" in desc["echo"]


@pytest.mark.covers("registry-001")
def test_call_success() -> None:
    reg = MCPRegistry()
    reg.register(EchoTool())
    assert reg.call("echo", {"text": "hi"}) == {"output": "hi"}


@pytest.mark.covers("registry-001")
def test_call_missing_tool() -> None:
    reg = MCPRegistry()
    with pytest.raises(KeyError):
        reg.call("nope", {})


@pytest.mark.covers("registry-001")
def test_register_invalid() -> None:
    reg = MCPRegistry()
    with pytest.raises(TypeError):
        reg.register(BadTool())


# The rest of 001


@pytest.mark.covers("registry-001")
def test_the_module_path_of_001_is_a_namespace_package() -> None:
    home = sys.modules["sage.libs.agents.action.mcp_registry"].__file__
    assert home is not None
    assert not [*Path(home).parents[3].rglob("__init__.py")]
    assert MCPRegistry is sys.modules["a2c_smcp.registry"].MCPRegistry


@pytest.mark.covers("registry-001")
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


@pytest.mark.covers("registry-001")
def test_a_tool_without_description_and_schema_is_described_as_empty(registry: MCPRegistry) -> None:
    registry.register(Bare("quiet", lambda _: None))
    assert registry.describe() == {"quiet": {"description": "", "input_schema": {}}}


@pytest.mark.covers("registry-001")
def test_the_description_is_one_snapshot_until_the_tools_change(registry: MCPRegistry) -> None:
    registry.register(EchoTool())
    first = registry.describe()
    assert registry.describe() is first
    registry.register(Bare("other", lambda _: None))
    assert set(registry.describe()) == {"echo", "other"}
    assert set(first) == {"echo"}
    registry.unregister("echo")
    assert set(registry.describe()) == {"other"}


@pytest.mark.covers("registry-001")
def test_a_description_is_plain_json(registry: MCPRegistry) -> None:
    schema = MappingProxyType({"type": "object", "properties": MappingProxyType({"x": {"enum": (1, 2)}})})
    tool = Bare("frozen", lambda _: None)
    tool.input_schema = schema  # type: ignore[attr-defined]
    registry.register(tool)
    described = registry.describe()["frozen"]["input_schema"]
    assert json.loads(json.dumps(described)) == described == {"type": "object", "properties": {"x": {"enum": [1, 2]}}}


@pytest.mark.covers("registry-001")
@pytest.mark.parametrize("schema", [{"default": object()}, [1], {"enum": {1}}])
def test_a_schema_that_is_not_json_is_refused(registry: MCPRegistry, schema: Any) -> None:
    tool = Bare("odd", lambda _: None)
    tool.input_schema = schema  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="input_schema of tool 'odd'"):
        registry.register(tool)


@pytest.mark.covers("registry-001")
def test_an_unknown_name_is_refused_with_similar_names(registry: MCPRegistry) -> None:
    registry.register(EchoTool())
    with pytest.raises(KeyError, match="'ecko', did you mean 'echo'") as caught:
        registry.call("ecko", {})
    assert isinstance(caught.value, ToolNotFound)
    assert caught.value.details["near"] == ["echo"]


@pytest.mark.covers("registry-001")
def test_a_long_unknown_name_is_shortened(registry: MCPRegistry) -> None:
    registry.register(EchoTool())
    with pytest.raises(KeyError) as caught:
        registry.call("x" * 1_000_000, {})
    assert len(str(caught.value)) < 1000


@pytest.mark.covers("registry-001")
@pytest.mark.parametrize("error", [KeyError("own"), Said("own"), StopIteration("own")])
def test_a_tools_own_exception_passes_unchanged(registry: MCPRegistry, error: Exception) -> None:
    registry.register(Bare("bad", raising(error)))
    with pytest.raises(type(error)) as caught:
        registry.call("bad", {})
    assert caught.value is error


@pytest.mark.covers("registry-001")
def test_the_tool_gets_the_callers_own_arguments(registry: MCPRegistry) -> None:
    registry.register(Bare("same", lambda arguments: arguments))
    arguments = {"a": 1}
    assert registry.call("same", arguments) is arguments


@pytest.mark.covers("registry-001")
def test_a_tool_of_the_same_name_is_replaced(registry: MCPRegistry) -> None:
    for number in range(3):
        registry.register(Bare("n", lambda _, number=number: number))  # type: ignore[misc]
    assert len(registry) == 1
    assert registry.call("n", {}) == 2


@pytest.mark.covers("registry-001")
def test_a_registry_is_a_collection_of_names(registry: MCPRegistry) -> None:
    echo = EchoTool()
    registry.register(echo)
    registry.register(Bare("b", lambda _: None))
    assert [*registry] == ["echo", "b"]
    assert "echo" in registry
    assert "nope" not in registry
    assert registry["echo"] is echo
    registry.unregister("echo")
    assert [*registry] == ["b"]
    with pytest.raises(KeyError):
        registry.unregister("echo")


@pytest.mark.covers("registry-001")
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


# Functions


@pytest.mark.covers("registry-functions")
def test_a_decorated_function_is_a_tool_and_remains_a_function(registry: MCPRegistry) -> None:
    @registry.tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    assert add(1, 2) == 3
    assert registry.call("add", {"a": 1, "b": "2"}) == 3
    assert registry.describe()["add"]["description"] == "Add two numbers."


@pytest.mark.covers("registry-functions")
def test_the_decorator_takes_name_description_and_meta(registry: MCPRegistry) -> None:
    @registry.tool(name="plus", description="Sum", tags=["maths"])
    def add(a: int, b: int) -> int:
        return a + b

    registry.tool(add)
    assert [*registry] == ["plus", "add"]
    assert registry.describe()["plus"]["description"] == "Sum"
    assert registry["plus"].meta == {"tags": ["maths"]}


# Async


@pytest.mark.covers("registry-functions")
async def test_acall_awaits_async_tools_in_the_callers_loop(registry: MCPRegistry) -> None:
    @registry.tool
    async def where() -> int:
        return id(asyncio.get_running_loop())

    assert await registry.acall("where", {}) == id(asyncio.get_running_loop())


@pytest.mark.covers("registry-functions")
async def test_many_sync_tools_do_not_block_the_loop(registry: MCPRegistry) -> None:
    crowd = 40
    barrier = threading.Barrier(crowd)

    @registry.tool
    def meet() -> int:
        return barrier.wait(timeout=30)

    async with asyncio.timeout(30):
        met = await asyncio.gather(*(registry.acall("meet", {}) for _ in range(crowd)))
    assert sorted(met) == [*range(crowd)]


@pytest.mark.covers("registry-functions")
async def test_context_variables_reach_a_sync_tool(registry: MCPRegistry) -> None:
    caller = contextvars.ContextVar("caller", default="nobody")
    registry.register(Bare("who", lambda _: caller.get()))
    caller.set("planner")
    assert await registry.acall("who", {}) == "planner"


@pytest.mark.covers("registry-functions")
async def test_exceptions_pass_through_the_thread_unchanged(registry: MCPRegistry) -> None:
    error = Said("own")
    registry.register(Bare("bad", raising(error)))
    with pytest.raises(Said) as caught:
        await registry.acall("bad", {})
    assert caught.value is error


@pytest.mark.covers("registry-functions")
async def test_a_stop_iteration_in_a_thread_becomes_a_runtime_error(registry: MCPRegistry) -> None:
    registry.register(Bare("empty", lambda _: next(iter(()))))
    async with asyncio.timeout(30):
        with pytest.raises(RuntimeError, match="StopIteration"):
            await registry.acall("empty", {})


@pytest.mark.covers("registry-functions")
async def test_a_cancelled_call_of_a_sync_tool_returns_at_once(registry: MCPRegistry) -> None:
    started, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def wait(_: dict[str, Any]) -> None:
        loop.call_soon_threadsafe(started.set)
        release.wait(10)

    registry.register(Bare("wait", wait))
    call = asyncio.ensure_future(registry.acall("wait", {}))
    async with asyncio.timeout(30):
        await started.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    release.set()


@pytest.mark.covers("registry-functions")
async def test_a_sync_call_that_returns_an_awaitable_is_awaited(registry: MCPRegistry) -> None:
    async def later() -> str:
        return "done"

    registry.register(Bare("later", lambda _: later()))
    assert await registry.acall("later", {}) == "done"


class AsyncCallable:
    async def __call__(self, arguments: dict[str, Any]) -> str:
        return "called"


class AsyncTool:
    name = "async"

    async def call(self, arguments: dict[str, Any]) -> str:
        await asyncio.sleep(0)
        return "called"


@pytest.mark.covers("registry-functions")
@pytest.mark.parametrize("tool", [AsyncTool(), Bare("async", AsyncCallable())])
def test_an_async_tool_can_be_called_from_sync_code(registry: MCPRegistry, tool: Any) -> None:
    registry.register(tool)
    assert registry.call("async", {}) == "called"


@pytest.mark.covers("registry-functions")
async def test_a_sync_call_of_an_async_tool_inside_a_loop_is_refused(registry: MCPRegistry) -> None:
    registry.register(AsyncTool())
    with pytest.raises(LoopIsRunning, match=r"'async' is async.*await acall"):
        registry.call("async", {})


@pytest.mark.covers("registry-functions")
async def test_acall_of_an_unknown_name_is_a_key_error(registry: MCPRegistry) -> None:
    with pytest.raises(KeyError):
        await registry.acall("nope", {})


# MCP's wire


class Weather(BaseModel):
    city: str
    degrees: float


@dataclass
class Point:
    x: int
    y: int


class Colour(str, Enum):  # noqa: UP042  # what people have
    RED = "red"


def weather(city: str) -> Weather:
    """The weather in a city."""
    return Weather(city=city, degrees=21.5)


def text_of(result: dict[str, Any]) -> str:
    return "\n".join(block["text"] for block in result["content"])


@pytest.mark.covers("registry-wire")
def test_tools_are_listed_as_mcp_lists_them(registry: MCPRegistry) -> None:
    annotations = {"readOnlyHint": True}
    registry.tool(annotations=annotations, _meta={"x": 1}, title="Weather", auto_apply=True)(weather)
    registry.register(Bare("quiet", lambda _: None))
    wire, quiet = registry.describe("mcp")
    assert wire["name"] == "weather"
    assert wire["description"] == "The weather in a city."
    assert wire["inputSchema"]["required"] == ["city"]
    assert wire["outputSchema"]["properties"]["degrees"] == {"type": "number"}
    assert (wire["annotations"], wire["_meta"], wire["title"]) == (annotations, {"x": 1}, "Weather")
    assert "auto_apply" not in wire
    assert quiet == {"name": "quiet", "description": "", "inputSchema": {"type": "object"}}
    for tool in (wire, quiet):
        Tool.model_validate(json.loads(json.dumps(tool)))


@pytest.mark.covers("registry-wire")
@pytest.mark.parametrize(
    ("value", "text", "structured"),
    [
        ("hi", "hi", None),
        (Colour.RED, "red", None),
        (date(2026, 1, 2), "2026-01-02", None),
        (None, "", None),
        ({"output": "é"}, '{"output": "é"}', {"output": "é"}),
        (Weather(city="Bern", degrees=1), '{"city": "Bern", "degrees": 1.0}', {"city": "Bern", "degrees": 1.0}),
        (Point(1, 2), '{"x": 1, "y": 2}', {"x": 1, "y": 2}),
        ([Point(1, 2)], '[{"x": 1, "y": 2}]', {"result": [{"x": 1, "y": 2}]}),
        ((1, 2), "[1, 2]", {"result": [1, 2]}),
        (7, "7", {"result": 7}),
        (True, "true", {"result": True}),
        (2**80, str(2**80), {"result": 2**80}),
        ({"a": [float("nan"), float("inf")]}, '{"a": [null, null]}', {"a": [None, None]}),
        ({1: {2: 3}}, '{"1": {"2": 3}}', {"1": {"2": 3}}),
    ],
)
async def test_a_python_value_becomes_an_mcp_result(
    registry: MCPRegistry, value: Any, text: str, structured: dict[str, Any] | None
) -> None:
    registry.register(Bare("give", lambda _: value))
    result = await mcp_result("give", registry.acall("give", {}))
    assert text_of(result) == text
    assert result.get("structuredContent") == structured
    assert result["isError"] is False
    CallToolResult.model_validate(json.loads(json.dumps(result, allow_nan=False)))


@pytest.mark.covers("registry-wire")
async def test_arguments_may_be_missing(registry: MCPRegistry) -> None:
    registry.register(Bare("same", lambda arguments: arguments))
    assert (await mcp_result("same", registry.acall("same", {})))["structuredContent"] == {}


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.covers("registry-wire")
@pytest.mark.parametrize(
    ("call", "text"),
    [
        (raising(ValueError("no such file")), "no such file"),
        (raising(Said()), "Said"),
        (raising(SystemExit(3)), "3"),
        (raising(asyncio.CancelledError()), "The tool was cancelled."),
        (lambda _: CIRCLE, "Circular reference"),
    ],
)
async def test_an_exception_becomes_an_error_result(
    registry: MCPRegistry, call: Callable[[dict[str, Any]], Any], text: str
) -> None:
    registry.register(Bare("bad", call))
    result = await mcp_result("bad", registry.acall("bad", {}))
    assert result["isError"] is True
    assert text in text_of(result)
    assert "Traceback" not in text_of(result)
    CallToolResult.model_validate(result)


@pytest.mark.covers("registry-wire")
async def test_the_traceback_of_a_tool_is_logged(registry: MCPRegistry, caplog: pytest.LogCaptureFixture) -> None:
    registry.register(Bare("bad", raising(Said("oh"))))
    with caplog.at_level(logging.WARNING, "a2c_smcp.registry"):
        await mcp_result("bad", registry.acall("bad", {}))
    assert "Tool 'bad' failed" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.covers("registry-wire")
async def test_unknown_tools_and_bad_arguments_are_error_results(registry: MCPRegistry) -> None:
    registry.tool(weather)
    unknown = await mcp_result("wether", registry.acall("wether", {}))
    assert unknown["isError"]
    assert "did you mean 'weather'" in text_of(unknown)
    unfit = await mcp_result("weather", registry.acall("weather", {"city": ["secret-7f3a"]}))
    assert unfit["isError"]
    assert text_of(unfit) == "Invalid arguments: city: Input should be a valid string"


@pytest.mark.covers("registry-wire")
async def test_cancelling_the_call_cancels_the_tool(registry: MCPRegistry) -> None:
    started = asyncio.Event()

    @registry.tool
    async def sleep() -> None:
        started.set()
        await asyncio.Event().wait()

    call = asyncio.ensure_future(mcp_result("sleep", registry.acall("sleep", {})))
    async with asyncio.timeout(30):
        await started.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
