"""`a2c-smcp computer`: this machine, its MCP servers and an office."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Annotated

from a2c_smcp.cli import local_computer as device
from a2c_smcp.cli import logs
from a2c_smcp.cli import options as connection
from a2c_smcp.cli.errors import Failed, WrongUse, explained
from a2c_smcp.cli.options import option
from a2c_smcp.cli.setup_files import read_values
from a2c_smcp.cli.terminal import Terminal
from a2c_smcp.endpoint import Endpoint
from a2c_smcp.errors import ConfigError, SMCPError
from a2c_smcp.loops import run_program
from a2c_smcp.protocol.names import fault_in

__all__ = ["computer"]


def computer(
    name: Annotated[str, option("A2C_NAME", "--name", "Name of this computer in its office.")] = platform.node(),
    url: connection.Url = connection.DEFAULT_URL,
    office: connection.Office = connection.DEFAULT_OFFICE,
    config: Annotated[list[Path] | None, option(None, "--config", "File of MCP servers; repeat for more.")] = None,
    inputs: Annotated[Path | None, option(None, "--inputs", "JSON object of values for inputs.")] = None,
    api_key: connection.ApiKey = None,
    yes: device.Yes = False,
    no_input: device.NoInput = False,
    trust_changes: device.TrustChanges = False,
    idle_stop: device.IdleStop = None,
    desktop: device.DesktopOption = device.Desktop.subscribed,
    ca: connection.CA = None,
    cert: connection.Cert = None,
    cert_key: connection.CertKey = None,
    proxy: connection.Proxy = None,
    log_level: connection.LogLevel = logs.Level.warning,
) -> None:
    """Put this machine's MCP servers on an office, until stopped.

    Configuration files are JSON (comments allowed) or TOML: {"servers": {…}, "inputs": […]}, {"mcpServers": {…}}, a
    list of servers, or one server. They are watched: what changes in them is restarted, after your yes where it
    decides what is run. Values of inputs that `a2c-smcp import` has put beside a file are found there.

    Examples:

    \b
    a2c-smcp computer --config servers.json
    a2c-smcp computer --name laptop --office desk --url https://hub.example --config mcp.json --yes
    """
    _check_seat(name, url, office)
    logs.set_up(log_level)
    terminal, values, tls = Terminal(), read_values(inputs, config or ()), connection.tls(ca, cert, cert_key)
    policy = device.policy_of(idle_stop, desktop)
    if found := connection.exposed(url, api_key):
        terminal.show(". ".join(found), "yellow")
    own = device.Device(
        name,
        config or [],
        terminal,
        yes=yes,
        no_input=no_input,
        trust_changes=trust_changes,
        values=values,
        policy=policy,
    )
    try:
        run_program(own.serve(url, office, api_key=api_key, ssl=tls, proxy=proxy))
    except SMCPError as error:
        told = explained(error, {"url": Endpoint(url=url).place, "office": office})
        raise Failed(own.host.mask.text(told.what), told.remedy) from None
    terminal.show("stopped")


def _check_seat(name: str, url: str, office: str) -> None:
    """What the Server could only refuse is wrong use, said before anything is started."""
    for flag, text in (("--name", name), ("--office", office)):
        if fault := fault_in(text):
            raise WrongUse(f"{flag}: {fault}", "Choose another.")
    try:
        Endpoint(url=url)
    except ConfigError as error:
        raise WrongUse(error.message, "Correct --url or A2C_URL.") from None
