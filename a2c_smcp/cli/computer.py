"""`a2c-smcp computer`: this machine, its MCP servers and an office."""

from __future__ import annotations

import asyncio
import json
import logging
import platform
import re
import shlex
import ssl
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from a2c_smcp.cli import logs
from a2c_smcp.cli.loop import run, stop_on_signals
from a2c_smcp.computer.approval import Request
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.config_files import Configuration
from a2c_smcp.computer.mcp_clients.policy import Policy
from a2c_smcp.computer.secrets import MaskFilter
from a2c_smcp.computer.watch_files import read_all, watch
from a2c_smcp.errors import SMCPError

__all__ = ["computer"]


def _option(variable: str | None, flag: str, text: str, **more: Any) -> Any:
    return typer.Option(flag, envvar=variable, help=text, show_envvar=False, **more)


def computer(
    name: Annotated[str, _option("A2C_NAME", "--name", "Name of this computer in its office.")] = platform.node(),
    url: Annotated[str, _option("A2C_URL", "--url", "The Server.")] = "http://127.0.0.1:7000",
    office: Annotated[str, _option("A2C_OFFICE", "--office", "The office to join.")] = "desk",
    config: Annotated[list[Path] | None, _option(None, "--config", "File of MCP servers; repeat for more.")] = None,
    inputs: Annotated[Path | None, _option(None, "--inputs", "JSON object of values for inputs.")] = None,
    api_key: Annotated[str | None, _option("A2C_API_KEY", "--api-key", "Key for the Server.")] = None,
    yes: Annotated[bool, _option(None, "--yes", "Let every tool run without asking.")] = False,
    no_input: Annotated[bool, _option(None, "--no-input", "Never ask: what is missing is an error.")] = False,
    idle_stop: Annotated[str | None, _option(None, "--idle-stop", "Stop servers unused for so long, like 10m.")] = None,
    ca: Annotated[Path | None, _option("A2C_CA", "--ca", "Certificates (PEM) that vouch for the Server.")] = None,
    cert: Annotated[Path | None, _option("A2C_CERT", "--cert", "Client certificate (PEM).")] = None,
    cert_key: Annotated[Path | None, _option("A2C_CERT_KEY", "--cert-key", "Its private key (PEM).")] = None,
    proxy: Annotated[str | None, _option("A2C_PROXY", "--proxy", "HTTP proxy; otherwise HTTPS_PROXY is used.")] = None,
    log_level: Annotated[logs.Level, _option("A2C_LOG_LEVEL", "--log-level", "How much to log.")] = logs.Level.warning,
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
    files = config or []
    configuration, values, tls = _configuration(files), _values(inputs), _tls(ca, cert, cert_key)
    policy = Policy(idle_stop=_seconds(idle_stop))
    host = Computer(
        name,
        approve=_say_yes if yes else None,
        prompt=None if no_input else _prompt(),
        approve_command=_approve_command(yes=yes, no_input=no_input),
        values=values,
        policy=policy,
        on_state=_show_state,
    )
    for handler in logging.getLogger().handlers:
        handler.addFilter(MaskFilter(host.mask))
    host.define_inputs(configuration.inputs.values())
    for server in configuration.servers.values():
        host.add_server(server)
    link: dict[str, Any] = {"api_key": api_key, "ssl": tls, "proxy": proxy, "on_connection": _Once()}
    run(_serve(host, partial(host.run, url, office=office, **link), partial(watch, host, files, configuration, _show)))


async def _serve(host: Computer, serve: Any, follow: Any) -> None:
    """Runs until a signal, or until the Server refuses this computer for good."""
    stop = stop_on_signals()
    serving, stopping = asyncio.create_task(serve()), asyncio.create_task(stop.wait())
    following = asyncio.create_task(follow())
    await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
    for task in (following, stopping, serving):
        task.cancel()
    await asyncio.gather(following, return_exceptions=True)
    try:
        await serving
    except asyncio.CancelledError:
        _show("stopped")
    except SMCPError as error:
        typer.secho(f"{host.name}: {host.mask.text(str(error))}", fg="red", err=True)
        raise typer.Exit(1) from None


def _configuration(paths: list[Path]) -> Configuration:
    try:
        found = read_all(paths)
    except SMCPError as error:
        raise typer.BadParameter(error.message) from None
    for field in found.unknown:
        typer.secho(f"{field} means nothing here", fg="yellow", err=True)
    return found


def _tls(ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """What a Server with a certificate of its own, or one that asks for ours, needs."""
    if not (ca or cert):
        return None
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert:
            context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise typer.BadParameter(f"--ca, --cert or --cert-key cannot be used: {error.strerror or error}") from None
    return context


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


def _prompt() -> Any:
    """Asks on the terminal, if there is one."""
    if not sys.stdin.isatty():
        return None
    return lambda definition: typer.prompt(
        definition.description or definition.id, hide_input=bool(getattr(definition, "password", False)), err=True
    )


def _approve_command(*, yes: bool, no_input: bool) -> Any:
    """Whether an input may run its command: asked on the terminal, if there is one."""
    if yes:
        return lambda definition, argv: True
    if no_input or not sys.stdin.isatty():
        return None
    return lambda definition, argv: typer.confirm(f"input {definition.id!r} runs {shlex.join(argv)}: let it?", err=True)


def _say_yes(request: Request) -> bool:
    return True


def _show(what: str) -> None:
    typer.echo(what, err=True)


class _Once:
    """Says what became of the connection, once for each thing that becomes of it."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, what: str) -> None:
        if what != self._last:
            _show(what)
        self._last = what


def _show_state(name: str, state: str, reason: str) -> None:
    _show(f"{name}: {state}{f' ({reason})' if reason else ''}")
