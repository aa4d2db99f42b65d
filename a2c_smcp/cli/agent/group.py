"""The group of `a2c-smcp agent`: the options that all its commands take, and how a command is made."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from copy import copy
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperGroup

from a2c_smcp.cli import options
from a2c_smcp.cli.agent.run import AgentOptions, Work, run_in_office

_FOREVER = 1e9  # seconds: until Ctrl-C


class _WaitMayBeBare(TyperGroup):
    """Takes `--wait` without a number as waiting until the seat is free: the library knows no such options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = args[: args.index("--")] if "--" in args else args
        words = [_with_time(word, own[number + 1 : number + 2]) for number, word in enumerate(own)]
        return super().parse_args(ctx, [*words, *args[len(own) :]])


def _with_time(word: str, following: list[str]) -> str:
    if word != "--wait" or any(re.fullmatch(r"[-+]?\d+(\.\d+)?", number) for number in following):
        return word
    return f"--wait={_FOREVER:.0f}"


agent = typer.Typer(cls=_WaitMayBeBare, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})

Computer = Annotated[str, typer.Argument(help="The computer, by its name in the office.", show_default=False)]
OneComputer = Annotated[str | None, typer.Argument(help="Only those of this one.", show_default=False)]
Server = Annotated[
    str, typer.Argument(help="The MCP server, by its name or bundle id; `servers` shows them.", show_default=False)
]
Arguments = Annotated[
    list[str] | None, typer.Argument(help="JSON, or KEY=VALUE words, or - for JSON on stdin.", show_default=False)
]
Output = Annotated[Path | None, typer.Option("--output", help="Write it into this file.", show_default=False)]
ToWatch = Annotated[bool, typer.Option("--watch", help="Again whenever it changes, until Ctrl-C.")]
OneServer = Annotated[str | None, typer.Argument(help="Only of this MCP server; otherwise of all.", show_default=False)]


def _group(context: typer.Context, **values: Any) -> None:
    """Use the computers of an office: call tools, read resources, look at desktops, watch who comes and goes.

    An office holds one agent at a time: each command joins, does its work and leaves, and waits for a moment if another
    agent is there; with --wait until it has left. The key of an a2c-smcp up that you run on this machine is found
    automatically. The options below may stand before or after the command. Exit codes: 0 done, 1 failed or stopped,
    2 wrong use.

    Examples, with `a2c-smcp server` and `a2c-smcp computer --name laptop` running:

    \b
    a2c-smcp agent room
    a2c-smcp agent tools
    a2c-smcp agent desktop laptop --size 3
    a2c-smcp agent watch --office desk
    """
    context.obj = values


def command(prepare: Callable[..., Work]) -> Callable[..., Work]:
    """Make a subcommand from a function that reads its own options and returns the work; add the group's options."""

    @wraps(prepare)
    def run(context: typer.Context, **values: Any) -> None:
        repeated = {name: value for name in _OPTIONS if (value := values.pop(name)) is not None}
        run_in_office(options.from_values(AgentOptions, context.obj | repeated), prepare(**values))

    repeated = [_without_default(parameter) for parameter in _OPTIONS.values()]
    run.__signature__ = _signature(*options.parameters(prepare), *repeated)  # type: ignore[attr-defined]
    agent.command()(run)
    return prepare


def _without_default(parameter: inspect.Parameter) -> inspect.Parameter:
    """An option of the group, as it may be repeated after the subcommand."""
    kind, declared = get_args(parameter.annotation)
    info = copy(declared)
    info.envvar, info.show_default, info.rich_help_panel = None, False, "Where"
    return parameter.replace(annotation=Annotated[kind | None, info], default=None)


def _signature(*parameters: inspect.Parameter) -> inspect.Signature:
    """The signature that typer reads: the parameters, and the context."""
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Signature([inspect.Parameter("context", kind, annotation=typer.Context), *parameters])


_OPTIONS = {parameter.name: parameter for parameter in options.parameters(AgentOptions)}

_group.__signature__ = _signature(*_OPTIONS.values())  # type: ignore[attr-defined]
agent.callback()(_group)
