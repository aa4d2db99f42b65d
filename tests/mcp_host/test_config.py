"""Configurations of servers and inputs: parsing, refusals, what is shown of them, and their wire form."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError

from a2c_smcp import smcp
from a2c_smcp.computer.mcp_clients import model as specified
from a2c_smcp.errors import BadRequest, ConfigError
from a2c_smcp.mcp_host.config import servers as model
from a2c_smcp.mcp_host.config.inputs import contents_of
from a2c_smcp.mcp_host.config.servers import (
    CommandInput,
    MCPServerConfig,
    MCPServerInput,
    PickStringInput,
    PromptStringInput,
    SSEConfig,
    StdioConfig,
    StreamableConfig,
    ToolMeta,
    input_to_wire,
    parse_input,
    parse_server,
    source,
    to_wire,
    unknown_fields,
)
from tests.stage.cases import cases

pytestmark = pytest.mark.covers("config-models")

STDIO = {"type": "stdio", "server_parameters": {"command": "npx"}}
STREAMABLE = {"type": "streamable", "server_parameters": {"url": "https://example.com/mcp"}}
SSE = {"type": "sse", "server_parameters": {"url": "https://example.com/sse"}}
WIRE = {
    StdioConfig: (smcp.MCPServerStdioConfig, smcp.MCPServerStdioParameters),
    StreamableConfig: (smcp.MCPServerStreamableHttpConfig, smcp.MCPServerStreamableHttpParameters),
    SSEConfig: (smcp.MCPSSEConfig, smcp.MCPSSEParameters),
}
PARAMETERS: list[Any] = [kind.model_fields["server_parameters"].annotation for kind in WIRE]
INPUT_WIRE = {
    PromptStringInput: smcp.MCPServerPromptStringInput,
    PickStringInput: smcp.MCPServerPickStringInput,
    CommandInput: smcp.MCPServerCommandInput,
}

NPX, WEB, OLD = {"command": "npx"}, {"url": "https://h"}, {"url": "https://h/sse"}
NO_URLS = ("example.com/mcp", "ftp://example.com", "https:///mcp", "https://h:99999/", "https://[::1/", "https://h/a b")
NO_DURATIONS = ["30 seconds", "00:30", "PT0S", "-PT5S", True, None, float("inf")]


def refusal(data: object, name: str | None = "files") -> str:
    with pytest.raises(ConfigError) as caught:
        parse_server(data, name)
    return caught.value.message


def with_parameters(data: dict[str, Any], **parameters: Any) -> dict[str, Any]:
    return {**data, "server_parameters": {**data["server_parameters"], **parameters}}


def test_the_models_are_importable_from_the_path_of_the_specification() -> None:
    assert set(specified.__all__) > set(model.__all__)
    assert all(getattr(specified, name) is getattr(model, name) for name in model.__all__)


# Reading


DEFAULTS = {"disabled": False, "forbidden_tools": [], "tool_meta": {}, "default_tool_meta": None, "vrl": None}
TIMES = {"timeout": "PT30S", "sse_read_timeout": "PT5M"}


@cases(
    "data, parameters",
    (STDIO, {"args": [], "env": None, "cwd": None, "encoding": "utf-8", "encoding_error_handler": "strict"}),
    (STREAMABLE, {"headers": None, **TIMES, "terminate_on_close": True}),
    (SSE, {"headers": None, "timeout": 5.0, "sse_read_timeout": 300.0}),
)
def test_a_name_and_parameters_are_enough(data: dict[str, Any], parameters: dict[str, Any]) -> None:
    expected = {"name": "files", **DEFAULTS, **with_parameters(data, **parameters)}
    assert to_wire(parse_server(data, "files")) == expected


@cases(
    "data, expected",
    ({"type": "http", "url": "https://h/mcp", "disabled": True, "tool_meta": {}}, StreamableConfig),
    ({"type": "sse", "url": "https://h/anything"}, SSEConfig),
    ({"type": "stdio", "command": "uvx", "args": ["server"], "env": {"A": "b"}, "cwd": "/tmp"}, StdioConfig),
    ({"type": "streamable-http", "url": "https://h/mcp", "headers": {"A": "b"}}, StreamableConfig),
    ({"command": "uvx", "args": ["server"]}, StdioConfig),
    ({"url": "https://h/mcp", "headers": {"A": "b"}}, StreamableConfig),
    ({"url": "https://h/sse"}, SSEConfig),
    ({"url": "https://h/sse/?a=/mcp"}, SSEConfig),
    ({"url": "https://h/mcp?a=/sse"}, StreamableConfig),
    ({"url": "${input:url}"}, StreamableConfig),
    ({"server_parameters": {"command": "uvx"}}, StdioConfig),
    ({"server_parameters": {"url": "https://h/sse"}}, SSEConfig),
)
def test_the_older_flat_shape_and_one_without_a_type_become_the_same_models(
    data: dict[str, Any], expected: type[BaseModel]
) -> None:
    config = parse_server(data, "files")
    assert type(config) is expected
    given_parameters = data.get("server_parameters", data)
    for name in {"url", "command", "args", "env", "headers", "cwd"} & given_parameters.keys():
        assert getattr(config.server_parameters, name) == given_parameters[name]
    assert config.disabled is data.get("disabled", False)
    assert unknown_fields(config) == []


def test_the_key_of_a_server_replaces_its_own_name() -> None:
    assert parse_server({**STDIO, "name": "Display Name"}, "files").name == "files"
    assert parse_server({**STDIO, "name": "files"}).name == "files"


def test_parsing_does_not_change_the_data() -> None:
    data = {"type": "http", "url": "https://h/mcp", "timeout": "${input:t}", "extra": {"a": [1]}}
    before = json.dumps(data)
    parse_server(data, "files")
    assert json.dumps(data) == before


SECONDS = {"PT30S": 30, "PT0.5S": 0.5, "PT1H30M": 5400, "P1DT1S": 86401, 30: 30, 1.5: 1.5, "30": 30}


@pytest.mark.parametrize(("text", "seconds"), SECONDS.items())
def test_a_streamable_timeout_is_a_duration(text: object, seconds: float) -> None:
    config: Any = parse_server(with_parameters(STREAMABLE, timeout=text, sse_read_timeout=text), "web")
    timeouts = config.server_parameters.timeout, config.server_parameters.sse_read_timeout
    assert timeouts == (timedelta(seconds=seconds),) * 2


@given(st.timedeltas(min_value=timedelta(microseconds=1), max_value=timedelta(days=100_000)))
def test_every_duration_survives_the_wire(duration: timedelta) -> None:
    wire = to_wire(parse_server(with_parameters(STREAMABLE, timeout=duration), "web"))
    again = parse_server(wire)
    assert isinstance(again, StreamableConfig)
    assert again.server_parameters.timeout == duration


@pytest.mark.parametrize(("text", "flag"), [(True, True), (False, False), ("true", True), ("false", False)])
def test_a_flag_may_be_text(text: object, flag: bool) -> None:
    assert parse_server({**STDIO, "disabled": text}, "files").disabled is flag


# Refusing


NO_TYPE = "type: must be one of stdio, streamable, sse"


@cases(
    "data, said",
    *((wrong, "server 'files': must be an object") for wrong in (None, [], "npx")),
    ({}, f"{NO_TYPE}, or give a command or a url instead"),
    *(({"type": wrong}, NO_TYPE) for wrong in (None, "websocket", ["stdio"])),
    ({"type": "stdio"}, "server 'files': command: missing"),
    ({"type": "stdio", "server_parameters": {}}, "server_parameters.command: missing"),
    *(
        ({"type": "stdio", "server_parameters": wrong}, "server_parameters: must be an object")
        for wrong in (None, "npx")
    ),
    ({"command": ""}, "command: must not be empty"),
    ({"command": ["npx", "x"]}, "command: must be a string"),
    ({"command": "\ud800"}, "command: must be Unicode text"),
    *(({"url": wrong}, "url: must be an http or https URL") for wrong in NO_URLS),
    ({"url": 5}, "url: must be a string"),
    ids=str,
)
def test_a_refusal_names_the_server_and_the_field(data: object, said: str) -> None:
    message = refusal(data)
    assert message.startswith("Bad configuration: server 'files': ")
    assert said in message


WRONG_FIELDS: list[tuple[dict[str, Any], str, list[Any], str]] = [
    (NPX, "args", ["x"], "must be a list"),
    (NPX, "args", [[1]], "0: must be a string"),
    (NPX, "env", [["A=b"]], "must be an object"),
    (NPX, "env", [{"PORT": 80}], "PORT: must be a string"),
    (NPX, "encoding", ["klingon", "base64"], 'must be a text encoding, such as "utf-8"'),
    (NPX, "encoding_error_handler", ["panic"], "must be one of 'strict', 'ignore' or 'replace'"),
    (NPX, "disabled", ["yes", 1, None], "must be true or false"),
    (NPX, "forbidden_tools", ["x"], "must be a list"),
    (NPX, "tool_meta", [{"read": True}], "read: must be an object"),
    (NPX, "tool_meta", [{"read": {"tags": "x"}}], "read.tags: must be a list"),
    (NPX, "default_tool_meta", [{"alias": ""}], "alias: must have 1 to 256"),
    (NPX, "default_tool_meta", [[]], "must be an object"),
    (NPX, "vrl", [1], "must be a string"),
    (NPX, "desktop", ["all"], "must be one of 'subscribed' or 'any'"),
    (WEB, "headers", [{"A": ["b"]}], "A: must be a string or a number"),
    (WEB, "timeout", NO_DURATIONS, "must be an ISO-8601 duration above zero"),
    (WEB, "terminate_on_close", ["no"], "must be true or false"),
    (OLD, "timeout", ["PT5S"], "must be a number"),
    (OLD, "timeout", [0], "must be a number of seconds above zero"),
    (OLD, "sse_read_timeout", [float("nan")], "must be a number of seconds"),
]


@cases(
    "data, fault", *(({**to, name: value}, (name, said)) for to, name, wrong, said in WRONG_FIELDS for value in wrong)
)
def test_a_refusal_names_a_wrong_field(data: dict[str, Any], fault: tuple[str, str]) -> None:
    assert re.search(rf"'files': {fault[0]}[.:] ?{re.escape(fault[1])}", refusal(data))


@pytest.mark.parametrize("name", ["", " files", "a\nb", "x" * 129, 5, None, "${input:name}"])
def test_a_server_needs_a_valid_name(name: object) -> None:
    with pytest.raises(ConfigError, match="name: "):
        parse_server({**STDIO, "name": name})


def test_a_refusal_lists_all_faults() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_server({"command": 1, "args": 2, "vrl": 3}, "files")
    assert caught.value.details == {"fields": ["vrl", "command", "args"]}
    assert isinstance(caught.value, BadRequest)
    assert isinstance(caught.value, ValueError)


SECRET = "s3cr3t"
LEAVES = st.sampled_from([f"{SECRET}-text", [f"{SECRET}-item"], {"key": f"{SECRET}-value"}, 8734512, None])
FIELDS = {name for kind in (*WIRE, *PARAMETERS) for name in kind.model_fields} - {"name", "type", "server_parameters"}


@given(
    st.fixed_dictionaries({}, optional=dict.fromkeys(sorted(FIELDS), LEAVES)),
    st.sampled_from(["stdio", "http", "sse", None]),
)
def test_a_refusal_quotes_no_value(fields: dict[str, Any], kind: str | None) -> None:
    try:
        parse_server(fields if kind is None else {"type": kind, **fields}, "files")
    except ConfigError as error:
        said = f"{error} {error!r} {error.details} {error.__cause__} {error.__suppress_context__}"
        assert SECRET not in said
        assert "8734512" not in said


def test_an_error_of_a_model_built_directly_quotes_no_value() -> None:
    with pytest.raises(ValidationError) as caught:
        model.StdioParameters(command="x", env={"TOKEN": [SECRET]})  # type: ignore[dict-item]
    assert SECRET not in str(caught.value)


# Showing


@pytest.mark.parametrize("show", [repr, str, "{}".format])
def test_secrets_are_not_shown(show: Any) -> None:
    url = f"https://user:{SECRET}@h:8080/mcp?key={SECRET}&b=2#{SECRET}"
    shown = [
        show(parse_server({"command": "npx", "args": [f"--key={SECRET}"], "env": {"TOKEN": SECRET}}, "files")),
        show(parse_server({"url": url, "headers": {"Authorization": SECRET}, "oauth": {"secret": SECRET}}, "web")),
        show(parse_server({"url": f"https://h/sse?{SECRET}", "headers": {"X-Key": SECRET}}, "old")),
        show(parse_input({"id": "token", "type": "promptString", "password": True, "default": SECRET})),
        show(parse_input({"id": "token", "type": "command", "command": "op", "args": {"token": SECRET}})),
    ]
    assert not [text for text in shown if SECRET in text]
    assert "TOKEN" in shown[0]
    assert "https://***@h:8080/mcp?key=***&b=***#***" in shown[1]


def test_values_that_are_not_secret_are_shown() -> None:
    assert "default='blue'" in repr(parse_input({"id": "c", "type": "promptString", "default": "blue"}))
    assert "url='https://h/mcp'" in repr(parse_server({"url": "https://h/mcp"}, "web"))


# Unknown fields


def test_unknown_fields_are_kept_and_named() -> None:
    data = {
        **with_parameters(STDIO, shell=True),
        "envFile": ".env",
        "tool_meta": {"read": {"auto_aply": True}},
        "default_tool_meta": {"color": "red"},
    }
    config = parse_server(data, "files")
    in_parts = ["default_tool_meta.color", "server_parameters.shell", "tool_meta.read.auto_aply"]
    assert sorted(unknown_fields(config)) == sorted([*in_parts, "envFile"])
    assert source(config)["envFile"] == ".env"
    assert source(config)["server_parameters"]["shell"] is True


def test_flat_fields_beside_server_parameters_are_unknown() -> None:
    assert unknown_fields(parse_server({**STDIO, "command": "other"}, "files")) == ["command"]


# The wire


@pytest.mark.parametrize(("config", "shapes"), WIRE.items())
def test_models_and_the_structures_of_000_have_the_same_fields(
    config: type[BaseModel], shapes: tuple[Any, Any]
) -> None:
    shape, parameters = shapes
    ours = {"bundle_id", "desktop", "protocol", "secrets", "questions_for_agents", "pin", "start", "idle_stop"}
    ours |= {"sandbox"} if "sandbox" in config.model_fields else set()
    assert config.model_fields.keys() - ours == shape.__required_keys__ | shape.__optional_keys__
    nested = config.model_fields["server_parameters"].annotation
    assert nested is not None
    assert nested.model_fields.keys() - {"auth"} == parameters.__required_keys__
    assert ToolMeta.model_fields.keys() == smcp.ToolMeta.__optional_keys__


@pytest.mark.parametrize(("definition", "shape"), INPUT_WIRE.items())
def test_inputs_and_the_structures_of_000_have_the_same_fields(definition: type[BaseModel], shape: Any) -> None:
    assert definition.model_fields.keys() == shape.__required_keys__ | shape.__optional_keys__


metas = st.fixed_dictionaries(
    {},
    optional={
        "auto_apply": st.none() | st.booleans(),
        "alias": st.none() | st.sampled_from(["a", "读"]),
        "tags": st.none() | st.lists(st.text(max_size=5), max_size=2),
        "ret_object_mapper": st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
    },
)
common = {
    "disabled": st.booleans(),
    "forbidden_tools": st.lists(st.text(max_size=5), max_size=2),
    "tool_meta": st.dictionaries(st.text(max_size=5), metas, max_size=2),
    "default_tool_meta": st.none() | metas,
    "vrl": st.none() | st.text(),
}
texts = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2)
http = {"headers": st.none() | texts}
parameters = {
    "stdio": st.fixed_dictionaries(
        {"command": st.text(min_size=1)},
        optional={
            "args": st.lists(st.text(), max_size=3),
            "env": st.none() | texts,
            "cwd": st.none() | st.text(),
            "encoding": st.sampled_from(["utf-8", "gb18030"]),
            "encoding_error_handler": st.sampled_from(["strict", "ignore", "replace"]),
        },
    ),
    "streamable": st.fixed_dictionaries(
        {"url": st.just("https://h/mcp?a=b")},
        optional={
            **http,
            "timeout": st.sampled_from(["PT1S", "PT30S", "P1D"]),
            "sse_read_timeout": st.sampled_from(["PT1S", "PT1.5S"]),
            "terminate_on_close": st.booleans(),
        },
    ),
    "sse": st.fixed_dictionaries(
        {"url": st.just("http://127.0.0.1:1/sse")},
        optional={**http, "timeout": st.floats(0.1, 1e6), "sse_read_timeout": st.integers(1, 999)},
    ),
}
servers = st.sampled_from(sorted(parameters)).flatmap(
    lambda kind: st.fixed_dictionaries(
        {"name": st.just("files"), "type": st.just(kind), "server_parameters": parameters[kind]}, optional=common
    )
)


@given(servers)
def test_the_wire_form_holds_exactly_the_configured_fields(data: dict[str, Any]) -> None:
    config = parse_server(data)
    wire: Any = to_wire(config)
    assert parse_server(wire) == parse_server(source(config)) == config
    assert parse_server(json.loads(json.dumps(wire))) == config
    TypeAdapter(smcp.MCPServerConfig).validate_python(wire, strict=True)
    plain = data.keys() - {"server_parameters", "tool_meta", "default_tool_meta"}
    assert {key: wire[key] for key in plain} == {key: data[key] for key in plain}
    assert data["server_parameters"].items() <= wire["server_parameters"].items()


def test_fields_that_000_does_not_know_are_not_in_the_wire_form() -> None:
    data = {**with_parameters(STDIO, shell=True), "desktop": "any", "oauth": 1, "tool_meta": {"read": {"x": 1}}}
    wire: Any = to_wire(parse_server(data, "files"))
    assert wire.keys() == smcp.MCPServerStdioConfig.__required_keys__ | smcp.MCPServerStdioConfig.__optional_keys__
    assert wire["server_parameters"].keys() == smcp.MCPServerStdioParameters.__required_keys__
    assert wire["tool_meta"] == {"read": dict.fromkeys(("auto_apply", "alias", "tags", "ret_object_mapper"))}


def test_the_type_selects_the_model() -> None:
    assert type(TypeAdapter(MCPServerConfig).validate_python({**SSE, "name": "x"})) is SSEConfig
    prompt = {"type": "promptString", "id": "x"}
    assert type(TypeAdapter(MCPServerInput).validate_python(prompt)) is PromptStringInput
    assert set(get_args(get_args(MCPServerConfig)[0])) == set(WIRE)


# Placeholders

PLACEHOLDERS = [
    (STDIO, {"args": ["a", "${input:x}"], "env": {"A": "${input:x}"}, "cwd": "${input:x}", "encoding": "${input:x}"}),
    (STDIO, {"command": "${input:x}", "args": "${input:x}", "env": "${input:x}"}),
    (STDIO, {"encoding_error_handler": "${input:x}"}),
    (STREAMABLE, {"url": "${input:x}", "headers": {"Authorization": "Bearer ${input:x}"}, "timeout": "${input:x}"}),
    (STREAMABLE, {"url": "https://${input:x}/mcp", "sse_read_timeout": "PT${input:x}S", "headers": "${input:x}"}),
    (STREAMABLE, {"terminate_on_close": "${input:x}"}),
    (SSE, {"timeout": "${input:x}", "sse_read_timeout": "${input:x}0"}),
]


@pytest.mark.parametrize(("data", "waiting"), PLACEHOLDERS)
def test_a_placeholder_may_stand_in_any_parameter_and_stays_until_it_is_rendered(
    data: dict[str, Any], waiting: dict[str, Any]
) -> None:
    config = parse_server(with_parameters(data, **waiting), "files")
    wire: Any = to_wire(config)
    assert waiting.items() <= source(config)["server_parameters"].items()
    assert waiting.items() <= wire["server_parameters"].items()
    assert parse_server(source(config)) == config


@pytest.mark.parametrize("field", ["disabled", "forbidden_tools", "tool_meta", "default_tool_meta", "vrl", "desktop"])
def test_a_placeholder_may_stand_in_any_other_field(field: str) -> None:
    config = parse_server({**STDIO, field: "${input:x}"}, "files")
    assert source(config)[field] == "${input:x}"
    assert parse_server(source(config)) == config


def test_placeholders_stand_in_tool_metas_too() -> None:
    meta = {"auto_apply": "${input:x}", "tags": "${input:y}"}
    config = parse_server({**STDIO, "tool_meta": {"read": meta}, "default_tool_meta": meta}, "files")
    wire: Any = to_wire(config)
    assert meta.items() <= wire["tool_meta"]["read"].items()
    assert meta.items() <= wire["default_tool_meta"].items()
    assert config.tool_meta["read"].auto_apply is None


def test_a_rendered_configuration_has_the_values() -> None:
    waiting = parse_server(with_parameters(STREAMABLE, timeout="${input:x}"), "web")
    text = json.dumps(source(waiting)).replace("${input:x}", "PT7S")
    rendered = parse_server(json.loads(text))
    assert isinstance(rendered, StreamableConfig)
    assert rendered.server_parameters.timeout == timedelta(seconds=7)
    assert rendered != waiting


@pytest.mark.parametrize("field", ["name", "server_parameters"])
def test_name_and_type_cannot_be_placeholders(field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field}: must be written out, an input cannot stand for it"):
        parse_server({"name": "files", **STDIO, field: "${input:x}"})


def test_a_placeholder_does_not_hide_other_faults() -> None:
    assert "args: must be a list" in refusal({"command": "npx", "disabled": "${input:x}", "args": "x"})


# Inputs


PICK = {"type": "pickString", "id": "env", "options": ["dev", "prod"]}


@cases(
    "data, changes",
    ({"type": "promptString", "id": "key", "description": "API key", "password": True}, {"default": None}),
    ({**PICK, "description": "Which", "default": "dev"}, {}),
    ({**PICK, "options": ["dev", {"label": "prod", "value": "prod"}]}, {**PICK, "description": "", "default": None}),
    ({"type": "command", "id": "token", "description": "", "command": "gh auth token", "args": {"a": "b"}}, {}),
)
def test_inputs_are_read_and_written_as_in_000(data: dict[str, Any], changes: dict[str, Any]) -> None:
    written = input_to_wire(parse_input(data))
    assert written == data | changes
    TypeAdapter(smcp.MCPServerInput).validate_python(written, strict=True)
    assert input_to_wire(parse_input(written)) == written


def test_an_option_keeps_its_label() -> None:
    picked = parse_input({"type": "pickString", "id": "e", "options": ["dev", {"label": "Live", "value": "prod"}]})
    assert isinstance(picked, PickStringInput)
    assert [(option.label, option.value) for option in picked.options] == [("dev", "dev"), ("Live", "prod")]
    labelled = [{"label": "dev", "value": "dev"}, {"label": "Live", "value": "prod"}]
    assert input_to_wire(picked)["options"] == labelled  # type: ignore[typeddict-item]


def test_options_get_labels_for_servers_that_want_them() -> None:
    plain = parse_input({"type": "pickString", "id": "e", "options": ["dev"]})
    assert input_to_wire(plain, labelled=True)["options"] == [{"label": "dev", "value": "dev"}]  # type: ignore[typeddict-item]


@cases(
    "data, said",
    (None, "input: must be an object"),
    ({}, "input: type: must be one of promptString, pickString, command"),
    ({"type": "promptString"}, "input: id: missing"),
    ({"type": "promptString", "id": "a}b"}, "id: must not hold a closing brace"),
    ({"type": "promptString", "id": ""}, "id: must have 1 to 128 characters"),
    ({"type": "promptString", "id": "k", "password": "yes"}, "input 'k': password: must be true or false"),
    ({"type": "promptString", "id": "k", "default": 5}, "default: must be a string"),
    ({"type": "pickString", "id": "k"}, "options: missing"),
    ({"type": "pickString", "id": "k", "options": []}, "options: must not be empty"),
    ({"type": "pickString", "id": "k", "options": "dev"}, "options: must be a list"),
    ({"type": "pickString", "id": "k", "options": [{"label": "x"}]}, "options.0.value: missing"),
    ({"type": "pickString", "id": "k", "options": [5]}, "options.0: must be an object"),
    ({"type": "pickString", "id": "k", "options": ["a"], "default": "b"}, "default must be the value of one"),
    ({"type": "command", "id": "k"}, "command: missing"),
    ({"type": "command", "id": "k", "command": "x", "args": ["y"]}, "args: must be an object"),
    ({"type": "shell", "id": "k"}, "input 'k': type: must be one of promptString, pickString, command"),
    ids=str,
)
def test_an_invalid_input_is_refused_with_its_name_and_field(data: object, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_input(data)
    assert said in caught.value.message


def test_unknown_fields_of_an_input_are_named() -> None:
    assert unknown_fields(parse_input({"type": "promptString", "id": "k", "pasword": True})) == ["pasword"]


@pytest.mark.parametrize("kind", [*WIRE, *PARAMETERS, *INPUT_WIRE, ToolMeta])
def test_every_field_is_marked_with_what_it_holds(kind: type[model.BaseServerConfig]) -> None:
    assert contents_of(kind).keys() == kind.model_fields.keys() - {"server_parameters"}


def test_a_name_holds_the_same_in_every_kind_of_server_and_of_input() -> None:
    for kinds in (WIRE, PARAMETERS, INPUT_WIRE):
        marks = {mark for kind in kinds for mark in contents_of(kind).items()}
        assert len(marks) == len(dict(marks))
