"""The commands that show how things are."""

from __future__ import annotations

from functools import partial

from a2c_smcp.cli.prompt import views
from a2c_smcp.cli.prompt.console import Console
from a2c_smcp.cli.prompt.jobs import Job
from a2c_smcp.cli.prompt.language import Command, WrongUse
from a2c_smcp.computer.secrets.config import told

__all__ = ["LOOKING"]

_RECORDS = 20


async def _status(console: Console, arguments: list[str]) -> None:
    url = console.computer.mask.text(console.seat.url)
    console.say(f"{console.computer.name} at {url}: {console.seat.news}")
    for warning in console.computer.warnings:
        console.say(warning, "yellow")
    for server, names in console.computer.secrets().items():
        if line := told(server, names):
            console.say(f"treated as secret of {line}")
    if not console.computer.status():
        console.say("no MCP servers: server add adds one")
    elif console.draws_below():
        console.live = console.status
    else:
        console.draw(console.status())


async def _tools(console: Console, arguments: list[str]) -> None:
    found = [each for each in console.computer.get_tools() if not arguments or each["bundle_id"] == arguments[0]]
    if found:
        console.draw(views.tools(found, asks=not console.computer.approvals.approves_all))
    else:
        console.say("no tools")


async def _desktop(console: Console, arguments: list[str]) -> Job:
    return Job("desktop", partial(_read, console))


async def _read(console: Console) -> None:
    windows = await console.computer.get_desktop()
    console.say("\n\n".join(window.rstrip("\n") for window in windows) or "no windows")


async def _history(console: Console, arguments: list[str]) -> None:
    wanted = arguments[0] if arguments else str(_RECORDS)
    if not wanted.isdecimal() or not int(wanted):
        raise WrongUse(f"{wanted!r} is no number of calls")
    if records := [*console.computer.history][-int(wanted) :]:
        console.draw(views.history(records))
    else:
        console.say("nothing was called yet")


LOOKING = (
    Command("status", "", "Show the servers, kept current at the bottom until Ctrl-C or the next command.", _status),
    Command("tools", "[SERVER]", "List the tools as agents see them.", _tools),
    Command("desktop", "", "Show the windows as agents see them.", _desktop),
    Command("history", "[NUMBER]", "List the last calls.", _history),
)
