"""`a2c-smcp agent`: use the computers of an office from the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import partial, wraps
from typing import Annotated, Any, get_args

import typer

from a2c_smcp.cli import options
from a2c_smcp.cli.agent import shell_completion
from a2c_smcp.cli.agent import show as listings
from a2c_smcp.cli.agent.call import ToolCallWork, read_arguments
from a2c_smcp.cli.agent.logs import LogWatch, ServerLogLevel
from a2c_smcp.cli.agent.run import AgentOptions, Work, run_in_office
from a2c_smcp.cli.agent.show import DesktopWatch, Watch
from a2c_smcp.cli.logs import LogLevel
from a2c_smcp.cli.options import option
from a2c_smcp.cli.terminal import is_for_programs
from a2c_smcp.protocol.codec import MAX_TIMEOUT

__all__ = ["agent"]

agent = typer.Typer(no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})

Name = Annotated[str, option("A2C_NAME", "--name", "Name of this agent.", show_default="user@host")]
Wait = Annotated[
    float,
    option(None, "--wait", "Seconds to wait for the agent that is in the office.", min=0, max=MAX_TIMEOUT),
]
Computer = Annotated[
    str,
    typer.Argument(
        help="The computer, by its name in the office.", show_default=False, autocompletion=shell_completion.computers
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
) -> None:
    """Use the computers of an office: see their tools, call them, look at desktops, watch who comes and goes.

    An office holds one agent at a time: each command joins, does its work and leaves, and waits for a moment if another
    agent is there. The key of an a2c-smcp up that you run on this machine is found automatically. The options below may
    stand before or after the command. Exit codes: 0 done, 1 failed or stopped, 2 wrong use.

    Examples, with a2c-smcp server and a2c-smcp computer --name laptop running:

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
    )


def _command(prepare: Callable[..., Work]) -> Callable[..., Work]:
    """Make a subcommand from a function that reads its own options and returns the work; add the group's options."""

    @wraps(prepare)
    def command(context: typer.Context, **given: Any) -> None:
        again = {field: given.pop(field) for field in _SHARED}
        door = replace(context.obj, **{field: value for field, value in again.items() if value is not None})
        run_in_office(door, prepare(**given))

    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    own = inspect.signature(prepare, eval_str=True).parameters.values()
    parameters = [context, *own, *_SHARED.values()]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
    agent.command()(command)
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


@_command
def tools(
    computer: Annotated[
        str | None,
        typer.Argument(help="Only those of this one.", show_default=False, autocompletion=shell_completion.computers),
    ] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="Only those with this tag; repeat for more.")] = None,
    as_json: JSONOrTable = None,
) -> Work:
    """List the tools of all computers, or of one.

    Examples:

    \b
    a2c-smcp agent tools
    a2c-smcp agent tools laptop --json
    """
    return partial(listings.show_tools, computer=computer, tags=tag or [], as_json=is_for_programs(as_json))


@_command
def call(
    computer: Computer,
    tool: Annotated[
        str,
        typer.Argument(
            help="The tool, by the name that `tools` shows.",
            show_default=False,
            autocompletion=shell_completion.tools,
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="JSON, or KEY=VALUE words, or - for JSON on stdin.", show_default=False),
    ] = None,
    timeout: Annotated[
        int, typer.Option("--timeout", help="How many seconds it may take.", min=1, max=MAX_TIMEOUT)
    ] = 60,
    extend: Annotated[
        bool,
        typer.Option("--extend", help="--timeout is its longest silence: progress gives it more time."),
    ] = False,
    as_json: AsJSON = False,
) -> Work:
    """Call a tool. Its text goes to stdout, or to stderr if it fails (exit code 1).

    On a terminal its progress is shown, and what it asks is asked here. Ctrl-C cancels the call on the computer (exit
    code 1); a second one quits at once.

    Examples:

    \b
    a2c-smcp agent call laptop add '{"a": 2, "b": 3}'
    a2c-smcp agent call laptop add a=2 b=3 --timeout 10 --extend
    echo '{"a": 2, "b": 3}' | a2c-smcp agent call laptop add - --json
    """
    return ToolCallWork(computer, tool, read_arguments(arguments or []), timeout, as_json, extend)


@_command
def desktop(
    computer: Computer,
    size: Annotated[int | None, typer.Option("--size", help="At most so many windows.", min=1)] = None,
    window: Annotated[str | None, typer.Option("--window", help="Only the window of this URI.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Again whenever it changes, until Ctrl-C.")] = False,
    as_json: AsJSON = False,
) -> Work:
    """Look at the windows of a computer, the most important ones first.

    Examples:

    \b
    a2c-smcp agent desktop laptop
    a2c-smcp agent desktop laptop --size 1 --watch
    """
    if watch:
        return DesktopWatch(computer, size, window, as_json=as_json)
    return partial(listings.show_desktop, computer=computer, size=size, window=window, as_json=as_json)


@_command
def config(computer: Computer, as_json: JSONOrTable = None) -> Work:
    """Show the MCP servers of a computer and their inputs, without secrets.

    Example:

    \b
    a2c-smcp agent config laptop
    """
    return partial(listings.show_config, computer=computer, as_json=is_for_programs(as_json))


@_command
def room(as_json: JSONOrTable = None) -> Work:
    """Show who is in the office.

    Example:

    \b
    a2c-smcp agent room
    """
    return partial(listings.show_room, as_json=is_for_programs(as_json))


@_command
def watch(as_json: AsJSON = False) -> Work:
    """Print a line for each computer that comes or goes and for each change, until Ctrl-C.

    Examples:

    \b
    a2c-smcp agent watch
    a2c-smcp agent watch --json
    """
    return Watch(as_json=as_json)


@_command
def logs(
    computer: Computer,
    server: Annotated[
        str | None, typer.Argument(help="Only of this MCP server; otherwise of all.", show_default=False)
    ] = None,
    level: Annotated[
        ServerLogLevel, typer.Option("--level", help="Only messages of this level and above.")
    ] = ServerLogLevel.info,
    as_json: AsJSON = False,
) -> Work:
    """Print what the MCP servers of a computer log, until Ctrl-C. With --json, one object per line.

    Examples:

    \b
    a2c-smcp agent logs laptop
    a2c-smcp agent logs laptop files --level debug --json
    """
    return LogWatch(computer, server, level, as_json=as_json)
