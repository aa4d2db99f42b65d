"""Commands of the prompt about sign-in, logs and questions of MCP servers."""

from __future__ import annotations

import asyncio
from datetime import datetime
from functools import partial

from a2c_smcp.cli.errors import server_names_hint
from a2c_smcp.cli.prompt.console import Console
from a2c_smcp.cli.prompt.language import BackgroundJob, BadLine, Command
from a2c_smcp.computer.pending import PendingQuestion
from a2c_smcp.protocol.questions import Answer

__all__ = ["LIVE_COMMANDS", "known_server"]


def known_server(console: Console, name: str) -> str:
    """The name, if there is such a server. Raises `BadLine`."""
    known = [*console.computer.status()]
    if name not in known:
        raise BadLine(f"there is no server {name!r}. {server_names_hint(name, known)}")
    return name


# Sign-in


async def _login(console: Console, arguments: list[str]) -> BackgroundJob | None:
    name, again = known_server(console, arguments[0]), arguments[1:]
    if again not in ([], ["--again"]):
        raise BadLine("usage: login SERVER [--again]")
    if not again and await console.computer.is_signed_in(name):
        raise BadLine(f"{name} is signed in to already; login {name} --again signs in anew, logout {name} ends it")
    return BackgroundJob(f"login {name}", partial(_sign_in, console, name))


async def _sign_in(console: Console, name: str) -> None:
    """Sign in by the browser, or else by a pasted address."""
    guide = console.guide
    if guide.has_browser:
        await console.computer.sign_in(name, open_url=guide.open_url)
    else:
        await console.computer.sign_in(name, paste_redirect=guide.paste_redirect)
    console.say(f"signed in to {name}", "green")


async def _logout(console: Console, arguments: list[str]) -> BackgroundJob:
    name = known_server(console, arguments[0])
    if not await console.computer.is_signed_in(name):
        raise BadLine(f"nobody is signed in to {name}")
    return BackgroundJob(f"logout {name}", partial(_sign_out, console, name))


async def _sign_out(console: Console, name: str) -> None:
    is_revoked = await console.computer.sign_out(name)
    console.say(f"signed out of {name}: its tokens are {'revoked and ' if is_revoked else ''}forgotten")


# Logs


async def _logs(console: Console, arguments: list[str]) -> None:
    name, *words = arguments
    known_server(console, name)
    if words and (words[0] != "--level" or len(words) != len(("--level", "LEVEL"))):
        raise BadLine("usage: logs SERVER [--level LEVEL]")
    stderr = str(console.computer.status()[name].diagnostics.get("stderr") or "").rstrip()
    lines = console.computer.logs(name, *words[1:])
    if stderr:
        console.say(stderr)
    for line in lines:
        logger = f"{line.logger}: " if line.logger else ""
        said = f"{logger}{line.text}".rstrip().replace("\n", "\n    ")
        console.say(f"{datetime.fromtimestamp(line.at).astimezone():%H:%M:%S} {line.level:<8} {said}")
    if not stderr and not lines:
        console.say(f"{name} has written nothing to stderr, and logged nothing")
    if words:
        await console.computer.set_log_level(name, words[1])
        console.say(f"{name} is asked to log {words[1]} and above")


# Questions


async def _answer(console: Console, arguments: list[str]) -> None:
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
    Command("answer", "[QUESTION]", "Answer what a server asks, the oldest question first.", _answer, kept=False),
    Command("decline", "[QUESTION]", "Say no to what a server asks.", _decline, kept=False),
    Command("login", "SERVER [--again]", "Sign in to a server that wants it.", _login),
    Command("logout", "SERVER", "End the sign-in to a server, and forget its tokens.", _logout),
    Command("logs", "SERVER [--level LEVEL]", "Show what a server wrote to stderr and logged.", _logs),
)
