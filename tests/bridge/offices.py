"""Real programs for the tests of the bridge: a Server, a computer with MCP servers, bridges, and the SDK's client."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from tests.cli.programs import PATIENCE, Place
from tests.computer.supervised import SERVERS
from tests.ports import free_port
from tests.program import forked
from tests.server.test_program import Program

__all__ = ["KEY", "BridgedOffice", "Heard", "text_of"]

KEY = "the-bearer-key-of-this-test"
UPSTREAM = Path(__file__).with_name("upstream.py")


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

    async def start_computer(self, *words: str, **environ: str) -> None:
        command, *args = forked(UPSTREAM, self.notes)
        good = {"command": sys.executable, "args": [str(SERVERS / "good.py")], "forbidden_tools": ["add", "grow"]}
        allowed = {"default_tool_meta": {"auto_apply": True}}
        older = {"command": sys.executable, "args": [str(SERVERS / "older_asking.py"), str(self.notes)]}
        servers = {
            "upstream": {"command": command, "args": args, **allowed},
            "windows": {**good, **allowed},
            "older": {**older, **allowed},
        }
        config = self.place.write(servers)
        options = ("--name", "laptop", "--url", self.url, "--config", str(config), "--yes", "--no-input")
        self.computer = await self.place.start("computer", *options, *words, **environ)
        await self.computer.says("joined")

    async def start_bridge(self, *words: str, port: int = 0, **environ: str) -> tuple[Program, str]:
        """A bridge over HTTP, and its URL."""
        key = () if "--no-key" in words else ("--bearer-key", KEY)
        options = ("bridge", "--url", self.url, "--port", str(port), *key, *words)
        program = await self.place.start(*options, **environ)
        return program, (await program.says("listening on")).removeprefix("listening on ")

    def stdio(self, *words: str) -> StdioServerParameters:
        """A bridge that a client starts."""
        command, *args, _ = forked(Path())
        args += ["", "bridge", "--stdio", "--url", self.url, *words]
        return StdioServerParameters(command=command, args=args, env=self.place.environ)

    @asynccontextmanager
    async def client(
        self, where: StdioServerParameters | str, mode: Any, heard: Heard | None = None, key: str = KEY
    ) -> AsyncIterator[Client]:
        """The SDK's client, which asks until the tools are there."""
        heard = heard or Heard()
        callbacks: dict[str, Any] = {
            "elicitation_callback": heard.answer,
            "logging_callback": heard.log,
            "message_handler": heard.hear,
            "log_level": "info",
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

    async def close(self) -> None:
        await self.place.end()


def text_of(result: Any) -> str:
    return "\n".join(block.text for block in result.content if block.type == "text")
