"""`a2c-smcp doctor`: check whether it would work on this machine, and say what to do if not."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Awaitable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from a2c_smcp.cli import logs, options
from a2c_smcp.cli.commands.service import installed, program_in
from a2c_smcp.cli.doctor import checks
from a2c_smcp.cli.doctor.findings import Check, Finding, Situation, ok, probe_server, problem
from a2c_smcp.cli.options import option
from a2c_smcp.cli.setup_files import SetupOptions, UpState, find_running_up, find_setups, setup_options
from a2c_smcp.cli.terminal import printable, put_json, put_text
from a2c_smcp.devices.proving import Prover
from a2c_smcp.endpoint import Credentials
from a2c_smcp.loops import run_program


def services(situation: Situation) -> Iterator[Finding]:
    """The services of this user that are started at boot; nothing if there are none."""
    for each, file in installed():
        if shutil.which(program := program_in(file)):
            yield ok(f"{each.name} is started by {program}, as {file} says.")
        else:
            remedy = f"Run `a2c-smcp service install {each.kind}` again, with its options."
            yield problem(f"{file} starts {program or 'nothing'}, which is not there.", remedy)


CHECKS: dict[str, Check] = {
    "python": checks.python,
    "extras": checks.extras,
    "configuration": checks.files,
    "commands": checks.commands,
    "sandbox": checks.sandboxes,
    "inputs": checks.inputs,
    "secrets": checks.secrets,
    "policy": checks.policy,
    "keyring": checks.keyring,
    "sign-in": checks.sign_in,
    "state folder": checks.state,
    "skills": checks.skills,
    "service": services,
    "port": checks.port,
    "server": checks.health,
    "certificate": checks.certificate,
    "clock": checks.clock,
    "protocol": checks.protocol,
    "API key": checks.key,
}
"""The findings are shown in this order."""


_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}
_Findings = list[tuple[str, Finding]]


@options.takes_options
def doctor(
    *,
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
    link: options.LinkOptions,
    as_json: options.AsJSON = False,
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
    logs.set_up("error")
    setups = find_setups(Path.cwd())
    files, aside = (config, []) if config else (setups[:1], setups[1:])
    situation = replace(_situation(files, aside, port, no_input=no_input), policy=policy_file)
    findings = run_program(_examine(situation, url, api_key, {"ssl": link.tls(), "proxy": link.proxy}))
    works = not any(finding.level == "problem" for _, finding in findings)
    if as_json:
        put_json({"works": works, "findings": [{"check": name, **asdict(finding)} for name, finding in findings]})
    else:
        _show(findings)
    raise typer.Exit(0 if works else 1)


def _situation(files: list[Path], aside: list[Path], port: int | None, *, no_input: bool) -> Situation:
    known, faults = checks.read(files)
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
    findings: _Findings = []
    for name, check in CHECKS.items():
        result = check(situation)
        findings += [(name, finding) for finding in (await result if isinstance(result, Awaitable) else result)]
    return findings


def _show(findings: _Findings) -> None:
    """A coloured table on a terminal; elsewhere one line for each finding."""
    if not sys.stdout.isatty():
        put_text(
            "\n".join(
                f"{finding.level:<8} {name:<14} {finding.what} {finding.remedy}".rstrip() for name, finding in findings
            )
        )
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    for name, finding in findings:
        words = Text(printable(f"{finding.what} {finding.remedy}".rstrip()))
        table.add_row(Text(finding.level, _COLOURS[finding.level]), Text(name), words)
    Console(highlight=False).print(table)
