"""An MCP server in a registry: what it has to read, whole results, and questions of its tools."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest

from a2c_smcp.mcp_host.failures import ServerGone
from a2c_smcp.registry import Answer, InvalidArguments, MCPRegistry, Question, ToolFailed, UnknownResource
from a2c_smcp.registry.remote.servers import servers
from a2c_smcp.registry.sources import ResourceEntry
from tests.registry.servers import wait_for
from tests.stage.bridge import Heard
from tests.stage.served import served
from tests.stage.texts import text_of

pytestmark = pytest.mark.covers("registry-servers")

TOOLBOX = str(Path(__file__).with_name("toolbox.py"))


def toolbox(name: str = "toolbox", **more: Any) -> dict[str, Any]:
    return {"name": name, "command": sys.executable, "args": [TOOLBOX], **more}


@pytest.fixture(scope="module")
def shared() -> Iterator[MCPRegistry]:
    """A registry with the toolbox in it, for tests that leave it as it was."""
    registry = MCPRegistry()
    registry.add_mcp_server(toolbox())
    try:
        yield registry
    finally:
        registry.remove_mcp_server("toolbox")


def uris(registry: MCPRegistry) -> list[str]:
    return [each["uri"] for each in registry.resources()]


def names(registry: MCPRegistry) -> list[str]:
    return [each["name"] for each in registry.prompts()]


def test_a_server_brings_its_resources_and_prompts(shared: MCPRegistry) -> None:
    assert uris(shared) == ["board://today"]
    assert shared.resources()[0]["title"] == "Today"
    assert [each["uriTemplate"] for each in shared.resource_templates()] == ["board://{day}/{+place}"]
    assert names(shared) == ["read"]
    assert shared.prompts()[0]["arguments"][0] == {"name": "style", "description": "how to read", "required": True}
    assert shared.read_resource("board://monday/wall")["contents"][0]["text"] == "monday at wall"
    prompt = shared.get_prompt("read", {"style": "short"})
    assert prompt["messages"][0]["content"]["text"].endswith("short, 0 ways to ask")
    assert shared.complete("read", "style", "l")["completion"]["values"] == ["long"]
    assert shared.complete("board://{day}/{+place}", "day", "")["completion"]["values"] == ["monday", "tuesday"]


async def test_they_are_read_in_an_event_loop_too(shared: MCPRegistry) -> None:
    assert (await shared.aread_resource("board://today"))["contents"][0]["mimeType"] == "text/plain"
    assert (await shared.aget_prompt("read", {"style": "long"}))["description"] == "Reads the board."
    assert (await shared.acomplete("read", "style"))["completion"]["total"] == 2


def test_what_the_server_refuses_is_an_error_of_ours(shared: MCPRegistry) -> None:
    with pytest.raises(UnknownResource):
        shared.read_resource("board://monday/../wall")
    with pytest.raises(Exception, match="style") as caught:
        shared.get_prompt("read", {})
    assert not isinstance(caught.value, InvalidArguments)
    assert getattr(caught.value, "code", 0) == 400


def test_changes_at_the_server_arrive(shared: MCPRegistry) -> None:
    heard: list[str] = []
    stop = shared.on_readable_change(heard.append)
    shared.call("post", {"name": "extra"})
    wait_for(lambda: "board://extra" in uris(shared) and "extra" in names(shared))
    assert {*heard} == {"resources", "prompts"}
    assert shared.read_resource("board://extra")["contents"][0]["text"] == "extra"
    shared.call("take_down", {"name": "extra"})
    wait_for(lambda: uris(shared) == ["board://today"] and names(shared) == ["read"])
    stop()


def test_a_watched_resource_is_followed_at_the_server(shared: MCPRegistry) -> None:
    heard: list[str] = []
    stop = shared.watch_resource("board://today", heard.append)
    wait_for(lambda: shared.call("write", {"text": "news"}) is None and heard)  # until the server has the subscription
    assert {*heard} == {"board://today"}
    assert _subscriptions() == {"board://today"}
    stop()
    wait_for(lambda: _subscriptions() == set())


def _subscriptions() -> set[str]:
    return {uri for shared in servers()._shared.values() for uri in shared.subscriptions}


def test_the_first_resource_with_a_uri_stays_and_a_prompt_gets_another_name(
    shared: MCPRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    registry = MCPRegistry()
    registry.add_resource("board://today", "mine")
    registry.prompt(name="read")(lambda: "mine")
    registry.add_mcp_server(toolbox("other"))
    try:
        assert registry.read_resource("board://today")["contents"][0]["text"] == "mine"
        assert "'board://today' is left out, the program offers it" in caplog.text
        assert names(registry) == ["read", "other__read"]
        assert registry.get_prompt("other__read", {"style": "short"})["description"] == "Reads the board."
        assert registry.complete("other__read", "style", "s")["completion"]["values"] == ["short"]
        registry.call("post", {"name": "extra"})
        wait_for(lambda: "extra" in names(registry))
        assert names(registry) == ["read", "other__read", "extra"]
        registry.call("take_down", {"name": "extra"})
    finally:
        registry.remove_mcp_server("other")
    assert (uris(registry), names(registry), registry.resource_templates()) == (["board://today"], ["read"], [])


def test_a_server_that_comes_back_is_read_again() -> None:
    registry = MCPRegistry()
    registry.add_mcp_server(toolbox("again", env={"AGAIN": "1"}))
    try:
        before = registry.entry(ResourceEntry, "board://today")
        heard: list[str] = []
        registry.watch_resource("board://today", heard.append)
        with pytest.raises(ServerGone):
            registry.call("leave", {})
        wait_for(lambda: registry.entry(ResourceEntry, "board://today") not in (before, None))
        assert registry.read_resource("board://today")["contents"][0]["text"] == "nothing"
        wait_for(lambda: "write" in registry)
        wait_for(lambda: registry.call("write", {"text": "news"}) is None and heard)
    finally:
        registry.remove_mcp_server("again")


# Passed on to another client


@pytest.mark.covers("registry-content")
async def test_a_result_that_is_passed_on_loses_nothing(shared: MCPRegistry) -> None:
    assert await shared.acall("chart", {}) == {"bars": 2}
    for mode in ("legacy", "auto"):
        async with served(shared, mode) as client:
            result = await client.call_tool("chart", {})
            assert [block.type for block in result.content] == ["text", "image"]
            assert result.structured_content == {"bars": 2}
            assert result.meta["trace"] == "7"
            signed = result.meta.get(types.SERVER_INFO_META_KEY)
            assert signed is None if mode == "legacy" else signed["name"] == "x"


async def test_resources_and_prompts_are_passed_on(shared: MCPRegistry) -> None:
    async with served(shared, elicitation_callback=Heard().answer) as client:
        assert [each.uri for each in (await client.list_resources()).resources] == ["board://today"]
        assert text_of(await client.read_resource("board://monday/wall")) == "monday at wall"
        prompt = await client.get_prompt("read", {"style": "short"})
        assert "1 ways to ask" in prompt.messages[0].content.text


@pytest.mark.covers("registry-context")
async def test_a_question_of_a_server_reaches_the_caller(shared: MCPRegistry) -> None:
    async def answer(question: Question) -> Answer:
        return Answer("accept", {"name": question.message})

    assert await shared.acall("talk", {}, on_question=answer) == "hi Who are you?"
    async with served(shared, elicitation_callback=Heard().answer) as client:
        assert text_of(await client.call_tool("talk", {})) == "hi Ada, asked 'Who are you?'"


@pytest.mark.covers("registry-context")
def test_a_question_of_a_server_reaches_a_caller_that_blocks(shared: MCPRegistry) -> None:
    assert shared.call("talk", {}, on_question=lambda question: {"name": "Bob"}) == "hi Bob"
    with pytest.raises(ToolFailed, match="Missing client capability: elicitation"):
        shared.call("talk", {})
