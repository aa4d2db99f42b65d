"""`a2c-smcp up`: a Server and this machine's Computer in one process, from one file."""

from __future__ import annotations

import asyncio
import errno
import os
import platform
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from a2c_smcp.cli import options
from a2c_smcp.cli.console import JOINED, ConsoleOptions
from a2c_smcp.cli.errors import Failed, WrongUse, explained, file_error
from a2c_smcp.cli.local_computer import LocalComputer, MetricsPort, OwnerOptions
from a2c_smcp.cli.options import option, unused_variables
from a2c_smcp.cli.serving.mounts import MCPOptions, SignInOptions, mcp_url, mount_offices
from a2c_smcp.cli.setup_files import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    HOW_TO_MAKE_ONE,
    NAMES,
    AlreadyUp,
    SetupOptions,
    UpInfo,
    UpState,
    find_setups,
    missing_setup,
    own_fingerprint,
    pairing_lines,
    read_input_values,
    setup_options,
    yaml_hint,
)
from a2c_smcp.cli.suggestions import agent_line, command_line, suggested_call
from a2c_smcp.cli.terminal import Terminal, put_text
from a2c_smcp.errors import ConfigError, SMCPError
from a2c_smcp.loops import cancel_and_wait, run_program
from a2c_smcp.server.app import create_app
from a2c_smcp.server.auth.api_keys import DefaultAuthenticationProvider, new_key
from a2c_smcp.server.run import address_of, listen, serving
from a2c_smcp.server.settings import Settings
from a2c_smcp.web import is_loopback

_CHECK_INTERVAL = 0.5
_FIRST_LIMIT, _LAST_LIMIT = 10.0, 120.0
"""Seconds after which a command to try is printed although servers are still starting: first if a tool of those that
are ready can be suggested, at last without a tool."""
_UNSPECIFIED = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104
"""Addresses to listen on but not to connect to, and the address that reaches them on this machine."""
_NOT_ENCRYPTED = "nothing is encrypted on the way: `a2c-smcp server` with --tls-cert is for that"
_ALL_NEED_APPROVAL = (
    "its tools need approval and nobody can be asked: --yes lets all run, auto_apply in the file lets some, "
    "--approve-by client asks the person at the MCP client"
)


@dataclass(frozen=True, kw_only=True)
class UpOptions:
    """The options of `a2c-smcp up`."""

    config: Annotated[Path | None, option(None, "--config", "File of MCP servers.", show_default=NAMES[0])] = None
    host: Annotated[
        str | None, option("A2C_SERVER_HOST", "--host", "Address to listen on.", show_default=DEFAULT_HOST)
    ] = None
    port: Annotated[
        int | None,
        option(
            "A2C_SERVER_PORT",
            "--port",
            "Port; 0 takes a free one.",
            min=0,
            max=65535,
            show_default=str(DEFAULT_PORT),
        ),
    ] = None
    office: Annotated[
        str | None, option("A2C_OFFICE", "--office", "The office to join.", show_default=options.DEFAULT_OFFICE)
    ] = None
    name: Annotated[
        str | None, option("A2C_NAME", "--name", "Name of this computer in its office.", show_default=platform.node())
    ] = None
    owner: OwnerOptions
    audit: options.AuditOptions
    metrics_port: MetricsPort = None
    console: ConsoleOptions
    log: options.LogOptions


@options.takes_options
def up(settings: UpOptions) -> None:
    """Run a Server and this machine's MCP servers, together, from one file.

    The file is the a2c.toml, a2c.json or mcp.json of the current folder. It is watched: a server whose entry changes is
    restarted, after your yes if the change decides what is run. A table "server" in it may set host, port, office and
    name. Prints the URL, the API key, which stays the same, and a command to try next. Ctrl-C stops everything.

    Examples:

    \b
    a2c-smcp up
    a2c-smcp up --config mcp.json --port 0 --yes
    a2c-smcp up --policy policy.json
    """
    settings.log.set_up()
    terminal = Terminal()
    file = _setup_file(settings.config, terminal)
    if warning := unused_variables(["--host", "--port"]):
        terminal.show(warning, "yellow")
    try:
        setup = setup_options(file, {name: getattr(settings, name) for name in ("host", "port", "office", "name")})
    except ConfigError as error:
        raise file_error(error) from None
    options.check_names(name=setup.name, office=setup.office)
    state = UpState(file)
    try:
        with state.claimed() as write_info:
            own = LocalComputer(setup.name, [file], terminal, settings, read_input_values(None, [file]))
            run_program(_Up(setup, own, state, terminal).serve(write_info))
    except AlreadyUp as other:
        raise _already_up(other.info, file) from None
    terminal.show("stopped", event="stopped")


