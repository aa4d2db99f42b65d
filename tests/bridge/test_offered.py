"""What a client is offered of several computers, with a real Server and bridge: names, lists, a search, approvals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.client.subscriptions import ResourceUpdated

from a2c_smcp.computer import Computer
from tests.computer.hosted import hosted
from tests.program import forked
from tests.stage.bridge import UPSTREAM, BridgedOffice, Heard, subscribed
from tests.stage.texts import text_of
from tests.waiting import until

Enters = Callable[..., Awaitable["Member"]]


class Member:
    """A computer in the office, which can leave it."""

    def __init__(self, name: str, **options: Any) -> None:
        self.computer = Computer(name, **options)
        self.stack = AsyncExitStack()
        self.wiped: list[str] = []

        @self.computer.tool(auto_apply=True)
        def where(text: str = "") -> str:
            """Say which computer this is."""
            return f"{name} {text}".strip()

        @self.computer.tool
        def wipe(path: str) -> str:
            """Wipe a disk."""
            self.wiped.append(path)
            return f"{path} is gone"

    async def leave(self) -> None:
        await self.stack.aclose()


@pytest.fixture
async def enters(desk: BridgedOffice, tmp_path: Path) -> AsyncIterator[Enters]:
    """Has a computer enter the office; `notes` gives it the MCP server `upstream`."""
    async with AsyncExitStack() as stack:

        async def enter(name: str, *, notes: bool = False, **options: Any) -> Member:
            member = Member(name, **options)
            if notes:
                command, *args = forked(UPSTREAM, tmp_path / f"notes of {name}")
                allowed = {"default_tool_meta": {"auto_apply": True}}
                member.computer.add_server({"name": "upstream", "command": command, "args": args, **allowed})
            await member.stack.enter_async_context(hosted(member.computer, desk.url, "desk", tmp_path / name))
            stack.push_async_callback(member.leave)
            return member

        yield enter


async def tools_with(client: Client, is_so: Callable[[dict[str, types.Tool]], object]) -> dict[str, types.Tool]:
    """The tools, as soon as they are so."""
    async with asyncio.timeout(60):
        while True:
            found = {tool.name: tool for tool in (await client.list_tools()).tools}
            if is_so(found):
                return found
            await asyncio.sleep(0.02)


async def refusal(client: Client, tool: str, **arguments: Any) -> str:
    """The error of a call."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return text_of(result)


def computers_of(tools: dict[str, types.Tool], name: str = "where") -> list[str]:
    properties = tools[name].input_schema["properties"] if name in tools else {}
    return [*properties.get("computer", {}).get("enum", [])]


@pytest.mark.covers("bridge-grouping", "bridge-through")
async def test_equal_tools_are_one_and_the_list_follows_computers_that_come_and_go(
    desk: BridgedOffice, enters: Enters, mode: Any
) -> None:
    _, url = await desk.start_bridge("--one-for-all", "on")
    attic, _ = await enters("attic"), await enters("laptop")
    heard = Heard()
    async with desk.client(url, mode, heard) as client:
        await tools_with(client, lambda tools: computers_of(tools) == ["attic", "laptop"])
        async with AsyncExitStack() as stack:
            if mode == "auto":
                news = await stack.enter_async_context(client.listen(tools_list_changed=True))
                told = asyncio.create_task(anext(aiter(news)))
            studio = await enters("studio")
            await until(lambda: told.done() if mode == "auto" else heard.list_changes)
        await tools_with(client, lambda tools: computers_of(tools) == ["attic", "laptop", "studio"])
        for name in ("attic", "studio"):
            assert text_of(await client.call_tool("where", {"computer": name, "text": "now"})) == f"{name} now"
        assert "'attic', 'laptop', 'studio'" in await refusal(client, "where", text="now")
        await attic.leave()
        await tools_with(client, lambda tools: computers_of(tools) == ["laptop", "studio"])
        assert "these have: 'laptop', 'studio'" in await refusal(client, "where", computer="attic")
        await studio.leave()
        await tools_with(client, lambda tools: computers_of(tools) == ["laptop"])
        assert text_of(await client.call_tool("where", {"computer": "laptop"})) == "laptop"


@pytest.mark.covers("bridge-names", "bridge-killed")
async def test_names_stay_with_their_computers_when_the_bridge_is_killed(desk: BridgedOffice, enters: Enters) -> None:
    options = ("--one-for-all", "off")
    program, url = await desk.start_bridge(*options)
    laptop = await enters("laptop")
    async with desk.client(url, "auto") as client:
        await tools_with(client, lambda tools: "where" in tools)
        attic = await enters("attic")
        await tools_with(client, lambda tools: "attic__where" in tools)
        assert text_of(await client.call_tool("where", {})) == "laptop"
        assert text_of(await client.call_tool("attic__where", {})) == "attic"
    await laptop.leave()
    await program.kill()
    _, url = await desk.start_bridge(*options)
    async with desk.client(url, "auto") as client:
        tools = await tools_with(client, lambda tools: "attic__where" in tools)
        assert "where" not in tools
        assert "'laptop', which has the tool 'where', is not in the office now" in await refusal(client, "where")
        await enters("aardvark")
        await enters("laptop")
        tools = await tools_with(client, lambda tools: {"where", "aardvark__where"} <= tools.keys())
        names = {"where": "laptop", "attic__where": "attic", "aardvark__where": "aardvark"}
        assert {name: text_of(await client.call_tool(name, {})) for name in names} == names
    await attic.leave()


