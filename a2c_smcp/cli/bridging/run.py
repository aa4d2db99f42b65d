"""Runs a bridge until its client leaves or a signal stops it, and says on stderr how things are."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.bridge import Bridge, BridgeOptions
from a2c_smcp.bridge.serving.http import LOOPBACK_HOSTS, BearerKey, serve_http
from a2c_smcp.cli.bridging.keys import BearerKeyChoice
from a2c_smcp.cli.errors import Failed, explained
from a2c_smcp.cli.terminal import Terminal, put_text
from a2c_smcp.errors import NotAuthenticated, SMCPError
from a2c_smcp.loops import cancel_and_wait, stop_on_signals
from a2c_smcp.server.http_requests import is_loopback
from a2c_smcp.server.run import address_of, listen

__all__ = ["HTTPDoor", "explain_with", "run_bridge"]

PATH = "/mcp"
_NOT_ENCRYPTED = (
    "nothing is encrypted: {} can be reached from other machines, and the key, calls and results travel in plain "
    "(a proxy with TLS in front changes that)"
)


@dataclass(frozen=True, kw_only=True)
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
        own = [] if self.host in ("", "0.0.0.0", "::") else [f"[{self.host}]" if ":" in self.host else self.host]  # noqa: S104
        if not own:
            own = [socket.gethostname(), socket.getfqdn(), *_addresses()]
        return [*dict.fromkeys((*LOOPBACK_HOSTS, *own, *self.allowed_hosts))]


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
    """Serve one client until it closes its end. A blocked read of stdin cannot be ended, so a signal exits at once."""
    stop = stop_on_signals()
    async with Bridge(agent, office, options) as bridge:
        serving, stopping = asyncio.create_task(bridge.serve_stdio()), asyncio.create_task(stop.wait())
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if serving.done():
            serving.result()
            return
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
        url = f"http://{address_of(listening)}{PATH}"
        announce, wants_key = partial(_announce, url, office, door, terminal), door.bearer.key is not None
        serving = asyncio.create_task(serve_http(app, listening, announce, wants_key=wants_key))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        await cancel_and_wait(stopping, serving)
        if not stop.is_set() and not serving.cancelled():
            serving.result()
    terminal.show("stopped")


def _announce(url: str, office: str, door: HTTPDoor, terminal: Terminal) -> None:
    put_text(f"listening on {url}")
    sys.stdout.flush()
    if not is_loopback(door.host):
        terminal.show(_NOT_ENCRYPTED.format(door.host), "yellow")
    bearer = door.bearer
    if bearer.key is None:
        terminal.show("Anybody who can reach this port may use the office: there is no key.", "yellow")
    elif bearer.is_new:
        terminal.show(f"its key, shown once and kept in {bearer.file}:\n  {bearer.key}")
        terminal.show(
            f'for example: claude mcp add --transport http {office} {url} --header "Authorization: Bearer {bearer.key}"'
        )
    elif bearer.file is not None:
        terminal.show(f"its key is in {bearer.file}")


def _addresses() -> list[str]:
    """The addresses that this machine's own name has."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [f"[{address[0]}]" if ":" in str(address[0]) else str(address[0]) for *_, address in found]
