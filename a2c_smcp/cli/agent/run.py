"""Run one subcommand of `a2c-smcp agent`: connect, join the office, do the work, leave. Errors come with a remedy."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeAlias

import typer

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.agent.blobs.files import write_file
from a2c_smcp.cli import logs, options
from a2c_smcp.cli.errors import Failed, WrongUse, explained, members_hint
from a2c_smcp.cli.options import option
from a2c_smcp.cli.running import unless_stopped
from a2c_smcp.cli.setup_files import find_running_up, running_ups
from a2c_smcp.cli.terminal import Terminal, put_json, put_text, spinning
from a2c_smcp.endpoint import Endpoint
from a2c_smcp.errors import ComputerNotFound, OfficeHasAgent, SMCPError, Unavailable
from a2c_smcp.loops import run_program
from a2c_smcp.protocol.results import CallToolResult, decoded_size

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.25, 10.0
"""Seconds between two attempts to join an office that holds another agent."""

_SAY_AFTER = 1.0
"""Most commands have left by then, and the wait needs no words."""


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """The options of `a2c-smcp agent`: which office, as whom, and how to connect."""

    name: Annotated[str, option("A2C_NAME", "--name", "Name of this agent.", show_default="user@host")] = ""
    url: options.Url = options.DEFAULT_URL
    office: options.Office = options.DEFAULT_OFFICE
    api_key: options.ApiKey = None
    link: options.LinkOptions
    log_level: options.LogLevelOption = "warning"
    wait: Annotated[
        float,
        option(
            None,
            "--wait",
            "Seconds to wait for a seat while another agent is in the office; without a number, until it is free.",
            metavar="[SECONDS]",
            min=0,
        ),
    ] = 6.0
    e2e: options.E2EOption = "off"
    verify: Annotated[
        bool,
        option("A2C_VERIFY", "--verify", "Take only answers that are signed by the known device of the computer."),
    ] = False

    def with_key(self) -> AgentOptions:
        """The same, with the key of the `a2c-smcp up` that runs at this URL, if no key is given.

        The URL is then the one that `up` wrote down: another program may listen on another address of `localhost`.
        """
        running = find_running_up(self.url) if self.api_key is None else None
        return replace(self, url=running.info.url, api_key=running.key) if running else self

    @property
    def place(self) -> str:
        """The URL without its credentials."""
        return Endpoint(url=self.url).shown_url


@dataclass(frozen=True)
class OfficeContext:
    """The agent, which has joined the office, and the terminal, for the work of a command."""

    agent: AsyncSMCPAgentClient
    office: str
    terminal: Terminal

    async def computers(self) -> list[str]:
        """Names of the computers in the office."""
        members = await self.agent.list_room(self.office)
        return sorted(member["name"] for member in members if member["role"] == "computer")


Work: TypeAlias = Callable[[OfficeContext], Awaitable[None]]
"""The work of one command. Methods of `AgentEvents` that it has are called."""


def run_in_office(settings: AgentOptions, work: Work) -> None:
    """Connect, join the office, do the work, leave. Raises `Failed` or `WrongUse`."""
    logs.set_up(settings.log_level)
    terminal = Terminal()
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(terminal)
    settings = settings.with_key()
    agent = _agent(settings, work)
    if warning := options.exposed(settings.url, settings.api_key):
        terminal.show(". ".join(warning), "yellow")
    if run_program(unless_stopped(_work_in_office(agent, settings, terminal, work), terminal)):
        raise typer.Exit(1)


def _agent(settings: AgentOptions, work: Work) -> AsyncSMCPAgentClient:
    name = settings.name or options.default_agent_name()
    options.check_names(name=name, office=settings.office)
    options.endpoint(settings.url)
    return AsyncSMCPAgentClient(
        name,
        url=settings.url,
        office=[],
        event_handler=work,
        api_key=settings.api_key,
        ssl=settings.link.tls(),
        proxy=settings.link.proxy,
        list_resources=False,
        e2e=settings.e2e,
        verify=settings.verify,
    )


async def _work_in_office(agent: AsyncSMCPAgentClient, settings: AgentOptions, terminal: Terminal, work: Work) -> None:
    try:
        try:
            await _join(agent, settings, terminal)
            await _do(work, OfficeContext(agent, settings.office, terminal))
        finally:
            await agent.disconnect()
    except SMCPError as error:
        failure = explained(error, {"url": settings.place, "office": settings.office})
        is_default = settings.url == options.DEFAULT_URL and not getattr(error, "fault", "")
        if isinstance(error, Unavailable) and is_default and (urls := [each.info.url for each in running_ups()]):
            remedy = f"a2c-smcp up is running at {' and '.join(urls)}: give that with --url."
            raise Failed(failure.what, remedy) from None
        raise failure from None


async def _join(agent: AsyncSMCPAgentClient, settings: AgentOptions, terminal: Terminal) -> None:
    """Join, and try again while another agent is there: an office holds one, and most commands leave in a moment."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + settings.wait
    with spinning(terminal, f"connecting to {settings.place}"):
        await agent.connect()
    began = loop.time()
    say_at, text = began + _SAY_AFTER, f"entering office {settings.office}"
    while True:
        with spinning(terminal, text):
            try:
                return await agent.join_office(settings.office)
            except OfficeHasAgent as error:
                if loop.time() >= give_up:
                    raise
                text = f"waiting until the agent in office {settings.office} has left"
                if loop.time() >= say_at:
                    say_at = inf
                    terminal.show(f"{error.about}: waiting until it has left (Ctrl-C stops)")
                await asyncio.sleep(pause_before_next_attempt(loop.time() - began, give_up - loop.time()))


