"""The list of tools in the format of each provider."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Literal

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from a2c_smcp.registry import MCPRegistry
from a2c_smcp.registry.planning.provider_formats import FORMATS, gemini_schema, portable_name
from tests.registry.tools import Bare, EchoTool, registry_of, tool

pytestmark = pytest.mark.covers("registry-formats")

ECHO = EchoTool.input_schema
GEMINI_FIELDS = {
    *("type", "format", "title", "description", "nullable", "enum", "items", "properties", "required", "anyOf"),
    *("default", "pattern", "minimum", "maximum", "minItems", "maxItems", "minLength", "maxLength"),
    *("minProperties", "maxProperties"),
}


@pytest.fixture
def registry() -> MCPRegistry:
    return registry_of(EchoTool())


TEXT_ONLY = {**ECHO, "properties": {"text": {"type": "string"}}}
ABOUT = {"name": "echo", "description": "echo back"}
QUIET = {"name": "quiet", "description": ""}
SHOWN: dict[str | None, Any] = {
    None: {
        "echo": {"description": "echo back", "input_schema": ECHO},
        "quiet": {"description": "", "input_schema": {}},
    },
    "openai": [
        {"type": "function", "function": {**ABOUT, "parameters": TEXT_ONLY}},
        {"type": "function", "function": {**QUIET, "parameters": {"type": "object", "properties": {}}}},
    ],
    "anthropic": [{**ABOUT, "input_schema": ECHO}, {**QUIET, "input_schema": {"type": "object"}}],
    "gemini": [{"function_declarations": [{**ABOUT, "parameters": ECHO}, QUIET]}],
    "mcp": [{**ABOUT, "inputSchema": ECHO}, {**QUIET, "inputSchema": {"type": "object"}}],
}


@pytest.mark.parametrize("wanted", SHOWN)
def test_tools_are_shown_in_the_format_of(registry: MCPRegistry, wanted: Any) -> None:
    registry.register(Bare("quiet", lambda _: None))
    assert (registry.describe(wanted) if wanted else registry.describe()) == SHOWN[wanted]


@pytest.mark.parametrize("wanted", SHOWN)
@pytest.mark.parametrize(
    ("visibility", "is_for_models"), [(["app"], False), (["model", "app"], True), ([], False), ("app", True)]
)
def test_models_are_not_shown_what_only_apps_may_call(
    registry: MCPRegistry, wanted: Any, visibility: Any, *, is_for_models: bool
) -> None:
    registry.register(tool("press", meta={"_meta": {"ui": {"visibility": visibility}}}))
    shown = json.dumps(registry.describe(wanted) if wanted else registry.describe())
    assert ('"press"' in shown) is (is_for_models or wanted == "mcp")
    assert "press" in registry


def test_an_unknown_format_is_a_value_error_that_lists_the_formats(registry: MCPRegistry) -> None:
    with pytest.raises(ValueError, match=r"'xml'.*openai, anthropic, gemini, mcp"):
        registry.describe("xml")  # type: ignore[call-overload]


@pytest.mark.parametrize("formats", [(), *((each,) for each in FORMATS)], ids=["plain", *FORMATS])
def test_every_format_is_one_json_snapshot_until_the_tools_change(registry: MCPRegistry, formats: Any) -> None:
    first = registry.describe(*formats)
    assert registry.describe(*formats) is first
    snapshot = json.dumps(first)
    assert json.loads(snapshot) == first
    registry.register(tool("other"))
    assert "other" in str(registry.describe(*formats))
    registry.unregister("echo")
    assert "echo" not in str(registry.describe(*formats))
    assert json.dumps(first) == snapshot


@pytest.mark.parametrize("wanted", FORMATS)
def test_tags_select_tools_in_every_format(registry: MCPRegistry, wanted: Any) -> None:
    registry.update(add=[tool("a", tags=["x", "y"]), tool("b", tags=["y"]), tool("c", tags=["z"])])
    chosen = json.dumps(registry.describe(wanted, tags=["x", "z"]))
    assert '"a"' in chosen
    assert '"c"' in chosen
    assert '"b"' not in chosen
    assert "echo" not in chosen
    assert registry.describe(wanted, tags=["z", "x"]) is registry.describe(wanted, tags=("x", "z"))


def test_the_cache_of_descriptions_is_bounded(registry: MCPRegistry) -> None:
    for number in range(1000):
        assert registry.describe(tags=[f"tag {number}"]) == {}
    assert "echo" in registry.describe()


# Names


PORTABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


@given(st.text(min_size=1, max_size=200))
def test_every_name_has_a_portable_name(name: str) -> None:
    shown = portable_name(name)
    assert PORTABLE.fullmatch(shown)
    assert (shown == name) == bool(PORTABLE.fullmatch(name))
    assert portable_name(shown) == shown


def test_similar_names_have_different_portable_names() -> None:
    names = ["files/read", "files.read", "files_read", "读取", "搜索", "x" * 100, "x" * 101, "1", "\ud800"]
    assert len({portable_name(name) for name in names}) == len(names)
    assert portable_name("files/read").startswith("files_read_")


@pytest.mark.parametrize("wanted", ["openai", "anthropic", "gemini"])
async def test_a_tool_is_called_by_the_name_that_a_model_was_shown(registry: MCPRegistry, wanted: Any) -> None:
    registry.register(Bare("搜索/全部", lambda _: "found"))
    (shown,) = set(re.findall(r'"name": "([^"]+)"', json.dumps(registry.describe(wanted)))) - {"echo"}
    assert PORTABLE.fullmatch(shown)
    assert registry.call(shown, {}) == "found"
    assert await registry.acall(shown, {}) == "found"
    assert shown not in registry
    registry.unregister("搜索/全部")
    with pytest.raises(KeyError):
        registry.call(shown, {})


def test_mcp_and_planners_see_the_original_names(registry: MCPRegistry) -> None:
    registry.register(tool("files/read"))
    assert "files/read" in registry.describe()
    assert [shown["name"] for shown in registry.describe("mcp")] == ["echo", "files/read"]


# Gemini's schema


@pytest.mark.parametrize(
    ("schema", "reduced"),
    [
        ({"type": ["string", "null"]}, {"type": "string", "nullable": True}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"type": "string", "nullable": True}),
        ({"type": ["string", "integer"]}, {"anyOf": [{"type": "string"}, {"type": "integer"}]}),
        ({"oneOf": [{"type": "string"}, {"type": "boolean"}]}, {"anyOf": [{"type": "string"}, {"type": "boolean"}]}),
        ({"const": "x"}, {"type": "string", "enum": ["x"]}),
        ({"enum": ["a", "b", None]}, {"type": "string", "enum": ["a", "b"]}),
        ({"type": "integer", "enum": [1, 2]}, {"type": "integer"}),
        ({"type": "string", "format": "uuid"}, {"type": "string"}),
        ({"type": "string", "format": "date-time"}, {"type": "string", "format": "date-time"}),
        ({"type": "array"}, {"type": "array", "items": {"type": "string"}}),
        ({"items": {"type": "number"}}, {"type": "array", "items": {"type": "number"}}),
        ({"type": "object", "additionalProperties": False}, {"type": "object"}),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 9}, {"type": "number", "maximum": 9}),
        (
            {"properties": {"a": True}, "required": ["a", "b"]},
            {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
        ),
        (
            {"$ref": "#/$defs/x", "description": "d", "$defs": {"x": {"type": "integer"}}},
            {"type": "integer", "description": "d"},
        ),
        ({"$ref": "https://example.com/x"}, {"type": "string"}),
        (
            {
                "allOf": [
                    {"properties": {"a": {"type": "string"}}, "required": ["a"]},
                    {"properties": {"b": {"type": "null"}}},
                ]
            },
            {
                "type": "object",
                "properties": {"a": {"type": "string"}, "b": {"type": "string", "nullable": True}},
                "required": ["a"],
            },
        ),
    ],
)
def test_keywords_that_gemini_lacks_are_rewritten_or_left_out(schema: dict[str, Any], reduced: dict[str, Any]) -> None:
    assert gemini_schema(schema) == reduced


class Node(BaseModel):
    below: list[Node] = []
    beside: Node | None = None
    kind: Literal["leaf", "branch"] = "leaf"
    size: int = Field(default=1, gt=0, le=9)


def test_a_recursive_schema_is_cut(registry: MCPRegistry) -> None:
    @registry.tool
    def walk(root: Node, names: dict[str, int], limit: float | None = None) -> None: ...

    (tools,) = registry.describe("gemini", tags=None)
    parameters = tools["function_declarations"][1]["parameters"]
    root = parameters["properties"]["root"]
    assert root["properties"]["below"]["items"] == {"type": "object"}
    assert root["properties"]["kind"]["enum"] == ["leaf", "branch"]
    assert parameters["required"] == ["root", "names"]
    assert_reduced(parameters)


def test_references_that_multiply_are_cut() -> None:
    links = {f"s{n}": {"properties": {k: {"$ref": f"#/$defs/s{n + 1}"} for k in "abcdef"}} for n in range(12)}
    reduced = gemini_schema({"$ref": "#/$defs/s0", "$defs": links})
    assert len(json.dumps(reduced)) < 500_000


def test_a_schema_nested_too_deeply_is_an_object() -> None:
    schema: dict[str, Any] = {}
    for _ in range(50_000):
        schema = {"allOf": [schema]}
    assert gemini_schema(schema) == {"type": "object"}


WORDS = st.sampled_from(
    [
        *("type", "properties", "items", "required", "anyOf", "oneOf", "allOf"),
        *("enum", "const", "$ref", "$defs", "format", "a"),
    ]
)
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["string", "object", "array", "null", "#", "#/$defs/a", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(WORDS, ANYTHING, max_size=6))
def test_any_schema_is_reduced_for_gemini(schema: dict[str, Any]) -> None:
    assert_reduced(gemini_schema(schema))


def assert_reduced(schema: dict[str, Any]) -> None:
    assert schema.keys() <= GEMINI_FIELDS
    assert ("type" in schema) != ("anyOf" in schema)
    jsonschema_rs.validator_for({key: value for key, value in schema.items() if key in ("type", "enum", "required")})
    below = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    for inner in [*below, *([schema["items"]] if "items" in schema else [])]:
        assert_reduced(inner)


# Words that providers refuse, and with them the whole request


REFUSED = {"oneOf", "anyOf", "allOf", "enum", "const", "not", "$ref"}


@pytest.mark.parametrize("wanted", ["openai", "anthropic"])
def test_alternatives_at_the_top_become_one_object(wanted: Any) -> None:
    """What servers say of arguments as a whole: at least one of them, one form or another, all of several parts."""
    schemas: list[dict[str, Any]] = [
        {"properties": {"a": {}, "b": {}}, "required": ["a"], "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"oneOf": [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]}]},
        {
            "allOf": [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}}],
            "not": {"required": ["c"]},
        },
        {"$ref": "#/$defs/both", "$defs": {"both": {"properties": {"a": {}, "b": {}}, "required": ["a"]}}},
    ]
    registry = MCPRegistry()
    registry.update(add=[tool(f"t{number}", schema) for number, schema in enumerate(schemas)])
    shown = [told.get("function", told) for told in registry.describe(wanted)]
    found = [told.get("parameters", told.get("input_schema")) for told in shown]
    assert all(REFUSED.isdisjoint(schema) and schema["type"] == "object" for schema in found)
    assert [[*schema["properties"]] for schema in found] == [["a", "b"]] * 4
    assert [schema.get("required", []) for schema in found] == [["a"], [], ["a"], ["a"]]
    assert registry.describe()["t0"]["input_schema"] == schemas[0]


@given(st.dictionaries(WORDS, ANYTHING, max_size=6))
def test_any_schema_is_shown_as_an_object(schema: dict[str, Any]) -> None:
    registry = registry_of(tool("any", schema))
    (openai,), (anthropic,) = registry.describe("openai"), registry.describe("anthropic")
    for shown in (openai["function"]["parameters"], anthropic["input_schema"]):
        assert shown["type"] == "object"
        assert REFUSED.isdisjoint(shown)
        assert isinstance(shown.get("properties", {}), dict)


def test_gemini_gets_alternatives_without_other_keywords() -> None:
    """Vertex refuses whatever stands beside `anyOf`."""
    schema = {"description": "d", "default": 1, "anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]}
    assert gemini_schema(schema) == {
        "anyOf": [
            {"description": "d", "nullable": True, "type": "string"},
            {"description": "d", "nullable": True, "type": "integer"},
        ]
    }


@pytest.mark.parametrize("wanted", FORMATS)
def test_infinities_in_a_schema_become_null(wanted: Any) -> None:
    registry = MCPRegistry()

    @registry.tool
    def wait(seconds: float = math.inf) -> None: ...

    registry.register(tool("odd", {"properties": {"x": {"maximum": math.nan}}}))
    assert "Infinity" not in json.dumps(registry.describe(wanted), allow_nan=False)
    assert registry.call("wait", {}) is None
