"""The owner at the prompt of the terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from a2c_smcp.cli.errors import at_the_prompt
from a2c_smcp.cli.progress import ServerProgress
from a2c_smcp.cli.prompt.questions import Questions
from a2c_smcp.cli.sign_in import SignInGuide
from a2c_smcp.cli.terminal import Terminal
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.pending import PendingApprovals, PendingQuestions
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.mcp_host.status import State
from a2c_smcp.private_files import default_folder

if TYPE_CHECKING:
    from a2c_smcp.cli.prompt.console import Console

__all__ = ["InteractiveOwner"]

_FAILING: frozenset[State] = frozenset({"backoff", "failed", "auth_required"})


class InteractiveOwner:
    """The owner at the prompt: approves calls (`approve`), answers questions (`on_question`), is told states.

    `has_quit`: the prompt has ended, and the servers are being stopped.
    """

    def __init__(
        self,
        terminal: Terminal,
        questions: Questions,
        progress: ServerProgress,
        guide: SignInGuide,
        approvals: PendingApprovals,
        asked: PendingQuestions,
    ) -> None:
        self._terminal, self._questions, self._progress, self._guide = terminal, questions, progress, guide
        self._errors: dict[str, str] = {}
        self.has_quit = False
        self.approve, self.on_question = approvals, asked

    def on_state(self, name: str, state: State, reason: str) -> None:
        reason = at_the_prompt(reason)
        if state in _FAILING:
            self._errors[name] = reason
        elif state == "ready":
            self._errors.pop(name, None)
        self._progress(name, state, reason)

    async def serve(
        self,
        computer: Computer,
        url: str,
        *,
        office: str,
        on_connection: Callable[[str], None],
        **link: Any,
    ) -> None:
        """Run until the owner quits. The prompt opens when all servers have settled, or when an agent asks."""
        from a2c_smcp.cli.prompt.console import Console

        async with computer:
            console = Console(
                computer,
                self._terminal,
                self._questions,
                self.approve,
                self.on_question,
                self._guide,
                url=url,
                office=office,
                folder=default_folder(),
                errors=self._errors,
                say_connection=on_connection,
                **link,
            )
            await console.connection.join(office)
            starting = asyncio.create_task(computer.start())
            try:
                await self._prompt(console)
            finally:
                self.has_quit = True
                await cancel_and_wait(starting)
                await console.connection.leave()

    async def _prompt(self, console: Console) -> None:
        from a2c_smcp.cli.prompt.editor import LineHistory
        from a2c_smcp.cli.prompt.prompt import run_prompt

        waits = [asyncio.create_task(event.wait()) for event in (self._progress.ended, self.approve.first_added)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self._progress.end()
        await run_prompt(console, self._terminal, LineHistory(default_folder() / "prompt_history"))
        self._terminal.show("stopping (Ctrl-C twice stops at once)")
