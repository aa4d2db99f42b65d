"""The command line: its subcommands, of which only the needed one is imported, and how it ends.

An error ends as one sentence on what happened, one on what to do, and an exit code: 1 failed, 2 wrong use. `--debug`
also shows the traceback.
"""

from __future__ import annotations

import builtins
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import pairwise, takewhile
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

import typer

from a2c_smcp import __version__
from a2c_smcp.cli import logs
from a2c_smcp.cli.errors import Failed, UsageError, WrongUse, explained, sentence
from a2c_smcp.cli.options import DEFAULT_OFFICE, server_variable
from a2c_smcp.cli.terminal import Terminal
from a2c_smcp.errors import SMCPError


class CommandSpec(NamedTuple):
    """A subcommand: whether it makes spans, whether it has `--log-json`, and its module if that has another name."""

    makes_spans: bool = False
    has_log_json: bool = False
    module: str = ""


_PLAIN = CommandSpec()
_PROGRAM = CommandSpec(makes_spans=True, has_log_json=True)

COMMANDS = {
    "demo": _PLAIN,
    "up": _PROGRAM,
    "server": _PROGRAM,
    "office": _PLAIN,
    "nodes": _PLAIN,
    "freeze": _PLAIN,
    "thaw": CommandSpec(module="freeze"),
    "computer": _PROGRAM,
    "agent": CommandSpec(makes_spans=True),
    "bridge": _PROGRAM,
    "login": _PLAIN,
    "logout": CommandSpec(module="login"),
    "key": _PLAIN,
    "device": _PLAIN,
    "policy": _PLAIN,
    "audit": _PLAIN,
    "doctor": _PLAIN,
    "add": _PLAIN,
    "update": CommandSpec(module="add"),
    "remove": CommandSpec(module="add"),
    "list": CommandSpec(module="add"),
    "import": _PLAIN,
    "connect": _PLAIN,
    "service": _PLAIN,
}
"""In the order of `--help`. A module of `cli/commands/` has a function or group of the subcommand's name; a name
of Python's own has a `_` at its end."""

_TRACE_FILE = "A2C_TRACE_FILE"
"""The variable that names a file for spans."""

_COMPLETED = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")
"""Variables in which a shell passes the line to complete: bash, and other shells."""


def build_for(words: Sequence[str]) -> typer.Typer:
    """The command line, as far as these words need it, or the words that a shell wants to complete."""
    typed = next((os.environ[name].split()[1:] for name in _COMPLETED if name in os.environ), None)
    wanted = next((word for word in typed or words if not word.startswith("-")), None)
    needs_names_only = typed is not None or any(word.endswith("-completion") for word in words)
    return _outline() if needs_names_only and wanted not in COMMANDS else build(wanted)


def build(wanted: str | None = None) -> typer.Typer:
    """The command line with the wanted subcommand, or with all if there is no such one."""
    app = _without_commands()
    for name in (wanted,) if wanted in COMMANDS else COMMANDS:
        own = f"{name}_" if iskeyword(name) or hasattr(builtins, name) else name
        found = getattr(import_module(f"a2c_smcp.cli.commands.{COMMANDS[name].module or own}"), own)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
    return app


def _outline() -> typer.Typer:
    """The names of the subcommands without their code: completing a name needs no more."""
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


logger = logging.getLogger(__name__)

_FAILED, _WRONG_USE = 1, 2
_INTERRUPTED = 130
_YES = frozenset({"1", "true", "t", "yes", "y", "on"})


_PLAIN_WORDS = tuple(
    (re.compile(pattern), plain)
    for pattern, plain in (
        ("^Invalid value for '([^']*)'", r"\1"),
        ("Input should be greater than or equal to", "must be at least"),
        ("Input should be less than or equal to", "must be at most"),
        ("Input should be greater than", "must be more than"),
        ("Input should be a valid integer, .*", "must be a whole number"),
        ("Input should be a valid number, .*", "must be a number"),
        ("Value error, ", ""),
    )
)
"""Messages of the library about a value, and plainer ones."""


