"""A served registry and the SDK's client in one process: lists, contents, changes and errors, in both eras of MCP."""

from __future__ import annotations

import asyncio
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, MCPError
from mcp.client.subscriptions import PromptsListChanged, ResourcesListChanged, ResourceUpdated

from a2c_smcp.registry import Hook, Image, MCPRegistry, Policy, ResourceLink, ToolCall, ToolResult, UnknownResource
from a2c_smcp.registry.remote import rounds
from tests.stage.bridge import Heard
from tests.stage.raising import raises
from tests.stage.served import served
from tests.waiting import until

pytestmark = pytest.mark.covers("registry-served")

ICON = {"src": "https://example.com/a.png", "mimeType": "image/png"}


@pytest.fixture
def registry() -> MCPRegistry:
    registry = MCPRegistry()
    registry.add_resource("note://a", "hello", title="A", icons=[ICON], annotations={"priority": 0.5})
    registry.prompt(title="Say it", icons=[ICON], complete={"word": ["yes", "no"]})(say)
    return registry


def say(word: str) -> list[Any]:
    """Say a word."""
    return [word, Image(b"")]


async def subscribe(client: Client, uri: str) -> None:
    """The client's own method warns that 2026-07-28 has it no more."""
    params = types.SubscribeRequestParams(uri=uri)
    await client.session.send_request(types.SubscribeRequest(params=params), types.EmptyResult)


async def test_resources_and_prompts_are_listed_with_all_that_is_known(registry: MCPRegistry, mode: Any) -> None:
    registry.add_resource("note://{id}", lambda id: id, name="any", description="Any note", mime_type="text/plain")  # noqa: A006
    async with served(registry, mode) as client:
        (resource,) = (await client.list_resources()).resources
        assert (resource.uri, resource.title, resource.mime_type) == ("note://a", "A", "text/plain")
        assert resource.annotations.priority == 0.5
        (template,) = (await client.list_resource_templates()).resource_templates
        assert (template.uri_template, template.description) == ("note://{id}", "Any note")
        (prompt,) = (await client.list_prompts()).prompts
        assert (prompt.name, prompt.title, prompt.description) == ("say", "Say it", "Say a word.")
        for listed in (resource, prompt):
            assert listed.icons[0].src == ICON["src"]
        assert client.server_capabilities.resources.subscribe
        assert client.server_capabilities.resources.list_changed


async def test_a_result_arrives_whole(registry: MCPRegistry, mode: Any) -> None:
    @registry.tool(title="Chart", icons=[ICON], annotations={"readOnlyHint": True}, _meta={"k": 1})
    def chart() -> ToolResult:
        return ToolResult([Image(b""), ResourceLink("note://a")], {"n": None}, meta={"trace": "7"})

    async with served(registry, mode) as client:
        (tool,) = (await client.list_tools()).tools
        assert (tool.title, tool.meta) == ("Chart", {"k": 1})
        assert tool.icons[0].mime_type == "image/png"
        result = await client.call_tool("chart", {})
        assert [block.type for block in result.content] == ["image", "resource_link"]
        assert result.structured_content == {"n": None}
        assert result.meta["trace"] == "7"


class Outcomes(Hook):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def error(self, call: ToolCall) -> None:
        self.seen.append(f"{call.name}: {call.outcome}")


async def test_a_tool_that_is_not_there_is_an_error_of_the_request(mode: Any) -> None:
    hook = Outcomes()
    registry = MCPRegistry(policy=Policy(deny=["secret"]), hooks=[hook])
    registry.tool(name="weather")(lambda: registry.call("nothing", {}))
    registry.tool(name="secret")(lambda: "x")
    async with served(registry, mode) as client:
        for name in ("wether", "secret"):
            with pytest.raises(MCPError) as caught:
                await client.call_tool(name, {})
            assert caught.value.code == types.INVALID_PARAMS
            assert caught.value.message.startswith("Unknown tool")
        assert hook.seen == ["wether: refused", "secret: refused"]
        assert (await client.call_tool("weather", {})).is_error


async def test_what_cannot_be_read_is_an_error_with_mcps_code(registry: MCPRegistry, mode: Any) -> None:
    @registry.resource("count://{n}")
    def count(n: int) -> str:
        if n == 1:
            raise UnknownResource("one is missing")
        raise ZeroDivisionError("not by zero")

    missing = types.INVALID_PARAMS if mode == "auto" else -32002
    async with served(registry, mode) as client:
        errors = {
            "note://b": (missing, "Resource not found"),
            "count://1": (missing, "Resource not found"),
            "count://x": (types.INVALID_PARAMS, "Invalid arguments"),
            "count://2": (types.INTERNAL_ERROR, "not by zero"),
        }
        for uri, (code, message) in errors.items():
            with pytest.raises(MCPError) as caught:
                await client.read_resource(uri)
            assert caught.value.code == code
            assert caught.value.message.startswith(message)
            if code == missing and message == "Resource not found":
                assert caught.value.data == {"uri": uri}
        for name in ("say", "sing"):
            with raises(MCPError, code=types.INVALID_PARAMS):
                await client.get_prompt(name)
        with raises(MCPError, code=types.INVALID_PARAMS):
            await client.complete(types.PromptReference(name="sing"), {"name": "word", "value": ""})


