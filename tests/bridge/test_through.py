"""What an MCP client of either era gets through a bridge, a Server and a computer, over stdio and HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import mcp_types as types
import pytest
from mcp.client.subscriptions import ResourceUpdated
from mcp.shared.exceptions import MCPError

from tests.stage.bridge import BridgedOffice, Heard, all_tools, subscribed, until_listed, until_told
from tests.stage.texts import text_of
from tests.waiting import until

pytestmark = pytest.mark.covers("bridge-through")


async def test_a_client_lists_and_calls_the_tools(bridged: BridgedOffice, bridge: Any, mode: Any) -> None:
    async with bridged.client(bridge, mode) as client:
        add: Any = (await all_tools(client))["add"]
        assert (add.title, add.description, add.annotations.read_only_hint) == ("Addition", "Add two numbers.", True)
        assert (await client.call_tool("add", {"a": 20, "b": 22})).structured_content == {"result": 42}
        failed = await client.call_tool("fail", {})
        assert (failed.is_error, text_of(failed)) == (True, "this tool always fails")
        chart: Any = await client.call_tool("chart", {})
        assert [block.type for block in chart.content] == ["text", "image"]
        assert (chart.structured_content, chart.meta["trace"]) == ({"bars": 2}, "7")
        assert len(text_of(await client.call_tool("big", {"size": 6_000_000}))) == 6_000_000
        with pytest.raises(MCPError, match="Unknown tool"):
            await client.call_tool("ad", {})
        assert (await client.call_tool("add", {"a": "x", "b": 1})).is_error


async def test_a_call_reports_logs_asks_and_is_cancelled(bridged: BridgedOffice, bridge: Any, mode: Any) -> None:
    heard = Heard()
    async with bridged.user(bridge, mode, heard) as client:
        done = await client.call_tool("steps", {"count": 3}, progress_callback=heard.report)
        assert text_of(done) == "done"
        assert heard.progress[-1] == (3, 3, "step 3")
        assert heard.progress == sorted(heard.progress)
        await until(lambda: heard.logs == ["at step 1", "at step 2", "at step 3"])
        assert text_of(await client.call_tool("greet", {})) == "hi Ada, asked 'Who are you?'"
        waiting = await bridged.waiting(client, "x")
        waiting.cancel()
        await bridged.is_cancelled("x")


async def test_a_client_that_goes_away_cancels_its_calls(bridged: BridgedOffice, bridge: Any, mode: Any) -> None:
    async with bridged.user(bridge, mode) as client:
        waiting = await bridged.waiting(client, "y")
    await asyncio.wait([waiting])
    await bridged.is_cancelled("y")


async def test_a_server_of_an_older_revision_asks_clients_of_both(
    bridged: BridgedOffice, bridge: Any, mode: Any
) -> None:
    heard = Heard(answers=[{"city": "BER"}, {"count": 3}])
    async with bridged.user(bridge, mode, heard) as client:
        booked = json.loads(text_of(await client.call_tool("book", {})))
        assert [booked[each]["content"] for each in ("where", "seats")] == [{"city": "BER"}, {"count": 3}]
        assert bridged.noted().count("book") == 1


async def test_resources_prompts_and_completions_are_read(bridged: BridgedOffice, bridge: Any, mode: Any) -> None:
    async with bridged.user(bridge, mode) as client:
        await until_listed(client, "notes://page")
        assert text_of(await client.read_resource("notes://page")) == "first"
        (template,) = (await client.list_resource_templates()).resource_templates
        assert template.uri_template == "notes://{day}/entries"
        assert text_of(await client.read_resource("notes://monday/entries")) == "nothing on monday"
        with pytest.raises(MCPError):
            await client.read_resource("notes://nowhere/at/all")
        assert [each.name for each in (await client.list_prompts()).prompts] == ["trip"]
        assert text_of(await client.get_prompt("trip", {"city": "Paris"})) == "Plan a trip to Paris."
        reference = types.PromptReference(type="ref/prompt", name="trip")
        completion = await client.complete(reference, {"name": "city", "value": "Par"})
        assert completion.completion.values == ["Paris", "Parma"]


async def test_the_desktop_is_a_resource_and_a_tool(bridged: BridgedOffice, bridge: Any, mode: Any) -> None:
    async with bridged.user(bridge, mode) as client:
        await until_listed(client, "desktop://laptop")
        desktop = await client.read_resource("desktop://laptop")
        texts = [each.text for each in desktop.contents if isinstance(each, types.TextResourceContents)]
        assert [text.rpartition("\n")[2] for text in texts] == ["first", "second"]
        assert text_of(await client.call_tool("get_desktop", {"computer": "laptop", "size": 1})) == texts[0]
        assert text_of(await client.call_tool("get_desktop", {})) == "\n".join(texts)
        assert (await client.call_tool("get_desktop", {"computer": "nobody"})).is_error


async def test_older_clients_are_told_what_they_subscribed_to(bridged: BridgedOffice, bridge: Any) -> None:
    heard = Heard()
    async with bridged.user(bridge, "legacy", heard) as client:
        for uri in ("notes://page", "desktop://laptop"):
            await until_listed(client, uri)
            await subscribed(client, uri)
        await until_told(client, heard, "notes://page", "write", {"text": "second"})
        arguments = {"uri": "window://good/three", "text": "third"}
        await until_told(client, heard, "desktop://laptop", "open_window", arguments)
        before = heard.list_changes
        await client.call_tool("grow", {"name": "newcomer"})
        await until(lambda: heard.list_changes > before)
        while "newcomer" not in {tool.name for tool in (await client.list_tools()).tools}:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert text_of(await client.call_tool("newcomer", {})) == "newcomer"


async def test_newer_clients_listen_to_what_they_want(bridged: BridgedOffice, bridge: Any) -> None:
    async with bridged.user(bridge) as client:
        changed = {
            "notes://page": ("write", {"text": "second"}),
            "desktop://laptop": ("open_window", {"uri": "window://good/three", "text": "third"}),
        }
        for uri, (tool, arguments) in changed.items():
            await until_listed(client, uri)
            async with client.listen(resource_subscriptions=[uri]) as news:
                await client.call_tool(tool, arguments)
                assert await anext(aiter(news)) == ResourceUpdated(uri)
