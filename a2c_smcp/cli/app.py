"""The subcommands, joined."""

from __future__ import annotations

from typing import Annotated

import typer

from a2c_smcp import __version__
from a2c_smcp.cli.computer import computer
from a2c_smcp.cli.demo import demo
from a2c_smcp.cli.key import key
from a2c_smcp.cli.server import server

__all__ = ["app"]

app = typer.Typer(
    name="a2c-smcp",
    help="A2C-SMCP: let agents use the MCP servers on people's own machines.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command()(server)
app.command()(computer)
app.command()(key)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"a2c-smcp {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
