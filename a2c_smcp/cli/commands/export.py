"""`a2c-smcp export`: print our MCP servers as the `mcpServers` of another program."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from a2c_smcp.cli.errors import WrongUse
from a2c_smcp.cli.options import option
from a2c_smcp.cli.terminal import Terminal, put_json
from a2c_smcp.computer.configuration.files import Configuration, read_configuration
from a2c_smcp.computer.imports.exporting import STYLES
from a2c_smcp.computer.imports.exporting import export as exported
from a2c_smcp.errors import ConfigError

__all__ = ["export"]


class TargetProgram(StrEnum):
    """The program that will read the file."""

    claude_code = "claude-code"
    cursor = "cursor"
    claude_desktop = "claude-desktop"


_TO_DO = {
    "claude-code": "set these variables where it runs",
    "cursor": "set these variables where it runs",
    "claude-desktop": "it fills in nothing: write these into the file yourself",
}


def export(
    source: Annotated[Path, typer.Option("--config", "--from", help="File of MCP servers.")] = Path("a2c.json"),
    program: Annotated[
        TargetProgram,
        option(None, "--for", "How inputs are written: ${VAR:-default}, ${env:VAR}, or <VAR> to be filled in."),
    ] = TargetProgram.claude_code,
) -> None:
    """Print the MCP servers of a file as {"mcpServers": {…}}.

    Inputs become variables, and so do secrets that are written out in the file: no secret is printed. What the other
    program cannot express is reported on stderr.

    Examples:

    \b
    a2c-smcp export > .mcp.json
    a2c-smcp export --config servers.json --for cursor > .cursor/mcp.json
    """
    terminal, found = Terminal(), exported(_configuration(source), STYLES[program])
    put_json({"mcpServers": found.servers})
    for line in found.notes:
        terminal.show(line, "yellow")
    if found.variables:
        named = ", ".join(f"{name} ({about})" for name, about in found.variables.items())
        terminal.show(f"{_TO_DO[program]}: {named}")


def _configuration(path: Path) -> Configuration:
    try:
        return read_configuration(path)
    except ConfigError as error:
        raise WrongUse(
            error.about,
            "Name another with --config; `a2c-smcp import` makes an a2c.json.",
        ) from None
