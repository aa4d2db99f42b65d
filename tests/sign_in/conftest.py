"""A provider, an MCP server behind it, a browser, and computers that use them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener
from weakref import WeakKeyDictionary

import pytest

from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.consent.approval import Caller
from a2c_smcp.mcp_host.failures import SignInFailed
from a2c_smcp.mcp_host.limits import HostLimits
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


_failures: WeakKeyDictionary[Computer, str] = WeakKeyDictionary()


@pytest.fixture
async def meet(tmp_path: Path, provider: AuthorizationServer) -> AsyncIterator[Callable[..., Any]]:
    """Starts computers with one server each, unless told not to, and ends them with the test.

    `auth` and `headers` are of the server, `limit` is the time for a sign-in, and the rest is of the computer. Its
    owner names the authorization server of the test, which is on this machine, and signs in if there is a browser.
    """
    async with AsyncExitStack() as stack:

        async def start(url: str, *, starts: bool = True, limit: float = 60.0, **options: Any) -> Computer:
            server = {name: options.pop(name) for name in ("auth", "headers") if name in options}
            if "headers" not in server and server.setdefault("auth", {}) is not None:
                server["auth"] = {"issuer": provider.issuer, **server["auth"]}
            options = {"state_folder": tmp_path / "state", **options}
            computer = Computer("mine", policy=HostLimits(sign_in_limit=limit), approve=lambda _: True, **options)
            computer.add_server({"name": "files", "url": url, **server})
            await stack.enter_async_context(computer)
            if starts:
                await computer.start()
                if options.get("open_url") and "headers" not in server:
                    await sign_in(computer)
            return computer

        yield start


class Scene:
    """A provider, the MCP server `files` behind it, a person with a browser, and computers that use them."""

    def __init__(self, guarded: GuardedServer, browser: Browser, meet: Callable[..., Any]) -> None:
        self.server, self.provider, self.browser, self.opened = guarded, guarded.provider, browser, browser.opened
        self._meet = meet

    async def meet(self, url: str = "", **options: Any) -> Computer:
        """A computer that its owner has tried to sign in with by the browser, unless told otherwise."""
        computer: Computer = await self._meet(url or self.server.mcp_url, **{"open_url": self.browser, **options})
        return computer

    async def ready(self, url: str = "", **options: Any) -> Computer:
        """Such a computer, whose server could be started."""
        computer = await self.meet(url, **options)
        assert state_of(computer) == "ready"
        return computer

    async def signed_in(self, url: str = "", **options: Any) -> Computer:
        """A computer that opens no browser; its owner has signed in by hand."""
        computer = await self.meet(url, open_url=None, **options)
        await computer.sign_in("files", open_url=self.browser)
        return computer


@pytest.fixture
def scene(guarded: GuardedServer, browser: Browser, meet: Callable[..., Any]) -> Scene:
    return Scene(guarded, browser, meet)


_calls = iter(range(10**6))


async def sign_in(computer: Computer) -> None:
    """Sign in if that is needed. Why it failed is in `reason_of`."""
    if state_of(computer) == "auth_required":
        try:
            await computer.sign_in("files")
        except SignInFailed as failure:
            _failures[computer] = failure.reason


def state_of(computer: Computer) -> str:
    return computer.status()["files"].state


def reason_of(computer: Computer) -> str:
    """Why its server waits for a sign-in."""
    assert state_of(computer) == "auth_required"
    return _failures.get(computer) or computer.status()["files"].reason


async def call(computer: Computer, tool: str, timeout: float = 60, **arguments: Any) -> dict[str, Any]:
    return await computer.execute_tool(Caller("office", "agent"), f"call-{next(_calls)}", tool, arguments, timeout)


def text_of(result: dict[str, Any]) -> str:
    return "\n".join(block["text"] for block in result["content"])
