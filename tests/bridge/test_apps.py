"""MCP Apps of several computers, through a real Server and bridge: each page, and its calls, belong to one computer."""

from __future__ import annotations

import json
import re
import sys
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, MCPError
from mcp.client import advertise

from a2c_smcp.bridge.apps import EXTENSION, with_own_calls
from a2c_smcp.computer import Computer
from tests.computer.hosted import hosted, ready
from tests.stage.bridge import BridgedOffice, all_tools
from tests.stage.texts import text_of

SERVER = Path(__file__).with_name("app_server.py")
PAGE, MIME_TYPE = "ui://counter/page.html", "text/html;profile=mcp-app"
TOKEN = "ghp_" + "0123456789abcdefghijABCDEFGHIJ012345"
LARGE = 6_000_000
"""Bytes of a page that does not fit into one message."""
CAN_SHOW = [advertise(EXTENSION, {"mimeTypes": [MIME_TYPE]})]

Enters = Callable[..., Awaitable[None]]


@pytest.fixture
async def enters(desk: BridgedOffice, tmp_path: Path) -> AsyncIterator[Enters]:
    """Has a computer with the app enter the office. Its owner allows everything but to wipe the counter."""
    async with AsyncExitStack() as stack:

        async def enter(name: str, *, size: int = 0, **tools: dict[str, Any]) -> None:
            computer = Computer(name, approve=lambda request: request.tool != "wipe")
            environ = {"API_TOKEN": TOKEN, "SIZE": str(size)}
            program = {"command": sys.executable, "args": [str(SERVER), name], "env": environ}
            computer.add_server({"name": "counter", **program, "tool_meta": tools})
            await stack.enter_async_context(hosted(computer, desk.url, "desk", tmp_path / name))
            await ready(computer, "counter")

        yield enter


def uri_of(tool: types.Tool) -> str:
    assert tool.meta
    uri: str = tool.meta["ui"]["resourceUri"]
    return uri


async def page_of(client: Client, uri: str) -> types.TextResourceContents:
    (page,) = (await client.read_resource(uri)).contents
    assert isinstance(page, types.TextResourceContents)
    assert page.uri == uri
    return page


def about(page: str) -> dict[str, Any]:
    """What the script before a page knows."""
    found = re.search(r"\}\)\((\{.*?\})\)</script>", page)
    assert found
    known: dict[str, Any] = json.loads(found[1])
    return {**known, "tools": dict(known["tools"])}


def without_script(page: str) -> str:
    return re.sub(r"<script>\(\(\{tools.*?</script>", "", page, count=1, flags=re.DOTALL)


@pytest.mark.covers("bridge-apps")
async def test_pages_of_two_computers_have_uris_of_their_own_and_say_what_their_apps_may_call(
    desk: BridgedOffice, enters: Enters, mode: Any
) -> None:
    await enters("attic")
    await enters("laptop")
    _, url = await desk.start_bridge()
    async with desk.client(url, mode) as client:
        tools = await all_tools(client, "show", "laptop__show", "press", "laptop__press")
        assert client.server_capabilities
        if mode == "auto":
            assert EXTENSION in (client.server_capabilities.extensions or {})
        uris = {name: uri_of(tools[name]) for name in ("show", "laptop__show")}
        assert uris == {
            "show": f"ui://a2c/attic/counter/{PAGE}",
            "laptop__show": f"ui://a2c/laptop/counter/{PAGE}",
        }
        assert tools["laptop__show"].meta
        assert tools["laptop__show"].meta["ui/resourceUri"] == uris["laptop__show"]
        assert tools["laptop__press"].meta
        assert tools["laptop__press"].meta["ui"]["visibility"] == ["app"]
        listed = {str(each.uri): each for each in (await client.list_resources()).resources}
        for computer, uri in (("attic", uris["show"]), ("laptop", uris["laptop__show"])):
            page = await page_of(client, uri)
            assert f'id="owner">{computer}<' in page.text
            assert listed[uri].mime_type == page.mime_type == MIME_TYPE
            ui = {"csp": {"connectDomains": ["https://api.example"]}, "permissions": {"camera": {}}}
            assert listed[uri].meta == {"ui": {**ui, "prefersBorder": True}}
            known = about(page.text)
            front = "" if computer == "attic" else "laptop__"
            for tool in ("show", "press", "wipe"):
                assert known["tools"][tool] == known["tools"][front + tool] == [front + tool, None]
            assert known["prefix"] == f"{computer}__"
            assert known["places"] == [f"ui://a2c/{computer}/counter/", f"a2c://{computer}/counter/"]
            assert "note of" in text_of(await client.read_resource(f"{known['places'][1]}note://owner"))
        assert text_of(await client.call_tool("laptop__press", {})) == "1 of laptop"
        assert text_of(await client.call_tool("show", {})).startswith("0 of attic")


@pytest.mark.covers("bridge-apps")
async def test_calls_of_apps_are_approved_like_all_others(desk: BridgedOffice, enters: Enters) -> None:
    await enters("attic")
    _, url = await desk.start_bridge()
    async with desk.client(url, "auto") as client:
        await all_tools(client, "wipe")
        await client.call_tool("press", {})
        result = await client.call_tool("wipe", {})
        assert result.is_error
        assert result.meta
        assert result.meta["a2c_error"] == {"code": 403, "outcome": "not_run"}
        assert text_of(await client.call_tool("show", {})).startswith("1 of attic")


