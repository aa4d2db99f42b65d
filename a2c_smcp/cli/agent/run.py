"""A visit to an office as its agent: come in, do one thing, leave. What goes wrong is said with what to do about it."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import typer

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.cli import logs
from a2c_smcp.cli import options as connection
from a2c_smcp.cli.errors import Failed, WrongUse, explained, who_is_there
from a2c_smcp.cli.progress import spinning
from a2c_smcp.cli.terminal import Terminal
from a2c_smcp.cli.up_state import running, running_at
from a2c_smcp.endpoint import Endpoint
from a2c_smcp.errors import ComputerNotFound, ConfigError, OfficeHasAgent, SMCPError, Unavailable
from a2c_smcp.loops import run_program, stop_on_signals
from a2c_smcp.protocol.names import fault_in

__all__ = ["Door", "Visit", "Work", "visit"]

_PAUSE = 0.25
"""Between two attempts to enter an office, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Door:
    """Which office, and how to get in. Without a key, the one of an `up` of this user is taken."""

    name: str
    url: str
    office: str
    api_key: str | None
    ca: Path | None
    cert: Path | None
    cert_key: Path | None
    proxy: str | None
    log_level: logs.Level
    wait: float = 0.0

    def found(self) -> Door:
        """With the key of the `up` that runs there, if none is given. Its own URL: `localhost` may be somebody else."""
        running = running_at(self.url) if self.api_key is None else None
        return replace(self, url=running.note.url, api_key=running.key) if running else self

    @property
    def place(self) -> str:
        """The URL as it may be shown."""
        return Endpoint(url=self.url).place


@dataclass(frozen=True)
class Visit:
    """What there is while the agent is in the office."""

    agent: AsyncSMCPAgentClient
    office: str
    terminal: Terminal

    async def computers(self) -> list[str]:
        """The names of those that are there."""
        members = await self.agent.list_room(self.office)
        return sorted(member["name"] for member in members if member["role"] == "computer")


Work: TypeAlias = Callable[[Visit], Awaitable[None]]
"""What is done there. If it has methods of `AgentEvents`, they are called."""


def visit(door: Door, work: Work) -> None:
    """Raises `Failed` if something goes wrong, with what to do about it."""
    logs.set_up(door.log_level)
    terminal = Terminal()
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(terminal)
    door = door.found()
    agent = _agent(door, work)
    if found := connection.exposed(door.url, door.api_key):
        terminal.show(". ".join(found), "yellow")
    if run_program(_unless_stopped(_stay(agent, door, terminal, work), terminal)):
        raise typer.Exit(1)


def _agent(door: Door, work: Work) -> AsyncSMCPAgentClient:
    for flag, name in (("--name", door.name), ("--office", door.office)):
        if fault := fault_in(name):
            raise WrongUse(f"{flag}: {fault}", "Choose another.")
    context = connection.tls(door.ca, door.cert, door.cert_key)
    link: dict[str, Any] = {"api_key": door.api_key, "ssl": context, "proxy": door.proxy}
    try:
        return AsyncSMCPAgentClient(door.name, url=door.url, office=[], event_handler=work, **link)
    except ConfigError as error:
        raise WrongUse(error.message, "Correct --url or A2C_URL.") from None


async def _stay(agent: AsyncSMCPAgentClient, door: Door, terminal: Terminal, work: Work) -> None:
    stay = Visit(agent, door.office, terminal)
    try:
        try:
            await _enter(agent, door, terminal)
            await _do(stay, work)
        finally:
            await agent.disconnect()
    except SMCPError as error:
        told = explained(error, {"url": door.place, "office": door.office})
        raise _with_those_elsewhere(told) if isinstance(error, Unavailable) else told from None


def _with_those_elsewhere(told: Failed) -> Failed:
    """Where nobody answers, the `up` of this user at another URL may be meant."""
    urls = [each.note.url for each in running()]
    return Failed(told.what, f"a2c-smcp up is running at {' and '.join(urls)}: give that with --url.") if urls else told


async def _enter(agent: AsyncSMCPAgentClient, door: Door, terminal: Terminal) -> None:
    """An office holds one agent. Most have left in a moment: other commands, or one that was killed."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + door.wait
    with spinning(terminal, f"connecting to {door.place}"):
        await agent.connect()
    text = f"entering office {door.office}"
    while True:
        with spinning(terminal, text):
            try:
                return await agent.join_office(door.office)
            except OfficeHasAgent:
                if loop.time() >= give_up:
                    raise
                text = f"waiting until the agent in office {door.office} has left"
                await asyncio.sleep(_PAUSE)


async def _do(stay: Visit, work: Work) -> None:
    try:
        await work(stay)
    except ComputerNotFound as error:
        raise Failed(error.message, who_is_there(stay.office, await stay.computers())) from None


async def _unless_stopped(work: Coroutine[Any, Any, None], terminal: Terminal) -> bool:
    """Whether a signal ended it. It may take its time for that; a second signal leaves it none."""
    stop = stop_on_signals()
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
    for task in (stopping, working):
        task.cancel()
    try:
        await asyncio.wait([working])
    except asyncio.CancelledError:
        _quit(terminal)
    if not working.cancelled():
        working.result()
    return working.cancelled()


def _quit(terminal: Terminal) -> NoReturn:
    """At once, whoever may still be waiting for a Server that does not answer."""
    terminal.take_away()
    sys.stdout.flush()
    os._exit(1)
