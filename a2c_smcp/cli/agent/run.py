"""Run one subcommand of `a2c-smcp agent`: connect, join the office, do the work, leave. Errors come with a remedy."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

import typer

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.cli import logs, options
from a2c_smcp.cli.errors import Failed, explained, members_hint
from a2c_smcp.cli.progress import spinning
from a2c_smcp.cli.stopping import unless_stopped
from a2c_smcp.cli.terminal import Terminal
from a2c_smcp.cli.up_state import find_running_up, running_ups
from a2c_smcp.endpoint import Endpoint
from a2c_smcp.errors import ComputerNotFound, OfficeHasAgent, SMCPError, Unavailable
from a2c_smcp.loops import run_program

__all__ = ["AgentOptions", "OfficeContext", "Work", "pause_before_next_attempt", "run_in_office"]

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.25, 10.0
"""Seconds between two attempts to join an office that holds another agent."""

_SAY_AFTER = 1.0
"""Most commands have left by then, and the wait needs no words."""


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """The options of `a2c-smcp agent`: which office, as whom, and how to connect."""

    name: str
    url: str
    office: str
    api_key: str | None
    ca: Path | None
    cert: Path | None
    cert_key: Path | None
    proxy: str | None
    log_level: logs.LogLevel
    wait: float = 0.0
    e2e: options.E2E = options.E2E.off
    verify: bool = False

    def with_key(self) -> AgentOptions:
        """The same, with the key of the `a2c-smcp up` that runs at this URL, if no key is given.

        The URL is then the one that `up` wrote down: another program may listen on another address of `localhost`.
        """
        found = find_running_up(self.url) if self.api_key is None else None
        return replace(self, url=found.info.url, api_key=found.key) if found else self

    @property
    def place(self) -> str:
        """The URL without its credentials."""
        return Endpoint(url=self.url).shown_url


@dataclass(frozen=True)
class OfficeContext:
    """What the work of a command uses: the agent, which has joined the office, and the terminal."""

    agent: AsyncSMCPAgentClient
    office: str
    terminal: Terminal

    async def computers(self) -> list[str]:
        """Names of the computers in the office."""
        members = await self.agent.list_room(self.office)
        return sorted(member["name"] for member in members if member["role"] == "computer")


Work: TypeAlias = Callable[[OfficeContext], Awaitable[None]]
"""The work of one command. Methods of `AgentEvents` that it has are called."""


def run_in_office(given: AgentOptions, work: Work) -> None:
    """Connect, join the office, do the work, leave. Raises `Failed` or `WrongUse`."""
    logs.set_up(given.log_level)
    terminal = Terminal()
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(terminal)
    given = given.with_key()
    agent = _agent(given, work)
    if found := options.exposed(given.url, given.api_key):
        terminal.show(". ".join(found), "yellow")
    if run_program(unless_stopped(_work_in_office(agent, given, terminal, work), terminal)):
        raise typer.Exit(1)


def _agent(given: AgentOptions, work: Work) -> AsyncSMCPAgentClient:
    options.check_names(name=given.name, office=given.office)
    options.endpoint(given.url)
    context = options.tls(given.ca, given.cert, given.cert_key)
    link: dict[str, Any] = {"api_key": given.api_key, "ssl": context, "proxy": given.proxy, "list_resources": False}
    link |= {"e2e": given.e2e.value, "verify": given.verify}
    return AsyncSMCPAgentClient(given.name, url=given.url, office=[], event_handler=work, **link)


async def _work_in_office(agent: AsyncSMCPAgentClient, given: AgentOptions, terminal: Terminal, work: Work) -> None:
    try:
        try:
            await _join(agent, given, terminal)
            await _do(work, OfficeContext(agent, given.office, terminal))
        finally:
            await agent.disconnect()
    except SMCPError as error:
        failure = explained(error, {"url": given.place, "office": given.office})
        raise _naming_running_ups(failure) if isinstance(error, Unavailable) else failure from None


def _naming_running_ups(failure: Failed) -> Failed:
    """Advise the URL of an `a2c-smcp up` that runs on this machine, if there is one."""
    if urls := [each.info.url for each in running_ups()]:
        return Failed(failure.what, f"a2c-smcp up is running at {' and '.join(urls)}: give that with --url.")
    return failure


async def _join(agent: AsyncSMCPAgentClient, given: AgentOptions, terminal: Terminal) -> None:
    """Join, and try again while another agent is there: an office holds one, and most commands leave in a moment."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + given.wait
    with spinning(terminal, f"connecting to {given.place}"):
        await agent.connect()
    began = loop.time()
    say_at, text = began + _SAY_AFTER, f"entering office {given.office}"
    while True:
        with spinning(terminal, text):
            try:
                return await agent.join_office(given.office)
            except OfficeHasAgent as error:
                if loop.time() >= give_up:
                    raise
                text = f"waiting until the agent in office {given.office} has left"
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
