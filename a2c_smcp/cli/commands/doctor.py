"""`a2c-smcp doctor`: would it work here, and if not, what to do."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from a2c_smcp.cli import logs
from a2c_smcp.cli import options as connection
from a2c_smcp.cli.checks import configuration, machine, server
from a2c_smcp.cli.checks import configuration as secrets
from a2c_smcp.cli.checks.findings import Check, Finding, Level, Situation, call_at
from a2c_smcp.cli.errors import WrongUse
from a2c_smcp.cli.options import option
from a2c_smcp.cli.setup_files import Place, find_setups, place_of
from a2c_smcp.cli.terminal import printable, put_json, put_text
from a2c_smcp.cli.up_state import Standing, running_at
from a2c_smcp.endpoint import Credentials, Endpoint
from a2c_smcp.errors import ConfigError
from a2c_smcp.loops import run_program

__all__ = ["CHECKS", "doctor"]

CHECKS: dict[str, Check] = {
    "python": machine.python,
    "extras": machine.extras,
    "configuration": configuration.files,
    "commands": configuration.commands,
    "inputs": configuration.inputs,
    "secrets": secrets.secrets,
    "keyring": machine.keyring,
    "state folder": machine.state,
    "port": machine.port,
    "server": server.health,
    "certificate": server.certificate,
    "clock": server.clock,
    "protocol": server.protocol,
    "API key": server.key,
}
"""In the order in which they are told."""

_COLOURS = {Level.ok: "green", Level.warning: "yellow", Level.problem: "red"}
_Told = list[tuple[str, Finding]]


def doctor(
    config: Annotated[list[Path] | None, option(None, "--config", "File of MCP servers; repeat for more.")] = None,
    url: Annotated[str | None, option("A2C_URL", "--url", "A Server to look at, too.")] = None,
    api_key: connection.ApiKey = None,
    port: Annotated[
        int | None, option("A2C_SERVER_PORT", "--port", "Port that up would use.", min=0, max=65535)
    ] = None,
    no_input: Annotated[bool, option(None, "--no-input", "Nobody will be there to answer questions.")] = False,
    ca: connection.CA = None,
    cert: connection.Cert = None,
    cert_key: connection.CertKey = None,
    proxy: connection.Proxy = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON, for a program to read.")] = False,
) -> None:
    """Look whether it would work here, and tell what to do if not.

    Looks at this machine, at the file that a2c-smcp up would use (or --config), and at a Server, if one is named or up
    is running. Changes nothing, runs no command, prints no secret. Exit codes: 0 it would work, 1 it would not.

    Examples:

    \b
    a2c-smcp doctor
    a2c-smcp doctor --config mcp.json --json
    a2c-smcp doctor --url https://hub.example
    """
    logs.set_up(logs.Level.error)
    found = find_setups(Path.cwd())
    files, aside = (config, []) if config else (found[:1], found[1:])
    link = {"ssl": connection.tls(ca, cert, cert_key), "proxy": proxy}
    told = run_program(_examine(_situation(files, aside, port, no_input=no_input), url, api_key, link))
    works = not any(finding.level is Level.problem for _, finding in told)
    if as_json:
        put_json({"works": works, "findings": [{"check": name, **asdict(finding)} for name, finding in told]})
    else:
        _show(told)
    raise typer.Exit(0 if works else 1)


def _situation(files: list[Path], aside: list[Path], port: int | None, *, no_input: bool) -> Situation:
    known, faults = configuration.read(files)
    place = Place() if faults or not files else place_of(files[0])
    return Situation(
        files=tuple(files),
        aside=tuple(aside),
        faults=faults,
        configuration=known,
        no_input=no_input,
        host=place.host,
        port=place.port if port is None else port,
        note=Standing(files[0]).note() if files else None,
    )


async def _examine(situation: Situation, url: str | None, api_key: str | None, link: dict[str, Any]) -> _Told:
    """A Server that `up` runs here is known, with its key."""
    if url is None and situation.note:
        url, api_key = situation.note.url, None
    if url and api_key is None and (running := running_at(url)):
        url, api_key = running.note.url, running.key
    if url:
        visit = await call_at(_endpoint(url, api_key, link), api_key=api_key)
        situation = replace(situation, visit=visit)
    return [(name, finding) for name, check in CHECKS.items() for finding in await _found_by(check, situation)]


def _endpoint(url: str, api_key: str | None, link: dict[str, Any]) -> Endpoint:
    try:
        return Endpoint(url=url, credentials=lambda: Credentials.of_key(api_key), **link)
    except ConfigError as error:
        raise WrongUse(error.message, "Correct --url or A2C_URL.") from None


async def _found_by(check: Check, situation: Situation) -> Iterable[Finding]:
    found = check(situation)
    return await found if isinstance(found, Awaitable) else found


def _show(told: _Told) -> None:
    """In colours on a terminal, and in lines that nothing breaks elsewhere."""
    if not sys.stdout.isatty():
        put_text("\n".join(f"{each.level:<8} {name:<14} {each.what} {each.remedy}".rstrip() for name, each in told))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    for name, each in told:
        words = Text(printable(f"{each.what} {each.remedy}".rstrip()))
        table.add_row(Text(each.level, _COLOURS[each.level]), Text(name), words)
    Console(highlight=False).print(table)
