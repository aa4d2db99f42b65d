"""Commands of the prompt about the office: connect, join, leave, quit, and answers to requests of agents."""

from __future__ import annotations

import time
from functools import partial
from shlex import quote

from a2c_smcp.cli.options import exposed
from a2c_smcp.cli.prompt import views
from a2c_smcp.cli.prompt.console import ANSWERS, Console
from a2c_smcp.cli.prompt.language import BackgroundJob, BadLine, Command
from a2c_smcp.computer.approval import Decision
from a2c_smcp.computer.pending import NothingToAnswer
from a2c_smcp.computer.policy.rules import seconds_in
from a2c_smcp.computer.secrets import secrets_in
from a2c_smcp.endpoint import Endpoint
from a2c_smcp.errors import ConfigError
from a2c_smcp.protocol.names import fault_in

__all__ = ["APPROVAL_COMMANDS", "CONNECTION_COMMANDS", "Quit"]


class Quit(Exception):
    """The owner wants to end the program."""


async def _connect(console: Console, arguments: list[str]) -> BackgroundJob:
    url = arguments[0]
    try:
        Endpoint(url=url)
    except ConfigError as error:
        raise BadLine(error.message) from None
    console.computer.mask.add(secrets_in(url))
    is_same = url == console.connection.url
    hint = "Enter for the one in use" if is_same else "Enter for none"
    key = await console.questions.ask(f"API key ({hint}): ", str, hidden=True)
    if key is None:
        raise BadLine("still where it was")
    known = console.connection.api_key if is_same else None
    if found := exposed(url, key or known):
        console.say(". ".join(found), "yellow")
    return BackgroundJob(
        f"connect {console.computer.mask.text(url)}", partial(console.connection.connect, url, key or known)
    )


async def _join(console: Console, arguments: list[str]) -> BackgroundJob:
    if fault := fault_in(arguments[0]):
        raise BadLine(f"no office: {fault}")
    return BackgroundJob(f"join {arguments[0]}", partial(console.connection.join, arguments[0]))


async def _leave(console: Console, arguments: list[str]) -> BackgroundJob:
    if not console.connection.is_joined:
        raise BadLine("in no office: join OFFICE enters one")
    return BackgroundJob("leave", console.connection.leave)


async def _quit(console: Console, arguments: list[str]) -> None:
    raise Quit


CONNECTION_COMMANDS = (
    Command("connect", "URL", "Go to another Server; its key is asked for.", _connect),
    Command("join", "OFFICE", "Go to another office, or back to one.", _join),
    Command("leave", "", "Leave the office; servers keep running.", _leave),
    Command("quit", "", "Stop the servers and leave, as Ctrl-D does.", _quit),
)


async def _show(console: Console, arguments: list[str]) -> None:
    pending, granted = [*console.requests], [*console.grants]
    for each in pending:
        console.say(f"{views.request(each, in_full=True)}\n  {ANSWERS}", "yellow")
    if granted:
        console.draw(views.grants(granted))
    if not pending:
        console.say(
            "no request waits for an answer" if granted else "no request waits, and nothing is allowed for good"
        )


def _answer(console: Console, arguments: list[str], decision: Decision) -> None:
    is_lasting, seconds = decision in ("always", "always_for_agent"), None
    if is_lasting and arguments and not arguments[-1].removeprefix("#").isdecimal():
        seconds = _time(arguments.pop())
    try:
        pending = console.requests.find(*arguments)
    except NothingToAnswer as problem:
        raise BadLine(str(problem)) from None
    console.requests.answer(pending, decision, seconds)
    if grant := pending.request.granted_by(decision):
        lasts = min((each for each in (seconds, console.computer.approvals.longest_grant) if each), default=None)
        granted = grant._replace(until=None if lasts is None else time.time() + lasts)
        console.say(f"{views.granted(granted)}; `approve forget {quote(grant.who)}` takes that back")
    elif is_lasting:
        console.say(f"it runs this once: the rule {pending.request.rule!r} wants to be asked every time", "yellow")


def _time(text: str) -> float:
    try:
        return seconds_in(text)
    except ValueError as problem:
        raise BadLine(str(problem)) from None


async def _yes(console: Console, arguments: list[str]) -> None:
    _answer(console, arguments, "yes")


async def _no(console: Console, arguments: list[str]) -> None:
    _answer(console, arguments, "no")


async def _always_tool(console: Console, arguments: list[str]) -> None:
    _answer(console, arguments, "always")


async def _always_agent(console: Console, arguments: list[str]) -> None:
    _answer(console, arguments, "always_for_agent")


async def _forget(console: Console, arguments: list[str]) -> None:
    agent, tool = [*arguments, None][:2]
    found = [each for each in console.grants if agent in (each.agent, each.who) and tool in (None, each.tool)]
    if not found:
        raise BadLine(f"nothing like that is allowed to {agent}: approve lists what is")
    console.grants.forget(found)
    for grant in found:
        console.say(f"no longer: {views.granted(grant)}")


async def _policy(console: Console, arguments: list[str]) -> None:
    if (gate := console.computer.gate) is None:
        console.say("there is no policy: --policy FILE names one")
        return
    console.say(f"policy: {gate.policy}")
    if gate.policy.rules:
        console.draw(views.rules(gate.policy))
    if used := gate.budgets:
        console.draw(views.budgets(used))


APPROVAL_COMMANDS = (
    Command("y", "[REQUEST]", "Let the tool run that an agent asks for, this time.", _yes, kept=False),
    Command("n", "[REQUEST]", "Refuse it.", _no, kept=False),
    Command(
        "always tool",
        "[REQUEST] [TIME]",
        "Let it run, and whenever this agent asks again, for so long as 8h.",
        _always_tool,
        kept=False,
    ),
    Command(
        "always agent",
        "[REQUEST] [TIME]",
        "Let this agent use every tool from now on, for so long as 8h.",
        _always_agent,
        kept=False,
    ),
    Command("approve", "", "Show requests in full, and what is allowed for good.", _show),
    Command("policy", "", "Show the rules, in their order, and how much of the budgets is used.", _policy),
    Command("approve forget", "AGENT [TOOL]", "Ask again for what was allowed for good.", _forget),
)
