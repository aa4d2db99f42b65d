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
from a2c_smcp.registry.results import mcp_result, note_result, text_of, value_of

pytestmark = pytest.mark.covers("registry-content")

PIXEL = b"\x89PNG"
ENCODED = "iVBORw=="
FOR_USERS = {"audience": ["user"], "priority": 0.5}


async def result_of(value: Any) -> dict[str, Any]:
    """MCP's result of a tool that returns this value. MCP's own models accept it."""
    registry = MCPRegistry()
    registry.register(FunctionTool(lambda: value, name="give"))
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
        (
            EmbeddedResource("note://1", PIXEL),
            {"type": "resource", "resource": {"uri": "note://1", "blob": ENCODED}},
        ),
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


async def test_a_list_without_content_stays_a_plain_value() -> None:
    assert (await result_of(["a", "b"]))["structuredContent"] == {"result": ["a", "b"]}


async def test_a_whole_result_has_content_beside_structured_content() -> None:
    whole = ToolResult(["see", Image(PIXEL)], {"n": 1}, meta={"cost": 3})
    assert await result_of(whole) == {
        "content": [{"type": "text", "text": "see"}, Image(PIXEL).to_mcp()],
        "structuredContent": {"n": 1},
        "isError": False,
        "_meta": {"cost": 3},
    }


async def test_structured_content_alone_is_also_written_as_text() -> None:
    assert text_of(await result_of(ToolResult(structured={"n": [1]}))) == '{"n": [1]}'


async def test_a_tool_can_say_itself_that_it_failed() -> None:
    result = await result_of(ToolResult(["no", "way"], is_error=True))
    assert (result["isError"], text_of(result)) == (True, "no\nway")


def test_files_are_read_with_their_type(tmp_path: Path) -> None:
    path = tmp_path / "dot.gif"
    path.write_bytes(PIXEL)
    assert Image.read(path) == Image(PIXEL, "image/gif")
    assert Audio.read(str(path), "audio/flac").mime_type == "audio/flac"


@pytest.mark.parametrize("returned", [Image, ToolResult, list[Image], "str | Image"])
def test_content_is_not_described_as_structured(returned: Any) -> None:
    def give() -> None: ...

    give.__annotations__["return"] = returned
    assert FunctionTool(give).output_schema is None


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


async def test_the_whole_result_of_a_remote_tool_is_passed_on() -> None:
    registry, remote = MCPRegistry(), Remote()
    registry.register(remote)
    assert registry.call("remote", {}) == {"n": 1}
    assert await mcp_result("remote", registry.acall("remote", {}), remote) == REMOTE


async def test_an_empty_result_keeps_its_meta() -> None:
    registry, remote = MCPRegistry(), Remote({"content": [], "_meta": {"trace": "7"}})
    registry.register(remote)
    assert (await mcp_result("remote", registry.acall("remote", {}), remote))["_meta"] == {"trace": "7"}


async def test_a_function_around_a_remote_tool_has_its_own_result() -> None:
    registry = MCPRegistry()
    registry.register(Remote())
    around = FunctionTool(lambda: registry.call("remote", {})["n"] + 1, name="around")
    registry.register(around)
    assert text_of(await mcp_result("around", registry.acall("around", {}), around)) == "2"


async def test_a_failed_remote_tool_keeps_all_of_its_answer() -> None:
    failed = {**REMOTE, "isError": True}
    registry, remote = MCPRegistry(), Remote(failed)
    registry.register(remote)
    with pytest.raises(ToolFailed, match="for people"):
        registry.call("remote", {})
    assert await mcp_result("remote", registry.acall("remote", {}), remote) == failed
