"""`a2c-smcp agent`: use the computers of an office from the command line."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from copy import copy
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperGroup

from a2c_smcp.cli import options
from a2c_smcp.cli.agent import listings, show
from a2c_smcp.cli.agent.listings import SkillWork, show_skills
from a2c_smcp.cli.agent.requests import (
    PromptWork,
    ReadWatch,
    ReadWork,
    ToolCallWork,
    read_arguments,
    read_prompt_arguments,
)
from a2c_smcp.cli.agent.run import AgentOptions, PutWork, Work, run_in_office
from a2c_smcp.cli.agent.show import DesktopWatch, LogWatch, Watch
from a2c_smcp.cli.errors import WrongUse
from a2c_smcp.mcp_events import LogLevel
from a2c_smcp.protocol.codec import MAX_TIMEOUT

__all__ = ["agent"]

# The group of `a2c-smcp agent`: the options that all its commands take, and how a command is made.

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


@command
def tools(
    computer: OneComputer = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="Only those with this tag; repeat for more.")] = None,
    as_json: options.AsJSON = False,
) -> Work:
    """List the tools of all computers, or of one.

    Examples:

    \b
    a2c-smcp agent tools
    a2c-smcp agent tools laptop --json
    """
    return partial(show.show_tools, computer=computer, tags=tag or [], as_json=as_json)


@command
def call(
    computer: Computer,
    tool: Annotated[str, typer.Argument(help="The tool, by the name that `tools` shows.", show_default=False)],
    arguments: Arguments = None,
    timeout: Annotated[
        int, typer.Option("--timeout", help="How many seconds it may take.", min=1, max=MAX_TIMEOUT)
    ] = 60,
    extend: Annotated[
        bool,
        typer.Option("--extend", help="--timeout is its longest silence: progress gives it more time."),
    ] = False,
    save: Annotated[
        Path | None,
        typer.Option("--save", metavar="DIR", help="Write images, audio and files of the result into this folder."),
    ] = None,
    as_json: options.AsJSON = False,
) -> Work:
    """Call a tool. Its text goes to stdout, or to stderr if it fails (exit code 1).

    On a terminal its progress is shown, and what it asks is asked here. Ctrl-C cancels the call on the computer (exit
    code 1); a second one quits at once. With --save, files that are there are never replaced: a new one gets a number.

    Examples:

    \b
    a2c-smcp agent call laptop add '{"a": 2, "b": 3}'
    a2c-smcp agent call laptop add a=2 b=3 --timeout 10 --extend
    a2c-smcp agent call laptop screenshot --save pictures
    echo '{"a": 2, "b": 3}' | a2c-smcp agent call laptop add - --json
    """
    options.check_folder(save, "--save")
    return ToolCallWork(computer, tool, read_arguments(arguments or []), timeout, as_json, extend, save)


@command
def put(
    computer: Computer,
    file: Annotated[Path, typer.Argument(help="The file to send.", show_default=False)],
    hint: Annotated[
        str | None, typer.Option("--as", help="A name for it there; otherwise its own.", show_default=False)
    ] = None,
    as_json: options.AsJSON = False,
) -> Work:
    """Send a file to a computer, and print where it is there, to be given to a tool.

    The computer must have been started with --landing, and without --read-only. After a lost connection the transfer
    goes on where it was.

    Examples:

    \b
    a2c-smcp agent put laptop report.pdf
    a2c-smcp agent call laptop read_pdf path="$(a2c-smcp agent put laptop report.pdf)"
    """
    return PutWork(computer, file, hint, as_json)


@command
def desktop(
    computer: Computer,
    size: Annotated[int | None, typer.Option("--size", help="At most so many windows.", min=1)] = None,
    window: Annotated[str | None, typer.Option("--window", help="Only the window of this URI.")] = None,
    watch: ToWatch = False,
    as_json: options.AsJSON = False,
) -> Work:
    """Look at the windows of a computer, the most important ones first.

    Examples:

    \b
    a2c-smcp agent desktop laptop
    a2c-smcp agent desktop laptop --size 1 --watch
    """
    if watch:
        return DesktopWatch(computer, size, window, as_json=as_json)
    return partial(show.show_desktop, computer=computer, size=size, window=window, as_json=as_json)


@command
def config(computer: Computer, as_json: options.AsJSON = False) -> Work:
    """Show the MCP servers of a computer and their inputs, without secrets.

    Example:

    \b
    a2c-smcp agent config laptop
    """
    return partial(show.show_config, computer=computer, as_json=as_json)


@command
def room(as_json: options.AsJSON = False) -> Work:
    """Show who is in the office.

    Example:

    \b
    a2c-smcp agent room
    """
    return partial(show.show_room, as_json=as_json)


@command
def watch(as_json: options.AsJSON = False) -> Work:
    """Print a line for each computer that comes or goes and for each change, until Ctrl-C.

    Examples:

    \b
    a2c-smcp agent watch
    a2c-smcp agent watch --json
    """
    return Watch(as_json=as_json)


@command
def logs(
    computer: Computer,
    server: OneServer = None,
    level: Annotated[LogLevel, typer.Option("--level", help="Only messages of this level and above.")] = "info",
    as_json: options.AsJSON = False,
) -> Work:
    """Print what the MCP servers of a computer log, until Ctrl-C. With --json, one object per line.

    Examples:

    \b
    a2c-smcp agent logs laptop
    a2c-smcp agent logs laptop files --level debug --json
    """
    return LogWatch(computer, server, level, as_json=as_json)


@command
def servers(
    computer: OneComputer = None,
    as_json: options.AsJSON = False,
) -> Work:
    """List the MCP servers of all computers, or of one: their state, what they offer, and how to use them.

    Examples:

    \b
    a2c-smcp agent servers
    a2c-smcp agent servers laptop --json
    """
    return partial(listings.show_servers, computer=computer, as_json=as_json)


@command
def resources(
    computer: Computer,
    server: OneServer = None,
    templates: Annotated[bool, typer.Option("--templates", help="Patterns of URIs, instead of resources.")] = False,
    as_json: options.AsJSON = False,
) -> Work:
    """List the resources of a computer's MCP servers: texts and files that can be read.

    Examples:

    \b
    a2c-smcp agent resources laptop
    a2c-smcp agent resources laptop library --templates
    """
    return partial(listings.show_resources, computer=computer, server=server, templates=templates, as_json=as_json)


@command
def read(
    computer: Computer,
    server: Server,
    uri: Annotated[str, typer.Argument(help="The URI that `resources` shows.", show_default=False)],
    output: Output = None,
    watch: ToWatch = False,
    as_json: options.AsJSON = False,
) -> Work:
    """Read a resource. Text goes to stdout; a binary one to a file or a pipe, never to a terminal.

    Examples:

    \b
    a2c-smcp agent read laptop library library://catalogue
    a2c-smcp agent read laptop library library://stamp --output stamp.png
    a2c-smcp agent read laptop library library://catalogue --watch
    """
    if output and (watch or as_json):
        raise WrongUse("--output writes one file", "Leave out --watch and --json.")
    work = ReadWork(computer, server, uri, output, as_json)
    return ReadWatch(work) if watch else work


@command
def prompts(computer: Computer, server: OneServer = None, as_json: options.AsJSON = False) -> Work:
    """List the prompts of a computer's MCP servers, with their arguments; those in brackets may be left out.

    Examples:

    \b
    a2c-smcp agent prompts laptop
    a2c-smcp agent prompts laptop library --json
    """
    return partial(listings.show_prompts, computer=computer, server=server, as_json=as_json)


@command
def prompt(
    computer: Computer,
    server: Server,
    prompt_name: Annotated[
        str, typer.Argument(metavar="PROMPT", help="The prompt, by the name that `prompts` shows.", show_default=False)
    ],
    arguments: Arguments = None,
    as_json: options.AsJSON = False,
) -> Work:
    """Print a prompt with its arguments filled in, ready for a language model.

    Examples:

    \b
    a2c-smcp agent prompt laptop library review title=Emma
    a2c-smcp agent prompt laptop library review '{"title": "Emma", "words": "50"}' --json
    """
    return PromptWork(computer, server, prompt_name, read_prompt_arguments(arguments or []), as_json)


@command
def skills(
    computer: OneComputer = None,
    as_json: options.AsJSON = False,
) -> Work:
    """List the skills of all computers, or of one: folders with instructions for agents.

    Examples:

    \b
    a2c-smcp agent skills
    a2c-smcp agent skills laptop --json
    """
    return partial(show_skills, computer=computer, as_json=as_json)


@command
def skill(
    computer: Computer,
    skill_name: Annotated[
        str, typer.Argument(metavar="SKILL", help="The skill, by the name that `skills` shows.", show_default=False)
    ],
    file: Annotated[
        str | None, typer.Argument(help="A file of the skill; otherwise its SKILL.md.", show_default=False)
    ] = None,
    output: Output = None,
    as_json: options.AsJSON = False,
) -> Work:
    """Read a file of a skill. Text goes to stdout; a binary one to a file or a pipe, never to a terminal.

    Examples:

    \b
    a2c-smcp agent skill laptop code-review
    a2c-smcp agent skill laptop code-review scripts/check.py
    a2c-smcp agent skill laptop code-review images/logo.png --output logo.png
    """
    if output and as_json:
        raise WrongUse("--output writes one file", "Leave out --json.")
    return SkillWork(computer, skill_name, file, output, as_json)
