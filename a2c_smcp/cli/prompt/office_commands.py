"""The commands that change where this computer sits, and the one that ends it."""

from __future__ import annotations

from functools import partial

from a2c_smcp.cli.options import exposed
from a2c_smcp.cli.prompt.console import Console
from a2c_smcp.cli.prompt.jobs import Job
from a2c_smcp.cli.prompt.language import Command, WrongUse
from a2c_smcp.computer.secrets import secrets_in
from a2c_smcp.endpoint import Endpoint
from a2c_smcp.errors import ConfigError
from a2c_smcp.protocol.names import fault_in

__all__ = ["MOVING", "Quit"]


class Quit(Exception):
    """The owner wants to leave."""


async def _connect(console: Console, arguments: list[str]) -> Job:
    url = arguments[0]
    try:
        Endpoint(url=url)
    except ConfigError as error:
        raise WrongUse(error.message) from None
    console.computer.mask.add(secrets_in(url))
    is_same = url == console.seat.url
    hint = "Enter for the one in use" if is_same else "Enter for none"
    key = await console.questions.ask(f"API key ({hint}): ", str, hidden=True)
    if key is None:
        raise WrongUse("still where it was")
    known = console.seat.api_key if is_same else None
    if found := exposed(url, key or known):
        console.say(". ".join(found), "yellow")
    return Job(f"connect {console.computer.mask.text(url)}", partial(console.seat.connect, url, key or known))


async def _join(console: Console, arguments: list[str]) -> Job:
    if fault := fault_in(arguments[0]):
        raise WrongUse(f"no office: {fault}")
    return Job(f"join {arguments[0]}", partial(console.seat.join, arguments[0]))


async def _leave(console: Console, arguments: list[str]) -> Job:
    if not console.seat.is_taken:
        raise WrongUse("in no office: join OFFICE enters one")
    return Job("leave", console.seat.leave)


async def _quit(console: Console, arguments: list[str]) -> None:
    raise Quit


MOVING = (
    Command("connect", "URL", "Go to another Server; its key is asked for.", _connect),
    Command("join", "OFFICE", "Go to another office, or back to one.", _join),
    Command("leave", "", "Leave the office; servers keep running.", _leave),
    Command("quit", "", "Stop the servers and leave, as Ctrl-D does.", _quit),
)