@pytest.mark.covers("bridge-search")
async def test_too_many_tools_are_found_by_words_and_called(desk: BridgedOffice, enters: Enters, mode: Any) -> None:
    await enters("laptop")
    async with desk.client(desk.stdio("--search-above", "1"), mode) as client:
        tools = await tools_with(client, lambda tools: "search_tools" in tools)
        assert tools.keys() == {"call_tool", "search_tools"}
        found = await client.call_tool("search_tools", {"query": "which computer"})
        assert found.structured_content
        assert [tool["name"] for tool in found.structured_content["tools"]] == ["where"]
        assert json.loads(text_of(found)) == found.structured_content["tools"]
        calling = {"name": "where", "arguments": {"text": "found"}}
        assert text_of(await client.call_tool("call_tool", calling)) == "laptop found"
        await refusal(client, "search_tools", query="")


@pytest.mark.covers("bridge-through")
async def test_resources_and_prompts_of_two_computers_are_both_there(
    desk: BridgedOffice, enters: Enters, mode: Any
) -> None:
    _, url = await desk.start_bridge("--one-for-all", "on")
    await enters("laptop", notes=True)
    heard = Heard()
    async with desk.client(url, mode, heard) as client:
        await listed(client, ["notes://page"], ["notes://{day}/entries"], ["trip"])
        await enters("attic", notes=True)
        other = "a2c://attic/upstream/notes://page"
        template = "a2c://attic/upstream/notes://{day}/entries"
        await listed(client, [other, "notes://page"], [template, "notes://{day}/entries"], ["attic__trip", "trip"])
        await tools_with(client, lambda tools: computers_of(tools, "write") == ["attic", "laptop"])
        async with AsyncExitStack() as stack:
            if mode == "auto":
                news = aiter(await stack.enter_async_context(client.listen(resource_subscriptions=[other])))
            else:
                await subscribed(client, other)
            await client.call_tool("write", {"computer": "laptop", "text": "on the laptop"})
            await client.call_tool("write", {"computer": "attic", "text": "in the attic"})
            if mode == "auto":
                assert await anext(news) == ResourceUpdated(other)
            else:
                await until(lambda: heard.updated == [other])
        assert await read(client, other) == "in the attic"
        assert await read(client, "notes://page") == "on the laptop"
        day = "a2c://attic/upstream/notes://monday/entries"
        assert await read(client, day) == "nothing on monday"
        assert text_of(await client.get_prompt("attic__trip", {"city": "Paris"})) == "Plan a trip to Paris."
        reference = types.ResourceTemplateReference(type="ref/resource", uri=template)
        assert (await client.complete(reference, {"name": "day", "value": ""})).completion.values == []


@pytest.mark.covers("bridge-through")
async def test_a_link_leads_to_the_computer_whose_tool_has_made_it(desk: BridgedOffice, enters: Enters) -> None:
    _, url = await desk.start_bridge("--one-for-all", "on")
    await enters("laptop", notes=True)
    async with desk.client(url, "auto") as client:
        await listed(client, ["notes://page"], ["notes://{day}/entries"], ["trip"])
        await enters("attic", notes=True)
        await tools_with(client, lambda tools: computers_of(tools, "link") == ["attic", "laptop"])
        for computer in ("laptop", "attic"):
            await client.call_tool("write", {"computer": computer, "text": f"of {computer}"})
            linked = await client.call_tool("link", {"computer": computer})
            assert await read(client, linked.content[0].uri) == f"of {computer}"


@pytest.mark.covers("bridge-through", "approval-by-client")
async def test_the_person_at_the_client_approves_if_the_owner_lets_them(
    desk: BridgedOffice, enters: Enters, mode: Any
) -> None:
    laptop, attic = await enters("laptop", approve_by="client"), await enters("attic")
    heard = Heard(answers=[{"approve": "yes"}, {"approve": "no"}])
    async with desk.client(desk.stdio("--one-for-all", "on"), mode, heard) as client:
        await tools_with(client, lambda tools: computers_of(tools, "wipe") == ["attic", "laptop"])
        done = await client.call_tool("wipe", {"computer": "laptop", "path": "/a"})
        assert (done.is_error, text_of(done)) == (False, "/a is gone")
        assert "did not approve" in await refusal(client, "wipe", computer="laptop", path="/b")
        assert laptop.wiped == ["/a"]
        assert len(heard.asked) == 2
        assert "wants to run wipe of the MCP server python on the computer laptop" in heard.asked[0]
        assert '{"path": "/a"}' in heard.asked[0]
        assert "--approve-by client" in await refusal(client, "wipe", computer="attic", path="/c")
        assert (attic.wiped, len(heard.asked)) == ([], 2)


async def listed(client: Client, resources: list[str], templates: list[str], prompts: list[str]) -> None:
    """Wait until exactly these are listed, the Desktops aside."""
    async with asyncio.timeout(60):
        while True:
            uris = sorted(str(each.uri) for each in (await client.list_resources()).resources)
            patterns = sorted(each.uri_template for each in (await client.list_resource_templates()).resource_templates)
            names = sorted(each.name for each in (await client.list_prompts()).prompts)
            if (uris, patterns, names) == (resources, templates, prompts):
                return
            await asyncio.sleep(0.02)


async def read(client: Client, uri: str) -> str:
    """The text of a resource, which is returned under the same URI."""
    result = await client.read_resource(uri)
    assert [str(contents.uri) for contents in result.contents] == [uri]
    return text_of(result)
