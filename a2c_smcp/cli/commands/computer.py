"""`a2c-smcp computer`: offer this machine's MCP servers in an office."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Annotated, Any

from a2c_smcp.cli import call_checks, local_computer, logs, options
from a2c_smcp.cli.errors import Failed, explained
from a2c_smcp.cli.local_computer import LocalComputer, OwnerOptions
from a2c_smcp.cli.options import option
from a2c_smcp.cli.owner_console import serving as owner_console
from a2c_smcp.cli.pairing import own_fingerprint, pairing_lines
from a2c_smcp.cli.policies import source
from a2c_smcp.cli.setup_files import read_input_values
from a2c_smcp.cli.sign_in import NoBrowser
from a2c_smcp.cli.terminal import Terminal
from a2c_smcp.endpoint import Endpoint
from a2c_smcp.errors import SMCPError
from a2c_smcp.loops import run_program

__all__ = ["computer"]


def computer(
    name: Annotated[str, option("A2C_NAME", "--name", "Name of this computer in its office.")] = platform.node(),
    url: options.Url = options.DEFAULT_URL,
    office: options.Office = options.DEFAULT_OFFICE,
    config: Annotated[list[Path] | None, option(None, "--config", "File of MCP servers; repeat for more.")] = None,
    inputs: Annotated[Path | None, option(None, "--inputs", "JSON object of values for inputs.")] = None,
    api_key: options.ApiKey = None,
    yes: local_computer.Yes = False,
    approve_by: local_computer.ApproveByOption = local_computer.ApproveBy.owner,
    no_input: local_computer.NoInput = False,
    trust_changes: local_computer.TrustChanges = False,
    no_browser: NoBrowser = False,
    idle_stop: local_computer.IdleStop = None,
    desktop: local_computer.DesktopOption = local_computer.Desktop.subscribed,
    skills: local_computer.SkillsFolder = None,
    landing: local_computer.Landing = None,
    e2e: options.E2EOption = options.E2E.off,
    sign: local_computer.Sign = False,
    pin: call_checks.PinOption = None,
    scanner: call_checks.ScannerOption = None,
    policy: source.PolicyFile = None,
    read_only: source.ReadOnly = False,
    trust_hints: source.TrustHints = None,
    metrics_port: local_computer.MetricsPort = None,
    console: owner_console.ConsoleFlag = False,
    console_port: owner_console.ConsolePort = None,
    console_session: owner_console.ConsoleSession = "12h",
    webhook: owner_console.WebhookUrl = None,
    webhook_secret: owner_console.WebhookSecret = None,
    ca: options.CA = None,
    cert: options.Cert = None,
    cert_key: options.CertKey = None,
    proxy: options.Proxy = None,
    audit: options.Audit = None,
    audit_arguments: options.AuditArguments = False,
    log_level: options.LogLevelOption = logs.LogLevel.warning,
    log_json: options.LogJSON = False,
) -> None:
    """Offer this machine's MCP servers in an office, until stopped.

    Configuration files are JSON (comments allowed) or TOML: {"servers": {…}, "inputs": […]}, {"mcpServers": {…}}, a
    list of servers, or one server. They are watched: a server whose entry changes is restarted, after your yes if the
    change decides what is run. Values of inputs that `a2c-smcp import` has written beside a file are read from there.

    Examples:

    \b
    a2c-smcp computer --config servers.json
    a2c-smcp computer --name laptop --office desk --url https://hub.example --config mcp.json --yes
    a2c-smcp computer --config servers.json --approve-by client
    a2c-smcp computer --config servers.json --e2e require
    a2c-smcp computer --config servers.json --policy policy.json
    a2c-smcp computer --config servers.json --console
    """
    options.check_names(name=name, office=office)
    endpoint = options.endpoint(url)
    logs.set_up(log_level, as_json=log_json)
    terminal, values, tls = Terminal(), read_input_values(inputs, config or ()), options.tls(ca, cert, cert_key)
    limits = local_computer.policy_of(idle_stop, desktop)
    more: Any = owner_console.chosen(console, console_port, console_session, webhook, webhook_secret)
    given = OwnerOptions(
        yes=yes,
        approve_by=approve_by,
        no_input=no_input,
        trust_changes=trust_changes,
        no_browser=no_browser,
        values=values,
        policy=limits,
        skills=skills,
        landing=options.checked_folder(landing, "--landing"),
        e2e=e2e,
        sign=sign,
        pin=pin,
        scanners=scanner,
        **options.audit_settings(audit, with_arguments=audit_arguments),
        rules=source.policy_source(policy, read_only=read_only, trust_hints=trust_hints),
        metrics_port=metrics_port,
        **more,
    )
    own = LocalComputer(name, config or [], terminal, given)
    _introduce(terminal, name, office, endpoint, api_key)
    serving = own.serve(url, office, api_key=api_key, ssl=tls, proxy=proxy)
    try:
        run_program(serving)
    except SMCPError as error:
        failure = explained(error, {"url": endpoint.shown_url, "office": office})
        raise Failed(own.computer.mask.text(failure.what), failure.remedy) from None
    terminal.show("stopped", event="stopped")


def _introduce(terminal: Terminal, name: str, office: str, endpoint: Endpoint, api_key: str | None) -> None:
    """Say who this device is, and warn of a key that others can read."""
    if found := options.exposed(endpoint.url, api_key):
        terminal.show(". ".join(found), "yellow", event="key exposed")
    if device := own_fingerprint(terminal):
        for line in pairing_lines(device, name, office, endpoint.origin, has_own_server=False):
            terminal.show(line, event="device", device=device)
