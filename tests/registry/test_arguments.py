"""Arguments are completed with defaults, then checked against the tool's schema, before the tool sees them."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import math
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import Field

from a2c_smcp.registry import FunctionTool, InvalidArguments, MCPRegistry, Retry
from a2c_smcp.registry.calls.arguments import compile_defaults
from a2c_smcp.registry.schemas.check import Schema, SchemaTooHeavy, find_faults, find_faults_async
from tests.bystander import calling_meanwhile
from tests.registry.tools import registry_of, tool

pytestmark = pytest.mark.covers("registry-validation")

CANARY = "canary-93ab17"

SEARCH = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 1},
        "limit": {"type": "integer", "default": 10, "maximum": 100},
        "options": {
            "type": "object",
            "properties": {"exact": {"type": "boolean", "default": False}, "tags": {"type": "array", "default": []}},
        },
        "sort": {"type": "array", "items": {"$ref": "#/$defs/order"}},
    },
    "required": ["query", "limit"],
    "additionalProperties": False,
    "$defs": {
        "order": {
            "type": "object",
            "properties": {"by": {"type": "string"}, "down": {"type": "boolean", "default": True}},
            "required": ["by", "down"],
        }
    },
}


@pytest.fixture
def registry() -> MCPRegistry:
    return registry_of(tool("search", SEARCH), validate=True)


def faults(registry: MCPRegistry, arguments: Any) -> list[dict[str, str]]:
    with pytest.raises(InvalidArguments) as caught:
        registry.call("search", arguments)
    assert caught.value.code == 400
    assert isinstance(caught.value, ValueError)
    found: list[dict[str, str]] = caught.value.details["errors"]
    return found


async def test_defaults_are_filled_before_the_check(registry: MCPRegistry) -> None:
    """`limit` is required, and there by default."""
    assert registry.call("search", {"query": "x"}) == {"query": "x", "limit": 10}
    assert await registry.acall("search", {"query": "x"}) == {"query": "x", "limit": 10}


def test_nested_defaults_are_filled_into_objects_that_are_given(registry: MCPRegistry) -> None:
    filled = registry.call(
        "search", {"query": "x", "options": {}, "sort": [{"by": "date"}, {"by": "size", "down": False}]}
    )
    assert filled["options"] == {"exact": False, "tags": []}
    assert filled["sort"] == [{"by": "date", "down": True}, {"by": "size", "down": False}]
    assert "options" not in registry.call("search", {"query": "x"})


def test_the_callers_arguments_are_not_changed(registry: MCPRegistry) -> None:
    arguments = {"query": "x", "options": {"exact": True}, "sort": [{"by": "date"}]}
    before = copy.deepcopy(arguments)
    filled = registry.call("search", arguments)
    assert arguments == before
    filled["options"]["tags"].append("x")
    assert registry.call("search", arguments)["options"]["tags"] == []


def test_every_fault_has_a_json_pointer_and_quotes_no_value(registry: MCPRegistry) -> None:
    arguments = {"query": 7, "limit": CANARY, "options": {"exact": CANARY}, "sort": [{"by": "x"}, {"by": [CANARY]}]}
    found = faults(registry, arguments)
    assert sorted(fault["path"] for fault in found) == ["/limit", "/options/exact", "/query", "/sort/1/by"]
    assert CANARY not in json.dumps(found)


def test_missing_and_unknown_arguments_are_named(registry: MCPRegistry) -> None:
    messages = " ".join(fault["message"] for fault in faults(registry, {"quary": "x"}))
    assert "query" in messages
    assert "quary" in messages


@pytest.mark.parametrize("arguments", [None, [], "x", 7])
def test_arguments_must_be_an_object(registry: MCPRegistry, arguments: Any) -> None:
    assert faults(registry, arguments) == [{"path": "", "message": "not an object"}]


def test_an_unusable_schema_is_logged_and_blocks_no_call(caplog: pytest.LogCaptureFixture) -> None:
    registry = MCPRegistry(validate=True)
    with caplog.at_level(logging.WARNING, "a2c_smcp.registry"):
        registry.register(tool("odd", {"type": "nothing"}))
    assert "'odd'" in caplog.text
    assert registry.call("odd", {"x": 1}) == {"x": 1}


_DOUBLING = {f"s{n}": {"anyOf": [{"$ref": f"#/$defs/s{n - 1}"}] * 2} for n in range(1, 41)}
HEAVY = {"properties": {"a": {"$ref": "#/$defs/s40"}}, "$defs": {"s0": {"type": "string"}, **_DOUBLING}}
BACKTRACKING = {"properties": {"a": {"type": "string", "pattern": "(?=a)b"}}}


async def test_a_schema_that_is_too_heavy_is_refused_also_if_every_call_is_cancelled_before_its_check_ends() -> None:
    schema = Schema(HEAVY)
    async with asyncio.timeout(60):
        while not schema.refused:
            with suppress(TimeoutError, SchemaTooHeavy):
                await asyncio.wait_for(find_faults_async(schema, {"a": 1}), 0.05)


async def test_checks_of_cancelled_calls_that_have_not_begun_delay_no_other_check() -> None:
    heavy = [asyncio.ensure_future(find_faults_async(Schema({**HEAVY, "title": str(n)}), {"a": 1})) for n in range(90)]
    await asyncio.wait(heavy, timeout=0.1)
    for check in heavy:
        check.cancel()
    async with asyncio.timeout(60):
        assert [fault["path"] for fault in await find_faults_async(Schema(BACKTRACKING), {"a": 1})] == ["/a"]


async def test_a_schema_that_is_too_heavy_is_refused_and_delays_no_other_call() -> None:
    registry = registry_of(tool("heavy", HEAVY), tool("search", SEARCH), validate=True)
    async with calling_meanwhile(lambda: registry.acall("search", {"query": "x"})):
        with pytest.raises(SchemaTooHeavy, match="took longer than 1 s"):
            await registry.acall("heavy", {"a": 1})
    with pytest.raises(SchemaTooHeavy, match="took longer than 1 s"):
        registry.call("heavy", {"a": 1})


def test_defaults_that_multiply_are_refused_at_once() -> None:
    def filled(n: int) -> dict[str, Any]:
        return {"$ref": f"#/$defs/s{n}", "default": {}}

    # `more` is never given, but makes a cycle of the references, which are weighed once
    steps = {
        f"s{n}": {"properties": {"more": {"$ref": f"#/$defs/s{n + 1}"}, "a": filled(n - 1), "b": filled(n - 1)}}
        for n in range(1, 41)
    }
    last: dict[str, Any] = {"s0": {}, "s41": {}}
    schema = {"properties": {"more": {"$ref": "#/$defs/s1"}, "a": filled(40)}, "$defs": {**steps, **last}}
    registry = registry_of(tool("search", schema), validate=True)
    message = "the schema would fill in more than 100000 values; give what has a default"
    assert faults(registry, {}) == [{"path": "", "message": message}]
    assert registry.call("search", {"a": 1}) == {"a": 1}


def test_no_other_document_is_ever_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "schema.json").write_text('{"required": ["a"]}')
    registry = MCPRegistry(validate=True)
    with caplog.at_level(logging.WARNING, "a2c_smcp.registry"):
        registry.register(tool("far", {"$ref": (tmp_path / "schema.json").as_uri()}))
    assert "are not followed" in caplog.text
    assert registry.call("far", {}) == {}


def test_functions_are_checked_like_any_tool() -> None:
    registry = MCPRegistry(validate=True)

    @registry.tool
    def add(a: int, b: int = 2) -> int:
        return a + b

    assert registry.call("add", {"a": 1}) == 3
    with pytest.raises(InvalidArguments):
        registry.call("add", {"a": "1"})


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"below": value}
    return value


RECURSIVE = {"properties": {"below": {"$ref": "#"}, "n": {"default": 1}}}
IN_PARTS = {
    "allOf": [{"properties": {"a": {"default": 1}}}, {"$ref": "#/$defs/more"}],
    "$defs": {"more": {"properties": {"b": {"default": 2}}}},
    "properties": {"a": {"default": 3}},
}


@pytest.mark.parametrize(
    ("schema", "arguments", "filled"),
    [
        (RECURSIVE, nested(2), {"n": 1, "below": {"n": 1, "below": {"n": 1}}}),
        (IN_PARTS, {}, {"a": 3, "b": 2}),
        ({"properties": {"o": {"default": {}, "properties": {"n": {"default": 1}}}}}, {}, {"o": {"n": 1}}),
    ],
    ids=["a recursive schema", "allOf and references", "a default object"],
)
def test_defaults_are_filled_in_all_of(schema: dict[str, Any], arguments: Any, filled: dict[str, Any]) -> None:
    assert compile_defaults(schema)(arguments) == filled


@pytest.mark.parametrize(
    ("schema", "arguments", "path"),
    [
        ({"a/b~c": {"type": "integer"}}, {"a/b~c": "x"}, "/a~1b~0c"),
        ({"n": {"type": "integer", "default": "many"}}, {}, "/n"),
    ],
    ids=["steps are escaped", "a default is filled first and checked second"],
)
def test_a_fault_has_its_pointer(schema: dict[str, Any], arguments: dict[str, Any], path: str) -> None:
    assert [
        fault["path"] for fault in faults(registry_of(tool("search", {"properties": schema}), validate=True), arguments)
    ] == [path]


@pytest.mark.parametrize(
    ("schema", "validate", "arguments"),
    [(SEARCH, False, {"quary": 1}), (SEARCH, True, {"query": "x", "limit": 1}), (None, True, {"x": object})],
    ids=["unless they are checked", "if they are complete", "if there is no schema"],
)
def test_arguments_are_passed_on_without_a_copy(schema: Any, validate: bool, arguments: dict[str, Any]) -> None:
    assert registry_of(tool("search", schema), validate=validate).call("search", arguments) is arguments


def test_endless_nesting_is_refused() -> None:
    registry = registry_of(tool("search", RECURSIVE), validate=True)
    assert "deep" in faults(registry, nested(100_000))[0]["message"]
    assert "deep" in faults(registry, nested(300))[0]["message"]


SCHEMAS = st.recursive(
    st.fixed_dictionaries({}, optional={"default": st.integers() | st.lists(st.integers())}),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            "items": inner,
            "allOf": st.lists(inner, max_size=2),
            "default": st.integers(),
        },
    ),
    max_leaves=10,
)
VALUES = st.recursive(
    st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
    max_leaves=10,
)


@given(SCHEMAS, VALUES)
def test_filling_defaults_only_adds_values_and_is_idempotent(schema: dict[str, Any], value: Any) -> None:
    fill = compile_defaults(schema)
    if fill is None:
        return
    before = copy.deepcopy(value)
    filled = fill(value)
    assert value == before
    assert fill(filled) is filled
    assert contains(filled, value)


def contains(filled: Any, value: Any) -> bool:
    if isinstance(value, dict):
        return all(contains(filled[key], item) for key, item in value.items())
    if isinstance(value, list):
        return len(filled) == len(value) and all(map(contains, filled, value))
    return bool(filled == value)


# Functions, whose schema and whose conversion come from the same signature


def test_the_default_of_a_function_need_not_fit_its_annotation() -> None:
    """`int = None` is what many write; a default is the function's business, not the caller's."""
    registry = MCPRegistry(validate=True)

    @registry.tool
    def wait(seconds: float = math.inf, times: int = None, on: date = date.max) -> Any:  # type: ignore[assignment]  # noqa: RUF013
        return seconds, times, on

    assert registry.call("wait", {}) == (math.inf, None, date.max)
    assert registry.call("wait", {"times": 2, "on": "2026-01-02"}) == (math.inf, 2, date(2026, 1, 2))
    with pytest.raises(InvalidArguments):
        registry.call("wait", {"times": None})


async def test_a_retried_function_gets_fresh_arguments() -> None:
    registry, seen = MCPRegistry(validate=True, retry=Retry(first_pause=0)), list[list[str]]()

    @registry.tool(idempotent=True)
    def take(words: list[str]) -> None:
        seen.append([*words])
        words.clear()
        raise OSError

    arguments = {"words": ["a"]}
    with pytest.raises(OSError):  # noqa: PT011  # whatever it says
        registry.call("take", arguments)
    with pytest.raises(OSError):  # noqa: PT011  # whatever it says
        await registry.acall("take", arguments)
    assert seen == [["a"]] * 6
    assert arguments == {"words": ["a"]}


def test_a_function_with_a_changed_schema_is_checked_against_it() -> None:
    def say(word: str) -> str:
        return word

    registry, tool = MCPRegistry(validate=True), FunctionTool(say)
    tool.input_schema["properties"]["word"] |= {"enum": ["hi"], "default": "hi"}
    registry.register(tool)
    assert registry.call("say", {}) == "hi"
    with pytest.raises(InvalidArguments):
        registry.call("say", {"word": "ho"})


PLAIN = st.recursive(
    st.sampled_from([str, int, float, bool, None, Literal["a", "b"], Annotated[int, Field(description="d")]]),
    lambda inner: st.one_of(
        inner.map(lambda one: list[one]),  # type: ignore[valid-type]
        inner.map(lambda one: dict[str, one]),  # type: ignore[valid-type]
        st.tuples(inner, inner).map(lambda both: Union[both]),  # noqa: UP007  # made at run time,
    ),
    max_leaves=4,
)
NEARLY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([1.0, 1.5, math.nan, math.inf, "a", "1", "true", "", "\ud800", b"a", 10**400, (1,), date.max]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "b", 1]), inner, max_size=2),
    max_leaves=4,
)


@given(PLAIN, NEARLY_JSON)
@example(str, {"a": "\ud800", "b": date.max})
def test_the_quick_check_agrees_with_schema_and_function(annotation: Any, value: Any) -> None:
    def give(value: Any) -> Any:
        return value

    give.__annotations__["value"] = annotation
    registry, unchecked = MCPRegistry(validate=True), FunctionTool(give)
    registry.tool(give)
    assert FunctionTool(give).fit is not None
    arguments = {"value": value}
    faults = find_faults(Schema(unchecked.input_schema), arguments)
    try:
        expected = unchecked.call(arguments)
    except InvalidArguments:  # 10**400 fits the schema, and is no float
        faults = faults or [{}]
    if faults:
        with pytest.raises(InvalidArguments):
            registry.call("give", arguments)
        return
    given = registry.call("give", arguments)
    assert (given, type(given)) == (expected, type(expected))
