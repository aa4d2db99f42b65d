"""How the program ends when something went wrong: a sentence on what happened, one on what to do, and an exit code.

Tracebacks are for those who ask for them, with `--debug`.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import traceback
from collections.abc import Sequence
from functools import singledispatch
from itertools import takewhile
from typing import Any, NamedTuple, NoReturn

import typer

from a2c_smcp.cli import logs
from a2c_smcp.cli.errors import Failed, WrongUse, explained, sentence
from a2c_smcp.cli.terminal import Terminal
from a2c_smcp.errors import SMCPError

__all__ = ["Ending", "carry_out", "ending_of"]

logger = logging.getLogger(__name__)

_FAILED, _WRONG_USE = 1, 2
_INTERRUPTED = 130
_UsageError: Any = typer.BadParameter.__mro__[1]  # click's, which typer keeps in another place from time to time


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
"""What the library says of a value, and what we say."""


class Ending(NamedTuple):
    """The exit code, and what is said on stderr."""

    code: int
    words: str


def carry_out(app: typer.Typer, words: Sequence[str]) -> NoReturn:
    """Runs the program to its end, whatever that is."""
    try:
        code = app(words, standalone_mode=False, color=False if os.environ.get("NO_COLOR") else None)
    except Exception as error:
        if "--debug" in takewhile(_is_option, words):
            traceback.print_exception(_unabridged(error))
        ending = ending_of(error)
        if ending.words:
            _say(ending.words)
        sys.exit(ending.code)
    sys.exit(_FAILED if code == _INTERRUPTED else code)


def _say(words: str) -> None:
    """On stderr, as JSON where the log of this program is."""
    if line := logs.as_json_line(logger, logging.ERROR, words):
        typer.echo(line, err=True)
    else:
        Terminal().show(words, "red")


@singledispatch
def ending_of(error: Exception) -> Ending:
    """What a user is told of an error; of one that nobody has foreseen, without the values it may quote."""
    return Ending(
        _FAILED,
        f"This is a bug in a2c-smcp: {type(error).__name__} was not foreseen. "
        "Run it again as `a2c-smcp --debug …`, and report what it prints.",
    )


@ending_of.register
def _(error: Failed) -> Ending:
    return Ending(_FAILED, str(error))


@ending_of.register
def _(error: WrongUse) -> Ending:
    return Ending(_WRONG_USE, error.message)


@ending_of.register(_UsageError)
def _(error: Any) -> Ending:
    """Wrong options and arguments. Where help was all that was wanted, it has been shown."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return Ending(_WRONG_USE, "")
    what = error.format_message().removeprefix("Invalid value: ")
    for pattern, plain in _PLAIN_WORDS:
        what = pattern.sub(plain, what)
    command = error.ctx.command_path if error.ctx else "a2c-smcp"
    return Ending(_WRONG_USE, f"{sentence(what)} `{command} --help` shows how it is used.")


@ending_of.register
def _(error: SMCPError) -> Ending:
    return Ending(_FAILED, str(explained(error)))


@ending_of.register
def _(error: OSError) -> Ending:
    """The system says no, to this user or for now."""
    what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or type(error).__name__
    return Ending(_FAILED, f"{sentence(what)} Make that possible, and try again.")


@ending_of.register
def _(error: typer.Abort) -> Ending:
    return Ending(
        _FAILED, "There was no answer to a question, and nothing was done. Run it again where you can answer."
    )


def _is_option(word: str) -> bool:
    return word.startswith("-")


def _unabridged(error: BaseException) -> BaseException:
    """With all that it came from: `from None` is for those who need not know."""
    link: BaseException | None = error
    while link:
        link.__suppress_context__ = False
        link = link.__cause__ or link.__context__
    return error
