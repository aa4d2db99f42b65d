"""Commands of the prompt about this computer: its MCP servers, inputs, tools, desktop and calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any
from uuid import uuid4

from a2c_smcp.cli.errors import UsageError
from a2c_smcp.cli.prompt import views
from a2c_smcp.cli.prompt.approval_commands import known_server
from a2c_smcp.cli.prompt.console import Console
from a2c_smcp.cli.prompt.language import (
    BackgroundJob,
    BadLine,
    Command,
    Parameter,
    Run,
    missing_parameters,
    parameters_of,
    read_arguments,
)
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.configuration.additions import row_of
from a2c_smcp.computer.configuration.packages import NotDone
from a2c_smcp.computer.configuration.resolver import InputState
from a2c_smcp.computer.consent.approval import OWNER
from a2c_smcp.computer.secrets.rules import secrets_line, secrets_of
from a2c_smcp.mcp_host.config.servers import source
from a2c_smcp.protocol.results import CallToolResult


def _change(verb: str) -> Run[Console]:
    """Return a command that changes the servers of the configuration file, as `a2c-smcp` of this verb does."""

    async def run(console: Console, arguments: list[str]) -> BackgroundJob:
        from a2c_smcp.cli.commands.add import TerminalDialog, read_change

        try:
            change = read_change(verb, arguments)
        except UsageError as problem:
            raise BadLine(problem.format_message()) from None
        if change.config:
            raise BadLine("--config is for the command line: here, the file of this computer is changed")
        console.computer.mask.add(secrets_of(change.typed).found, change.name)
        file = console.files.file_of(change.name)

        @contextmanager
        def working(what: str) -> Iterator[None]:
            job.note = what
            yield
            job.note = ""

        dialog = TerminalDialog(console.questions, console.say, working, yes=change.yes, files=console.files)

        async def make() -> None:
            try:
                console.say(await change.make(file, dialog), "green")
            except NotDone as error:
                raise BadLine(str(error)) from None

        job = BackgroundJob(f"mcp {verb} {change.name}".rstrip(), make)
        return job

    return run


async def _list_servers(console: Console, arguments: list[str]) -> None:
    rows = [row_of(name, source(config)) for name, config in console.files.servers.items()]
    if not rows:
        raise BadLine("there are no MCP servers: mcp add adds one")
    console.draw(views.table([*rows[0]], [[str(cell or "") for cell in row.values()] for row in rows]))


def _job(verb: str, work: Callable[[Computer, str], Awaitable[None]]) -> Run[Console]:
    """Return a command that does this with a server."""

    async def run(console: Console, arguments: list[str]) -> BackgroundJob:
        name = known_server(console, arguments[0])
        return BackgroundJob(f"mcp {verb} {name}", partial(work, console.computer, name))

    return run


async def _list(console: Console, arguments: list[str]) -> None:
    if known := console.computer.inputs.list():
        console.draw(views.inputs(known))
    else:
        console.say("no inputs are defined")


async def _set(console: Console, arguments: list[str]) -> None:
    id_, *keep = arguments
    if keep not in ([], ["keep"]):
        raise BadLine("the value is asked for, so that it is not seen: usage: inputs set ID [keep]")
    definition = _input(console, id_).definition
    value = await console.questions.value(definition)
    if value is None:
        raise BadLine(f"{id_} stays as it was")
    console.computer.mask.add([value] if _input(console, id_).is_secret else [])
    place = await console.computer.inputs.set(id_, value, keep=bool(keep))
    console.say(f"{id_} is set ({place})")


async def _clear(console: Console, arguments: list[str]) -> None:
    had = await console.computer.inputs.clear(_input(console, arguments[0]).id)
    console.say(f"{arguments[0]} {'is forgotten' if had else 'had no value'}")


def _input(console: Console, id_: str) -> InputState:
    for known in console.computer.inputs.list():
        if known.id == id_:
            return known
    raise BadLine(f"there is no input {id_!r}: inputs list shows them")


SERVER_COMMANDS = (
    Command(
        "mcp add",
        "NAME [-- npx|uvx PACKAGE…]",
        "Add an MCP server to the file: from npm, from PyPI or at a --url, with the options of `a2c-smcp add`.",
        _change("add"),
    ),
    Command("mcp update", "[SERVER] [--to VERSION]", "Update what mcp add has installed.", _change("update")),
    Command("mcp remove", "SERVER [--data]", "Stop an MCP server, and remove it.", _change("remove")),
    Command("mcp list", "", "Show the MCP servers of the file: packages, versions, sandboxes.", _list_servers),
    Command("mcp start", "SERVER", "Start an MCP server.", _job("start", Computer.start)),
    Command("mcp stop", "SERVER", "Stop an MCP server.", _job("stop", Computer.stop)),
    Command("mcp restart", "SERVER", "Stop and start an MCP server.", _job("restart", Computer.restart)),
    Command("inputs list", "", "Show inputs and where their values come from; secrets are hidden.", _list),
    Command("inputs set", "INPUT [keep]", "Ask for a value; servers that use it restart.", _set),
    Command("inputs clear", "INPUT", "Forget a value.", _clear),
)


_RECORDS = 20


async def _status(console: Console, arguments: list[str]) -> None:
    url = console.computer.mask.text(console.url)
    console.say(f"{console.computer.name} at {url}: {console.state}")
    if frozen := console.computer.owner.frozen:
        console.say(f"{frozen}; thaw releases it", "bold red")
    if console.computer.gate:
        console.say(f"policy: {console.computer.gate.policy}")
    for warning in console.computer.warnings:
        console.say(warning, "yellow")
    for server, names in console.computer.owner.secrets().items():
        if line := secrets_line(server, names):
            console.say(f"treated as secret of {line}")
    if not console.computer.status():
        console.say("no MCP servers: mcp add adds one")
    elif console.draws_below():
        console.live = console.status
    else:
        console.draw(console.status())


async def _tools(console: Console, arguments: list[str]) -> None:
    tools = [tool for tool in console.computer.get_tools() if not arguments or tool["mcp_server"] == arguments[0]]
    if tools:
        console.draw(views.tools(tools, asks=not console.computer.approvals.approves_all))
    else:
        console.say("no tools")


async def _skills(console: Console, arguments: list[str]) -> None:
    if skills := console.computer.skills.references():
        console.draw(views.skills(skills))
    else:
        console.say(f"no skills: yours are the folders in {console.computer.skills.home / 'user'}")


async def _desktop(console: Console, arguments: list[str]) -> BackgroundJob:
    async def show() -> None:
        windows = await console.computer.get_desktop()
        console.say("\n\n".join(window.rstrip("\n") for window in windows) or "no windows")

    return BackgroundJob("desktop", show)


async def _history(console: Console, arguments: list[str]) -> None:
    wanted = arguments[0] if arguments else str(_RECORDS)
    if not wanted.isdecimal() or not int(wanted):
        raise BadLine(f"{wanted!r} is no number of calls")
    if records := [*console.computer.history][-int(wanted) :]:
        console.draw(views.history(records))
    else:
        console.say("nothing was called yet")


STATUS_COMMANDS = (
    Command("status", "", "Show the servers, kept current at the bottom until Ctrl-C or the next command.", _status),
    Command("tools", "[SERVER]", "List the tools as agents see them.", _tools),
    Command("skills", "", "List the skills as agents see them.", _skills),
    Command("desktop", "", "Show the windows as agents see them.", _desktop),
    Command("history", "[NUMBER]", "List the last calls.", _history),
)


_TIMEOUT = 3600.0
"""Seconds. The owner can end the call before with Ctrl-C."""


def schema_of(console: Console, name: str) -> Mapping[str, Any]:
    """Return the JSON schema of a tool's arguments. Raises `BadLine` if there is no such tool."""
    for tool in console.computer.get_tools():
        if tool["name"] == name:
            return tool["params_schema"]
    raise BadLine(f"there is no tool {name!r}: tools lists them")


