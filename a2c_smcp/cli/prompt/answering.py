"""The commands with which the owner answers requests, and takes back what he has allowed for good."""

from __future__ import annotations

from a2c_smcp.cli.prompt import views
from a2c_smcp.cli.prompt.approvals import NothingToAnswer
from a2c_smcp.cli.prompt.console import ANSWERS, Console
from a2c_smcp.cli.prompt.language import Command, WrongUse
from a2c_smcp.computer.approval import Decision

__all__ = ["ANSWERING"]


async def _show(console: Console, arguments: list[str]) -> None:
    waiting, granted = [*console.requests], [*console.grants]
    for each in waiting:
        console.say(f"{views.request(each, in_full=True)}\n  {ANSWERS}", "yellow")
    if granted:
        console.draw(views.grants(granted))
    if not waiting:
        console.say(
            "no request waits for an answer" if granted else "no request waits, and nothing is allowed for good"
        )


def _answer(console: Console, arguments: list[str], decision: Decision) -> None:
    try:
        waiting = console.requests.meant(*arguments)
    except NothingToAnswer as problem:
        raise WrongUse(str(problem)) from None
    console.requests.answer(waiting, decision)
    if grant := waiting.request.granted_by(decision):
        console.say(f"{views.granted(grant)}; `approve forget {grant.agent}` takes that back")


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
    found = [each for each in console.grants if each.agent == agent and tool in (None, each.tool)]
    if not found:
        raise WrongUse(f"nothing like that is allowed to {agent}: approve lists what is")
    console.grants.forget(found)
    for grant in found:
        console.say(f"no longer: {views.granted(grant)}")


ANSWERING = (
    Command("y", "[REQUEST]", "Let the tool run that an agent asks for, this time.", _yes, kept=False),
    Command("n", "[REQUEST]", "Refuse it.", _no, kept=False),
    Command("always tool", "[REQUEST]", "Let it run, and whenever this agent asks again.", _always_tool, kept=False),
    Command("always agent", "[REQUEST]", "Let this agent use every tool from now on.", _always_agent, kept=False),
    Command("approve", "", "Show requests in full, and what is allowed for good.", _show),
    Command("approve forget", "AGENT [TOOL]", "Ask again for what was allowed for good.", _forget),
)
