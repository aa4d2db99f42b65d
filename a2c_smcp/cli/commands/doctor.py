"""`a2c-smcp doctor`: check whether it would work on this machine, and say what to do if not."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Iterable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from a2c_smcp.cli import logs, options
from a2c_smcp.cli.checks import configuration, machine, restrictions, server, sign_in
from a2c_smcp.cli.checks.findings import Check, Finding, Severity, Situation, probe_server
from a2c_smcp.cli.options import option
from a2c_smcp.cli.setup_files import SetupOptions, find_setups, setup_options
from a2c_smcp.cli.terminal import printable, put_json, put_text
from a2c_smcp.cli.up_state import UpState, find_running_up
from a2c_smcp.devices.proving import Prover
from a2c_smcp.endpoint import Credentials
from a2c_smcp.loops import run_program

__all__ = ["CHECKS", "doctor"]

CHECKS: dict[str, Check] = {
    "python": machine.python,
    "extras": machine.extras,
    "configuration": configuration.files,
    "commands": configuration.commands,
    "sandbox": restrictions.sandboxes,
    "inputs": configuration.inputs,
    "secrets": configuration.secrets,
    "policy": restrictions.policy,
    "keyring": machine.keyring,
    "sign-in": sign_in.sign_in,
    "state folder": machine.state,
    "skills": machine.skills,
    "port": machine.port,
    "server": server.health,
    "certificate": server.certificate,
    "clock": server.clock,
    "protocol": server.protocol,
    "API key": server.key,
}
"""The findings are shown in this order."""

_COLOURS = {Severity.ok: "green", Severity.warning: "yellow", Severity.problem: "red"}
_Findings = list[tuple[str, Finding]]


def doctor(
    config: Annotated[list[Path] | None, option(None, "--config", "File of MCP servers; repeat for more.")] = None,
    policy_file: Annotated[
        Path | None, option(None, "--policy", "Policy file to check, too.", show_default=False, metavar="FILE")
    ] = None,
    url: Annotated[str | None, option("A2C_URL", "--url", "A Server to look at, too.")] = None,
    api_key: options.ApiKey = None,
    port: Annotated[
        int | None, option("A2C_SERVER_PORT", "--port", "Port that up would use.", min=0, max=65535)
    ] = None,
    no_input: Annotated[
        bool, option(None, "--no-input", "Check for a program that cannot ask for missing inputs.")
    ] = False,
    ca: options.CA = None,
    cert: options.Cert = None,
    cert_key: options.CertKey = None,
    proxy: options.Proxy = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON, for a program to read.")] = False,
) -> None:
    """Check whether it would work here, and say what to do if not.

    Checks this machine, the file that `a2c-smcp up` would use (or --config), and a Server, if one is named or up is
    running. Changes nothing, runs no command, prints no secret. Exit codes: 0 it would work, 1 it would not.

    Examples:

    \b
    a2c-smcp doctor
    a2c-smcp doctor --config mcp.json --json
    a2c-smcp doctor --url https://hub.example
    """
    logs.set_up(logs.LogLevel.error)
    found = find_setups(Path.cwd())
    files, aside = (config, []) if config else (found[:1], found[1:])
    situation = replace(_situation(files, aside, port, no_input=no_input), policy=policy_file)
    link = {"ssl": options.tls(ca, cert, cert_key), "proxy": proxy}
    findings = run_program(_examine(situation, url, api_key, link))
    works = not any(finding.level is Severity.problem for _, finding in findings)
    if as_json:
        put_json({"works": works, "findings": [{"check": name, **asdict(finding)} for name, finding in findings]})
    else:
        _show(findings)
    raise typer.Exit(0 if works else 1)


def _situation(files: list[Path], aside: list[Path], port: int | None, *, no_input: bool) -> Situation:
    known, faults = configuration.read(files)
    place = SetupOptions() if faults or not files else setup_options(files[0])
    return Situation(
        files=tuple(files),
        aside=tuple(aside),
        faults=faults,
        configuration=known,
        no_input=no_input,
        host=place.host,
        port=place.port if port is None else port,
        up=UpState(files[0]).info() if files else None,
    )


async def _examine(situation: Situation, url: str | None, api_key: str | None, link: dict[str, Any]) -> _Findings:
    """Run all checks. A Server that `up` runs on this machine is probed with its own key."""
    if url is None and situation.up:
        url, api_key = situation.up.url, None
    if url and api_key is None and (running := find_running_up(url)):
        url, api_key = running.info.url, running.key
    if url:
        credentials, prover = partial(Credentials.of_key, api_key), Prover.of("computer", url)
        endpoint = options.endpoint(url, credentials=credentials, prover=prover, **link)
        situation = replace(situation, probe=await probe_server(endpoint, api_key=api_key))
    return [(name, finding) for name, check in CHECKS.items() for finding in await _found_by(check, situation)]


async def _found_by(check: Check, situation: Situation) -> Iterable[Finding]:
    found = check(situation)
    return await found if isinstance(found, Awaitable) else found


def _show(findings: _Findings) -> None:
    """A coloured table on a terminal; elsewhere one line for each finding."""
    if not sys.stdout.isatty():
        put_text("\n".join(f"{each.level:<8} {name:<14} {each.what} {each.remedy}".rstrip() for name, each in findings))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    for name, each in findings:
        words = Text(printable(f"{each.what} {each.remedy}".rstrip()))
        table.add_row(Text(each.level, _COLOURS[each.level]), Text(name), words)
    Console(highlight=False).print(table)