def pause_before_next_attempt(waited: float, left: float) -> float:
    """It grows with the time that was waited: the Server records each attempt that it refuses."""
    return max(0.0, min(max(_SHORTEST_PAUSE, waited / 4), _LONGEST_PAUSE, left))


async def _do(work: Work, context: OfficeContext) -> None:
    try:
        await work(context)
    except ComputerNotFound as error:
        raise Failed(error.message, members_hint(context.office, await context.computers())) from None


# Files on the command line: `a2c-smcp agent put`, and what `agent call --save` writes. Binary is never printed.

_BINARY = ("data", "blob")
_SHOWN = 200
"""Characters of binary content that a terminal is shown."""


def file_failure(error: OSError, remedy: str = "Correct that, or name another place.") -> Failed:
    what = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
    return Failed(what, remedy)


@dataclass(frozen=True)
class PutWork:
    """The work of `a2c-smcp agent put`."""

    computer: str
    path: Path
    name: str | None
    as_json: bool

    def __post_init__(self) -> None:
        """Raises `WrongUse`."""
        if not self.path.is_file():
            what = "is not a file" if self.path.exists() else "does not exist"
            raise WrongUse(f"{self.path} {what}", "Name one file; a folder can be packed into an archive first.")
        if not self.path.stat().st_size:
            raise WrongUse(f"{self.path} is empty", "An empty file cannot be sent.")

    async def __call__(self, context: OfficeContext) -> None:
        try:
            with spinning(context.terminal, f"{self.path.name} to {self.computer}", "Ctrl-C gives up") as meter:
                landed = await context.agent.put_file(self.computer, self.path, self.name, meter.report_bytes)
        except OSError as error:
            raise file_failure(error) from None
        if self.as_json:
            put_json({"computer": self.computer, "landing_path": landed, "total_size": self.path.stat().st_size})
        else:
            put_text(landed)


def show_saved(result: CallToolResult, context: OfficeContext) -> None:
    """Name the files that were written."""
    for file in result.files:
        context.terminal.show(f"saved {file} ({Path(file).stat().st_size:,} bytes)")


async def save(content: bytes, path: Path) -> None:
    """Write a file that an option names, whole or not at all. Raises `Failed`."""

    async def write(file: BinaryIO) -> None:
        file.write(content)

    try:
        await write_file(path, write, replace=True)
    except OSError as error:
        raise cannot_write(path, error) from None


def cannot_write(path: Path, error: OSError) -> Failed:
    return Failed(f"{path} cannot be written: {error.strerror}", "Give another file with --output.")


def put_result(result: Mapping[str, Any], remedy: str, *, in_one_line: bool = False) -> None:
    """Print a result as JSON: whole for a program; on a terminal the `remedy` is in the place of binary contents."""
    put_json(_shortened(result, remedy) if sys.stdout.isatty() else result, in_one_line=in_one_line)


def _shortened(value: Any, remedy: str, key: str = "") -> Any:
    if isinstance(value, Mapping):
        return {name: _shortened(field, remedy, name) for name, field in value.items()}
    if isinstance(value, list):
        return [_shortened(item, remedy) for item in value]
    if key in _BINARY and isinstance(value, str) and len(value) > _SHOWN:
        return f"({decoded_size(value):,} bytes: {remedy})"
    return value
