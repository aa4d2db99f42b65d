"""Runs a bridge until its client leaves or a signal stops it, and says on stderr how things are."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from a2c_smcp.agent import AgentAuthProvider, AsyncSMCPAgentClient
from a2c_smcp.bridge import Bridge, BridgeOptions
from a2c_smcp.bridge.serving.http import BearerKey, for_web_pages, serve_http
from a2c_smcp.bridge.sharing import IS_SUPPORTED, SharedBridge
from a2c_smcp.cli.errors import UNFORESEEN, Failed, explained, sentence
from a2c_smcp.cli.logs import is_terminal, write_the_rest
from a2c_smcp.cli.options import checked_key, read_key
from a2c_smcp.cli.setup_files import find_running_up
from a2c_smcp.cli.terminal import Terminal, put_text
from a2c_smcp.endpoint import Credentials
from a2c_smcp.errors import ConfigError, NotAuthenticated, OfficeHasAgent, SMCPError
from a2c_smcp.files import default_folder, private_folder, replace_file
from a2c_smcp.loops import cancel_and_wait, run_program, stop_on_signals
from a2c_smcp.server.auth.api_keys import new_key
from a2c_smcp.server.run import address_of, listen
from a2c_smcp.web import LOOPBACK_HOSTS, is_loopback

# The two keys of a bridge: the one that it has for the Server, and the one that MCP clients need for it.


@dataclass(frozen=True, kw_only=True)
class ServerKey:
    """Supplies the key for the Server on every dial: the one given, that of a file, or that of a running `up`.

    A file is read again each time, so that a key which was replaced is used without a restart.
    """

    url: str
    api_key: str | None
    key_file: Path | None

    def credentials(self) -> Credentials:
        """Raises `ConfigError`."""
        if self.key_file is not None:
            try:
                return Credentials.of_key(self.key_file.read_text("utf-8").strip())
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not a text"
                raise ConfigError(f"the key file {self.key_file} cannot be read: {reason}") from None
        running = find_running_up(self.url) if self.api_key is None else None
        return Credentials.of_key(running.key if running else self.api_key)


@dataclass(frozen=True, kw_only=True)
class BearerKeyChoice:
    """The key that clients need. `is_new`: it was made now, and nobody has seen it yet."""

    key: str | None
    file: Path | None = None
    is_new: bool = False

    @classmethod
    def of(cls, key: str | None, file: Path | None, *, none: bool, kept: Path) -> BearerKeyChoice:
        """Raises `WrongUse`, or `OSError` if no key can be kept."""
        if none:
            return cls(key=None)
        if key is not None:
            return cls(key=checked_key(key, "--bearer-key"))
        if file is not None:
            return cls(key=read_key(file, "--bearer-key-file"), file=file)
        if kept.exists():
            return cls(key=read_key(kept, "the kept key"), file=kept)
        key = new_key()
        replace_file(kept, f"{key}\n".encode())
        return cls(key=key, file=kept, is_new=True)


def kept_file(url: str, office: str, ending: str) -> Path:
    """The file in the state folder for a bridge to this office. Raises `OSError` or `NotPrivate`."""
    folder = private_folder(default_folder(), "bridge")
    digest = hashlib.sha256(os.fsencode(f"{url}\n{office}")).hexdigest()[:16]
    return folder / f"{digest}.{ending}"


PATH = "/mcp"
_NOT_ENCRYPTED = (
    "nothing is encrypted: {} can be reached from other machines, and the key, calls and results travel in plain "
    "(a proxy with TLS in front changes that)"
)


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


_SHARED = (
    "Bridges over stdio of one user share a seat by themselves if they have the same key, --url, --office and --name. "
    if IS_SUPPORTED
    else ""
)


def explain_with(url: str, office: str, key_file: Path | None) -> Callable[[SMCPError], str]:
    """Return a function that explains errors to the person at the MCP client."""

    def explain(error: SMCPError) -> str:
        if isinstance(error, NotAuthenticated) and key_file is not None:
            return (
                f"{url} does not accept the key in {key_file}, or it has expired. "
                "Put a valid one there: it is read again without a restart."
            )
        if isinstance(error, OfficeHasAgent):
            return (
                f"{sentence(error.about)} {_SHARED}If that is another MCP client, let both use {url}/mcp/{office} with "
                "the same key (of `a2c-smcp up` or `server --mcp`), or one `a2c-smcp bridge --port 7100`; otherwise "
                "wait until it has left, or give another --office."
            )
        failure = explained(error, {"url": url, "office": office})
        if failure.remedy == UNFORESEEN:
            return f"{sentence(failure.what)} Try again, or ask the owner of that computer, whose log tells more."
        return str(failure)

    return explain


async def run_over_stdio(shared: SharedBridge) -> None:
    """Serve one client until it closes its end. Its calls are cancelled when a signal comes.

    A blocked read of stdin cannot be ended, so the process then exits by force.
    """

    def exit_by_force() -> None:
        write_the_rest()
        os._exit(0)

    await shared.serve_stdio(stop_on_signals(), exit_by_force)


class _NotStarted:
    def credentials(self) -> Credentials:
        raise ConfigError("the bridge could not start")


def serve_reason(reason: str, office: str) -> None:
    """Serve one client on stdin and stdout, and tell it why there is nothing else; not a person at a terminal."""
    if not is_terminal(sys.stdin):
        auth, options = _NotStarted(), BridgeOptions(explain=lambda error: reason)

        def agent(auth: AgentAuthProvider) -> AbstractContextManager[AsyncSMCPAgentClient]:
            return nullcontext(AsyncSMCPAgentClient("bridge", office=[], auth=auth))

        run_program(run_over_stdio(SharedBridge(office, options, agent, auth)))


async def run_over_http(
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
    addresses: list[str] = []
    with suppress(OSError):
        names = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
        addresses += [str(address[0]) for *_, address in names]
    for family, elsewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 9))  # nothing is sent: it only chooses an address
            addresses.append(str(probe.getsockname()[0]))
    return [_written(address) for address in addresses]


def _written(address: str) -> str:
    return f"[{address}]" if ":" in address else address
