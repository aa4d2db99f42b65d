"""Real programs for the tests of the bridge: a Server, a computer with MCP servers, bridges, and the SDK's client."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from tests.computer.supervised import SERVERS
from tests.ports import free_port
from tests.program import forked
from tests.stage.mcp_clients import INITIALIZE
from tests.stage.place import PATIENCE, Place
from tests.stage.program import Program
from tests.waiting import until

KEY = "the-bearer-key-of-this-test"
JSON = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
AUTHORIZED = {**JSON, "Authorization": f"Bearer {KEY}"}
UPSTREAM = Path(__file__).parents[1] / "bridge" / "upstream.py"


class Heard:
    """What a client was told, and how it answers questions: with its name, or with the `answers` in their order."""

    def __init__(self, name: str = "Ada", answers: Sequence[dict[str, Any]] = ()) -> None:
        self.name = name
        self.answers = [*answers]
        self.asked: list[str] = []
        self.logs: list[Any] = []
        self.progress: list[tuple[float, float | None, str | None]] = []
        self.messages: list[Any] = []

    async def answer(self, context: Any, params: Any) -> types.ElicitResult:
        self.asked.append(params.message)
        if self.answers:
            return types.ElicitResult(action="accept", content=self.answers.pop(0))
        return types.ElicitResult(action="accept", content={"name": f"{self.name}, asked {params.message!r}"})

    async def log(self, params: Any) -> None:
        self.logs.append(params.data)

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        self.progress.append((progress, total, message))

    async def hear(self, message: Any) -> None:
        self.messages.append(message)

    @property
    def updated(self) -> list[str]:
        """The URIs of resources that have changed."""
        updates = [message for message in self.messages if isinstance(message, types.ResourceUpdatedNotification)]
        return [str(update.params.uri) for update in updates]

    @property
    def list_changes(self) -> int:
        """The number of changes of the list of tools."""
        return sum(isinstance(message, types.ToolListChangedNotification) for message in self.messages)


class BridgedOffice:
    """An office with a computer, `laptop`, on a Server of its own. Each program can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.place = Place(folder)
        self.notes = folder / "notes"
        self.port = free_port()
        self.server: Program
        self.computer: Program

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def noted(self) -> list[str]:
        return self.notes.read_text("utf-8").splitlines() if self.notes.exists() else []

    async def start_server(self, *words: str) -> None:
        self.server = await self.place.start("server", "--port", str(self.port), *words)
        await self.server.says("listening on")

    def servers(self) -> dict[str, dict[str, Any]]:
        """The MCP servers of the computer."""
        command, *args = forked(UPSTREAM, self.notes)
        good = {"command": sys.executable, "args": [str(SERVERS / "good.py")], "forbidden_tools": ["add", "grow"]}
        allowed = {"default_tool_meta": {"auto_apply": True}}
        older = {"command": sys.executable, "args": [str(SERVERS / "older_asking.py"), str(self.notes)]}
        return {
            "upstream": {"command": command, "args": args, **allowed},
            "windows": {**good, **allowed},
            "older": {**older, **allowed},
        }

    async def start_computer(self, *words: str, stderr: int = PIPE, **environ: str) -> None:
        config = self.place.write(self.servers())
        options = ("--name", "laptop", "--url", self.url, "--config", str(config), "--yes", "--no-input")
        self.computer = await self.place.start("computer", *options, *words, stderr=stderr, **environ)
        if stderr == PIPE:
            await self.computer.says("joined")

    async def start_bridge(self, *words: str, port: int = 0, **environ: Any) -> tuple[Program, str]:
        """A bridge over HTTP, and its URL."""
        key = () if "--no-key" in words else ("--bearer-key", KEY)
        options = ("bridge", "--url", self.url, "--port", str(port), *key, *words)
        program = await self.place.start(*options, **environ)
        return program, (await program.says("listening on")).removeprefix("listening on ")

    def stdio(self, *words: str, **environ: str) -> StdioServerParameters:
        """A bridge that a client starts."""
        command, *args, _ = forked(Path())
        args += ["", "bridge", "--stdio", "--url", self.url, *words]
        return StdioServerParameters(command=command, args=args, env={**self.place.environ, **environ})

    @asynccontextmanager
    async def client(
        self, where: StdioServerParameters | str, mode: Any, heard: Heard | None = None, key: str = KEY, **options: Any
    ) -> AsyncIterator[Client]:
        """The SDK's client, which asks until the tools are there."""
        heard = heard or Heard()
        callbacks: dict[str, Any] = {
            "elicitation_callback": heard.answer,
            "logging_callback": heard.log,
            "message_handler": heard.hear,
            "log_level": "info",
            **options,
        }
        async with asyncio.timeout(PATIENCE):
            if not isinstance(where, str):
                async with Client(where, mode=mode, cache=None, **callbacks) as connected:
                    yield connected
                return
            headers = {"Authorization": f"Bearer {key}"}
            timeout = httpx2.Timeout(30, read=PATIENCE)
            async with httpx2.AsyncClient(headers=headers, timeout=timeout) as http:
                transport = streamable_http_client(where, http_client=http, max_sse_event_size=None)
                async with Client(transport, mode=mode, cache=None, **callbacks) as connected:
                    yield connected

    @asynccontextmanager
    async def user(
        self, where: StdioServerParameters | str, mode: Any = "auto", heard: Heard | None = None, **options: Any
    ) -> AsyncIterator[Client]:
        """A client that has the tools of the computer."""
        async with self.client(where, mode, heard, **options) as client:
            await all_tools(client)
            yield client

    async def waiting(self, client: Client, name: str) -> asyncio.Task[Any]:
        """A call of the tool `wait` under this name, which has begun."""
        calling = asyncio.create_task(client.call_tool("wait", {"name": name}))
        await until(lambda: f"begun {name}" in self.noted())
        return calling

    async def is_cancelled(self, name: str) -> None:
        """Waits until the tool `wait` is told."""
        await until(lambda: f"cancelled {name}" in self.noted())

    async def close(self) -> None:
        await self.place.end()


