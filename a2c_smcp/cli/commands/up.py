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
from pathlib import Path
from typing import Annotated, Any

from a2c_smcp.cli import local_computer as device
from a2c_smcp.cli import logs
from a2c_smcp.cli import options as connection
from a2c_smcp.cli.errors import Failed, WrongUse, explained, misread
from a2c_smcp.cli.local_computer import Device
from a2c_smcp.cli.options import option, unused_variables
from a2c_smcp.cli.setup_files import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    HOW_TO_MAKE_ONE,
    NAMES,
    Place,
    find_setups,
    lost_setup,
    place_of,
    read_values,
    yaml_in,
)
from a2c_smcp.cli.suggestions import agent_line, call_of
from a2c_smcp.cli.terminal import Terminal, put_text
from a2c_smcp.cli.up_state import AlreadyUp, Note, Standing
from a2c_smcp.errors import ConfigError, SMCPError
from a2c_smcp.loops import run_program
from a2c_smcp.protocol.names import fault_in
from a2c_smcp.server.app import create_app
from a2c_smcp.server.auth.authentication import DefaultAuthenticationProvider, new_key
from a2c_smcp.server.gate import is_loopback
from a2c_smcp.server.run import address_of, listen, serving
from a2c_smcp.server.settings import Settings

__all__ = ["up"]

_LOOK = 0.5
"""How often it is looked whether there is a tool to try, in seconds."""
_SOON, _AT_LAST = 10.0, 120.0
"""When the line to try is printed though servers are still starting, in seconds: with a tool of those that are ready,
and at last without one."""
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104
"""Addresses that nobody can connect to, and what to use in their place on this machine."""
_NOT_ENCRYPTED = "nothing is encrypted on the way: `a2c-smcp server` with --tls-cert is for that"
_ALL_ASK = "its tools need approval and nobody can be asked: --yes lets all run, auto_apply in the file lets some"

_Host = Annotated[str | None, option("A2C_SERVER_HOST", "--host", "Address to listen on.", show_default=DEFAULT_HOST)]
_Port = Annotated[
    int | None,
    option(
        "A2C_SERVER_PORT",
        "--port",
        "Port; 0 takes a free one.",
        min=0,
        max=65535,
        show_default=str(DEFAULT_PORT),
    ),
]
_Office = Annotated[
    str | None, option("A2C_OFFICE", "--office", "The office to join.", show_default=connection.DEFAULT_OFFICE)
]
_Name = Annotated[
    str | None, option("A2C_NAME", "--name", "Name of this computer in its office.", show_default=platform.node())
]


def up(
    config: Annotated[Path | None, option(None, "--config", "File of MCP servers.", show_default=NAMES[0])] = None,
    host: _Host = None,
    port: _Port = None,
    office: _Office = None,
    name: _Name = None,
    yes: device.Yes = False,
    no_input: device.NoInput = False,
    trust_changes: device.TrustChanges = False,
    idle_stop: device.IdleStop = None,
    desktop: device.DesktopOption = device.Desktop.subscribed,
    log_level: connection.LogLevel = logs.Level.warning,
) -> None:
    """Run a Server and this machine's MCP servers, together, from one file.

    The file is the a2c.toml, a2c.json or mcp.json of the current folder. It is followed: what changes in it is
    restarted, after your yes where it decides what is run. A table "server" in it may say host, port, office and name.
    Prints the URL, the API key, which stays the same, and a line to try next. Ctrl-C stops everything.

    Examples:

    \b
    a2c-smcp up
    a2c-smcp up --config mcp.json --port 0 --yes
    """
    logs.set_up(log_level)
    terminal = Terminal()
    file = _setup(config, terminal)
    if unused := unused_variables(["--host", "--port"]):
        terminal.show(unused, "yellow")
    place = _place(file, host=host, port=port, office=office, name=name)
    policy, standing = device.policy_of(idle_stop, desktop), Standing(file)
    try:
        with standing.claimed() as take_note:
            values = read_values(None, [file])
            own = Device(
                place.name,
                [file],
                terminal,
                yes=yes,
                no_input=no_input,
                trust_changes=trust_changes,
                values=values,
                policy=policy,
            )
            run_program(_Up(place, own, standing, terminal).serve(take_note))
    except AlreadyUp as found:
        raise _already(found.note, file, standing) from None
    terminal.show("stopped")


