"""The same tool of several computers is offered once, with an argument that names the computer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2c_smcp.bridge.catalog import CannotAdd, Catalog, CatalogOptions, add_argument, catalog, in_common_form
from a2c_smcp.bridge.names import GivenNames, OfferedTool, Target
from a2c_smcp.errors import BadRequest, ToolNotFound
from tests.stage.cases import cases

pytestmark = pytest.mark.covers("bridge-grouping")

PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
ON, OFF, AUTO = CatalogOptions(one_for_all="on"), CatalogOptions(one_for_all="off"), CatalogOptions()
WHICH = ("computer", "on_computer")
COMPUTER = {"type": "string", "enum": ["a", "b"], "description": "The computer that runs the tool."}


def offer(computer: str, tool: str = "read", schema: Mapping[str, Any] = PATH, **listing: Any) -> OfferedTool:
    return OfferedTool(Target(computer, tool), {"description": f"{tool}.", "inputSchema": schema, **listing})


def offers(computers: Iterable[str], **listing: Any) -> list[OfferedTool]:
    return [offer(computer, **listing) for computer in computers]


def listed(found: Catalog) -> dict[str, dict[str, Any]]:
    return {listing["name"]: listing for listing in found.listings()}


def named(*, version: int) -> dict[str, Any]:
    return {"type": "object", "properties": {"version": {"const": version}}}


# What is shared


def test_the_same_tool_of_several_computers_is_offered_once() -> None:
    found = catalog(offers("ab"), GivenNames(), ON)
    assert found.listings() == [
        {
            "name": "read",
            "description": "read.",
            "inputSchema": {
                "type": "object",
                "properties": {"computer": COMPUTER, "path": {"type": "string"}},
                "required": ["computer", "path"],
            },
        }
    ]
    assert found.resolve("read", {"computer": "b", "path": "x"}) == (Target("b", "read"), {"path": "x"})


def test_a_tool_of_one_computer_is_offered_as_it_is() -> None:
    assert listed(catalog(offers("a"), GivenNames(), ON))["read"]["inputSchema"] == PATH


@pytest.mark.parametrize(("options", "count", "is_shared"), [(AUTO, 3, False), (AUTO, 4, True), (OFF, 9, False)])
def test_the_options_say_from_how_many_computers_on(options: CatalogOptions, count: int, is_shared: bool) -> None:
    found = catalog(offers("abcdefghi"[:count]), GivenNames(), options)
    assert len(found.listings()) == (1 if is_shared else count)


def test_tools_with_other_schemas_are_not_the_same() -> None:
    other = [offer("c", schema={"type": "object"}), offer("d", outputSchema={"type": "object"})]
    found = catalog([*offers("ab"), *other], GivenNames(), ON)
    assert [*listed(found)] == ["c__read", "d__read", "read"]
    assert found.resolve("c__read", {"computer": "mine"}) == (Target("c", "read"), {"computer": "mine"})


def test_the_name_shows_the_schema_that_most_computers_have_and_another_one_has_a_name_of_its_own() -> None:
    found = catalog([*offers("abc"), *offers("de", schema=named(version=2)), offer("f", schema={})], GivenNames(), ON)
    enums = {name: listing["inputSchema"].get("properties", {}) for name, listing in listed(found).items()}
    [other] = enums.keys() - {"read", "f__read"}
    assert re.fullmatch("read_x[0-9a-f]{8}", other)
    assert enums["read"]["computer"]["enum"] == ["a", "b", "c"]
    assert enums[other]["computer"]["enum"] == ["d", "e"]
    assert enums["f__read"] == {}


def test_the_order_of_keys_and_the_description_make_no_difference() -> None:
    turned = dict(reversed(PATH.items()))
    found = catalog([offer("a"), offer("b", schema=turned, description="Another one.")], GivenNames(), ON)
    assert listed(found)["read"]["description"] == "read."


def test_one_computer_cannot_make_the_tools_of_others_look_harmless() -> None:
    safe = {"readOnlyHint": True, "openWorldHint": False}
    some = [offer("a", annotations=safe), offer("b", annotations={**safe, "readOnlyHint": False}), offer("c")]
    assert listed(catalog(some[:2], GivenNames(), ON))["read"]["annotations"] == {"openWorldHint": False}
    assert listed(catalog(some, GivenNames(), ON))["read"]["annotations"] == {}


def test_integers_beyond_64_bits_and_broken_characters_are_no_obstacle() -> None:
    odd = {"type": "object", "properties": {"n": {"maximum": 2**70, "title": "\ud800"}}}
    assert [*listed(catalog(offers("ab", schema=odd), GivenNames(), ON))] == ["read"]


# Calls


@pytest.mark.parametrize("computer", [None, "z", 7, ["a"]])
def test_a_call_must_name_a_computer_that_has_the_tool_now(computer: object) -> None:
    found = catalog(offers("ab"), GivenNames(), ON)
    with pytest.raises(BadRequest, match="'a', 'b'") as caught:
        found.resolve("read", {"computer": computer} if computer else {})
    assert caught.value.outcome == "not_run"


def test_a_name_stands_for_the_tool_of_every_computer_whatever_its_schema_there() -> None:
    found = catalog([*offers("ab"), offer("c", schema=named(version=2))], GivenNames(), ON)
    assert found.resolve("read", {"computer": "c"}) == (Target("c", "read"), {})


def test_an_error_names_only_some_of_many_computers() -> None:
    found = catalog(offers(f"c{number:03}" for number in range(200)), GivenNames(), ON)
    with pytest.raises(BadRequest, match=r"'c019' and 180 more$"):
        found.resolve("read", {})


def test_clients_with_an_older_list_still_call_the_tools_of_before() -> None:
    names = GivenNames()
    assert [*listed(catalog(offers("ab"), names, AUTO))] == ["b__read", "read"]
    found = catalog(offers("abcd"), names, AUTO)
    assert [*listed(found)] == ["read"]
    assert found.resolve("b__read", {"path": "x"}) == (Target("b", "read"), {"path": "x"})
    with pytest.raises(ToolNotFound):
        catalog(offers("acd"), names, AUTO).resolve("b__read", {})


# The added argument


def test_an_argument_of_the_tool_is_never_overwritten() -> None:
    own = {"type": "object", "properties": {"computer": {"type": "string"}}, "required": ["computer"]}
    found = catalog(offers("ab", schema=own), GivenNames(), ON)
    schema = listed(found)["read"]["inputSchema"]
    assert schema["required"] == ["on_computer", "computer"]
    assert schema["properties"]["computer"] == {"type": "string"}
    assert "'computer' is an argument of the tool itself" in schema["properties"]["on_computer"]["description"]
    call = {"on_computer": "b", "computer": "its own"}
    assert found.resolve("read", call) == (Target("b", "read"), {"computer": "its own"})


CLOSED = {"type": "object", "properties": {"path": {"type": "string"}}, "additionalProperties": False}
REFERRING = {"$ref": "#/$defs/Args", "$defs": {"Args": CLOSED}}
SCHEMAS: dict[str, dict[str, Any]] = {
    "empty": {},
    "closed": CLOSED,
    "unevaluated": {"allOf": [{"properties": {"path": True}}], "unevaluatedProperties": False},
    "reference": REFERRING,
    "draft-7": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$ref": "#/definitions/A",
        "definitions": {"A": CLOSED},
    },
    "reference and more": {**REFERRING, "required": ["path"], "properties": {"path": {"minLength": 2}}},
    "reference to a reference": {"$ref": "#/$defs/B", "$defs": {"B": {"$ref": "#/$defs/Args"}, **REFERRING["$defs"]}},
    "all of": {"type": "object", "allOf": [CLOSED, {"$ref": "#/$defs/Args"}], "$defs": REFERRING["$defs"]},
    "one of": {"oneOf": [CLOSED, {**CLOSED, "properties": {"url": {"type": "string"}}, "required": ["url"]}]},
    "any of": {"anyOf": [CLOSED, {"type": "object", "maxProperties": 1, "required": ["url"]}]},
    "if": {"if": {"required": ["url"]}, "then": {"maxProperties": 1}, "else": CLOSED},
    "not": {"not": {"required": ["url"]}},
    "names": {"propertyNames": {"maxLength": 4}, "minProperties": 1, "maxProperties": 2},
    "dependent": {"dependentSchemas": {"path": CLOSED}, "dependentRequired": {"url": ["path"]}},
    "dependencies": {"dependencies": {"path": CLOSED, "url": ["path"]}},
    "escaped": {"$ref": "#/$defs/a~1b", "$defs": {"a/b": CLOSED}},
    "recursive": {"$ref": "#/$defs/A", "$defs": {"A": {**CLOSED, "properties": {"child": {"$ref": "#/$defs/A"}}}}},
}
arguments = st.dictionaries(
    st.sampled_from(["path", "url", "other", "child"]),
    st.one_of(st.text(max_size=3), st.integers(), st.just({})),
    max_size=3,
)


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS.keys())
@given(given_arguments=arguments)
def test_what_is_valid_with_the_argument_is_what_was_valid_without(
    schema: dict[str, Any], given_arguments: dict[str, Any]
) -> None:
    before = deepcopy(schema)
    argument, changed = add_argument(schema, WHICH, lambda name: {"enum": ["a", "b"]})
    assert schema == before
    is_valid = jsonschema_rs.is_valid({"type": "object", **schema}, given_arguments)
    assert jsonschema_rs.is_valid(changed, {**given_arguments, argument: "a"}) == is_valid
    assert not jsonschema_rs.is_valid(changed, {**given_arguments, argument: "c"})
    assert not jsonschema_rs.is_valid(changed, given_arguments)


TOP = {"allOf", "anyOf", "oneOf"}
COMMON: dict[str, dict[str, Any]] = {
    "none": {"type": "object"},
    "all of": {"allOf": [{"properties": {"path": {"type": "string"}}}, {"type": "object", "required": ["path"]}]},
    "any of one": {
        "properties": {"url": True},
        "required": ["url"],
        "anyOf": [{"properties": {"path": {"minLength": 2}}}],
    },
    "one in one": {"oneOf": [{"properties": {"path": True, "url": {"type": "string"}}, "required": ["url"]}]},
}


@pytest.mark.parametrize(
    "schema", [*COMMON.values(), *SCHEMAS.values()], ids=[*COMMON, *(f"{name}, too" for name in SCHEMAS)]
)
@given(given_arguments=arguments)
def test_what_is_valid_stays_so_in_the_form_that_more_clients_accept(
    schema: dict[str, Any], given_arguments: dict[str, Any]
) -> None:
    before, changed = deepcopy(schema), in_common_form(schema)
    assert schema == before
    assert changed["type"] == "object"
    assert isinstance(changed["properties"], dict)
    assert schema not in COMMON.values() or TOP.isdisjoint(changed)
    is_valid = jsonschema_rs.is_valid({"type": "object", **schema}, given_arguments)
    assert jsonschema_rs.is_valid(changed, given_arguments) == is_valid


@cases(
    "schema",
    {"allOf": [{"properties": {"path": True}}], "additionalProperties": False},
    {"allOf": [{"properties": {"a": {"$ref": "#/allOf/0"}}}]},
    {"allOf": [{"properties": {"a": True}}, {"properties": {"a": False}}]},
    {"allOf": [{"properties": []}]},
    {"allOf": [{"required": [{}]}]},
    {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    {"oneOf": 7},
)
def test_a_schema_that_would_be_another_one_is_left_as_it_is(schema: dict[str, Any]) -> None:
    assert in_common_form(schema) == {"type": "object", "properties": {}, **schema}


@pytest.mark.parametrize("schema", [REFERRING, SCHEMAS["draft-7"], SCHEMAS["reference to a reference"]])
def test_readers_that_know_no_references_find_the_properties_at_the_top(schema: dict[str, Any]) -> None:
    _, changed = add_argument(schema, WHICH, lambda name: {})
    assert [*changed["properties"]] == ["computer", "path"]
    assert changed["additionalProperties"] is False
    assert "$ref" not in changed


@cases(
    "schema",
    {"patternProperties": {"^c": {"type": "integer"}}},
    {"allOf": [{"enum": [{}]}]},
    {"$ref": "https://example.com/schema"},
    {"$ref": "#anchor"},
    {"$ref": "#/$defs/none"},
    {"$ref": "#"},
    {"properties": {"child": {"$ref": "#"}}},
    {"allOf": [{}], "properties": {"child": {"items": [{"$ref": "#/allOf/0"}]}}},
    {"$id": "https://example.com/a", "properties": {"child": {"$ref": "a"}}},
    {"$dynamicAnchor": "a", "properties": {"child": {"$dynamicRef": "#a"}}},
    {"$ref": 7},
    {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
    {"allOf": 7},
    {"anyOf": [7]},
    {"properties": []},
    {"required": "path"},
    {"minProperties": "1"},
)
def test_a_tool_whose_schema_cannot_be_changed_safely_is_offered_for_each_computer(schema: dict[str, Any]) -> None:
    with pytest.raises(CannotAdd):
        add_argument(schema, WHICH, lambda name: {})
    found = catalog(offers("ab", schema=schema), GivenNames(), ON)
    assert {name: listing["inputSchema"] for name, listing in listed(found).items()} == {
        "read": schema,
        "b__read": schema,
    }


def test_a_tool_that_uses_every_name_gets_a_numbered_one() -> None:
    own = {"properties": {name: {} for name in (*WHICH, "on_computer_2")}}
    assert add_argument(own, WHICH, lambda name: {})[0] == "on_computer_3"


# Computers that come and go


def test_a_tool_that_was_shared_once_stays_shared_across_restarts(tmp_path: Path) -> None:
    assert [*listed(catalog(offers("abcd"), GivenNames(tmp_path / "names.json")))] == ["read"]
    [one] = catalog(offers("c"), GivenNames(tmp_path / "names.json")).listings()
    assert (one["name"], one["inputSchema"]["properties"]["computer"]["enum"]) == ("read", ["c"])


def test_the_shared_tool_has_the_name_that_the_first_computer_had_alone() -> None:
    names = GivenNames()
    assert [[*listed(catalog(offers(some), names))] for some in ("a", "abcd")] == [["read"], ["read"]]


def test_a_name_of_a_computer_that_is_not_part_of_it_is_not_taken_over() -> None:
    names, other = GivenNames(), offer("z", schema=named(version=1))
    shown = [[*listed(catalog(some, names, ON))] for some in ([other], offers("ab"), [*offers("ab"), other])]
    assert shown == [["read"], ["read_2"], ["read", "read_2"]]


def test_a_tool_that_is_updated_on_one_computer_after_another_keeps_its_name() -> None:
    names = GivenNames()
    catalog(offers("abcd", schema=named(version=1)), names)
    shown = [updated(names, count) for count in range(5)]
    versions = [version_of(found["read"]) for found in shown]
    assert (versions[:2], versions[3:]) == ([1, 1], [2, 2])  # between them, as many computers have one as the other
    assert ["d__read" in found for found in shown] == [False, True, False, False, False]
    assert [len(found) for found in shown] == [1, 2, 2, 2, 1]


def updated(names: GivenNames, count: int) -> dict[str, Any]:
    """What is listed when so many of four computers have the second version. Each can be called by the tool's name."""
    versions = [1] * (4 - count) + [2] * count
    some = [offer(each, schema=named(version=version)) for each, version in zip("abcd", versions, strict=True)]
    found = catalog(some, names)
    assert [found.resolve("read", {"computer": each})[0].computer for each in "abcd"] == [*"abcd"]
    return {name: listing["inputSchema"]["properties"] for name, listing in listed(found).items()}