async def test_long_lists_come_in_pages(registry: MCPRegistry, mode: Any) -> None:
    for number in range(7):
        registry.tool(name=f"tool{number}")(lambda: None)
        registry.add_resource(f"many://{number}", "")
        registry.add_resource(f"many{number}://{{x}}", lambda x: "", name="many")
        registry.prompt(name=f"prompt{number}")(lambda: "")
    async with served(registry, mode, {"page_size": 3}) as client:
        lists: list[tuple[Any, str]] = [
            (client.list_tools, "tools"),
            (client.list_resources, "resources"),
            (client.list_resource_templates, "resource_templates"),
            (client.list_prompts, "prompts"),
        ]
        for list_page, field in lists:
            sizes, cursor = list[int](), None
            while True:
                page = await list_page(cursor=cursor)
                sizes.append(len(getattr(page, field)))
                cursor = page.next_cursor
                if cursor is None:
                    break
            assert sizes in ([3, 3, 1], [3, 3, 2])
        first = await client.list_tools()
        registry.unregister(first.tools[-1].name)
        for cursor in (first.next_cursor, "no cursor", "8J+YgA=="):
            with pytest.raises(MCPError, match="Invalid cursor"):
                await client.list_tools(cursor=cursor)


def test_a_page_has_room_for_something() -> None:
    with pytest.raises(ValueError, match="one item at least"):
        MCPRegistry().as_mcp_server(page_size=0)


async def test_older_clients_are_told_of_lists_and_of_resources_they_subscribed_to(registry: MCPRegistry) -> None:
    listener = Heard()
    heard = listener.messages
    async with served(registry, "legacy", message_handler=listener.hear) as client:
        await subscribe(client, "note://a")
        await subscribe(client, "note://a")
        registry.add_resource("note://b", "")
        await asyncio.to_thread(registry.prompt(name="sing"), lambda: "")
        for uri in ("note://b", "note://a"):
            registry.resource_updated(uri)
        await until(lambda: len(heard) >= 3)
        assert [type(message).__name__ for message in heard] == [
            "ResourceListChangedNotification",
            "PromptListChangedNotification",
            "ResourceUpdatedNotification",
        ]
        assert heard[2].params.uri == "note://a"
        params = types.UnsubscribeRequestParams(uri="note://a")
        await client.session.send_request(types.UnsubscribeRequest(params=params), types.EmptyResult)
        registry.resource_updated("note://a")
        registry.remove_prompt("sing")
        await until(lambda: len(heard) >= 4)
        assert isinstance(heard[3], types.PromptListChangedNotification)
    assert registry._watches == {}


async def test_newer_clients_get_what_they_listen_to(registry: MCPRegistry) -> None:
    async with served(registry, "auto") as client:
        listening = client.listen(
            resources_list_changed=True, prompts_list_changed=True, resource_subscriptions=["note://a"]
        )
        async with listening as news:
            events = aiter(news)
            registry.resource_updated("note://b")
            registry.resource_updated("note://a")
            assert await anext(events) == ResourceUpdated("note://a")
            registry.add_resource("note://b", "")
            assert await anext(events) == ResourcesListChanged()
            registry.remove_prompt("say")
            assert await anext(events) == PromptsListChanged()
        await until(lambda: registry._watches == {})


async def test_subscriptions_are_bounded(registry: MCPRegistry, mode: Any) -> None:
    *enough, more = [f"note://{number}" for number in range(rounds.MAX_SUBSCRIPTIONS + 1)]
    async with served(registry, mode) as client:
        if mode == "legacy":
            for uri in enough:
                await subscribe(client, uri)
            with pytest.raises(MCPError, match="at most"):
                await subscribe(client, more)
        else:
            with pytest.raises(MCPError, match="at most"):
                await client.listen(resource_subscriptions=[*enough, more]).__aenter__()


async def test_a_server_says_who_it_is(mode: Any) -> None:
    registry = MCPRegistry()
    identity: Any = {
        "version": "2",
        "title": "X",
        "description": "all",
        "website_url": "https://a.example",
        "icons": [ICON],
    }
    async with served(registry, mode, identity) as client:
        info = client.server_info
        assert (info.version, info.title, info.description, info.website_url) == ("2", "X", "all", "https://a.example")
        assert info.icons[0].src == ICON["src"]