class _Up:
    """One run, from listening to the end."""

    def __init__(self, place: Place, own: Device, standing: Standing, terminal: Terminal) -> None:
        self._place, self._own, self._standing, self._terminal = place, own, standing, terminal
        self._say = terminal.show if terminal.console and sys.stdout.isatty() else put_text
        self._key = standing.key(new_key)
        self._joined = asyncio.Event()

    async def serve(self, take_note: Callable[[Note], None]) -> None:
        """Runs until a signal. Raises `Failed`."""
        listener, auth = _listener(self._place), DefaultAuthenticationProvider(self._key)
        async with serving(create_app(Settings(auth=auth)), listener):
            note = Note(url=_url(listener), office=self._place.office, name=self._place.name, pid=os.getpid())
            take_note(note)
            self._welcome(note)
            suggesting = asyncio.create_task(self._suggest(note))
            try:
                await self._own.serve(note.url, note.office, self._on_connection, api_key=self._key)
            except SMCPError as error:
                raise explained(error, {"url": note.url, "office": note.office}) from None
            finally:
                suggesting.cancel()
                await asyncio.gather(suggesting, return_exceptions=True)

    def _welcome(self, note: Note) -> None:
        self._say(f"listening on {note.url}")
        shown = f"{self._key} (kept in {self._standing.key_file})" if sys.stdout.isatty() else self._standing.key_file
        self._say(f"API key: {shown}")
        if not is_loopback(self._place.host):
            self._terminal.show(f"{self._place.host} can be reached from other machines; {_NOT_ENCRYPTED}", "yellow")

    def _on_connection(self, what: str) -> None:
        self._terminal.show(what)
        if what.startswith("joined "):
            self._joined.set()

    async def _suggest(self, note: Note) -> None:
        """When all servers are ready or have failed. One that takes long keeps nobody from using the others."""
        await self._joined.wait()
        if not await self._settles_within(_SOON) and self._call(note) is None:
            self._terminal.show(f"still starting: {', '.join(self._own.starting)}; a line to try follows")
            await self._has_a_call_within(_AT_LAST - _SOON, note)
        call = self._call(note)
        self._say(f"try in another terminal:\n  {_line(note, self._standing, call)}")
        if self._own.host.get_tools() and not call and not self._own.approves:
            self._terminal.show(_ALL_ASK, "yellow")

    async def _settles_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._own.settled.wait()
        return self._own.settled.is_set()

    async def _has_a_call_within(self, seconds: float, note: Note) -> None:
        """Or all servers have settled."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._call(note) is None and not await self._settles_within(_LOOK):
                    pass

    def _call(self, note: Note) -> list[str] | None:
        return call_of(note.name, self._own.host.get_tools(), may_ask=self._own.approves)


def _setup(given: Path | None, terminal: Terminal) -> Path:
    if given:
        return given
    found = find_setups(Path.cwd())
    if not found:
        what_to_do = yaml_in(Path.cwd()) or HOW_TO_MAKE_ONE
        raise WrongUse(f"There is no {', '.join(NAMES[:-1])} or {NAMES[-1]} here", what_to_do)
    file, *others = found
    if lost := lost_setup(Path.cwd()):
        what_to_do = f"--config {file.name} runs the other one that is here."
        raise WrongUse(f"{lost.name}, which was run here before, is gone", what_to_do)
    for other in others:
        terminal.show(f"{file.name} is used, and not {other.name}, which --config {other.name} would run", "yellow")
    return file


def _place(file: Path, **given: Any) -> Place:
    try:
        place = place_of(file, given)
    except ConfigError as error:
        raise misread(error) from None
    for flag, name in (("--name", place.name), ("--office", place.office)):
        if fault := fault_in(name):
            raise WrongUse(f"{flag}: {fault}", "Choose another.")
    return place


def _listener(place: Place) -> socket.socket:
    try:
        return listen(place.host, place.port)
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise Failed(f"{place.host} is not an address of this machine", "Give another --host.") from None
        taken = "is used by another program" if error.errno == errno.EADDRINUSE else f"cannot be had: {error.strerror}"
        raise Failed(
            f"Port {place.port} of {place.host} {taken}", "Give another --port, or 0 for a free one."
        ) from None


def _url(listener: socket.socket) -> str:
    host, _, port = address_of(listener).rpartition(":")
    return f"http://{_EVERYWHERE.get(host, host)}:{port}"


def _already(note: Note | None, file: Path, standing: Standing) -> Failed:
    if note is None:
        return Failed(f"{file} is being brought up by another process", "Wait a moment, and try again.")
    return Failed(
        f"{file} is up already: {note.url}, process {note.pid}, which follows changes of the file",
        f"Stop it with Ctrl-C there, or use it:\n  {_line(note, standing, None)}",
    )


def _line(note: Note, standing: Standing, call: list[str] | None) -> str:
    return agent_line(call or ["tools"], url=note.url, office=note.office, key_file=standing.key_file)
