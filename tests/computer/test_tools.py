"""The tool table: names, what an agent is shown, and the check of arguments."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from a2c_smcp.computer.calls.catalog import check_arguments
from a2c_smcp.computer.calls.table import ToolTable, build_table, diff
from a2c_smcp.errors import BadRequest, ToolForbidden, ToolNotFound
from a2c_smcp.mcp_host.config.servers import BaseServerConfig, ToolMeta, parse_server
from a2c_smcp.registry.schemas.check import Schema, SchemaTooHeavy
from a2c_smcp.smcp import SMCPTool
from tests.computer.pace import within

pytestmark = pytest.mark.covers("tools-names", "tools-meta", "tools-arguments")

Server = tuple[BaseServerConfig, list[dict[str, Any]]]


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **fields}


def server(name: str, *tools: str | dict[str, Any], **config: Any) -> dict[str, Server]:
    listed = [tool(each) if isinstance(each, str) else each for each in tools]
    return {name: (parse_server({"command": "x", **config}, name), listed)}


def names(table: ToolTable) -> list[str]:
    return [each["name"] for each in table.listed]


def meta_of(raw: dict[str, Any], **config: Any) -> dict[str, Any]:
    meta = build_table(server("s", raw, **config)).listed[0].get("meta")
    assert isinstance(meta, dict)
    return meta


# Names


def test_a_tool_is_listed_and_called_under_its_alias_or_its_own_name_alone() -> None:
    table = build_table(server("files", "read", "write", tool_meta={"read": {"alias": "read_file"}}))
    assert (names(table), table.warnings) == (["read_file", "write"], [])
    route = table.resolve("read_file")
    assert (route.server, route.tool, route.meta.alias) == ("files", "read", "read_file")
    with pytest.raises(ToolNotFound) as caught:
        table.resolve("read")
    assert (caught.value.code, caught.value.details) == (404, {"toolId": "read"})


@pytest.mark.parametrize("forbidden", ["read", "read_file"])
def test_a_forbidden_tool_is_neither_listed_nor_callable_by_either_name(forbidden: str) -> None:
    meta = {"read": {"alias": "read_file"}}
    table = build_table(server("files", "read", "write", forbidden_tools=[forbidden], tool_meta=meta))
    assert names(table) == ["write"]
    for name in ("read", "read_file"):
        with pytest.raises(ToolForbidden):
            table.resolve(name)


def test_a_tool_that_one_server_forbids_may_be_offered_by_another() -> None:
    table = build_table(server("a", "read", forbidden_tools=["read"]) | server("b", "read"))
    assert (names(table), table.resolve("read").server, table.warnings) == (["read"], "b", [])


def test_the_server_that_is_configured_first_keeps_a_name_and_the_other_shows_its_origin() -> None:
    table = build_table(server("web", "read", "fetch") | server("files", "read"))
    assert names(table) == ["files__read", "read", "fetch"]
    assert table.resolve("read").server == "web"
    assert (table.resolve("files__read").server, table.resolve("files__read").tool) == ("files", "read")
    assert table.warnings == [
        "tool 'read' of server 'files' is listed as 'files__read', because server 'web' has a tool 'read'; "
        "an alias would tell them apart, such as 'files_read'"
    ]


def test_a_name_that_begins_like_another_server_is_never_given_away() -> None:
    table = build_table(server("evil", "mail__send", "x") | server("mail", "send", "x"))
    assert names(table) == ["evil__mail__send", "x", "send", "mail__x"]
    assert table.resolve("mail__x").server == "mail"
    with pytest.raises(ToolNotFound):
        table.resolve("mail__send")
    assert "because that is a name for another server's tools" in table.warnings[0]


def test_of_two_servers_that_fit_the_longer_name_has_it() -> None:
    table = build_table(server("a", "b__c", "x") | server("a__b", "c", "x") | server("z", "b__c", "c"))
    assert table.resolve("b__c").server == "a"
    assert table.resolve("a__b__x").server == "a__b"
    nameless = build_table(server("first", "b__c") | server("a", "b__c") | server("a__b"))
    assert names(nameless) == ["b__c"]
    assert nameless.warnings == [
        "tool 'b__c' of server 'a' is not listed, because server 'first' has a tool 'b__c'; give it an alias"
    ]


def test_a_server_with_a_tool_under_its_own_longer_name_gets_another_number() -> None:
    table = build_table(server("a", "x") | server("b", "b__x", "x"))
    assert names(table) == ["x", "b__x", "b__x_2"]


def test_an_alias_clashes_like_a_name_and_may_resolve_a_clash() -> None:
    table = build_table(server("a", "x") | server("b", "y", tool_meta={"y": {"alias": "x"}}))
    assert (names(table), table.resolve("b__y").tool) == (["x", "b__y"], "y")
    table = build_table(server("a", "x") | server("b", "x", tool_meta={"x": {"alias": "b_x"}}))
    assert (names(table), table.warnings) == (["x", "b_x"], [])


@pytest.mark.parametrize("name", ["x" * 257, "a\nb", " a", "\u202ea"])
def test_a_name_that_cannot_travel_is_not_listed_but_reported(name: str) -> None:
    table = build_table(server("files", name, "read"))
    assert names(table) == ["read"]
    assert "is not listed: its name must" in table.warnings[0]


tables = st.dictionaries(
    st.sampled_from(["a", "b", "c", "a__x"]),
    st.tuples(
        st.lists(st.sampled_from(["x", "y", "b__x", "a__x", "b__x_2"]), unique=True),
        st.dictionaries(st.sampled_from(["x", "y", "b__x"]), st.sampled_from(["x", "y", "z", "b__x"])),
        st.lists(st.sampled_from(["x", "z"]), max_size=1),
        st.sampled_from([None, "x"]),
    ),
)


@given(tables)
def test_every_tool_has_a_name_of_its_own_and_none_that_belongs_to_another_server(shape: dict[str, Any]) -> None:
    servers: dict[str, Server] = {}
    for name, (tools, aliases, forbidden, default) in shape.items():
        meta = {each: {"alias": alias} for each, alias in aliases.items()}
        servers |= server(name, *tools, tool_meta=meta, forbidden_tools=forbidden, default_tool_meta={"alias": default})
    table = build_table(servers)
    assert len(set(names(table))) == len(table.listed) == len(table.routes)
    routed = [(route.server, route.tool) for route in map(table.resolve, names(table))]
    allowed = [
        (name, each)
        for name, (tools, aliases, forbidden, default) in sorted(shape.items())
        for each in tools
        if each not in forbidden and aliases.get(each, default) not in forbidden
    ]
    assert [each for each in allowed if each in routed] == routed
    assert len(allowed) - len(routed) == sum("is not listed" in warning for warning in table.warnings)
    for name, route in table.routes.items():
        fitting = [each for each in servers if name.startswith(f"{each}__")]
        assert max(fitting, key=len, default=route.server) == route.server


# What an agent is shown


def test_scenario_1_of_000() -> None:
    fields = {"name": {"default": "World", "title": "Name", "type": "string"}}
    given = {"properties": fields, "title": "helloArguments", "type": "object"}
    found = {"properties": {"result": {"type": "string"}}, "required": ["result"], "type": "object"}
    about = {"name": "hello", "description": "Say hello to someone."}
    raw = {**about, "inputSchema": given, "outputSchema": found}
    expected = {**about, "params_schema": given, "return_schema": found, "meta": {}}
    assert json.dumps(build_table(server("s", raw, default_tool_meta=None)).listed) == json.dumps([expected])


def test_scenario_2_of_000() -> None:
    schemas = {"inputSchema": {"...": "..."}, "outputSchema": {"...": "..."}}
    raw = {"name": "browser_navigate", "description": "Navigate to a URL.", **schemas}
    table = build_table(server("s", raw, default_tool_meta={"tags": ["browser"], "auto_apply": True}))
    assert json.dumps(table.listed[0]) == (
        '{"name": "browser_navigate", "description": "Navigate to a URL.", "params_schema": {"...": "..."}, '
        '"return_schema": {"...": "..."}, "meta": {"a2c_tool_meta": "{\\"auto_apply\\": true, \\"alias\\": null, '
        '\\"tags\\": [\\"browser\\"], \\"ret_object_mapper\\": null}"}}'
    )


def test_missing_fields_of_a_tool_are_empty() -> None:
    assert build_table(server("s", {"name": "t"})).listed == [
        {"name": "t", "description": "", "params_schema": {}, "return_schema": None, "meta": {}}
    ]


@pytest.mark.parametrize(
    ("default", "own", "effective"),
    [
        (None, {"auto_apply": True}, {"auto_apply": True}),
        ({"auto_apply": True}, None, {"auto_apply": True}),
        ({"auto_apply": True, "tags": ["a"]}, {"auto_apply": False}, {"auto_apply": False, "tags": ["a"]}),
        ({"auto_apply": True, "tags": ["a"]}, {"auto_apply": None, "tags": []}, {"auto_apply": True, "tags": []}),
        ({"alias": "d"}, {"alias": "o", "ret_object_mapper": {}}, {"alias": "o", "ret_object_mapper": {}}),
        (None, {}, {}),
    ],
)
def test_the_tools_own_meta_overlays_the_default_field_by_field(
    default: dict[str, Any] | None, own: dict[str, Any] | None, effective: dict[str, Any]
) -> None:
    config = {"default_tool_meta": default, "tool_meta": {} if own is None else {"t": own}}
    nothing = dict.fromkeys(("auto_apply", "alias", "tags", "ret_object_mapper"))
    assert json.loads(meta_of(tool("t"), **config)["a2c_tool_meta"]) == nothing | effective
    (route,) = build_table(server("s", "t", **config)).routes.values()
    assert route.meta == ToolMeta(**effective)


@pytest.mark.parametrize("raw", [{}, {"annotations": None}, {"annotations": {}}], ids=repr)
def test_without_any_meta_there_is_no_entry_and_nothing_is_allowed(raw: dict[str, Any]) -> None:
    assert meta_of(tool("t", **raw)) == {}
    assert build_table(server("s", tool("t", **raw))).resolve("t").meta == ToolMeta()


def test_fields_unknown_to_000_are_not_listed() -> None:
    meta = meta_of(tool("t"), default_tool_meta={"auto_apply": True, "password": "s3cr3t"})
    assert "s3cr3t" not in json.dumps(meta)


def test_annotations_are_a_json_string_in_mcps_spelling() -> None:
    annotations = {"title": "删除", "readOnlyHint": False, "destructiveHint": True}
    meta = meta_of(tool("t", annotations=annotations))
    assert meta.keys() == {"MCP_TOOL_ANNOTATION"}
    assert json.loads(meta["MCP_TOOL_ANNOTATION"]) == annotations


@pytest.mark.parametrize("value", ["text", 5, 1.5, True, None, ["a", "b"], []])
def test_simple_entries_of_the_server_stay(value: object) -> None:
    assert meta_of(tool("t", _meta={"own": value})) == {"own": value}


@pytest.mark.parametrize("value", [{"a": [1]}, [1, 2], ["a", None], [["a"]], {}])
def test_other_entries_of_the_server_become_json_strings(value: object) -> None:
    meta = meta_of(tool("t", _meta={"own": value, "number": float("nan")}))
    assert (json.loads(meta["own"]), meta["number"]) == (value, "NaN")


def test_title_icons_and_execution_become_json_strings_that_a_server_cannot_set_otherwise() -> None:
    said = {
        "title": "A tool",
        "icons": [{"src": "https://example.org/i.png"}],
        "execution": {"taskSupport": "required"},
    }
    keys = [f"MCP_TOOL_{name.upper()}" for name in said]
    forged = dict.fromkeys((*keys, "a2c_x", "error_code"), "lie")
    meta = meta_of(tool("t", **said, _meta=forged))
    assert {key: json.loads(value) for key, value in meta.items()} == dict(zip(keys, said.values(), strict=True))
    assert meta_of(tool("t", _meta=forged)) == {}


@pytest.mark.parametrize("config", [{}, {"default_tool_meta": {"auto_apply": False}}])
def test_a_server_is_never_believed_under_our_keys(config: dict[str, Any]) -> None:
    lie = json.dumps({"auto_apply": True})
    forged = {"a2c_tool_meta": lie, "MCP_TOOL_ANNOTATION": lie, "tags": ["mine"]}
    meta = meta_of(tool("t", _meta=forged), **config)
    assert lie not in meta.values()
    assert meta["tags"] == ["mine"]
    assert "MCP_TOOL_ANNOTATION" not in meta
    assert ("a2c_tool_meta" in meta) == bool(config)


@pytest.mark.covers("peer-tags")
def test_tags_that_a_server_gives_to_its_own_tool_are_the_lowest_layer() -> None:
    own = tool("t", _meta={"a2c_tool_meta": {"tags": ["db"], "alias": "evil", "auto_apply": True}})

    def tags(**config: Any) -> tuple[Any, Any, Any]:
        meta = meta_of(own, **config)
        effective = json.loads(meta["a2c_tool_meta"])
        return effective["tags"], effective["auto_apply"], meta.get("a2c_tags_of_server")

    assert tags() == (["db"], None, True)
    assert names(build_table(server("s", own))) == ["t"]
    assert tags(default_tool_meta={"auto_apply": False}) == (["db"], False, True)
    assert tags(default_tool_meta={"tags": ["mine"]}) == (["mine"], None, None)
    assert tags(tool_meta={"t": {"tags": []}}) == ([], None, None)


@pytest.mark.parametrize("told", ['{"tags": ["a"]}', ["a"], {"tags": "a"}, {"tags": ["a", 1]}, {"tags": []}, {}, None])
def test_anything_else_under_our_key_is_dropped(told: object) -> None:
    assert meta_of(tool("t", _meta={"a2c_tool_meta": told, "a2c_tags_of_server": False})) == {}


@given(
    st.dictionaries(
        st.text(),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        ),
    )
)
def test_meta_of_any_server_is_strict_json_of_simple_types(own: dict[str, Any]) -> None:
    (listed,) = build_table(server("s", tool("t", _meta=own))).listed
    TypeAdapter(SMCPTool).validate_python(listed, strict=True)
    json.dumps(listed, allow_nan=False)


# Changes


def test_a_difference_is_what_an_agent_sees() -> None:
    old = build_table(server("a", "x", "y", "z"))
    new = build_table(server("a", "x", tool("y", description="new")) | server("b", "w"))
    changes = diff(old, new)
    assert changes
    assert (changes.added, changes.removed, changes.changed) == (("w",), ("z",), ("y",))
    unseen = server("a", "z", "y", tool("x", unseen=1), disabled=True)
    assert not diff(old, build_table(unseen)), "an order or a detail that no agent sees"
    assert not diff(old, old)


# Arguments


def faults(schema: dict[str, Any], params: dict[str, Any]) -> list[dict[str, str]]:
    compiled = Schema(schema)
    assert compiled.unusable is None
    try:
        asyncio.run(check_arguments(compiled, params))
    except BadRequest as error:
        refusal = error
    else:
        return []
    assert (refusal.code, refusal.details["field"]) == (400, "params")
    return list(refusal.details["errors"])


def paths(schema: dict[str, Any], params: dict[str, Any]) -> set[str]:
    return {fault["path"] for fault in faults(schema, params)}


def test_arguments_that_fit_pass() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert faults(schema, {"a": 5, "more": "is fine"}) == []
    assert faults({}, {"anything": [None]}) == []
    assert faults(schema, {"a": 10**30}) == []


def test_each_fault_has_a_json_pointer() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a/b~c": {"type": "integer"},
            "list": {"items": {"properties": {"x": {"maxLength": 2}}}},
            "choice": {"enum": ["x", "y"]},
        },
        "required": ["needed"],
        "additionalProperties": False,
    }
    found = faults(schema, {"a/b~c": "s3cr3t", "list": [{}, {"x": "s3cr3t"}], "choice": "s3cr3t", "extra": "s3cr3t"})
    assert {fault["path"] for fault in found} == {"/a~1b~0c", "/list/1/x", "/choice", ""}
    assert "s3cr3t" not in json.dumps(found)
    assert all(any(name in fault["message"] for fault in found) for name in ("needed", "extra"))


@pytest.mark.parametrize("is_heavy", [False, True], ids=["checked here", "checked in another process"])
def test_a_parameter_that_is_sent_as_a_header_may_be_null_unless_it_is_required(is_heavy: bool) -> None:
    flag = {"type": "boolean", "x-mcp-header": "Flag"}
    inner = {"type": "object", "properties": {"flag": flag, "plain": {"type": "boolean"}}}
    schema = {
        "type": "object",
        "properties": {"flag": flag, "needed": flag, "plain": {"type": "boolean"}, "inner": inner},
        "required": ["needed"],
    }
    if is_heavy:
        schema["properties"]["text"] = {"pattern": "(?=a)b"}  # type: ignore[index]  # only a backtracking engine can
    assert (Schema(schema).ready.validator is None) == is_heavy
    assert faults(schema, {"flag": None, "needed": True, "inner": {"flag": None}}) == []
    unfit = {"flag": "yes", "needed": None, "plain": None, "inner": {"plain": None}}
    assert paths(schema, unfit) == {"/flag", "/needed", "/plain", "/inner/plain"}


def test_the_message_names_the_first_fault() -> None:
    schema = Schema({"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}})
    with pytest.raises(BadRequest) as caught:
        asyncio.run(check_arguments(schema, {"a": "x", "b": "y"}))
    assert caught.value.message == 'Bad request: params/a: value is not of type "integer" (and 1 more)'


VALUES = st.recursive(
    st.sampled_from(["s3cr3t", "s3cr3t-2", 8734512, 8734512.25]),
    lambda inner: st.lists(inner, min_size=1, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
RULES = st.recursive(
    st.sampled_from(
        [
            *({"type": "null"}, {"type": ["null", "boolean"]}, {"enum": ["x"]}, {"const": 1}, {"pattern": "^x"}),
            *({"maxLength": 1}, {"minLength": 99}, {"maximum": 1}, {"exclusiveMinimum": 9e9}, {"multipleOf": 7}),
            *({"minItems": 9}, {"maxItems": 0}, {"uniqueItems": True}, {"contains": {"type": "null"}}, False),
            *({"required": ["z"]}, {"minProperties": 9}, {"propertyNames": {"maxLength": 0}}, {"not": {}}),
            *({"format": "uuid"}, {"dependentRequired": {"a": ["z"]}}, {"additionalProperties": False}),
            *({"unevaluatedProperties": False}, {"unevaluatedItems": False}, {"contentEncoding": "base64"}),
        ]
    ),
    lambda inner: st.sampled_from(
        ["items", "additionalProperties", "not", "anyOf", "oneOf", "allOf", "prefixItems"]
    ).flatmap(
        lambda key: (st.lists(inner, min_size=1, max_size=2) if key.endswith(("Of", "Items")) else inner).map(
            lambda value: {key: value}
        )
    ),
    max_leaves=4,
)


@given(RULES, st.dictionaries(st.sampled_from("abc"), VALUES))
def test_no_argument_is_ever_quoted(rule: Any, params: dict[str, Any]) -> None:
    told = json.dumps(faults({"additionalProperties": rule}, params))
    assert "s3cr3t" not in told
    assert "8734512" not in told


@pytest.mark.parametrize(
    "schema",
    [
        *({"type": "objekt"}, {"properties": []}, {"properties": {"a": {"pattern": "("}}}),
        *({"$ref": ref} for ref in ("https://example.com/schema.json", "file:///etc/passwd", "#/definitions/missing")),
        *({"properties": {"a": {"$ref": "other.json#/a"}}}, {"$schema": "https://example.com/my-own-draft"}),
    ],
    ids=str,
)
def test_a_schema_that_cannot_be_used_is_reported_and_blocks_nothing(schema: dict[str, Any]) -> None:
    table = build_table(server("files", tool("read", inputSchema=schema), "write"))
    assert names(table) == ["read", "write"]
    assert table.listed[0]["params_schema"] == schema
    assert [warning.partition(", ")[0] for warning in table.warnings] == [
        "tool 'read' of server 'files': arguments are not checked"
    ]
    asyncio.run(check_arguments(table.resolve("read").schema, {"a": "anything"}))


@pytest.mark.parametrize(
    ("draft", "schema"),
    [
        ("https://json-schema.org/draft/2020-12/schema", {"prefixItems": [{"type": "null"}]}),
        (None, {"prefixItems": [{"type": "null"}]}),
        ("http://json-schema.org/draft-07/schema#", {"items": [{"type": "null"}]}),
    ],
)
def test_the_draft_is_2020_12_unless_the_schema_says_another(draft: str | None, schema: dict[str, Any]) -> None:
    assert paths({"properties": {"a": schema}, **({"$schema": draft} if draft else {})}, {"a": ["x"]}) == {"/a/0"}


def test_local_references_and_recursion_work() -> None:
    tree = {"$defs": {"n": {"type": "object", "properties": {"c": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"}
    assert faults(tree, {"c": {"c": {}}}) == []
    assert paths(tree, {"c": {"c": 5}}) == {"/c/c"}


def doubling(title: str) -> dict[str, Any]:
    steps = {f"s{n}": {"anyOf": [{"$ref": f"#/$defs/s{n - 1}"}, {"$ref": f"#/$defs/s{n - 1}"}]} for n in range(1, 40)}
    definitions = {"s0": {"type": "string"}, **steps}
    return {"title": title, "$defs": definitions, "properties": {"a": {"$ref": "#/$defs/s39"}}}


def test_a_schema_whose_check_takes_too_long_is_refused_and_then_at_once() -> None:
    compiled = Schema(doubling("one"))
    for seconds in (60, 0.5):
        too_heavy = pytest.raises(SchemaTooHeavy, match="too heavy to check: a check took longer than 1 s")
        with within(seconds), too_heavy:
            asyncio.run(check_arguments(compiled, {"a": 5}))


@pytest.mark.covers("mcp-bounded")
async def test_checks_that_wait_for_each_other_leave_the_threads_of_the_event_loop_to_others() -> None:
    schemas = [Schema(doubling(str(number))) for number in range(40)]
    checking = [asyncio.create_task(check_arguments(schema, {"a": 5})) for schema in schemas]
    assert not (await asyncio.wait(checking, timeout=0.1))[0]
    async with asyncio.timeout(5):
        await asyncio.to_thread(int)
    for each in checking:
        each.cancel()
    await asyncio.gather(*checking, return_exceptions=True)


TOO_LARGE = [{"path": "", "message": "does not fit, and is too large to say where"}]
BRANCHING = {"type": "object", "additionalProperties": {"oneOf": [{"$ref": "#"}, {"$ref": "#"}, {"$ref": "#"}]}}
SELF = [
    BRANCHING,
    {**BRANCHING, "additionalProperties": {"anyOf": [{"$ref": "#/additionalProperties/anyOf/1"}, {"$ref": "#"}]}},
    {**BRANCHING, "additionalProperties": {"oneOf": [{"$ref": "#/%61dditionalProperties/oneOf/1"}, {"$ref": "#"}]}},
    {"$defs": {"n": {"$anchor": "n", **BRANCHING}}, "$ref": "#n"},
    {"$id": "https://example.com/n", "additionalProperties": {"oneOf": [{"$ref": "n"}, {"$ref": "n"}]}},
    {"$ref": "https://json-schema.org/draft/2020-12/schema"},
    {"properties": {"a": {"$id": "https://example.com/a", "not": {"not": {"$ref": "#"}}}}},
    {"$dynamicAnchor": "n", "items": {"allOf": [{"$dynamicRef": "#n"}, {"$dynamicRef": "#n"}]}},
    {"properties": {f"p{n}": {"pattern": "a"} for n in range(33)}},
    {"properties": {"a": {"pattern": r"^(\w{1,200}){1,50}$"}}},
    {"properties": {"a": {"pattern": r"^(a*)*\1b$"}}},
    *(
        {keyword: {name: {"allOf": [{"$ref": f"#/{keyword}/{name}"}, {"$ref": f"#/{keyword}/{name}"}]}}}
        for keyword in ("properties", "patternProperties", "dependentSchemas", "dependencies")
        for name in ("default", "enum", "const", "examples", "$ref")
    ),
    {"$defs": {"n": {"$defs": {"const": {"not": {"$ref": "#/$defs/n"}}}}}, "$ref": "#/$defs/n"},
    *(
        {"additionalProperties": {"oneOf": [{"$ref": reference}, {"$ref": reference}]}}
        for reference in ("/", ".", "a/..", "json-schema:///", "json-schema:///#/additionalProperties")
    ),
]


@pytest.mark.covers("mcp-bounded")
@pytest.mark.parametrize("schema", SELF, ids=str)
def test_a_schema_that_may_multiply_the_work_is_never_checked_in_this_process(schema: dict[str, Any]) -> None:
    compiled = Schema(schema)
    assert (compiled.ready.validator, compiled.unusable) == (None, None)


@pytest.mark.covers("mcp-bounded")
def test_a_schema_that_refers_to_itself_in_branches_is_answered_in_time() -> None:
    params: dict[str, Any] = {"a": {"a": 1}}
    assert faults(BRANCHING, {"a": 1}) != []
    for _ in range(30):
        params = {"a": params}
    with within(5):
        assert faults(BRANCHING, params) == TOO_LARGE


def test_ordinary_schemas_are_checked_in_this_process() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "https://example.com/search",
        "type": "object",
        "properties": {"id": {"type": "string", "pattern": "^[0-9a-f]{8}-[0-9a-f]{4}$"}, "at": {"$ref": "#/$defs/at"}},
        "$defs": {"at": {"type": "array", "items": {"type": "number"}, "default": [{"id": "x"}]}},
        "required": ["id"],
        "additionalProperties": False,
    }
    assert Schema(schema).ready.validator is not None


def test_endless_chains_of_references_are_not_followed() -> None:
    links: dict[str, Any] = {f"s{n}": {"$ref": f"#/$defs/s{n - 1}"} for n in range(1, 5000)}
    assert Schema({"$defs": {"s0": {}, **links}, "$ref": "#/$defs/s4999"}).unusable == "nested too deeply"


def test_arguments_without_end_are_refused() -> None:
    params: dict[str, Any] = {}
    for _ in range(100_000):
        params = {"c": params}
    tree = {"$defs": {"n": {"properties": {"c": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"}
    assert faults(tree, params) == [{"path": "", "message": "nested more than 200 deep"}]


def test_a_million_faults_are_one_answer() -> None:
    schema = {"properties": {"a": {"anyOf": [{"items": {"type": "string"}}, {"type": "null"}]}}}
    with within(5):
        assert faults(schema, {"a": list(range(1_000_000))}) == TOO_LARGE
    assert len(faults({"additionalProperties": False}, {str(n): n for n in range(50)})) == 1
    assert len(faults({"additionalProperties": {"type": "null"}}, {str(n): n for n in range(50)})) == 20


def test_a_check_that_would_take_too_long_is_left_to_the_server() -> None:
    strings = {"anyOf": [{"type": "string", "title": str(n)} for n in range(2000)]}
    schema = Schema({"additionalProperties": {"items": strings}})
    asyncio.run(check_arguments(schema, {"a": list(range(100_000))}))
    with pytest.raises(BadRequest):
        asyncio.run(check_arguments(schema, {"a": list(range(1000))}))


ODD: dict[str, tuple[dict[str, Any], Any, list[str]]] = {
    "a pattern that gives up is no fault of the arguments": ({"pattern": r"^(a*)*\1b$"}, "a" * 60, []),
    "half a surrogate pair is a string": ({"type": "string", "maxLength": 2}, "\ud800", []),
    "a string with half a surrogate pair has a length": ({"type": "string", "maxLength": 2}, "\ud800xyz", ["/a"]),
    "what is not JSON is refused": ({"type": "string"}, {1: 2}, [""]),
}


@pytest.mark.parametrize(("schema", "value", "at"), ODD.values(), ids=ODD)
def test_odd_values_are_checked_like_others(schema: dict[str, Any], value: Any, at: list[str]) -> None:
    assert [fault["path"] for fault in faults({"properties": {"a": schema}}, {"a": value})] == at


def test_a_schema_is_compiled_once() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    before = build_table(server("a", tool("x", inputSchema=schema)))
    again = build_table(server("a", tool("x", inputSchema=dict(schema)), "y"), before)
    assert again.resolve("x").schema is before.resolve("x").schema
    changed = build_table(server("a", tool("x", inputSchema={**schema, "required": ["a"]})), before)
    with pytest.raises(BadRequest):
        asyncio.run(check_arguments(changed.resolve("x").schema, {}))
