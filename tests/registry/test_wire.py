"""Tools as MCP lists them, and Python values and exceptions as MCP's results."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Any

import pytest
from mcp.types import CallToolResult, Tool
from pydantic import BaseModel

from a2c_smcp.registry import MCPRegistry
from a2c_smcp.registry.content import mcp_result, text_of
from tests.registry.tools import Bare, Said, raising

pytestmark = pytest.mark.covers("registry-wire")


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
        ({}, "{}", {}),
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


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (raising(ValueError("no such file")), "no such file"),
        (raising(Said()), "said"),
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


async def test_the_traceback_of_a_tool_is_logged(registry: MCPRegistry, caplog: pytest.LogCaptureFixture) -> None:
    registry.register(Bare("bad", raising(Said("oh"))))
    with caplog.at_level(logging.WARNING, "a2c_smcp.registry"):
        await mcp_result("bad", registry.acall("bad", {}))
    assert "Tool 'bad' failed" in caplog.text
    assert "Traceback" in caplog.text


async def test_unknown_tools_and_bad_arguments_are_error_results(registry: MCPRegistry) -> None:
    registry.tool(weather)
    unknown = await mcp_result("wether", registry.acall("wether", {}))
    assert unknown["isError"]
    assert "did you mean 'weather'" in text_of(unknown)
    unfit = await mcp_result("weather", registry.acall("weather", {"city": ["secret-7f3a"]}))
    assert unfit["isError"]
    assert text_of(unfit) == "Invalid arguments: city: Input should be a valid string"
