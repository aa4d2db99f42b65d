"""What somebody who has only the texts of the specification writes, and gets."""

from __future__ import annotations

import pytest
from mcp_types import BlobResourceContents, TextResourceContents

from a2c_smcp.computer.desktop import Window, WindowURI, organize_desktop
from a2c_smcp.computer.mcp_clients import model

WINDOW = Window("editor", "window://editor/file", 0)


@pytest.mark.covers("desktop-organize")
@pytest.mark.parametrize(
    ("contents", "desktop"),
    [
        ([{"text": "hello"}, {"text": "again"}], ["window://editor/file\n\nhello\n\nagain"]),
        ([TextResourceContents(uri=WINDOW.uri, text="hello")], ["window://editor/file\n\nhello"]),
        ([BlobResourceContents(uri=WINDOW.uri, blob="aGVsbG8=")], []),
        (None, []),
    ],
    ids=["dicts", "text of MCP's SDK", "a blob of MCP's SDK", "not read"],
)
def test_a_desktop_is_organized_of_dicts_and_of_the_contents_of_mcp(contents: object, desktop: list[str]) -> None:
    assert organize_desktop([(WINDOW, contents)], None, []) == desktop  # type: ignore[list-item]
    assert WindowURI.parse(WINDOW.uri).host == "editor"


@pytest.mark.covers("desktop-organize")
@pytest.mark.parametrize("part", ["hello", 7, None, b"x"])
def test_other_contents_of_a_window_are_an_error(part: object) -> None:
    with pytest.raises(TypeError, match="the contents of a window"):
        organize_desktop([(WINDOW, [part])], None, [])


@pytest.mark.covers("config-models")
@pytest.mark.parametrize(
    ("kind", "config", "parameters"),
    [
        ("stdio", "MCPServerStdioConfig", "MCPServerStdioParameters"),
        ("streamable", "MCPServerStreamableHttpConfig", "MCPServerStreamableHttpParameters"),
        ("sse", "MCPSSEConfig", "MCPSSEParameters"),
    ],
)
def test_the_models_have_the_names_of_the_specification(kind: str, config: str, parameters: str) -> None:
    where = {"command": "x"} if kind == "stdio" else {"url": "https://x.example/mcp"}
    server = model.parse_server({"name": "one", "type": kind, "server_parameters": where})
    assert type(server) is getattr(model, config)
    assert type(server.server_parameters) is getattr(model, parameters)
    assert isinstance(server, model.BaseMCPServerConfig)