def version_of(properties: dict[str, Any]) -> int:
    version: int = properties["version"]["const"]
    return version


def test_a_schema_that_most_computers_have_now_can_be_called_by_the_name_it_had_before() -> None:
    names = GivenNames()
    both = [*offers("abc"), *offers("de", schema=named(version=2))]
    [other] = listed(catalog(both, names, ON)).keys() - {"read"}
    found = catalog(both[2:], names, ON)
    assert version_of(listed(found)["read"]["inputSchema"]["properties"]) == 2
    assert found.resolve(other, {"computer": "e", "path": "x"}) == (Target("e", "read"), {"path": "x"})


def test_without_shared_tools_their_names_are_free() -> None:
    names = GivenNames()
    catalog(offers("abcd"), names, ON)
    assert [*listed(catalog(offers("ab"), names, OFF))] == ["b__read", "read"]


present = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from([1, 2]), min_size=1, max_size=6)


@given(st.lists(present, max_size=6), st.sampled_from([ON, AUTO]))
def test_computers_that_come_go_and_change_never_rename_a_shared_tool(
    rounds: list[dict[str, int]], options: CatalogOptions
) -> None:
    with TemporaryDirectory() as folder:
        for office in [dict.fromkeys("abcd", 1), *rounds]:
            some = [offer(computer, schema=named(version=version)) for computer, version in office.items()]
            found = catalog(some, GivenNames(Path(folder) / "names.json"), options)
            assert "computer" in listed(found)["read"]["inputSchema"]["properties"]
            assert [found.resolve("read", {"computer": each})[0].computer for each in office] == [*office]
            assert all(re.fullmatch("read|read_x[0-9a-f]{8}|[a-f]__read", name) for name in listed(found))
