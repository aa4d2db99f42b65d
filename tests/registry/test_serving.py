"""A registry as an MCP server, for our sessions and the SDK's client, older and newer, over stdio and HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.subscriptions import ToolsListChanged
from mcp.types import ImageContent, ResourceTemplateReference

from a2c_smcp.registry import FunctionTool, MCPRegistry, Retry
from a2c_smcp.registry.content import ToolFailed, value_of
from a2c_smcp.registry.remote.mcp_server import RegistryServer
from tests.ports import free_port
from tests.program import ForkedScript, forked
from tests.registry.servers import PATIENCE, good, is_listening, wait_for
from tests.stage.bridge import Heard
from tests.stage.served import served
from tests.stage.texts import text_of
from tests.waiting import until

TOOLBOX = Path(__file__).with_name("toolbox.py")


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    number = free_port()
    with ForkedScript(TOOLBOX, "http", number) as process:
        try:
            wait_for(lambda: is_listening(number))
            yield number
        finally:
            process.kill()


def over_stdio() -> dict[str, Any]:
    command, *words = forked(TOOLBOX)
    return {"name": "toolbox", "command": command, "args": words}


@pytest.fixture(params=["stdio", "http"])
def config(request: pytest.FixtureRequest) -> dict[str, Any]:
    if request.param == "stdio":
        return over_stdio()
    return {"name": "toolbox", "url": f"http://127.0.0.1:{request.getfixturevalue('port')}/mcp"}


@asynccontextmanager
async def client(config: dict[str, Any], mode: Any, **options: Any) -> AsyncIterator[Client]:
    where = config.get("url") or StdioServerParameters(command=config["command"], args=config["args"])

    async with asyncio.timeout(PATIENCE), Client(where, mode=mode, **options) as connected:
        yield connected


async def test_the_sdks_client_learns_who_serves_it_and_lists_and_calls_the_tools(
    config: dict[str, Any], mode: Any
) -> None:
    async with client(config, mode) as sdk:
        about = sdk.server_info
        assert (about.name, about.version, sdk.instructions) == ("toolbox", "1.2", "Be kind.")
        assert sdk.server_capabilities.tools.list_changed
        tools = {tool.name: tool for tool in (await sdk.list_tools()).tools}
        add = tools["add"]
        assert (add.description, add.title, add.annotations.read_only_hint) == ("Add two numbers.", "Addition", True)
        assert "odd" not in tools, "what the SDK refuses hides no other"
        result = await sdk.call_tool("add", {"a": 1, "b": 2})
        assert (result.structured_content, result.is_error) == ({"result": 3}, False)
        failed = await sdk.call_tool("fail", {})
        assert (text_of(failed), failed.is_error) == ("this tool always fails", True)
        assert (await sdk.call_tool("add", {"a": "x", "b": 2})).is_error


async def test_older_clients_are_notified_of_changes(config: dict[str, Any]) -> None:
    listener = Heard()
    async with client(config, "legacy", message_handler=listener.hear) as sdk:
        await sdk.call_tool("grow", {"name": "more"})
        await until(lambda: listener.list_changes)
        assert "more" in {tool.name for tool in (await sdk.list_tools()).tools}


async def test_newer_clients_get_changes_on_their_subscription(config: dict[str, Any]) -> None:
    async with client(config, "auto") as sdk, sdk.listen(tools_list_changed=True) as news:
        await sdk.call_tool("grow", {"name": "another"})
        assert isinstance(await anext(aiter(news)), ToolsListChanged)


async def test_our_own_sessions_follow_changes(config: dict[str, Any]) -> None:
    registry = MCPRegistry()
    async with registry.mcp_server(config) as names:
        assert "add" in names
        assert await registry.acall("add", {"a": 1, "b": 2}) == {"result": 3}
        with pytest.raises(ToolFailed, match="this tool always fails"):
            await registry.acall("fail", {})
        await registry.acall("grow", {"name": "third"})
        await until(lambda: "third" in registry)
        assert await registry.acall("third", {}) == "third"
        await registry.acall("shrink", {"name": "third"})
        await until(lambda: "third" not in registry)


async def test_a_call_that_is_cancelled_is_cancelled_in_the_tool(config: dict[str, Any]) -> None:
    registry = MCPRegistry()
    async with registry.mcp_server(config):
        call = asyncio.create_task(registry.acall("wait", {"seconds": 60}))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call, 0.5)
        await until(lambda: "cut_short" in registry)
        await registry.acall("shrink", {"name": "cut_short"})


@pytest.mark.covers("registry-progress")
async def test_progress_of_a_tool_reaches_the_client(config: dict[str, Any], mode: Any) -> None:
    heard = Heard()
    async with client(config, mode) as connected:
        await connected.call_tool("count", {"steps": 3}, progress_callback=heard.report)
        await until(lambda: heard.progress and heard.progress[-1] == (3, 3, "step 3"))


@pytest.mark.covers("registry-context", "registry-served")
async def test_a_tool_talks_with_the_client_while_it_runs(config: dict[str, Any], mode: Any) -> None:
    heard = Heard(answers=[{"name": "Ada"}])
    level = {} if mode == "legacy" else {"log_level": "warning"}
    async with client(config, mode, elicitation_callback=heard.answer, logging_callback=heard.log, **level) as sdk:
        assert text_of(await sdk.call_tool("talk", {}, progress_callback=heard.report)) == "hi Ada"
        await until(lambda: heard.progress == [(1, 2, "asking"), (2, 2, "asked")])
        await until(lambda: heard.logs == ["about to ask"])


@pytest.mark.covers("registry-served")
async def test_resources_and_prompts_are_read(config: dict[str, Any], mode: Any) -> None:
    async with client(config, mode) as sdk:
        assert "board://today" in {each.uri for each in (await sdk.list_resources()).resources}
        (template,) = (await sdk.list_resource_templates()).resource_templates
        assert template.uri_template == "board://{day}/{+place}"
        assert text_of(await sdk.read_resource("board://monday/the/wall")) == "monday at the/wall"
        prompt = await sdk.get_prompt("read", {"style": "short"})
        assert prompt.messages[0].content.text.endswith("short, 0 ways to ask")
        ref = ResourceTemplateReference(uri=template.uri_template)
        assert (await sdk.complete(ref, {"name": "day", "value": "t"})).completion.values == ["tuesday"]


async def test_only_this_machine_is_let_in_by_default(port: int) -> None:
    async with httpx2.AsyncClient() as browser:
        answer = await browser.post(f"http://127.0.0.1:{port}/mcp", json={}, headers={"Host": "evil.example"})
    assert answer.status_code == 421


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("tools.example", None, 400),
        ("evil.example", None, 421),
        ("tools.example", "https://page.example", 400),
        ("tools.example", "https://evil.example", 403),
    ],
)
async def test_allowed_hosts_and_origins_are_let_in(host: str, origin: str | None, status: int) -> None:
    app: Any = RegistryServer(MCPRegistry()).http_app(
        "/", allowed_hosts=["tools.example"], allowed_origins=["https://page.example"]
    )
    headers = {"Accept": "application/json, text/event-stream", **({"Origin": origin} if origin else {})}
    inside = httpx2.ASGITransport(app=app)
    async with app.router.lifespan_context(app), httpx2.AsyncClient(transport=inside) as browser:
        answer = await browser.post(f"http://{host}/", json={}, headers=headers)
    assert answer.status_code == status


async def test_the_result_of_a_remote_tool_is_passed_on_unchanged() -> None:
    registry = MCPRegistry()
    image = {"type": "image", "data": "AA==", "mimeType": "image/png"}
    registry.register(FunctionTool(lambda: value_of({"content": [image]}), name="draw"))
    async with registry.mcp_server(good()), served(registry) as sdk:
        assert [type(block) for block in (await sdk.call_tool("draw", {})).content] == [ImageContent]
        failure = await sdk.call_tool("fail", {})
        assert failure.is_error
        assert failure.content[0].text.startswith("Error executing tool fail")


@pytest.mark.parametrize("trusted", [False, True])
async def test_hints_of_a_server_allow_retries_only_if_they_are_trusted(trusted: bool) -> None:
    registry = MCPRegistry(retry=Retry(first_pause=0))
    async with registry.mcp_server(over_stdio(), trust_hints=trusted):
        hints = {tool["name"]: tool.get("annotations") for tool in registry.describe("mcp")}
        assert hints["fail_once"] == {"idempotentHint": True}
        if trusted:
            assert await registry.acall("fail_once", {"attempt": "a"}) == "called 2 times"
        else:
            with pytest.raises(ToolFailed, match="fails the first time"):
                await registry.acall("fail_once", {"attempt": "a"})


def test_a_tool_named_like_one_of_another_server_gets_its_own_servers_name() -> None:
    registry = MCPRegistry()
    registry.add_mcp_server(good("mail"))
    try:
        names = registry.add_mcp_server(good("evil", tool_meta={"add": {"alias": "mail__send"}}))
        assert "evil__add" in names
        assert "mail__send" not in registry
    finally:
        for name in [*registry.mcp_servers]:
            registry.remove_mcp_server(name)


async def test_a_raw_result_is_passed_on_unchanged() -> None:
    registry = MCPRegistry()
    async with registry.mcp_server(good(), raw=True), served(registry) as sdk:
        assert (await sdk.call_tool("fail", {})).is_error
        sum_of = await sdk.call_tool("add", {"a": 1, "b": 2})
        assert (sum_of.is_error, sum_of.structured_content) == (False, {"result": 3})


async def test_changes_from_other_threads_are_announced_to_open_connections() -> None:
    registry, heard = MCPRegistry(), Heard()
    async with served(registry, "legacy", message_handler=heard.hear) as client:
        older = client.server.announcer._older
        await until(lambda: len(older) == 1)
        await asyncio.to_thread(registry.tool, free_port)
        await until(lambda: heard.list_changes)
    assert not older