class Ending(NamedTuple):
    """The exit code, and the message on stderr."""

    code: int
    words: str


def carry_out(app: typer.Typer, words: Sequence[str]) -> NoReturn:
    """Run the command line, and exit."""
    export_last_spans = None
    try:
        export_last_spans = _trace(words)
        code = app(words, standalone_mode=False, color=False if os.environ.get("NO_COLOR") else None)
    except Exception as error:
        if "--debug" in takewhile(lambda word: word.startswith("-"), words):
            traceback.print_exception(_unabridged(error))
        ending = ending_of(error)
        if isinstance(error, UsageError) and _wants_json(words):
            logs.set_up("info", as_json=True)  # no option was read
        if ending.words:
            _say(ending.words)
            _tell_mcp_client(words, ending.words)
        sys.exit(ending.code)
    finally:
        if export_last_spans:
            export_last_spans()
    sys.exit(_FAILED if code == _INTERRUPTED else code)


def _trace(words: Sequence[str]) -> Callable[[], None] | None:
    """Have the spans of a program exported, if the environment asks for it. Raises `ConfigError`."""
    wanted = next((word for word in words if not word.startswith("-")), "")
    is_asked_for = any(name.startswith(("OTEL_", _TRACE_FILE)) for name in os.environ)
    if not (is_asked_for and COMMANDS.get(wanted, _PLAIN).makes_spans):
        return None
    from a2c_smcp.telemetry.exporting import export_traces

    file = os.environ.get(_TRACE_FILE)
    return export_traces(wanted, Path(file) if file else None)


def _wants_json(words: Sequence[str]) -> bool:
    variable = server_variable("--log-json") if "server" in words else "A2C_LOG_JSON"
    has_option = any(COMMANDS.get(word, _PLAIN).has_log_json for word in words)
    return has_option and ("--log-json" in words or os.environ.get(variable, "").lower() in _YES)


def _say(words: str) -> None:
    """Print on stderr, as JSON if logs are."""
    if line := logs.as_json_line(logger, logging.ERROR, words, event="failed"):
        typer.echo(line, err=True)
    else:
        Terminal().show(words, "red")


def _tell_mcp_client(words: Sequence[str], reason: str) -> None:
    """Serve the reason to the MCP client that has started a bridge: what the program prints, it shows to nobody."""
    if "--stdio" in words and next(word for word in words if not word.startswith("-")) == "bridge":
        from a2c_smcp.cli.bridging import serve_reason

        serve_reason(reason, dict(pairwise(words)).get("--office", DEFAULT_OFFICE))


def ending_of(error: Exception) -> Ending:
    """The end of the program after an error. The text of an unexpected one is not shown: it may quote secrets."""
    match error:
        case Failed():
            words = str(error)
        case WrongUse():
            return Ending(_WRONG_USE, error.message)
        case UsageError():
            return _ending_of_usage(error)
        case SMCPError():
            words = str(explained(error))
        case OSError():
            what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or type(error).__name__
            words = f"{sentence(what)} Fix this (permissions, path or disk space), and try again."
        case typer.Abort():
            words = "There was no answer to a question, and nothing was done. Run it again where you can answer."
        case _:
            bug = f"This is a bug in a2c-smcp: unexpected error {type(error).__name__}."
            words = f"{bug} Run it again as `a2c-smcp --debug …`, and report what it prints."
    return Ending(_FAILED, words)


def _ending_of_usage(error: Any) -> Ending:
    """Wrong options and arguments. If only help was wanted, it has been printed already."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return Ending(_WRONG_USE, "")
    what = error.format_message().removeprefix("Invalid value: ")
    for pattern, plain in _PLAIN_WORDS:
        what = pattern.sub(plain, what)
    command = error.ctx.command_path if error.ctx else "a2c-smcp"
    return Ending(_WRONG_USE, f"{sentence(what)} `{command} --help` shows how it is used.")


def _unabridged(error: BaseException) -> BaseException:
    """The error with all its causes, also those hidden by `from None`."""
    link: BaseException | None = error
    while link:
        link.__suppress_context__ = False
        link = link.__cause__ or link.__context__
    return error
