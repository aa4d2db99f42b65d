"""What tools return beside plain values, as MCP's results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mcp.types import CallToolResult

from a2c_smcp.registry import (
    Audio,
    EmbeddedResource,
    FunctionTool,
    Image,
    MCPRegistry,
    ResourceLink,
    Text,
    ToolFailed,
    ToolResult,
)
from a2c_smcp.registry.content import mcp_result, note_result, text_of, value_of
from tests.registry.tools import registry_of

pytestmark = pytest.mark.covers("registry-content")

PIXEL = b"\x89PNG"
ENCODED = "iVBORw=="


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


FOR_USERS = {"audience": ["user"], "priority": 0.5}


async def result_of(value: Any) -> dict[str, Any]:
    """MCP's result of a tool that returns this value. MCP's own models accept it."""
    registry = registry_of(FunctionTool(lambda: value, name="give"))
    result = await mcp_result("give", registry.acall("give", {}))
    CallToolResult.model_validate(result)
    return result


@pytest.mark.parametrize(
    ("value", "block"),
    [
        (Image(PIXEL), {"type": "image", "data": ENCODED, "mimeType": "image/png"}),
        (Audio(PIXEL, "audio/ogg"), {"type": "audio", "data": ENCODED, "mimeType": "audio/ogg"}),
        (Text("hi", annotations=FOR_USERS), {"type": "text", "text": "hi", "annotations": FOR_USERS}),
        (Image(PIXEL, meta={"k": 1}), {"type": "image", "data": ENCODED, "mimeType": "image/png", "_meta": {"k": 1}}),
        (
            EmbeddedResource("note://1", "text", "text/plain"),
            {"type": "resource", "resource": {"uri": "note://1", "mimeType": "text/plain", "text": "text"}},
        ),
        (EmbeddedResource("note://1", PIXEL), {"type": "resource", "resource": {"uri": "note://1", "blob": ENCODED}}),
        (ResourceLink("note://1"), {"type": "resource_link", "uri": "note://1", "name": "note://1"}),
        (
            ResourceLink("note://1", "first", title="First", mime_type="text/plain", size=4, icons=[{"src": "a.png"}]),
            {
                "type": "resource_link",
                "uri": "note://1",
                "name": "first",
                "title": "First",
                "mimeType": "text/plain",
                "size": 4,
                "icons": [{"src": "a.png"}],
            },
        ),
    ],
)
async def test_content_is_one_block_and_nothing_else(value: Any, block: dict[str, Any]) -> None:
    assert await result_of(value) == {"content": [block], "isError": False}


async def test_a_list_with_content_in_it_is_several_blocks() -> None:
    result = await result_of(["first", Image(PIXEL), {"n": 1}, (ResourceLink("note://1"), "last")])
    assert [block["type"] for block in result["content"]] == ["text", "image", "text", "resource_link", "text"]
    assert result["content"][2]["text"] == '{"n": 1}'
    assert "structuredContent" not in result


@pytest.mark.parametrize(
    ("value", "result"),
    [
        (["a", "b"], {"structuredContent": {"result": ["a", "b"]}}),
        (ToolResult(structured={"n": [1]}), {"structuredContent": {"n": [1]}, "content": [text('{"n": [1]}')]}),
        (ToolResult(["no", "way"], is_error=True), {"isError": True, "content": [text("no"), text("way")]}),
        (
            ToolResult(["see", Image(PIXEL)], {"n": 1}, meta={"cost": 3}),
            {"content": [text("see"), Image(PIXEL).to_mcp()], "structuredContent": {"n": 1}, "_meta": {"cost": 3}},
        ),
    ],
    ids=["a plain list", "structured content as text, too", "an error", "content beside structured content"],
)
async def test_a_whole_result_is(value: Any, result: dict[str, Any]) -> None:
    found = await result_of(value)
    assert {name: found[name] for name in result} == result
    assert found["isError"] is result.get("isError", False)


def test_files_are_read_with_their_type(tmp_path: Path) -> None:
    path = tmp_path / "dot.gif"
    path.write_bytes(PIXEL)
    assert Image.read(path) == Image(PIXEL, "image/gif")
    assert Audio.read(str(path), "audio/flac").mime_type == "audio/flac"


REMOTE = {
    "content": [{"type": "text", "text": "for people"}, Image(PIXEL).to_mcp()],
    "structuredContent": {"n": 1},
    "_meta": {"trace": "7"},
    "isError": False,
}


class Remote:
    """A tool whose result comes from elsewhere."""

    name = "remote"

    def __init__(self, result: dict[str, Any] = REMOTE) -> None:
        self._result = result

    def call(self, arguments: dict[str, Any]) -> Any:
        note_result(self, self._result)
        return value_of(self._result)


@pytest.mark.parametrize(
    ("result", "value"),
    [(REMOTE, {"n": 1}), ({"content": [], "_meta": {"trace": "7"}}, None), ({**REMOTE, "isError": True}, ToolFailed)],
    ids=["whole", "empty", "failed"],
)
async def test_the_result_of_a_remote_tool_is_passed_on(result: dict[str, Any], value: Any) -> None:
    registry, remote = MCPRegistry(), Remote(result)
    registry.register(remote)
    if value is ToolFailed:
        with pytest.raises(ToolFailed, match="for people"):
            registry.call("remote", {})
    else:
        assert registry.call("remote", {}) == value
    passed_on = await mcp_result("remote", registry.acall("remote", {}), remote)
    assert {name: passed_on[name] for name in result} == result


async def test_a_function_around_a_remote_tool_has_its_own_result() -> None:
    registry = registry_of(Remote())
    around = FunctionTool(lambda: registry.call("remote", {})["n"] + 1, name="around")
    registry.register(around)
    assert text_of(await mcp_result("around", registry.acall("around", {}), around)) == "2"
