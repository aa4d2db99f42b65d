"""Commands of the prompt about requests of agents: answers, what is allowed for good, and the policy."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from functools import partial
from shlex import quote

from a2c_smcp.cli.errors import server_names_hint
from a2c_smcp.cli.prompt import views
from a2c_smcp.cli.prompt.console import ANSWERS, Console
from a2c_smcp.cli.prompt.language import BackgroundJob, BadLine, Command
from a2c_smcp.cli.terminal import yes_or_no
from a2c_smcp.computer.consent.approval import Decision, Grant, NothingToAnswer, PendingApproval, PendingQuestion
from a2c_smcp.computer.consent.rules import seconds_in
from a2c_smcp.protocol.questions import Answer

_USUALLY, _FOR_GOOD = "1h", "good"
"""The time of a grant whose line does not say it, and the word for one without an end."""


async def _show(console: Console, arguments: list[str]) -> None:
    pending, granted = [*console.requests], [*console.grants]
    for request in pending:
        console.say(f"{views.request(request, in_full=True)}\n  {ANSWERS}", "yellow")
    if granted:
        console.draw(views.grants(granted, console.computer.approvals.last_used))
    if not pending:
        console.say("no request waits for an answer" if granted else "no request waits, and there are no grants")


async def _answer(console: Console, arguments: list[str], decision: Decision) -> None:
    is_lasting, seconds = decision not in ("yes", "no"), None
    if is_lasting:
        is_given = arguments and not arguments[-1].removeprefix("#").isdecimal()
        lasting = arguments.pop() if is_given else _USUALLY
        try:
            seconds = None if lasting == _FOR_GOOD else seconds_in(lasting)
        except ValueError as problem:
            raise BadLine(str(problem)) from None
    try:
        pending = console.requests.find(*arguments)
    except NothingToAnswer as problem:
        raise BadLine(str(problem)) from None
    grant = pending.request.granted_by(decision)
    if grant and grant.tool is None:
        await _confirm(console, pending, grant)
    console.requests.answer(pending, decision, seconds)
    if grant:
        lasts = min(filter(None, (seconds, console.computer.approvals.longest_grant)), default=None)
        granted = grant._replace(until=None if lasts is None else time.time() + lasts)
        console.say(f"{views.granted(granted)}; `approve forget {quote(grant.who)}` takes that back")
    elif is_lasting:
        console.say(f"it runs this once: the rule {pending.request.rule!r} wants to be asked every time", "yellow")


async def _confirm(console: Console, pending: PendingApproval, grant: Grant) -> None:
    """Return if the owner means it, and the request still waits. Raises `BadLine`."""
    question = f"{views.granted(grant)}, also tools that come later: is that what you want? [y/N]: "
    if not await console.questions.ask(question, yes_or_no) or pending not in console.requests:
        raise BadLine(f"nothing was answered to #{pending.number}")


async def _forget(console: Console, arguments: list[str]) -> None:
    agent, tool = [*arguments, None][:2]
    known = [grant for grant in console.grants if agent in (grant.agent, grant.who)]
    grants = [grant for grant in known if tool in (None, grant.tool or grant.server)]
    if not grants:
        raise BadLine(f"nothing like that is allowed to {agent}: approve lists what is")
    console.grants.forget(grants)
    for grant in grants:
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


async def _freeze(console: Console, arguments: list[str]) -> None:
    console.computer.owner.freeze(" ".join(arguments), "prompt")
    console.say("all calls are cancelled, and nothing is let through until you thaw it", "bold red")


async def _thaw(console: Console, arguments: list[str]) -> None:
    if not console.computer.owner.frozen:
        raise BadLine("it is not frozen")
    console.computer.owner.thaw("prompt")
    console.say("requests are let through again", "green")


APPROVAL_COMMANDS = (
    Command("freeze", "[REASON…]", "Stop everything: cancel all calls, and let nothing through until thaw.", _freeze),
    Command("thaw", "", "Let requests through again.", _thaw),
    Command(
        "y",
        "[REQUEST]",
        "Let the tool run that an agent asks for, this time.",
        partial(_answer, decision="yes"),
        kept=False,
    ),
    Command("n", "[REQUEST]", "Refuse it.", partial(_answer, decision="no"), kept=False),
    Command(
        "always tool",
        "[REQUEST] [TIME]",
        "Let it run now and whenever this agent asks again: for an hour, a time such as 8h, or good.",
        partial(_answer, decision="always"),
        kept=False,
    ),
    Command(
        "always server",
        "[REQUEST] [TIME]",
        "Let this agent use every tool of the MCP server: for an hour, a time such as 8h, or good.",
        partial(_answer, decision="always_for_server"),
        kept=False,
    ),
    Command(
        "always agent",
        "[REQUEST] [TIME]",
        "Let this agent use every tool from now on: for an hour, a time such as 8h, or good.",
        partial(_answer, decision="always_for_agent"),
        kept=False,
    ),
    Command("approve", "", "Show requests in full, and the grants.", _show),
    Command("policy", "", "Show the rules, in their order, and how much of the budgets is used.", _policy),
    Command("approve forget", "AGENT [TOOL]", "Take grants back: ask again.", _forget),
)

# Sign-in, logs and questions of MCP servers


def known_server(console: Console, name: str) -> str:
    """Return the name, if there is such a server. Raises `BadLine`."""
    known = [*console.computer.status()]
    if name not in known:
        raise BadLine(f"there is no server {name!r}. {server_names_hint(name, known)}")
    return name


async def _login(console: Console, arguments: list[str]) -> BackgroundJob | None:
    name, again = known_server(console, arguments[0]), arguments[1:]
    if again not in ([], ["--again"]):
        raise BadLine("usage: login SERVER [--again]")
    is_wanted = again or console.computer.status()[name].state == "auth_required"
    if not is_wanted and await console.computer.owner.is_signed_in(name):
        raise BadLine(f"{name} is signed in to already; login {name} --again signs in anew, logout {name} ends it")

    async def sign_in() -> None:
        """Sign in by the browser, or else by a pasted address."""
        guide = console.guide
        if guide.has_browser:
            await console.computer.sign_in(name, open_url=guide.open_url)
        else:
            await console.computer.sign_in(name, paste_redirect=guide.paste_redirect)
        console.say(f"signed in to {name}", "green")

    return BackgroundJob(f"login {name}", sign_in)


async def _logout(console: Console, arguments: list[str]) -> BackgroundJob:
    name = known_server(console, arguments[0])
    if not await console.computer.owner.is_signed_in(name):
        raise BadLine(f"nobody is signed in to {name}")

    async def sign_out() -> None:
        is_revoked = await console.computer.sign_out(name)
        console.say(f"signed out of {name}: its tokens are {'revoked and ' if is_revoked else ''}forgotten")

    return BackgroundJob(f"logout {name}", sign_out)


async def _logs(console: Console, arguments: list[str]) -> None:
    name, *words = arguments
    known_server(console, name)
    if words and (words[0] != "--level" or len(words) != len(("--level", "LEVEL"))):
        raise BadLine("usage: logs SERVER [--level LEVEL]")
    stderr = str(console.computer.status()[name].diagnostics.get("stderr") or "").rstrip()
    lines = console.computer.owner.logs(name, *words[1:])
    if stderr:
        console.say(stderr)
    for line in lines:
        logger = f"{line.logger}: " if line.logger else ""
        text = f"{logger}{line.text}".rstrip().replace("\n", "\n    ")
        console.say(f"{datetime.fromtimestamp(line.at).astimezone():%H:%M:%S} {line.level:<8} {text}")
    if not stderr and not lines:
        console.say(f"{name} has written nothing to stderr, and logged nothing")
    if words:
        await console.computer.owner.set_log_level(name, words[1])
        console.say(f"{name} is asked to log {words[1]} and above")


async def _answer_question(console: Console, arguments: list[str]) -> None:
    pending = _question(console, arguments)
    answering = asyncio.create_task(console.questions.converse(console.form(pending).fill))
    pending.answer.add_done_callback(lambda done: answering.cancel())  # the question is withdrawn
    try:
        pending.settle(await answering)
    except asyncio.CancelledError:
        if not pending.answer.done():
            answering.cancel()
            raise
    except EOFError:
        raise BadLine(f"#{pending.number} still waits for an answer") from None


async def _decline(console: Console, arguments: list[str]) -> None:
    pending = _question(console, arguments)
    pending.settle(Answer("decline"))
    console.say(f"#{pending.number} is declined")


def _question(console: Console, arguments: list[str]) -> PendingQuestion:
    pending = console.asked.find(*arguments)
    if pending is None:
        which = f"question {arguments[0]}" if arguments else "question"
        raise BadLine(f"no {which} waits for an answer")
    return pending


LIVE_COMMANDS = (
    Command(
        "answer", "[QUESTION]", "Answer what a server asks, the oldest question first.", _answer_question, kept=False
    ),
    Command("decline", "[QUESTION]", "Say no to what a server asks.", _decline, kept=False),
    Command("login", "SERVER [--again]", "Sign in to a server that wants it.", _login),
    Command("logout", "SERVER", "End the sign-in to a server, and forget its tokens.", _logout),
    Command("logs", "SERVER [--level LEVEL]", "Show what a server wrote to stderr and logged.", _logs),
)