@pytest.mark.covers("bridge-apps")
async def test_an_app_knows_the_tools_that_its_owner_has_renamed_and_those_that_are_shared(
    desk: BridgedOffice, enters: Enters
) -> None:
    await enters("attic", press={"alias": "add_one"})
    await enters("laptop")
    _, url = await desk.start_bridge("--one-for-all", "on")
    async with desk.client(url, "auto") as client:
        tools = await all_tools(client, "add_one", "press", "show", "laptop__show", "wipe")
        assert [*tools["wipe"].input_schema["properties"]] == ["computer"]
        attic, laptop = [about((await page_of(client, uri_of(tools[name]))).text) for name in ("show", "laptop__show")]
        assert attic["tools"]["press"] == attic["tools"]["add_one"] == ["add_one", None]
        assert laptop["tools"]["press"] == ["press", None]
        assert attic["tools"]["wipe"] == laptop["tools"]["wipe"] == ["wipe", "computer"]


@pytest.mark.covers("bridge-apps")
async def test_a_large_page_arrives_whole_and_without_the_secrets_of_its_computer(
    desk: BridgedOffice, enters: Enters
) -> None:
    await enters("attic", size=LARGE)
    _, url = await desk.start_bridge()
    async with desk.client(url, "auto") as client:
        tools = await all_tools(client, "show")
        page = (await page_of(client, uri_of(tools["show"]))).text
    assert TOKEN not in page
    assert page.startswith("<!-- the counter --><!DOCTYPE html><script>")
    assert page.count("x" * LARGE) == 1
    assert without_script(page).endswith("await app.connect();\n</script></body></html>\n")


@pytest.mark.covers("bridge-apps")
async def test_a_server_hears_whether_the_client_shows_apps(desk: BridgedOffice, enters: Enters) -> None:
    """One that declares its capabilities is believed; what no client has said is declared for lists."""
    await enters("attic")
    _, url = await desk.start_bridge()
    for extensions, text in ((CAN_SHOW, "0 of attic"), ([], "0 of attic, as text")):
        async with desk.client(url, "auto", extensions=extensions) as client:
            await all_tools(client, "show")
            assert text_of(await client.call_tool("show", {})) == text


@pytest.mark.covers("bridge-apps")
async def test_tools_of_apps_are_not_found_by_models(desk: BridgedOffice, enters: Enters) -> None:
    await enters("attic")
    _, url = await desk.start_bridge("--search-above", "1")
    async with desk.client(url, "auto") as client:
        await all_tools(client, "search_tools")
        found = await client.call_tool("search_tools", {"query": "counter", "limit": 50})
        assert found.structured_content
        assert [tool["name"] for tool in found.structured_content["tools"]] == ["show"]


@pytest.mark.covers("bridge-apps")
async def test_a_computer_cannot_list_a_page_in_place_of_anothers(desk: BridgedOffice, enters: Enters) -> None:
    await enters("attic")
    _, url = await desk.start_bridge()
    async with desk.client(url, "auto") as client:
        await all_tools(client, "show")
        listed = [str(each.uri) for each in (await client.list_resources()).resources]
        assert [uri for uri in listed if uri.startswith("ui://")] == [f"ui://a2c/attic/counter/{PAGE}"]
        with pytest.raises(MCPError):
            await client.read_resource(f"ui://a2c/cellar/counter/{PAGE}")


@pytest.mark.parametrize(
    ("page", "before"),
    [
        ("<html lang=en><p>hi", ""),
        (" <!-- <!doctype html> -->\n<!DOCTYPE HTML>\n<p>", " <!-- <!doctype html> -->\n<!DOCTYPE HTML>"),
        ("\ufeff<!doctype html><p>", "\ufeff<!doctype html>"),
        ("", ""),
        ("<!-- never closed <!doctype html>", ""),
    ],
)
@pytest.mark.parametrize("field", ["text", "blob"])
def test_the_script_stands_behind_the_document_type(page: str, before: str, field: str) -> None:
    def content(text: str) -> dict[str, Any]:
        return {"uri": PAGE, "mimeType": "text/html; profile=mcp-app", field: text}

    given = page if field == "text" else b64encode(page.encode()).decode()
    tools = {"</script><b>": ("</script><b>", None)}
    (made,) = with_own_calls({"contents": [content(given)]}, "attic", "counter", lambda *_: tools)["contents"]
    text = made[field] if field == "text" else b64decode(made[field]).decode()
    assert text.startswith(f"{before}<script>((")
    assert text.count("</script>") == 1
    assert text.endswith(page.removeprefix(before))


def test_what_is_no_page_of_an_app_stays_as_it_is() -> None:
    for content in ({"uri": PAGE, "mimeType": "text/html", "text": "<p>"}, {"mimeType": MIME_TYPE, "blob": "a"}, 7):
        result = {"contents": [content]}
        assert with_own_calls(result, "attic", "counter", lambda *_: {}) == result
