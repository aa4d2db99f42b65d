"""A provider, an MCP server behind it, a browser, and computers that use them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

import pytest

from a2c_smcp.computer.approval import Caller
from a2c_smcp.computer.computer import Computer
from a2c_smcp.mcp_host.policy import HostPolicy
from tests.sign_in.authorization_server import AuthorizationServer
from tests.sign_in.guarded_server import GuardedServer
from tests.sign_in.served import served


class Browser:
    """A person's browser: it follows redirects, also to this machine. It notes what it was asked to open."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.pages: list[str] = []

    async def __call__(self, url: str) -> None:
        self.opened.append(url)
        await asyncio.to_thread(lambda: self.pages.append(_page(url)))


def _page(url: str) -> str:
    """Not by the library that the computer uses: it would write codes into the log."""
    try:
        with build_opener(ProxyHandler({})).open(url, timeout=60) as answer:
            return str(answer.read().decode())
    except HTTPError as error:
        return error.read().decode()


@pytest.fixture
def browser() -> Browser:
    return Browser()


@pytest.fixture
async def provider() -> AsyncIterator[AuthorizationServer]:
    provider = AuthorizationServer()
    async with served(provider.app):
        yield provider


@pytest.fixture
async def guarded(provider: AuthorizationServer) -> AsyncIterator[GuardedServer]:
    async with GuardedServer(provider).running() as server:
        yield server


@pytest.fixture
async def meet(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Starts computers with one server each, and ends them with the test."""
    async with AsyncExitStack() as stack:

        async def start(url: str, *, name: str = "files", auth: Any = None, **options: Any) -> Computer:
            options = {"state_folder": tmp_path / "state", **options}
            policy = HostPolicy(sign_in_limit=options.pop("limit", 60.0))
            computer = Computer("mine", policy=policy, approve=lambda _: True, **options)
            computer.add_server({"name": name, "url": url, **({"auth": auth} if auth else {})})
            await stack.enter_async_context(computer)
            await computer.start()
            return computer

        yield start


_calls = iter(range(10**6))


async def call(computer: Computer, tool: str, timeout: float = 60, **arguments: Any) -> dict[str, Any]:
    return await computer.execute_tool(Caller("office", "agent"), f"call-{next(_calls)}", tool, arguments, timeout)


def text_of(result: dict[str, Any]) -> str:
    return "\n".join(block["text"] for block in result["content"])
