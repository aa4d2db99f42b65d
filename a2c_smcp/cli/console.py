"""`--console` and `--webhook` of a computer: their options, and serving the pages on this machine only."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from a2c_smcp.cli.errors import Failed, WrongUse, server_remedy, with_remedy
from a2c_smcp.cli.options import option
from a2c_smcp.cli.terminal import Say
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.configuration.watch import ConfigurationChanges
from a2c_smcp.computer.consent.approval import PendingApprovals, PendingQuestions
from a2c_smcp.computer.consent.rules import seconds_in
from a2c_smcp.computer.socketio.client import ConnectionEvent
from a2c_smcp.mcp_host.status import State
from a2c_smcp.web import is_loopback, under_new_name

if TYPE_CHECKING:
    from a2c_smcp.console.notice import DesktopNotices
    from a2c_smcp.console.webhook import Webhook

JOINED = "joined"
"""The event of a line that says that the office was joined."""

_HOST = "127.0.0.1"
_SHORTEST_SECRET = 16


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    url: str
    secret: bytes

    def __repr__(self) -> str:
        return "WebhookTarget()"


@dataclass(frozen=True, kw_only=True)
class ConsoleOptions:
    """The console of a computer, and its webhook."""

    console: Annotated[
        bool, option(None, "--console", "Serve web pages for you on this machine: requests, servers, tools, calls.")
    ] = False
    console_port: Annotated[
        int | None,
        option(
            "A2C_CONSOLE_PORT", "--console-port", "Port of the console.", min=0, max=65535, show_default="a free one"
        ),
    ] = None
    console_session: Annotated[
        str, option(None, "--console-session", "How long the console stays open in a browser at most, like 12h.")
    ] = "12h"
    webhook: Annotated[
        str | None,
        option("A2C_WEBHOOK", "--webhook", "URL that is told of requests and questions, signed.", metavar="URL"),
    ] = None
    webhook_secret: Annotated[
        Path | None,
        option(
            None,
            "--webhook-secret",
            "File with the secret that signs what is sent; otherwise A2C_WEBHOOK_SECRET.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None

    def __post_init__(self) -> None:
        """Raises `WrongUse`."""
        _ = self.session_seconds, self.target

    notify: Annotated[
        bool, option(None, "--notify", "Show a notice on this desktop when something waits and no page is open.")
    ] = False

    @property
    def is_given(self) -> bool:
        return self.console or self.notify or self.webhook is not None

    @cached_property
    def session_seconds(self) -> float:
        """The longest session. Raises `WrongUse`."""
        try:
            return seconds_in(self.console_session)
        except ValueError:
            what = f"--console-session: {self.console_session!r} is not a time"
            raise WrongUse(what, "Write 30m or 12h.") from None

    @cached_property
    def target(self) -> WebhookTarget | None:
        """The webhook, with its secret. Raises `WrongUse`, which never quotes the URL: it may hold a secret."""
        if self.webhook is None:
            return None
        try:
            parts = urlsplit(self.webhook)
            host = parts.hostname if parts.port != 0 else None  # reading an invalid port fails
        except ValueError:
            host = None
        if not host or parts.scheme not in ("http", "https"):
            raise WrongUse("--webhook is not the URL of a web server", "Write https://HOST/PATH.")
        if parts.scheme == "http" and not is_loopback(host):
            remedy = "Write https://; http:// is for this machine only."
            raise WrongUse("--webhook would send requests unencrypted", remedy)
        file = self.webhook_secret
        try:
            secret = file.read_bytes().strip() if file else os.environ.get("A2C_WEBHOOK_SECRET", "").encode()
        except OSError as error:
            what = f"--webhook-secret: {file} cannot be read: {error.strerror}"
            raise WrongUse(what, "Name a file that you may read.") from None
        if len(secret) < _SHORTEST_SECRET:
            what = f"--webhook needs a secret of at least {_SHORTEST_SECRET} characters, which its receiver knows, too"
            raise WrongUse(what, "Write it into a file for --webhook-secret, or into A2C_WEBHOOK_SECRET.")
        return WebhookTarget(self.webhook, secret)


class ServedConsole:
    """The console of one computer, its webhook, or both."""

    def __init__(
        self,
        computer: Computer,
        approvals: PendingApprovals,
        questions: PendingQuestions,
        files: ConfigurationChanges,
        say: Say,
        options: ConsoleOptions,
    ) -> None:
        from a2c_smcp.console.owner.state import OwnerState
        from a2c_smcp.console.pages import ConsoleSessions

        self._sessions = ConsoleSessions(longest=options.session_seconds)
        self._state = OwnerState(computer, approvals, questions, files)
        self._say, self._options = say, options
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
        if not self._options.console:
            yield
            return
        # The web server takes a third of a second to import: only who wants the console waits for it.
        from a2c_smcp.bridge.serving.http import serving_http
        from a2c_smcp.console.owner.console import OwnerConsole

        try:
            listener = socket.create_server((_HOST, self._options.console_port or 0))
        except OSError as error:
            what = f"port {self._options.console_port} of this machine, for the console, is not free: {error.strerror}"
            raise Failed(what, "Choose another with --console-port; without it a free one is taken.") from None
        self._url = under_new_name(f"http://{_HOST}:{listener.getsockname()[1]}")
        pages = OwnerConsole(self._state, self._url, self._show_link, self._sessions)
        self._state.follow()
        try:
            async with serving_http(pages.app, listener, wants_key=True):
                self._show_link(pages.link())
                yield
        finally:
            await self._state.tasks.close()

    def _show_link(self, link: str) -> None:
        self._say(f"console, opens once, within ten minutes: {link}", event="console", url=link)

    @asynccontextmanager
    async def _telling(self) -> AsyncGenerator[None, None]:
        tellers = [teller for teller in (self._webhook(), self._notices()) if teller]
        for teller in tellers:
            teller.follow(self._state.approvals, self._state.questions)
        try:
            yield
        finally:
            for teller in tellers:
                await teller.close()

    def _webhook(self) -> Webhook | None:
        if (target := self._options.target) is None:
            return None
        from a2c_smcp.console.webhook import Webhook

        computer = self._state.computer
        return Webhook(
            target.url,
            target.secret,
            computer=computer.name,
            mask=computer.mask,
            console=lambda: f"{self._url}/" if self._url else "",
        )

    def _notices(self) -> DesktopNotices | None:
        if not self._options.notify:
            return None
        from a2c_smcp.console.notice import DesktopNotices, shower

        if found := shower():
            return DesktopNotices(found, self._state.computer.name, lambda: self._sessions.has_page)
        self._say("--notify: this machine has no program that shows notices: install notify-send", "yellow")
        return None


class ConnectionReporter:
    """Prints each change of the connection to the Server once, although attempts to connect repeat."""

    def __init__(self, say: Say, pages: ServedConsole | None, **facts: str) -> None:
        """`facts` are fields of every line: the URL of the Server, and the office."""
        self._say, self._pages, self._facts = say, pages, facts
        self._last = ""

    def __call__(self, what: ConnectionEvent) -> None:
        if what != self._last:
            event, style = (JOINED, "") if what.startswith(f"{JOINED} ") else ("not connected", "yellow")
            self._say(with_remedy(what, server_remedy(what.error)), style, event=event, **self._facts)
            if self._pages:
                self._pages.on_connection(what)
        self._last = what
