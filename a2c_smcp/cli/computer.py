"""`a2c-smcp computer`: this machine, its MCP servers and an office."""

from __future__ import annotations

import asyncio
import json
import logging
import platform
import re
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from a2c_smcp.cli import connection, logs
from a2c_smcp.cli.connection import option
from a2c_smcp.cli.loop import run, stop_on_signals
from a2c_smcp.cli.progress import Progress
from a2c_smcp.cli.questions import Questions
from a2c_smcp.cli.terminal import Terminal
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.config_files import Configuration
from a2c_smcp.computer.mcp_clients.policy import Policy
from a2c_smcp.computer.secrets import MaskFilter
from a2c_smcp.computer.watch_files import read_all, watch
from a2c_smcp.errors import SMCPError

__all__ = ["computer"]


_DESKTOP = "Whose windows are shown: of servers that tell of changes, or of any, read on request."


class Desktop(StrEnum):
    """What servers without a `desktop` of their own do."""

    subscribed = "subscribed"
    any = "any"


def computer(
    name: Annotated[str, option("A2C_NAME", "--name", "Name of this computer in its office.")] = platform.node(),
    url: connection.Url = connection.DEFAULT_URL,
    office: connection.Office = connection.DEFAULT_OFFICE,
    config: Annotated[list[Path] | None, option(None, "--config", "File of MCP servers; repeat for more.")] = None,
    inputs: Annotated[Path | None, option(None, "--inputs", "JSON object of values for inputs.")] = None,
    api_key: connection.ApiKey = None,
    yes: Annotated[bool, option(None, "--yes", "Let every tool run without asking.")] = False,
    no_input: Annotated[bool, option(None, "--no-input", "Never ask: what is missing is an error.")] = False,
    idle_stop: Annotated[str | None, option(None, "--idle-stop", "Stop servers unused for so long, like 10m.")] = None,
    desktop: Annotated[Desktop, option(None, "--desktop", _DESKTOP)] = Desktop.subscribed,
    ca: connection.CA = None,
    cert: connection.Cert = None,
    cert_key: connection.CertKey = None,
    proxy: connection.Proxy = None,
    log_level: connection.LogLevel = logs.Level.warning,
) -> None:
    """Put this machine's MCP servers on an office, until stopped.

    Configuration files are JSON (comments allowed) or TOML: {"servers": {…}, "inputs": […]}, {"mcpServers": {…}}, a
    list of servers, or one server. They are watched: what changes in them is restarted.

    Examples:

    \b
    a2c-smcp computer --config servers.json
    a2c-smcp computer --name laptop --office desk --url https://hub.example --config mcp.json --yes
    """
    logs.set_up(log_level)
    terminal, files = Terminal(), config or []
    configuration, values, tls = _configuration(files, terminal), _values(inputs), connection.tls(ca, cert, cert_key)
    policy = Policy(idle_stop=_seconds(idle_stop), desktop=desktop.value)
    progress = Progress(terminal, lambda name: host.status()[name].tools)
    questions = Questions(terminal) if terminal.can_ask and not no_input else None
    host = Computer(
        name,
        approve=_say_yes if yes else None,
        prompt=questions.value if questions else None,
        approve_command=_say_yes if yes else questions.command if questions else None,
        values=values,
        policy=policy,
        on_state=progress,
    )
    if not configuration.servers:
        terminal.show("no MCP servers: --config names a file of them", "yellow")
    _mask_logs(host, terminal)
    host.define_inputs(configuration.inputs.values())
    for server in configuration.servers.values():
        host.add_server(server)
    link: dict[str, Any] = {"api_key": api_key, "ssl": tls, "proxy": proxy, "on_connection": _Once(terminal)}
    serve = partial(host.run, url, office=office, **link)
    follow = partial(watch, host, files, configuration, terminal.show)
    try:
        with progress.shown(configuration.servers.values()):
            run(_serve(serve, follow, partial(_on_stop, terminal, progress)))
    except SMCPError as error:
        terminal.show(f"{name}: {host.mask.text(str(error))}", "red")
        raise typer.Exit(1) from None
    terminal.show("stopped")


async def _serve(serve: Any, follow: Any, on_stop: Any) -> None:
    """Runs until a signal. Raises what the Server refuses this computer with for good."""
    stop = stop_on_signals()
    serving, stopping = asyncio.create_task(serve()), asyncio.create_task(stop.wait())
    following = asyncio.create_task(follow())
    await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
    if stop.is_set():
        on_stop()
    for task in (following, stopping, serving):
        task.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await asyncio.wait([serving])
    if not serving.cancelled():
        serving.result()


def _on_stop(terminal: Terminal, progress: Progress) -> None:
    progress.end()
    if terminal.console:
        terminal.show("stopping (Ctrl-C again stops at once)")


def _mask_logs(host: Computer, terminal: Terminal) -> None:
    """Logs tell no secrets, and go where everything else goes."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(MaskFilter(host.mask))
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(terminal)


def _configuration(paths: list[Path], terminal: Terminal) -> Configuration:
    try:
        found = read_all(paths)
    except SMCPError as error:
        raise typer.BadParameter(error.message) from None
    for field in found.unknown:
        terminal.show(f"{field} means nothing here", "yellow")
    return found


def _values(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{path}: cannot be read as JSON: {type(error).__name__}") from None
    if not isinstance(values, dict):
        raise typer.BadParameter(f'{path}: must be an object, such as {{"token": "…"}}')
    return values


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)", text)
    if not found or float(found[1]) <= 0:
        raise typer.BadParameter(f"--idle-stop: {text!r} is not a time, write 30s, 10m or 1h")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def _say_yes(*_: object) -> bool:
    return True


class _Once:
    """Says what became of the connection, once for each thing that becomes of it."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._last = ""

    def __call__(self, what: str) -> None:
        if what != self._last:
            self._terminal.show(what)
        self._last = what