async def _call(console: Console, arguments: list[str]) -> BackgroundJob | None:
    name, *words = arguments
    schema = schema_of(console, name)
    try:
        given = read_arguments(words, schema)
    except ValueError as problem:
        raise BadLine(str(problem)) from None
    for parameter in missing_parameters(schema, given):
        answer = await console.questions.ask(parameter.question, partial(_read, parameter), hidden=parameter.is_secret)
        if answer is None:
            raise BadLine(f"{name} is not called")
        given |= answer
    secrets = [str(given[each.name]) for each in parameters_of(schema) if each.is_secret and each.name in given]
    console.computer.mask.add(secrets)
    job = BackgroundJob(f"call {name}", lambda: _run(console, job, name, given))
    return job


def _read(parameter: Parameter, text: str) -> dict[str, Any]:
    """Return the argument that was typed; none for an optional one that was left out. Raises `ValueError`."""
    if text or (parameter.is_required and parameter.types == ("string",)):
        return {parameter.name: parameter.read(text)}
    if parameter.is_required:
        raise ValueError(f"{parameter.name} is needed; Ctrl-C gives up")
    return {}


async def _run(console: Console, job: BackgroundJob, name: str, params: dict[str, Any]) -> None:
    req_id = uuid4().hex

    def note(progress: float, total: float | None, message: str | None) -> None:
        of = f" of {total:g}" if total is not None else ""
        job.note = f"{progress:g}{of}{f', {message}' if message else ''}"

    try:
        answer = await console.computer.execute_tool(OWNER, req_id, name, params, _TIMEOUT, note)
    except asyncio.CancelledError:
        console.computer.calls.cancel(OWNER, req_id)
        raise
    result = CallToolResult.from_wire(answer)
    if result.is_error:
        console.say(result.text or f"{name} failed and does not say why", "red")
    elif result.text:
        console.say(result.text)
    elif result.structured_content is not None:
        console.say(json.dumps(result.structured_content, ensure_ascii=False, indent=2))
    kinds = {str(block.get("type")) for block in result.content if isinstance(block, dict)} - {"text"}
    for kind in sorted(kinds):
        console.say(f"there is more, of type {kind}, which cannot be shown here", "yellow")


CALL_COMMANDS = (Command("call", "TOOL [NAME=VALUE…]", "Call a tool yourself; what is missing is asked for.", _call),)
