"""The subcommands, joined. Only the one that is wanted is imported."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from keyword import iskeyword
from typing import Annotated

import typer

from a2c_smcp import __version__

__all__ = ["COMMANDS", "build", "build_for"]

COMMANDS = ("demo", "up", "server", "nodes", "computer", "agent", "key", "doctor", "import", "export")
"""Each is a module here, with a function or a group of its name; that of a word of Python's own ends in `_`."""


_COMPLETED = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")
"""Where a shell that wants a word completed puts those that stand there: bash, and the others."""


def build_for(words: Sequence[str]) -> typer.Typer:
    """As much of the command line as these words need, or those that a shell wants completed."""
    typed = next((os.environ[name].split()[1:] for name in _COMPLETED if name in os.environ), None)
    wanted = next((word for word in typed or words if not word.startswith("-")), None)
    return _outline() if typed is not None and wanted not in COMMANDS else build(wanted)


def build(wanted: str | None = None) -> typer.Typer:
    """The command line, with all its subcommands unless one is wanted that exists."""
    app = _without_commands()
    for name in (wanted,) if wanted in COMMANDS else COMMANDS:
        own = f"{name}_" if iskeyword(str(name)) else str(name)
        found = getattr(import_module(f"a2c_smcp.cli.commands.{own}"), own)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
    return app


def _outline() -> typer.Typer:
    """The names of the subcommands, which is all that completing one takes."""
    app = _without_commands()
    for name in COMMANDS:
        app.command(name)(lambda: None)
    return app


def _without_commands() -> typer.Typer:
    app = typer.Typer(
        name="a2c-smcp",
        help="A2C-SMCP: let agents use the MCP servers on people's own machines.",
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"a2c-smcp {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of what goes wrong.")] = False,
) -> None:
    pass
