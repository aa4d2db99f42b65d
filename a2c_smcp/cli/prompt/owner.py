"""The owner at the prompt of the terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from a2c_smcp.cli.errors import at_the_prompt
from a2c_smcp.cli.form import Questions
from a2c_smcp.cli.sign_in import SignInGuide
from a2c_smcp.cli.terminal import ServerProgress, Terminal
from a2c_smcp.computer.calls.journal import journal_of
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.configuration.watch import ConfigurationChanges
from a2c_smcp.computer.consent.approval import PendingApprovals, PendingQuestions
from a2c_smcp.computer.socketio.client import ConnectionEvent, SMCPComputerClient
from a2c_smcp.files import default_folder, instance_of
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.mcp_host.status import State

if TYPE_CHECKING:
    from a2c_smcp.cli.prompt.console import Console


_FAILING: frozenset[State] = frozenset({"backoff", "failed", "auth_required"})


class InteractiveOwner:
    """The owner at the prompt, who approves calls (`approve`) and answers questions (`on_question`).

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
        elif state in ("ready", "asleep"):
            self._errors.pop(name, None)
        self._progress(name, state, reason)

    async def serve(
        self,
        computer: Computer,
        files: ConfigurationChanges,
        url: str,
        *,
        office: str,
        on_connection: Callable[[ConnectionEvent], None],
        **link: Any,
    ) -> None:
        """Run until the owner quits. The prompt opens when all servers have settled, or when an agent asks.

        Raises the `SMCPError` with which the Server refuses the computer.
        """
        from a2c_smcp.cli.prompt.console import Console

        async with computer:
            console = Console(
                computer,
                self._terminal,
                self._questions,
                self.approve,
                self.on_question,
                self._guide,
                files,
                url=url,
                office=office,
                folder=default_folder(),
                errors=self._errors,
            )

            def on_state(state: ConnectionEvent) -> None:
                console.state = state
                on_connection(state)

            serving = asyncio.create_task(_serve(computer, url, office, on_connection=on_state, **link))
            starting = asyncio.create_task(computer.start())
            prompting = asyncio.create_task(self._prompt(console))
            try:
                await asyncio.wait([serving, prompting], return_when=asyncio.FIRST_COMPLETED)
            finally:
                self.has_quit = True
                await cancel_and_wait(starting, prompting, serving)
            for task in (prompting, serving):
                if not task.cancelled():
                    task.result()

    async def _prompt(self, console: Console) -> None:
        from a2c_smcp.cli.prompt.prompt import LineHistory, run_prompt

        waits = [asyncio.create_task(event.wait()) for event in (self._progress.ended, self.approve.first_added)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self._progress.end()
        await run_prompt(console, self._terminal, LineHistory(default_folder() / "prompt_history"))
        self._terminal.show("stopping (Ctrl-C twice stops at once)")


async def _serve(computer: Computer, url: str, office: str, **link: Any) -> None:
    """Answer agents of the office, and reconnect, until cancelled."""
    with instance_of(computer.name, url) as instance, journal_of(computer.name, url, office) as journal:
        await SMCPComputerClient(computer, url, office, instance=instance, journal=journal, **link).run()
