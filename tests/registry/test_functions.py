"""Functions as tools: what is read from them, and which arguments they accept."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from enum import Enum
from math import sqrt
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

import jsonschema_rs
import pytest
from pydantic import AfterValidator, BaseModel, Discriminator, Field
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from a2c_smcp.registry import FunctionTool, Image, LoopIsRunning, MCPRegistry, ToolResult
from a2c_smcp.registry.functions import InvalidArguments, read_docstring
from tests.registry.tools import Bare

if TYPE_CHECKING:
    from decimal import Decimal

pytestmark = pytest.mark.covers("registry-functions")

CANARY = "canary-41c0ffee"


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    sku: str
    quantity: int = 1


@dataclass
class Place:
    city: str


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


class Report(TypedDict):
    total: int


class Node(BaseModel):
    below: list[Node] = []


def search(query: str, limit: int = 10, *, exact: bool = False) -> list[str]:
    """Search the library
    for a text.

    This takes a while.

    Args:
        query (str): What to look for,
            in any language.
        limit: How many at most: a hint.

        exact (bool, optional): No near matches.

    Returns:
        list: of titles
    """
    return [query, str(limit), str(exact)]


def test_a_tool_is_read_from_signature_and_docstring() -> None:
    tool = FunctionTool(search)
    assert tool.name == "search"
    assert tool.description == "Search the library for a text."
    assert tool.input_schema == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What to look for, in any language."},
            "limit": {"type": "integer", "default": 10, "description": "How many at most: a hint."},
            "exact": {"type": "boolean", "default": False, "description": "No near matches."},
        },
        "required": ["query"],
        "additionalProperties": False,
    }
    assert tool.call({"query": "x", "exact": True}) == ["x", "10", "True"]


@pytest.mark.parametrize(
    ("docstring", "description", "parameters"),
    [
        (None, "", {}),
        ("One line.", "One line.", {}),
        ("First.\n\nSecond.", "First.", {}),
        ("Does it.\nArgs:\n  a: one\n  b: two", "Does it.", {"a": "one", "b": "two"}),
        ("Args:\n    a: one", "", {"a": "one"}),
        ("D.\n\nArguments:\n    a (dict[str, int]):\n        one\n        two", "D.", {"a": "one two"}),
        ("D.\n\nReturns:\n    a: no\n\nArgs:\n    a: yes\n\nAfterwards: no", "D.", {"a": "yes"}),
        ("D.\n\nArgs:\n    what is this", "D.", {}),
        ("Note: this is text.", "Note: this is text.", {}),
    ],
)
def test_docstrings_are_read(docstring: str | None, description: str, parameters: dict[str, str]) -> None:
    found = read_docstring(docstring)
    assert (found.description, found.parameters) == (description, parameters)


def test_the_signature_wins_over_the_docstring() -> None:
    def book(
        seats: Annotated[int, Field(description="How many seats", ge=1)], row: str = Field("A", title="Row")
    ) -> Any:
        """Book.

        Args:
            seats: ignored
            row: The row.
        """
        return seats, row

    tool = FunctionTool(book)
    properties = tool.input_schema["properties"]
    assert properties["seats"] == {"type": "integer", "description": "How many seats", "minimum": 1}
    assert properties["row"] == {"type": "string", "default": "A", "title": "Row", "description": "The row."}
    assert tool.call({"seats": 2}) == (2, "A")


def test_names_that_pydantic_models_reserve_can_be_parameters() -> None:
    def odd(_private: int, schema: int, model_config: int, self: int, copy: int = 5) -> list[int]:
        return [_private, schema, model_config, self, copy]

    tool = FunctionTool(odd)
    assert [*tool.input_schema["properties"]] == ["_private", "schema", "model_config", "self", "copy"]
    assert tool.call({"_private": 1, "schema": 2, "model_config": 3, "self": 4}) == [1, 2, 3, 4, 5]


def test_positional_only_parameters_are_passed_by_position() -> None:
    def divide(a: float, b: float = 2, /, *, digits: int = 1) -> float:
        return round(a / b, digits)

    tool = FunctionTool(divide)
    assert tool.call({"a": 1}) == 0.5
    assert tool.call({"b": 4, "a": 1, "digits": 2}) == 0.25
    assert FunctionTool(sqrt).call({"x": 9}) == 3


def test_missing_arguments_use_the_functions_defaults() -> None:
    seen: list[int] = []
    missing = object()

    def remember(number: int, numbers: list[int] = seen, other: Any = missing) -> bool:
        numbers.append(number)
        return other is missing

    tool = FunctionTool(remember)
    assert tool.call({"number": 7}) is True
    assert seen == [7]
    assert "default" not in tool.input_schema["properties"]["other"]


def test_defaults_that_pydantic_makes_are_passed() -> None:
    def gather(into: Annotated[list[int], Field(default_factory=list)], also: int = Field(default=3)) -> list[int]:
        into.append(also)
        return into

    tool = FunctionTool(gather)
    assert "required" not in tool.input_schema
    assert tool.call({}) == [3]
    assert tool.call({}) == [3]


def test_arguments_are_converted() -> None:
    def take(item: Item, place: Place, colour: Colour, on: date, ids: set[int], maybe: UUID | None = None) -> Any:
        return item, place, colour, on, ids, maybe

    tool = FunctionTool(take)
    arguments = {
        "item": {"sku": "a"},
        "place": {"city": "Bern"},
        "colour": "red",
        "on": "2026-01-02",
        "ids": ["1", 2, 2],
    }
    taken = tool.call(arguments)
    assert taken == (Item(sku="a"), Place("Bern"), Colour.RED, date(2026, 1, 2), {1, 2}, None)
    assert arguments["ids"] == ["1", 2, 2]
    assert tool.input_schema["properties"]["item"] == {"$ref": "#/$defs/Item"}
    assert jsonschema_rs.is_valid(tool.input_schema, arguments | {"ids": [1, 2]})


def test_parameters_without_annotation_accept_any_value() -> None:
    tool = FunctionTool(lambda value: value, name="same")
    assert tool.input_schema["properties"] == {"value": {}}
    assert tool.call({"value": {"x": [1]}}) == {"x": [1]}


def even(number: int) -> int:
    if number % 2:
        raise ValueError(f"{number} {CANARY} is odd")
    return number


def refuse(text: str) -> str:
    raise PydanticCustomError("refused", "{text} is refused", {"text": text})


def strict(
    number: Annotated[int, AfterValidator(even)] = 0,
    text: Annotated[str, AfterValidator(refuse)] = "",
    pet: Annotated[Cat | Dog, Discriminator("kind")] | None = None,
    uuid: UUID | None = None,
    colour: Colour = Colour.RED,
    items: list[Item] | None = None,
    count: int = 0,
) -> None:
    """Every way to be refused."""


@pytest.mark.parametrize(
    ("arguments", "path", "message"),
    [
        ({"count": CANARY}, "/count", "Input should be a valid integer, unable to parse string as an integer"),
        ({"number": 1}, "/number", "Input is not valid (value_error)"),
        ({"text": CANARY}, "/text", "Input is not valid (refused)"),
        ({"pet": {"kind": CANARY}}, "/pet", "Input tag should be one of 'cat', 'dog'"),
        ({"uuid": CANARY}, "/uuid", "Input is not valid (uuid_parsing)"),
        ({"colour": CANARY}, "/colour", "Input should be 'red' or 'blue'"),
        ({"items": [{"sku": "a", "quantity": CANARY}]}, "/items/0/quantity", "Input should be a valid integer"),
        ({"items": [{}]}, "/items/0/sku", "Field required"),
        ({"surplus/us": CANARY}, "/surplus~1us", "Extra inputs are not permitted"),
    ],
)
def test_errors_name_the_argument_and_quote_no_value(
    arguments: dict[str, Any], path: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InvalidArguments) as caught:
        FunctionTool(strict).call(arguments)
    (fault,) = caught.value.details["errors"]
    assert fault["path"] == path
    assert fault["message"].startswith(message)
    assert path.removeprefix("/") in caught.value.message
    logging.getLogger(__name__).error("refused", exc_info=caught.value)
    assert CANARY not in caught.value.message + caplog.text
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("arguments", [None, [1], "x"])
def test_arguments_that_are_not_an_object_are_refused(arguments: Any) -> None:
    with pytest.raises(InvalidArguments, match="not an object"):
        FunctionTool(strict).call(arguments)


def test_faults_are_listed_up_to_a_limit() -> None:
    with pytest.raises(InvalidArguments, match=r"count: .*; and 80 more") as caught:
        FunctionTool(strict).call({"count": "x"} | {f"s{number}": 1 for number in range(99)})
    assert len(caught.value.details["errors"]) == 20


class Odd:
    pass


def starred(*numbers: int) -> None: ...
def double_starred(**names: int) -> None: ...
def arbitrary(odd: Odd) -> None: ...
def called_back(back: Callable[[], None]) -> None: ...
def unreadable(amount: Decimal) -> None: ...


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (starred, r"function 'starred' cannot be a tool: \*numbers has no JSON schema"),
        (double_starred, r"function 'double_starred' cannot be a tool: \*\*names has no JSON schema"),
        (arbitrary, "'arbitrary' cannot be a tool: the parameters have no JSON schema: .*Odd"),
        (called_back, "'called_back' cannot be a tool: the parameters have no JSON schema"),
        (unreadable, "'unreadable' cannot be a tool: its annotations cannot be read: name 'Decimal' is not defined"),
        (lambda x: x, "not a valid tool name: set name="),
        (Odd, "is not a function"),
        (Odd(), "is not a function"),
        (min, "'min' cannot be a tool: its parameters cannot be read"),
    ],
)
def test_functions_that_cannot_be_tools_are_refused_with_a_reason(function: Any, complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        FunctionTool(function)


def returning(annotation: Any) -> FunctionTool:
    def give(): ...  # type: ignore[no-untyped-def]

    if annotation is not UNSAID:
        give.__annotations__["return"] = annotation
    return FunctionTool(give)


UNSAID = object()
NO_OBJECTS = [list[int], Item | None, None, Odd, "Decimal", Node, Image, ToolResult, list[Image], "str | Image", UNSAID]


@pytest.mark.parametrize("annotation", [Item, Place, Report, dict[str, int]])
def test_a_return_annotation_that_is_an_object_gives_the_output_schema(annotation: Any) -> None:
    assert returning(annotation).output_schema["type"] == "object"


@pytest.mark.parametrize("annotation", NO_OBJECTS, ids=str)
def test_any_other_return_annotation_gives_no_output_schema(annotation: Any) -> None:
    assert returning(annotation).output_schema is None


async def test_an_async_function_is_an_async_tool() -> None:
    async def double(number: int) -> int:
        return 2 * number

    tool = FunctionTool(double)
    assert await tool.call({"number": "4"}) == 8
    with pytest.raises(InvalidArguments):
        await tool.call({})


def test_methods_and_decorated_functions_are_tools() -> None:
    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def add(self, number: int = 1) -> int:
            """Count on."""
            self.count += number
            return self.count

    def twice(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            function(*args, **kwargs)
            return function(*args, **kwargs)

        return wrapper

    counter = Counter()
    tool = FunctionTool(counter.add)
    assert (tool.name, tool.description, [*tool.input_schema["properties"]]) == ("add", "Count on.", ["number"])
    assert tool.call({"number": 2}) == 2
    assert FunctionTool(twice(counter.add)).call({"number": "2"}) == 6
    assert FunctionTool(functools.lru_cache(search)).call({"query": "x"})[0] == "x"


def test_the_functions_own_exception_passes_unchanged() -> None:
    def fail(number: int) -> None:
        Item.model_validate({"sku": number})

    with pytest.raises(ValueError, match="sku") as caught:
        FunctionTool(fail).call({"number": 1})
    assert not isinstance(caught.value, InvalidArguments)


# In a registry


def test_a_decorated_function_is_a_tool_and_remains_a_function(registry: MCPRegistry) -> None:
    @registry.tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    assert add(1, 2) == 3
    assert registry.call("add", {"a": 1, "b": "2"}) == 3
    assert registry.describe()["add"]["description"] == "Add two numbers."


def test_the_decorator_takes_name_description_and_meta(registry: MCPRegistry) -> None:
    @registry.tool(name="plus", description="Sum", tags=["maths"])
    def add(a: int, b: int) -> int:
        return a + b

    registry.tool(add)
    assert [*registry] == ["plus", "add"]
    assert registry.describe()["plus"]["description"] == "Sum"
    assert registry["plus"].meta == {"tags": ["maths"]}


# Called by async code


async def test_acall_awaits_async_tools_in_the_callers_loop(registry: MCPRegistry) -> None:
    @registry.tool
    async def where() -> int:
        return id(asyncio.get_running_loop())

    assert await registry.acall("where", {}) == id(asyncio.get_running_loop())


async def test_many_sync_tools_do_not_block_the_loop(registry: MCPRegistry) -> None:
    crowd = 40
    barrier = threading.Barrier(crowd)

    @registry.tool
    def meet() -> int:
        return barrier.wait(timeout=30)

    async with asyncio.timeout(30):
        met = await asyncio.gather(*(registry.acall("meet", {}) for _ in range(crowd)))
    assert sorted(met) == [*range(crowd)]


async def test_context_variables_reach_a_sync_tool(registry: MCPRegistry) -> None:
    caller = contextvars.ContextVar("caller", default="nobody")
    registry.register(Bare("who", lambda _: caller.get()))
    caller.set("planner")
    assert await registry.acall("who", {}) == "planner"


async def test_a_stop_iteration_in_a_thread_becomes_a_runtime_error(registry: MCPRegistry) -> None:
    registry.register(Bare("empty", lambda _: next(iter(()))))
    async with asyncio.timeout(30):
        with pytest.raises(RuntimeError, match="StopIteration"):
            await registry.acall("empty", {})


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


@pytest.mark.parametrize("tool", [AsyncTool(), Bare("async", AsyncCallable())])
def test_an_async_tool_can_be_called_from_sync_code(registry: MCPRegistry, tool: Any) -> None:
    registry.register(tool)
    assert registry.call("async", {}) == "called"


async def test_a_sync_call_of_an_async_tool_inside_a_loop_is_refused(registry: MCPRegistry) -> None:
    registry.register(AsyncTool())
    with pytest.raises(LoopIsRunning, match=r"'async' is async.*await acall"):
        registry.call("async", {})
