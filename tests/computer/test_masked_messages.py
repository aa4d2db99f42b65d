"""That masking leaves the protocol's own words where they belong, and no secret behind them."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.consent.approval import Caller
from a2c_smcp.computer.secrets.mask import CONFIG, MASKED, TOOL, Mask, _joined, is_word
from a2c_smcp.computer.socketio.client import SMCPComputerClient
from a2c_smcp.errors import ToolNotFound
from a2c_smcp.protocol.operations import OPERATIONS, Operation
from a2c_smcp.protocol.results import failed_call
from a2c_smcp.protocol.structure import ANSWER, ANYTHING, NAME
from a2c_smcp.protocol.window_uri import WindowURI
from tests.computer.supervised import good, quick
from tests.waiting import until

pytestmark = pytest.mark.covers("secrets-structure")

KEY = "sk-9f8e7d6c5b4a"
AGENT = Caller("desk", "planner")

RESULT = {
    "content": [
        {"type": "text", "text": "hello", "annotations": {"audience": ["assistant"], "priority": 0.5}},
        {"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"},
        {
            "type": "resource_link",
            "uri": "window://here/there?priority=5&fullscreen=true",
            "name": "there",
            "size": 123456,
        },
        {"type": "resource", "resource": {"uri": "file:///there", "mimeType": "text/plain", "text": "hello"}},
    ],
    "structuredContent": {"a": 1},
    "isError": False,
    "_meta": {"a2c_ret_object": '{"content": 1}', "a2c_vrl_transformed": '{"structuredContent": 1}'},
}
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "content": {"type": ["string", "null"], "maxLength": 123456, "pattern": "^content"},
        "options": {"anyOf": [{"$ref": "#/$defs/options"}, {"type": "array", "items": {"enum": ["production"]}}]},
    },
    "$defs": {"options": {"type": "object", "additionalProperties": False, "patternProperties": {"^format": {}}}},
    "required": ["content", "options"],
    "dependentRequired": {"content": ["options"]},
}
SCHEMAS = {"name": "write", "description": "", "params_schema": SCHEMA, "return_schema": None, "bundle_id": "github"}
LISTED = {
    **SCHEMAS,
    "meta": {"a2c_tool_meta": '{"auto_apply": true}', "MCP_TOOL_ANNOTATION": '{"readOnlyHint": true}'},
}
NAMED = {"name": "production", "type": "streamable", "disabled": False, "forbidden_tools": ["content"]}
CONFIGURED = {
    "servers": {
        "production": {
            **NAMED,
            "tool_meta": {"content": {"auto_apply": True, "alias": "structured", "tags": ["production"]}},
            "server_parameters": {"url": "", "headers": {"Content-Type": MASKED}, "timeout": "PT30S"},
        }
    },
    "inputs": [{"id": "content", "type": "promptString", "description": "", "password": True}],
}
WORDS = ["content", "structuredContent", "isError", "resource", "resource_link", "mimeType", "image/png", "text/plain"]
WORDS += ["annotations", "audience", "assistant", "priority", "fullscreen", "window", "123456", "auto_apply"]
WORDS += ["a2c_ret_object", "object", "string", "properties", "required", "production", "options", "params_schema"]
WORDS += ["additionalProperties", "patternProperties", "description", "bundle_id", "github", "readOnlyHint"]
WORDS += ["servers", "server_parameters", "streamable", "headers", "Content-Type", "promptString", "password", "inputs"]
MESSAGES = pytest.mark.parametrize(("value", "place"), [(RESULT, ANSWER), (LISTED, TOOL), (CONFIGURED, CONFIG)])


@MESSAGES
@pytest.mark.parametrize("word", WORDS)
def test_literals_that_are_words_of_the_protocol_break_no_message(value: Any, place: Any, word: str) -> None:
    assert Mask([word]).data(value, place) == value


def test_an_error_keeps_its_keys() -> None:
    error = failed_call(ToolNotFound("'nothing'", toolId="nothing", errors=[{"path": "/message", "message": "a"}]))
    mask = Mask(["message", "details", "content", "toolId", "errors", "nothing"])
    masked = mask.data(error, ANSWER)
    assert masked["details"] == masked["error"]["details"] == error["details"]
    assert masked["message"] == masked["content"][0]["text"] == f"No such tool: '{MASKED}'"


@pytest.mark.covers("secrets-masked")
def test_words_are_masked_as_values_and_in_keys_that_are_anybodys() -> None:
    result = {
        "content": [{"type": "text", "text": "in production"}],
        "structuredContent": {"production": ["production"], "content": "content"},
        "production": True,
    }
    assert Mask(["production", "content"]).data(result, ANSWER) == {
        "content": [{"type": "text", "text": f"in {MASKED}"}],
        "structuredContent": {MASKED: [MASKED], f"{MASKED} (2)": MASKED},
        MASKED: True,
    }
    tool = {"name": "a", "description": "for production", "params_schema": {"title": "production", "x-production": 1}}
    masked = Mask(["production"]).data(tool, TOOL)
    assert masked["description"] == f"for {MASKED}"
    assert masked["params_schema"] == {"title": MASKED, "x-production": 1}


@pytest.mark.covers("secrets-masked")
@MESSAGES
@given(data=st.data())
def test_a_secret_that_is_no_word_is_masked_wherever_a_server_may_write_it(
    value: Any, place: Any, data: st.DataObject
) -> None:
    told = copy.deepcopy(value)
    before = json.dumps(told)
    owner, key = data.draw(st.sampled_from(places(told)))
    owner[key] = f"<{KEY}>"
    assert KEY not in json.dumps(Mask([KEY]).data(told, place))
    assert json.dumps(value) == before


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every text in a value, by its owner and key."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    own = [(value, key) for key, each in pairs if isinstance(each, str) and key != "data"]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return own + [place for each in inner for place in places(each)]


ORDINARY = ["content", "us-east", "inputSchema", "text/event-stream", "READ_ONLY", "Production"]
SECRETS = [
    *(KEY, "hunter2", "YWJjZGVm", "aBcDeFgH", "q" * 17, "pass!word", "x=y"),
    "correct horse battery staple again",
]


@pytest.mark.parametrize("text", [*ORDINARY, *SECRETS])
def test_an_ordinary_word_is_no_possible_credential(text: str) -> None:
    assert is_word(text) is (text in ORDINARY)


@pytest.mark.covers("desktop-render")
async def test_a_computer_whose_literals_are_words_serves_as_ever() -> None:
    literals = {"A": "content", "B": "object", "C": "window", "D": "environment", "E": "good", "F": "priority"}
    config = good(env={**literals, "KEY": KEY}, desktop="any", default_tool_meta={"auto_apply": True})
    async with Computer("laptop", policy=quick()) as computer:
        await computer.put_server(config)
        tools = {tool["name"]: tool for tool in computer.get_tools()}
        assert tools["add"]["params_schema"]["type"] == "object"
        assert tools["add"]["bundle_id"] == "good"
        result = await computer.execute_tool(AGENT, "r1", "environment", {}, 10)
        assert {"content", "isError"} <= result.keys()
        assert KEY not in repr(result)
        uris = [desktop.partition("\n\n")[0] for desktop in await computer.get_desktop()]
        assert [WindowURI.parse(uri).host for uri in uris] == ["good", "good"]
        assert await computer.get_desktop(window=uris[0]) == [f"{uris[0]}\n\nfirst"]


@pytest.mark.covers("desktop-render")
async def test_a_window_whose_uri_holds_a_secret_is_found_by_the_uri_that_agents_are_shown() -> None:
    config = good(env={"KEY": KEY}, desktop="any", default_tool_meta={"auto_apply": True})
    async with Computer("laptop", policy=quick()) as computer:
        await computer.put_server(config)
        opening = {"uri": f"window://good/{KEY}", "text": "third"}
        await computer.execute_tool(AGENT, "r1", "open_window", opening, 10)
        computer.mask.add(["window://good"])
        shown = f"window://good/{MASKED}"
        await until(lambda: computer.status()["good"].windows == 3)
        assert await computer.get_desktop(window=shown) == [f"{shown}\n\nthird"]
        assert KEY not in repr(await computer.get_desktop())


MASKED_WHERE_THEY_ARE_MADE = {
    *("client:tool_call", "client:sealed", "client:get_device", "client:get_tools", "client:get_config"),
    *("client:get_desktop", "client:get_servers", "client:get_resources", "client:get_resource_templates"),
    *("client:get_prompts", "client:read_resource", "client:get_prompt", "client:complete"),
    *("client:get_skills", "client:get_skill", "client:get_blob", "client:put_blob"),
}
"""Requests whose answers the code that makes them masks. Any other answer is masked as it leaves."""


@pytest.mark.covers("secrets-masked")
@pytest.mark.parametrize("row", OPERATIONS, ids=lambda row: row.event)
async def test_an_answer_is_masked_as_it_leaves_unless_its_row_says_that_this_is_done(row: Operation) -> None:
    async def answer(_: Any) -> Any:
        return {"new": f"<{KEY}>"}

    async with Computer("laptop", policy=quick()) as computer:
        computer.mask.add([KEY])
        client = SMCPComputerClient(computer, "http://nowhere.invalid", "desk", instance="x" * 32)
        told = await client._masked(row, answer)({})
    assert row.is_masked == (row.event in MASKED_WHERE_THEY_ARE_MADE)
    assert told == {"new": f"<{KEY}>" if row.is_masked else f"<{MASKED}>"}


@pytest.mark.covers("secrets-structure")
def test_a_field_has_one_structure_in_all_answers() -> None:
    with pytest.raises(ValueError, match="'prompts'"):
        _joined({"prompts": NAME}, {"prompts": ANYTHING})