async def all_tools(client: Client, *names: str) -> dict[str, types.Tool]:
    """The tools of the computer, these among them, which may still be starting its servers."""
    while True:
        found = {tool.name: tool for tool in (await client.list_tools()).tools}
        if {*(names or ("add", "open_window", "book"))} <= found.keys():
            return found
        await asyncio.sleep(0.02)


async def until_listed(client: Client, uri: str) -> None:
    while True:
        if uri in {str(resource.uri) for resource in (await client.list_resources()).resources}:
            return
        await asyncio.sleep(0.02)


async def subscribed(client: Client, uri: str) -> None:
    """An older client wants to be told of changes of a resource."""
    wanted = types.SubscribeRequest(params=types.SubscribeRequestParams(uri=uri))
    await client.session.send_request(wanted, types.EmptyResult)


async def until_told(client: Client, heard: Heard, uri: str, tool: str, arguments: dict[str, Any]) -> None:
    """Change a resource once, and wait until the client is told."""
    await client.call_tool(tool, arguments)
    await until(lambda: uri in heard.updated)


# Without the SDK's client


async def begun(http: httpx2.AsyncClient, url: str, **capabilities: Any) -> dict[str, str]:
    """The headers of a new session."""
    params = {**INITIALIZE["params"], "capabilities": capabilities}
    first = await http.post(url, json={**INITIALIZE, "params": params}, headers=AUTHORIZED)
    session = {"Mcp-Session-Id": first.headers["mcp-session-id"], "MCP-Protocol-Version": "2025-11-25"}
    headers = {**AUTHORIZED, **session}
    await http.post(url, json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers)
    return headers


async def answered(
    http: httpx2.AsyncClient, url: str, headers: dict[str, str], number: int, method: str, params: dict[str, Any]
) -> dict[str, Any]:
    request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    async with http.stream("POST", url, json=request, headers=headers) as stream:
        return await response_in(stream, number)


async def until_once_listed(http: httpx2.AsyncClient, url: str, headers: dict[str, str], tool: str = "once") -> None:
    request = {"jsonrpc": "2.0", "id": 3, "method": "tools/list"}
    while True:
        if f'"{tool}"' in (await http.post(url, json=request, headers=headers)).text:
            return
        await asyncio.sleep(0.05)


async def first_event_id(stream: Any) -> str:
    async for line in stream.aiter_lines():
        if line.startswith("id:"):
            return str(line.removeprefix("id:").strip())
    raise AssertionError("the stream has no event")


async def response_in(stream: Any, number: int) -> dict[str, Any] | None:
    async for line in stream.aiter_lines():
        if line.startswith("data:") and line.removeprefix("data:").strip():
            message: dict[str, Any] = json.loads(line.removeprefix("data:"))
            if message.get("id") == number:
                return message
    return None
