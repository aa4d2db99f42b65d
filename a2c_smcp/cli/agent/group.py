"""The group of `a2c-smcp agent`: the options that all its commands take, and how a command is made."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import wraps
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperGroup

from a2c_smcp.cli import options
from a2c_smcp.cli.agent import shell_completion
from a2c_smcp.cli.agent.run import AgentOptions, Work, run_in_office
from a2c_smcp.cli.logs import LogLevel
from a2c_smcp.cli.options import option

__all__ = ["AsJSON", "Computer", "JSONOrTable", "OneComputer", "OneServer", "Server", "agent", "command"]

_FOREVER = 1e9  # seconds: until Ctrl-C


class _WaitMayBeBare(TyperGroup):
    """Takes `--wait` without a number as waiting until the seat is free: the library knows no such options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = args[: args.index("--")] if "--" in args else args
        words = [_with_time(word, own[number + 1 : number + 2]) for number, word in enumerate(own)]
        return super().parse_args(ctx, [*words, *args[len(own) :]])


def _with_time(word: str, following: list[str]) -> str:
    if word != "--wait" or any(re.fullmatch(r"[-+]?\d+(\.\d+)?", each) for each in following):
        return word
    return f"--wait={_FOREVER:.0f}"


agent = typer.Typer(cls=_WaitMayBeBare, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})

Name = Annotated[str, option("A2C_NAME", "--name", "Name of this agent.", show_default="user@host")]
Wait = Annotated[
    float,
    option(
        None,
        "--wait",
        "Seconds to wait for a seat while another agent is in the office; without a number, until it is free.",
        metavar="[SECONDS]",
        min=0,
    ),
]
Verify = Annotated[
    bool, option("A2C_VERIFY", "--verify", "Take only answers that are signed by the known device of the computer.")
]
Computer = Annotated[
    str,
    typer.Argument(
        help="The computer, by its name in the office.", show_default=False, autocompletion=shell_completion.computers
    ),
]
OneComputer = Annotated[
    str | None,
    typer.Argument(help="Only those of this one.", show_default=False, autocompletion=shell_completion.computers),
]
Server = Annotated[
    str,
    typer.Argument(
        help="The MCP server, by its name or bundle id; `servers` shows them.",
        show_default=False,
        autocompletion=shell_completion.servers,
    ),
]
OneServer = Annotated[
    str | None,
    typer.Argument(
        help="Only of this MCP server; otherwise of all.", show_default=False, autocompletion=shell_completion.servers
    ),
]
AsJSON = Annotated[bool, typer.Option("--json", help="JSON, for a program to read.")]
JSONOrTable = Annotated[
    bool | None,
    typer.Option("--json/--table", help="For a program or for a person; by itself a table only on a terminal."),
]


@agent.callback()
def group_options(
    context: typer.Context,
    name: Name = "",
    url: options.Url = options.DEFAULT_URL,
    office: options.Office = options.DEFAULT_OFFICE,
    api_key: options.ApiKey = None,
    ca: options.CA = None,
    cert: options.Cert = None,
    cert_key: options.CertKey = None,
    proxy: options.Proxy = None,
    log_level: options.LogLevelOption = LogLevel.warning,
    wait: Wait = 6.0,
    e2e: options.E2EOption = options.E2E.off,
    verify: Verify = False,
) -> None:
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
    context.obj = AgentOptions(
        name=name or options.default_agent_name(),
        url=url,
        office=office,
        api_key=api_key,
        ca=ca,
        cert=cert,
        cert_key=cert_key,
        proxy=proxy,
        log_level=log_level,
        wait=wait,
        e2e=e2e,
        verify=verify,
    )


def command(prepare: Callable[..., Work]) -> Callable[..., Work]:
    """Make a subcommand from a function that reads its own options and returns the work; add the group's options."""

    @wraps(prepare)
    def run(context: typer.Context, **given: Any) -> None:
        again = {field: given.pop(field) for field in _SHARED}
        door = replace(context.obj, **{field: value for field, value in again.items() if value is not None})
        run_in_office(door, prepare(**given))

    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    own = inspect.signature(prepare, eval_str=True).parameters.values()
    parameters = [context, *own, *_SHARED.values()]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
    agent.command()(run)
    return prepare


def _again(parameter: inspect.Parameter) -> inspect.Parameter:
    """An option of the group, as it may be repeated after the subcommand; without a default."""
    kind, found = get_args(parameter.annotation)
    info = copy(found)
    info.envvar, info.show_default, info.rich_help_panel = None, False, "Where"
    return parameter.replace(annotation=Annotated[kind | None, info], default=None)


_SHARED = {
    name: _again(parameter)
    for name, parameter in inspect.signature(group_options, eval_str=True).parameters.items()
    if name != "context"
}
