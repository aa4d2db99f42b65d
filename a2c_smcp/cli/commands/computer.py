"""`a2c-smcp computer`: offer this machine's MCP servers in an office."""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from a2c_smcp.cli import options
from a2c_smcp.cli.console import ConsoleOptions
from a2c_smcp.cli.errors import Failed, WrongUse, explained
from a2c_smcp.cli.local_computer import LocalComputer, MetricsPort, OwnerOptions
from a2c_smcp.cli.options import option
from a2c_smcp.cli.setup_files import own_fingerprint, pairing_lines, read_input_values
from a2c_smcp.cli.terminal import Terminal
from a2c_smcp.errors import SMCPError
from a2c_smcp.loops import run_program


@dataclass(frozen=True, kw_only=True)
class ComputerOptions:
    """The options of `a2c-smcp computer`."""

    name: Annotated[str, option("A2C_NAME", "--name", "Name of this computer in its office.")] = platform.node()
    url: options.Url = options.DEFAULT_URL
    office: options.Office = options.DEFAULT_OFFICE
    config: Annotated[list[Path] | None, option(None, "--config", "File of MCP servers; repeat for more.")] = None
    inputs: Annotated[Path | None, option(None, "--inputs", "JSON object of values for inputs.")] = None
    api_key: options.ApiKey = None
    key_file: Annotated[Path | None, option("A2C_KEY_FILE", "--key-file", "File with the key for the Server.")] = None
    owner: OwnerOptions
    metrics_port: MetricsPort = None
    console: ConsoleOptions
    link: options.LinkOptions
    audit: options.AuditOptions
    log: options.LogOptions


@options.takes_options
def computer(settings: ComputerOptions) -> None:
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
    options.check_names(name=settings.name, office=settings.office)
    server = options.endpoint(settings.url)
    if settings.key_file:
        if settings.api_key:
            raise WrongUse("--api-key and --key-file do not go together", "Give one of them.")
        settings = replace(settings, api_key=options.read_key(settings.key_file, "--key-file"))
    settings.log.set_up()
    terminal, files, tls = Terminal(), settings.config or [], settings.link.tls()
    own = LocalComputer(settings.name, files, terminal, settings, read_input_values(settings.inputs, files))
    # Show the fingerprint of this device, and warn of a key that others can read.
    if warning := options.exposed(server.url, settings.api_key):
        terminal.show(". ".join(warning), "yellow", event="key exposed")
    if device := own_fingerprint(terminal):
        for line in pairing_lines(device, settings.name, settings.office, server.origin, has_own_server=False):
            terminal.show(line, event="device", device=device)
    serving = own.serve(settings.url, settings.office, api_key=settings.api_key, ssl=tls, proxy=settings.link.proxy)
    try:
        run_program(serving)
    except SMCPError as error:
        failure = explained(error, {"url": server.shown_url, "office": settings.office})
        raise Failed(own.computer.mask.text(failure.what), failure.remedy) from None
    terminal.show("stopped", event="stopped")
