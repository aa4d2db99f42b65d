"""What an MCP client of either era gets through a bridge, a Server and a computer, over stdio and HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.client.subscriptions import ResourceUpdated
from mcp.shared.exceptions import MCPError

from tests.bridge.offices import BridgedOffice, Heard, text_of
from tests.waiting import until

pytestmark = pytest.mark.covers("bridge-through")


async def all_tools(client: Client) -> dict[str, types.Tool]:
    """The tools of the computer, which may still be starting its servers."""
    while True:
        found = {tool.name: tool for tool in (await client.list_tools()).tools}
        if {"add", "open_window", "book"} <= found.keys():
            return found
        await asyncio.sleep(0.02)


async def test_a_client_lists_and_calls_the_tools(bridged: BridgedOffice, bridge: Any, mode: Any) -> None:
    async with bridged.client(bridge, mode) as client:
        tools = await all_tools(client)
        assert (tools["add"].title, tools["add"].description) == ("Addition", "Add two numbers.")
        assert tools["add"].annotations
        assert tools["add"].annotations.read_only_hint
        assert (await client.call_tool("add", {"a": 20, "b": 22})).structured_content == {"result": 42}
        failed = await client.call_tool("fail", {})
        assert (failed.is_error, text_of(failed)) == (True, "this tool always fails")
        chart = await client.call_tool("chart", {})
        assert [block.type for block in chart.content] == ["text", "image"]
        assert chart.meta
        assert (chart.structured_content, chart.meta["trace"]) == ({"bars": 2}, "7")
        large = await client.call_tool("big", {"size": 6_000_000})
        assert len(text_of(large)) == 6_000_000
        with pytest.raises(MCPError, match="Unknown tool"):
            await client.call_tool("ad", {})
        wrong = await client.call_tool("add", {"a": "x", "b": 1})
        assert wrong.is_error


async def test_a_call_reports_logs_asks_and_is_cancelled(bridged: BridgedOffice, bridge: Any, mode: Any) -> None:
    heard = Heard()
    async with bridged.client(bridge, mode, heard) as client:
        await all_tools(client)
        done = await client.call_tool("steps", {"count": 3}, progress_callback=heard.report)
        assert text_of(done) == "done"
        assert heard.progress[-1] == (3, 3, "step 3")
        assert heard.progress == sorted(heard.progress)
        await until(lambda: heard.logs == ["at step 1", "at step 2", "at step 3"])
        assert text_of(await client.call_tool("greet", {})) == "hi Ada, asked 'Who are you?'"
        waiting = asyncio.create_task(client.call_tool("wait", {"name": "x"}))
        await until(lambda: "begun x" in bridged.noted())
        waiting.cancel()
        await until(lambda: "cancelled x" in bridged.noted())


async def test_a_client_that_goes_away_cancels_its_calls(bridged: BridgedOffice, bridge: Any, mode: Any) -> None:
    async with bridged.client(bridge, mode) as client:
        await all_tools(client)
        waiting = asyncio.create_task(client.call_tool("wait", {"name": "y"}))
        await until(lambda: "begun y" in bridged.noted())
    await asyncio.wait([waiting])
    await until(lambda: "cancelled y" in bridged.noted())


async def test_a_server_of_an_older_revision_asks_clients_of_both(
    bridged: BridgedOffice, bridge: Any, mode: Any
) -> None:
    heard = Heard(answers=[{"city": "BER"}, {"count": 3}])
    async with bridged.client(bridge, mode, heard) as client:
        await all_tools(client)
        booked = json.loads(text_of(await client.call_tool("book", {})))
        assert [booked[each]["content"] for each in ("where", "seats")] == [{"city": "BER"}, {"count": 3}]
        assert bridged.noted().count("book") == 1


async def test_resources_prompts_and_completions_are_read(bridged: BridgedOffice, bridge: Any, mode: Any) -> None:
    async with bridged.client(bridge, mode) as client:
        await all_tools(client)
        await until_listed(client, "notes://page")
        page = await client.read_resource("notes://page")
        assert [each.text for each in page.contents if isinstance(each, types.TextResourceContents)] == ["first"]
        assert [each.uri_template for each in (await client.list_resource_templates()).resource_templates] == [
            "notes://{day}/entries"
        ]
        entries = await client.read_resource("notes://monday/entries")
        assert isinstance(entries.contents[0], types.TextResourceContents)
        assert entries.contents[0].text == "nothing on monday"
        with pytest.raises(MCPError):
            await client.read_resource("notes://nowhere/at/all")
        assert [each.name for each in (await client.list_prompts()).prompts] == ["trip"]
        trip = await client.get_prompt("trip", {"city": "Paris"})
        assert isinstance(trip.messages[0].content, types.TextContent)
        assert trip.messages[0].content.text == "Plan a trip to Paris."
        reference = types.PromptReference(type="ref/prompt", name="trip")
        completion = await client.complete(reference, {"name": "city", "value": "Par"})
        assert completion.completion.values == ["Paris", "Parma"]


async def test_the_desktop_is_a_resource_and_a_tool(bridged: BridgedOffice, bridge: Any, mode: Any) -> None:
    async with bridged.client(bridge, mode) as client:
        await all_tools(client)
        await until_listed(client, "desktop://laptop")
        desktop = await client.read_resource("desktop://laptop")
        texts = [each.text for each in desktop.contents if isinstance(each, types.TextResourceContents)]
        assert [text.rpartition("\n")[2] for text in texts] == ["first", "second"]
        shown = await client.call_tool("get_desktop", {"computer": "laptop", "size": 1})
        assert text_of(shown) == texts[0]
        assert text_of(await client.call_tool("get_desktop", {})) == "\n".join(texts)
        nobody = await client.call_tool("get_desktop", {"computer": "nobody"})
        assert nobody.is_error


async def test_older_clients_are_told_what_they_subscribed_to(bridged: BridgedOffice, bridge: Any) -> None:
    heard = Heard()
    async with bridged.client(bridge, "legacy", heard) as client:
        await all_tools(client)
        for uri in ("notes://page", "desktop://laptop"):
            await until_listed(client, uri)
            wanted = types.SubscribeRequest(params=types.SubscribeRequestParams(uri=uri))
            await client.session.send_request(wanted, types.EmptyResult)
        await until_told(client, heard, "notes://page", "write", {"text": "second"})
        arguments = {"uri": "window://good/three", "text": "third"}
        await until_told(client, heard, "desktop://laptop", "open_window", arguments)
        before = len(changes(heard))
        await client.call_tool("grow", {"name": "newcomer"})
        await until(lambda: len(changes(heard)) > before)
        while "newcomer" not in {tool.name for tool in (await client.list_tools()).tools}:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert text_of(await client.call_tool("newcomer", {})) == "newcomer"


async def test_newer_clients_listen_to_what_they_want(bridged: BridgedOffice, bridge: Any) -> None:
    async with bridged.client(bridge, "auto") as client:
        await all_tools(client)
        changed = {
            "notes://page": ("write", {"text": "second"}),
            "desktop://laptop": ("open_window", {"uri": "window://good/three", "text": "third"}),
        }
        for uri, (tool, arguments) in changed.items():
            await until_listed(client, uri)
            async with client.listen(resource_subscriptions=[uri]) as news:
                await client.call_tool(tool, arguments)
                assert await anext(aiter(news)) == ResourceUpdated(uri)


def changes(heard: Heard) -> list[Any]:
    return [each for each in heard.messages if isinstance(each, types.ToolListChangedNotification)]


async def until_listed(client: Client, uri: str) -> None:
    while True:
        if uri in {str(each.uri) for each in (await client.list_resources()).resources}:
            return
        await asyncio.sleep(0.02)


async def until_told(client: Client, heard: Heard, uri: str, tool: str, arguments: dict[str, Any]) -> None:
    """Change a resource once, and wait until the client is told."""

    def is_told() -> bool:
        told = [each for each in heard.messages if isinstance(each, types.ResourceUpdatedNotification)]
        return any(str(each.params.uri) == uri for each in told)

    await client.call_tool(tool, arguments)
    await until(is_told)
