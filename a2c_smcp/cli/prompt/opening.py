"""How a Computer is served with a prompt: its servers start as ever, then there is a line to type on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from a2c_smcp.cli.progress import Progress
from a2c_smcp.cli.prompt.approvals import Requests
from a2c_smcp.cli.prompt.questions import Questions
from a2c_smcp.cli.terminal import Terminal
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.private_files import default_folder
from a2c_smcp.mcp_host.status import State

if TYPE_CHECKING:
    from a2c_smcp.cli.prompt.console import Console

__all__ = ["OnPrompt"]

_TROUBLE: frozenset[State] = frozenset({"backoff", "failed", "auth_required"})


class OnPrompt:
    """The owner at his terminal: `approve` is what the Computer asks, `on_state` what it tells."""

    def __init__(self, terminal: Terminal, questions: Questions, progress: Progress) -> None:
        self._terminal, self._questions, self._progress = terminal, questions, progress
        self._errors: dict[str, str] = {}
        self.approve = Requests()

    def on_state(self, name: str, state: State, reason: str) -> None:
        if state in _TROUBLE:
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
        """Until its owner leaves. The line is there once the servers have settled, or an agent asks for leave."""
        from a2c_smcp.cli.prompt.console import Console

        async with computer:
            console = Console(
                computer,
                self._terminal,
                self._questions,
                self.approve,
                url=url,
                office=office,
                folder=default_folder(),
                errors=self._errors,
                say_connection=on_connection,
                **link,
            )
            await console.seat.join(office)
            starting = asyncio.create_task(computer.start())
            try:
                await self._converse(console)
            finally:
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)
                await console.seat.leave()

    async def _converse(self, console: Console) -> None:
        from a2c_smcp.cli.prompt.lines import Lines
        from a2c_smcp.cli.prompt.prompt import converse

        signs = [asyncio.create_task(event.wait()) for event in (self._progress.ended, self.approve.has_come)]
        try:
            await asyncio.wait(signs, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for sign in signs:
                sign.cancel()
        self._progress.end()
        await converse(console, self._terminal, Lines(default_folder() / "prompt_history"))
        self._terminal.show("stopping (Ctrl-C twice stops at once)")
