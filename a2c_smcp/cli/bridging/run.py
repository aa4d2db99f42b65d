"""Runs a bridge until its client leaves or a signal stops it, and says on stderr how things are."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.bridge import Bridge, BridgeOptions
from a2c_smcp.bridge.serving.http import BearerKey, for_web_pages, serve_http
from a2c_smcp.cli.bridging.keys import BearerKeyChoice
from a2c_smcp.cli.errors import Failed, explained
from a2c_smcp.cli.terminal import Terminal, put_text
from a2c_smcp.errors import NotAuthenticated, SMCPError
from a2c_smcp.http.loopback import LOOPBACK_HOSTS, is_loopback
from a2c_smcp.loops import cancel_and_wait, stop_on_signals
from a2c_smcp.server.run import address_of, listen

__all__ = ["HTTPDoor", "explain_with", "run_bridge"]

PATH = "/mcp"
_NOT_ENCRYPTED = (
    "nothing is encrypted: {} can be reached from other machines, and the key, calls and results travel in plain "
    "(a proxy with TLS in front changes that)"
)
_CANCELS_WITHIN = 0.5


@dataclass(frozen=True)
class HTTPDoor:
    """Where clients connect over HTTP, and with which key."""

    host: str
    port: int
    bearer: BearerKeyChoice
    allowed_hosts: Sequence[str] = ()
    allowed_origins: Sequence[str] = ()

    @property
    def hosts(self) -> list[str]:
        """The names under which this machine may be addressed."""
        own = [socket.gethostname(), socket.getfqdn(), *_addresses()] if self._is_everywhere else [_written(self.host)]
        return [*dict.fromkeys((*LOOPBACK_HOSTS, *own, *self.allowed_hosts))]

    def example_url(self, url: str) -> str:
        """The URL of the listener as another machine may write it."""
        if not self._is_everywhere:
            return url
        port = urlsplit(url).port
        return f"http://{next(iter(self.allowed_hosts), socket.gethostname())}:{port}{PATH}"

    @property
    def _is_everywhere(self) -> bool:
        return self.host in ("", "0.0.0.0", "::")  # noqa: S104


def explain_with(url: str, office: str, key_file: Path | None) -> Callable[[SMCPError], str]:
    """How errors are put into words for the person at the MCP client."""

    def explain(error: SMCPError) -> str:
        if isinstance(error, NotAuthenticated) and key_file is not None:
            return (
                f"{url} does not accept the key in {key_file}, or it has expired. "
                "Put a valid one there: it is read again without a restart."
            )
        return str(explained(error, {"url": url, "office": office}))

    return explain


async def run_bridge(
    agent: AsyncSMCPAgentClient, office: str, options: BridgeOptions, door: HTTPDoor | None, terminal: Terminal
) -> None:
    """Serve clients at the door, or one on stdin and stdout. Raises `Failed`."""
    if door is None:
        await _run_over_stdio(agent, office, options)
    else:
        await _run_over_http(agent, office, options, door, terminal)


async def _run_over_stdio(agent: AsyncSMCPAgentClient, office: str, options: BridgeOptions) -> None:
    """Serve one client until it closes its end. Its calls are cancelled when a signal comes.

    A blocked read of stdin cannot be ended, so the process then exits by force.
    """
    stop = stop_on_signals()
    async with Bridge(agent, office, options) as bridge:
        serving, stopping = asyncio.create_task(bridge.serve_stdio()), asyncio.create_task(stop.wait())
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if serving.done():
            serving.result()
            return
        serving.cancel()
        await asyncio.wait([serving], timeout=_CANCELS_WITHIN)
    sys.stderr.flush()
    os._exit(0)


async def _run_over_http(
    agent: AsyncSMCPAgentClient, office: str, options: BridgeOptions, door: HTTPDoor, terminal: Terminal
) -> None:
    """Serve clients until a signal comes. Raises `Failed` if the port cannot be used."""
    stop = stop_on_signals()
    try:
        listening = listen(door.host, door.port)
    except OSError as error:
        what = f"{door.host} port {door.port} cannot be listened on: {error.strerror or error}"
        raise Failed(what, "Stop what uses it, or choose another with --port or --host.") from None
    async with Bridge(agent, office, options) as bridge:
        app = bridge.http_app(PATH, allowed_hosts=door.hosts, allowed_origins=door.allowed_origins)
        app = BearerKey(app, door.bearer.key) if door.bearer.key else app
        app = for_web_pages(app, door.allowed_origins) if door.allowed_origins else app
        url = f"http://{address_of(listening)}{PATH}"
        announce, wants_key = partial(_announce, url, office, door, terminal), door.bearer.key is not None
        serving = asyncio.create_task(serve_http(app, listening, announce, wants_key=wants_key))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        await cancel_and_wait(stopping, serving)
        if not stop.is_set() and not serving.cancelled():
            serving.result()
    terminal.show("stopped", event="stopped")


def _announce(url: str, office: str, door: HTTPDoor, terminal: Terminal) -> None:
    put_text(f"listening on {url}")
    sys.stdout.flush()
    if not is_loopback(door.host):
        terminal.show(_NOT_ENCRYPTED.format(door.host), "yellow", event="not encrypted", host=door.host)
    bearer = door.bearer
    if bearer.key is None:
        terminal.show("Anybody who can reach this port may use the office: there is no key.", "yellow", event="no key")
    elif bearer.is_new:
        line = f"its key, shown once and kept in {bearer.file}:\n  {bearer.key}"
        terminal.show(line, event="new key", file=str(bearer.file))
        terminal.show(
            f"for example: claude mcp add --transport http {office} {door.example_url(url)} "
            f'--header "Authorization: Bearer {bearer.key}"',
            event="example",
        )
    elif bearer.file is not None:
        terminal.show(f"its key is in {bearer.file}", event="key", file=str(bearer.file))
    if not is_loopback(door.host):
        line = "The key and all calls cross the network in the clear: put a proxy with TLS before it."
        terminal.show(line, "yellow", event="not encrypted")


def _addresses() -> list[str]:
    """The addresses of this machine: those that its own name has, and those that others reach it by."""
    found: list[str] = []
    with suppress(OSError):
        names = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
        found += [str(address[0]) for *_, address in names]
    for family, elsewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 9))  # nothing is sent: it only chooses an address
            found.append(str(probe.getsockname()[0]))
    return [_written(address) for address in found]


def _written(address: str) -> str:
    return f"[{address}]" if ":" in address else address
