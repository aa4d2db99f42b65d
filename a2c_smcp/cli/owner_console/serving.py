"""`--console` and `--webhook` of a computer: their options, and serving the pages on this machine only."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from a2c_smcp.cli.errors import Failed, WrongUse, with_server_remedy
from a2c_smcp.cli.options import option
from a2c_smcp.cli.terminal import Say
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.pending import PendingApprovals, PendingQuestions
from a2c_smcp.http.loopback import is_loopback
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.mcp_host.status import State

__all__ = [
    "JOINED",
    "ConnectionReporter",
    "ConsoleFlag",
    "ConsoleOptions",
    "ConsolePort",
    "ConsoleSession",
    "ServedConsole",
    "WebhookOptions",
    "WebhookSecret",
    "WebhookUrl",
    "chosen",
    "console_options",
    "webhook_options",
]

JOINED = "joined"
"""The event of a line that says that the office was joined."""

_HOST = "127.0.0.1"
_SHORTEST_SECRET = 16

ConsoleFlag = Annotated[
    bool, option(None, "--console", "Serve web pages for you on this machine: requests, servers, tools, calls.")
]
ConsolePort = Annotated[
    int | None,
    option("A2C_CONSOLE_PORT", "--console-port", "Port of the console.", min=0, max=65535, show_default="a free one"),
]
ConsoleSession = Annotated[
    str, option(None, "--console-session", "How long the console stays open in a browser at most, like 12h.")
]
WebhookUrl = Annotated[
    str | None,
    option("A2C_WEBHOOK", "--webhook", "URL that is told of requests and questions, signed.", metavar="URL"),
]
WebhookSecret = Annotated[
    Path | None,
    option(
        None,
        "--webhook-secret",
        "File with the secret that signs what is sent; otherwise A2C_WEBHOOK_SECRET.",
        metavar="FILE",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """`port` 0 is a free one; `longest` is how long a session lasts, in seconds."""

    port: int = 0
    longest: float = 12 * 3600


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    url: str
    secret: bytes

    def __repr__(self) -> str:
        return "WebhookOptions()"


def console_options(wanted: bool, port: int | None, session: str) -> ConsoleOptions | None:
    """Raises `WrongUse`."""
    found = re.fullmatch(r"(\d+)(s|m|h)", session)
    if not found or int(found[1]) == 0:
        raise WrongUse(f"--console-session: {session!r} is not a time", "Write 30m or 12h.")
    if not wanted:
        return None
    return ConsoleOptions(port or 0, int(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]])


def webhook_options(url: str | None, file: Path | None, variable: str | None) -> WebhookOptions | None:
    """Raises `WrongUse`. No error quotes the URL, which may hold a secret."""
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        host = parts.hostname if parts.port != 0 else None  # reading an invalid port fails
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https"):
        raise WrongUse("--webhook is not the URL of a web server", "Write https://HOST/PATH.")
    if parts.scheme == "http" and not is_loopback(host):
        raise WrongUse("--webhook would send requests unencrypted", "Write https://; http:// is for this machine only.")
    try:
        secret = file.read_bytes().strip() if file else (variable or "").encode()
    except OSError as error:
        raise WrongUse(
            f"--webhook-secret: {file} cannot be read: {error.strerror}", "Name a file that you may read."
        ) from None
    if len(secret) < _SHORTEST_SECRET:
        what = f"--webhook needs a secret of at least {_SHORTEST_SECRET} characters, which its receiver knows, too"
        raise WrongUse(what, "Write it into a file for --webhook-secret, or into A2C_WEBHOOK_SECRET.")
    return WebhookOptions(url, secret)


def chosen(
    console: bool, port: int | None, session: str, webhook: str | None, secret: Path | None
) -> dict[str, ConsoleOptions | WebhookOptions | None]:
    """What the command line says about the console and the webhook. Raises `WrongUse`."""
    variable = os.environ.get("A2C_WEBHOOK_SECRET")
    return {"console": console_options(console, port, session), "webhook": webhook_options(webhook, secret, variable)}


class ServedConsole:
    """The console of one computer, its webhook, or both."""

    def __init__(
        self,
        computer: Computer,
        approvals: PendingApprovals,
        questions: PendingQuestions,
        say: Say,
        console: ConsoleOptions | None,
        webhook: WebhookOptions | None,
    ) -> None:
        from a2c_smcp.console.owner.state import OwnerState

        self._state = OwnerState(computer, approvals, questions)
        self._say, self._console, self._webhook = say, console, webhook
        self._url = ""

    def on_state(self, name: str, state: State, reason: str) -> None:
        self._state.on_state(name, state, reason)

    def on_connection(self, what: str) -> None:
        self._state.on_connection(what)

    @asynccontextmanager
    async def serving(self, office: str) -> AsyncGenerator[None, None]:
        """Serve and tell until the block ends. Raises `Failed` if the port is taken."""
        self._state.office = office
        async with self._pages(), self._telling():
            yield

    @asynccontextmanager
    async def _pages(self) -> AsyncGenerator[None, None]:
        if self._console is None:
            yield
            return
        # The web server takes a third of a second to import: only who wants the console waits for it.
        from a2c_smcp.bridge.serving.http import serve_http
        from a2c_smcp.console.owner.console import OwnerConsole
        from a2c_smcp.console.sessions import ConsoleSessions

        try:
            listener = socket.create_server((_HOST, self._console.port))
        except OSError as error:
            what = f"port {self._console.port} of this machine, for the console, is not free: {error.strerror}"
            raise Failed(what, "Choose another with --console-port; without it a free one is taken.") from None
        self._url = f"http://{_HOST}:{listener.getsockname()[1]}"
        sessions = ConsoleSessions(longest=self._console.longest)
        pages = OwnerConsole(self._state, self._url, self._show_link, sessions)
        self._state.follow()
        ready = asyncio.Event()
        serving = asyncio.create_task(serve_http(pages.app, listener, ready.set))
        try:
            await ready.wait()
            self._show_link(pages.link())
            yield
        finally:
            await cancel_and_wait(serving)
            await self._state.tasks.close()
            listener.close()

    def _show_link(self, link: str) -> None:
        self._say(f"console, opens once, within ten minutes: {link}", event="console", url=link)

    @asynccontextmanager
    async def _telling(self) -> AsyncGenerator[None, None]:
        if self._webhook is None:
            yield
            return
        from a2c_smcp.console.webhook import Webhook

        state, asked = self._state, self._webhook
        webhook = Webhook(
            asked.url,
            asked.secret,
            computer=state.computer.name,
            mask=state.computer.mask,
            console=lambda: f"{self._url}/" if self._url else "",
        )
        webhook.follow(state.approvals, state.questions)
        try:
            yield
        finally:
            await webhook.close()


class ConnectionReporter:
    """Prints each change of the connection to the Server once, although attempts to connect repeat."""

    def __init__(self, say: Say, pages: ServedConsole | None, **facts: str) -> None:
        """`facts` are fields of every line: the URL of the Server, and the office."""
        self._say, self._pages, self._facts = say, pages, facts
        self._last = ""

    def __call__(self, what: str) -> None:
        if what != self._last:
            event = JOINED if what.startswith(f"{JOINED} ") else "not connected"
            self._say(with_server_remedy(what), event=event, **self._facts)
            if self._pages:
                self._pages.on_connection(what)
        self._last = what