class _Up:
    """One run of `a2c-smcp up`, from listening to the end."""

    def __init__(self, setup: SetupOptions, own: LocalComputer, state: UpState, terminal: Terminal) -> None:
        self._setup, self._own, self._state, self._terminal = setup, own, state, terminal
        self._say = terminal.show if terminal.console and sys.stdout.isatty() else put_text
        self._key = state.key(new_key)
        self._device = own_fingerprint(terminal)
        self._joined = asyncio.Event()

    async def serve(self, write_info: Callable[[UpInfo], None]) -> None:
        """Run until a signal. Raises `Failed`."""
        listener, auth = _listener(self._setup), DefaultAuthenticationProvider(self._key)
        host, _, port = address_of(listener).rpartition(":")
        url = f"http://{_UNSPECIFIED.get(host, host)}:{port}"
        sign_in = SignInOptions().at(url) if is_loopback(host.strip("[]")) else None
        app = create_app(Settings(auth=auth, sign_in=sign_in))
        async with serving(app, listener, own_listener=mount_offices(app, url, MCPOptions())):
            info = UpInfo(url=url, office=self._setup.office, name=self._setup.name, pid=os.getpid())
            write_info(info)
            self._show_access(info)
            suggesting = asyncio.create_task(self._suggest(info))
            try:
                await self._own.serve(info.url, info.office, self._on_connection, api_key=self._key)
            except SMCPError as error:
                raise explained(error, {"url": info.url, "office": info.office}) from None
            finally:
                await cancel_and_wait(suggesting)

    def _show_access(self, info: UpInfo) -> None:
        self._say(f"listening on {info.url}")
        shown = f"{self._key} (kept in {self._state.key_file})" if sys.stdout.isatty() else self._state.key_file
        self._say(f"API key: {shown}")
        if not is_loopback(self._setup.host):
            line = f"{self._setup.host} can be reached from other machines; {_NOT_ENCRYPTED}"
            self._terminal.show(line, "yellow", event="not encrypted", host=self._setup.host)

    def _on_connection(self, line: str, style: str = "", **facts: object) -> None:
        self._terminal.show(line, style, **facts)
        if facts.get("event") == JOINED:
            self._joined.set()

    async def _suggest(self, info: UpInfo) -> None:
        """Print a command to try, when all servers are ready or have failed; after 10 s without the slow ones."""
        await self._joined.wait()
        if not await self._settles_within(_FIRST_LIMIT) and self._call(info) is None:
            names = self._own.starting
            line = f"still starting: {', '.join(names)}; a line to try follows"
            self._terminal.show(line, event="starting", servers=names)
            await self._has_a_call_within(_LAST_LIMIT - _FIRST_LIMIT, info)
        call = self._call(info)
        self._say(f"try in another terminal:\n  {_agent_line(info, call)}")
        connect_line = command_line("connect", "claude-code", "--url", info.url, "--office", info.office)
        self._say(f"or from an MCP client, at {mcp_url(info.url, info.office)}:\n  {connect_line}")
        if is_loopback(self._setup.host):
            link_line = command_line("key", "link", "--url", info.url, "--office", info.office)
            self._say(f"a client that opens a page to sign in wants a link:\n  {link_line}")
        if self._device:
            for line in pairing_lines(self._device, info.name, info.office, info.url, has_own_server=True):
                self._say(line)
        has_policy = self._own.computer.gate is not None
        if self._own.computer.get_tools() and not (call or has_policy or self._own.can_approve):
            self._terminal.show(_ALL_NEED_APPROVAL, "yellow", event="nobody approves")

    async def _settles_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._own.settled.wait()
        return self._own.settled.is_set()

    async def _has_a_call_within(self, seconds: float, info: UpInfo) -> None:
        """Wait until there is a tool to suggest, or until all servers have settled."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._call(info) is None and not await self._settles_within(_CHECK_INTERVAL):
                    pass

    def _call(self, info: UpInfo) -> list[str] | None:
        return suggested_call(info.name, self._own.computer.get_tools(), may_ask=self._own.can_approve)


def _setup_file(config: Path | None, terminal: Terminal) -> Path:
    if config:
        return config
    files = find_setups(Path.cwd())
    if not files:
        what_to_do = yaml_hint(Path.cwd()) or HOW_TO_MAKE_ONE
        raise WrongUse(f"There is no {', '.join(NAMES[:-1])} or {NAMES[-1]} here", what_to_do)
    file, *others = files
    if lost := missing_setup(Path.cwd()):
        what_to_do = f"--config {file.name} runs the other one that is here."
        raise WrongUse(f"{lost.name}, which was run here before, is gone", what_to_do)
    for other in others:
        terminal.show(f"{file.name} is used, and not {other.name}, which --config {other.name} would run", "yellow")
    return file


def _listener(setup: SetupOptions) -> socket.socket:
    try:
        return listen(setup.host, setup.port)
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise Failed(f"{setup.host} is not an address of this machine", "Give another --host.") from None
        is_taken = error.errno == errno.EADDRINUSE
        fault = "is used by another program" if is_taken else f"cannot be used: {error.strerror}"
        raise Failed(
            f"Port {setup.port} of {setup.host} {fault}", "Give another --port, or 0 for a free one."
        ) from None


def _already_up(info: UpInfo | None, file: Path) -> Failed:
    if info is None:
        return Failed(f"Another process is starting {file}", "Wait a moment, and try again.")
    return Failed(
        f"{file} is up already: {info.url}, process {info.pid}, which follows changes of the file",
        f"Stop it with Ctrl-C there, or use it:\n  {_agent_line(info)}",
    )


def _agent_line(info: UpInfo, call: list[str] | None = None) -> str:
    return agent_line(call or ["tools"], url=info.url, office=info.office)
