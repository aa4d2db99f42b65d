"""The subcommands, joined. Only the one that is wanted is imported."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from a2c_smcp import __version__

__all__ = ["COMMANDS", "build"]

COMMANDS = ("demo", "server", "computer", "agent", "key")
"""Each is a module here, with a function or a group of its name."""


def build(wanted: str | None = None) -> typer.Typer:
    """The command line, with all its subcommands unless one is wanted that exists."""
    app = typer.Typer(
        name="a2c-smcp",
        help="A2C-SMCP: let agents use the MCP servers on people's own machines.",
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for name in (wanted,) if wanted in COMMANDS else COMMANDS:
        found = getattr(import_module(f"a2c_smcp.cli.{name}"), str(name))
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command()(found)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"a2c-smcp {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
