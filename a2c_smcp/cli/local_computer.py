"""A Computer as its owner runs it: made of files that are followed, shown on the terminal, ended in order."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from a2c_smcp.cli.errors import Failed, WrongUse, advised, misread
from a2c_smcp.cli.options import option
from a2c_smcp.cli.progress import ServerProgress
from a2c_smcp.cli.prompt.approvals import Requests
from a2c_smcp.cli.prompt.questions import Questions
from a2c_smcp.cli.terminal import Terminal
from a2c_smcp.computer.approval import approve_all
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.configuration.files import Configuration
from a2c_smcp.computer.configuration.watch import RefusedChanges, read_all, trusting, watch
from a2c_smcp.computer.private_files import default_folder
from a2c_smcp.computer.secrets import MaskFilter
from a2c_smcp.errors import SMCPError
from a2c_smcp.loops import stop_on_signals
from a2c_smcp.mcp_host.policy import HostPolicy
from a2c_smcp.mcp_host.status import State

if TYPE_CHECKING:
    from a2c_smcp.cli.prompt.console import Console

__all__ = ["Desktop", "DesktopOption", "Device", "IdleStop", "NoInput", "OnPrompt", "TrustChanges", "Yes", "policy_of"]


class Desktop(StrEnum):
    """What servers without a `desktop` of their own do."""

    subscribed = "subscribed"
    any = "any"


_DESKTOP = "Whose windows are shown: of servers that tell of changes, or of any, read on request."

Yes = Annotated[bool, option(None, "--yes", "Let every tool run without asking.")]
NoInput = Annotated[bool, option(None, "--no-input", "Never ask: what is missing is an error.")]
TrustChanges = Annotated[
    bool, option(None, "--trust-changes", "Apply every change of the files, also what would need your yes.")
]
IdleStop = Annotated[str | None, option(None, "--idle-stop", "Stop servers unused for so long, like 10m.")]
DesktopOption = Annotated[Desktop, option(None, "--desktop", _DESKTOP)]


def policy_of(idle_stop: str | None, desktop: Desktop) -> HostPolicy:
    return HostPolicy(idle_stop=_seconds(idle_stop), desktop=desktop.value)


class Device:
    """`settled` is set once it is known of every server how its start went; `approves`: tools that ask may run, too."""

    def __init__(
        self,
        name: str,
        files: list[Path],
        terminal: Terminal,
        *,
        yes: bool = False,
        no_input: bool = False,
        trust_changes: bool = False,
        values: dict[str, Any] | None = None,
        policy: HostPolicy | None = None,
    ) -> None:
        self._terminal, self._files = terminal, files
        self._configuration = _read(files, terminal)
        self._progress = ServerProgress(terminal, lambda server: self.host.status()[server].tools)
        self._starting = {each.name for each in self._configuration.servers.values() if not each.disabled}
        self.settled = asyncio.Event()
        questions = Questions(terminal) if terminal.can_ask and not no_input else None
        self._owner = OnPrompt(terminal, questions, self._progress) if questions and terminal.console else None
        self._refused = RefusedChanges(files)
        self._consent = trusting if trust_changes else questions.consent if questions else None
        self.approves = yes or self._owner is not None
        self.host = Computer(
            name,
            approve=approve_all if yes else self._owner.approve if self._owner else None,
            prompt=questions.value if questions else None,
            approve_command=_say_yes if yes else questions.command if questions else None,
            values=values,
            policy=policy,
            on_state=self._on_state,
        )
        self._fill()

    @property
    def starting(self) -> list[str]:
        """Servers of which it is not known yet how their start went."""
        return sorted(self._starting)

    def _fill(self) -> None:
        _mask_logs(self.host, self._terminal)
        self.host.define_inputs(self._configuration.inputs.values())
        for server in self._configuration.servers.values():
            self.host.add_server(server)
        if not self._starting:
            self.settled.set()

    async def serve(
        self, url: str, office: str, on_connection: Callable[[str], None] | None = None, **link: Any
    ) -> None:
        """Runs until a signal. Raises what the Server refuses this computer with for good."""
        await self._check_refused()
        gc.freeze()  # what was imported stays: the collector need not look at it again and again
        with self._progress.shown(self._configuration.servers.values()):
            serve = partial(self._owner.serve, self.host) if self._owner else self.host.run
            tell = _Once(on_connection or self._terminal.show)
            serving = asyncio.create_task(serve(url, office=office, on_connection=tell, **link))
            following = asyncio.create_task(
                watch(self.host, self._files, self._configuration, self._terminal.show, self._consent, self._refused)
            )
            await self._until_stopped(serving, following)

    async def _check_refused(self) -> None:
        """What had no yes while a file was followed needs one now: a restart is none. Raises `Failed`."""
        if not (lines := self._refused.lines_of(self._configuration)):
            return
        if self._consent is None or await self._consent(lines) is not True:
            names = ", ".join(map(str, self._files))
            raise Failed(
                f"{names} holds a change that its owner has not agreed to: {'; '.join(lines)}",
                "Put the file right, or start on a terminal and say yes; --trust-changes agrees to everything.",
            )
        self._refused.clear()

    async def _until_stopped(self, serving: asyncio.Task[None], following: asyncio.Task[None]) -> None:
        stop = stop_on_signals()
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            self._on_stop()
        for task in (following, stopping, serving):
            task.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await asyncio.wait([serving])
        if not serving.cancelled():
            serving.result()

    def _on_stop(self) -> None:
        self._progress.end()
        if self._terminal.console:
            self._terminal.show("stopping (Ctrl-C again stops at once)")

    def _on_state(self, name: str, state: State, reason: str) -> None:
        (self._owner.on_state if self._owner else self._progress)(name, state, reason)
        if state != "starting":
            self._starting.discard(name)
        if not self._starting:
            self.settled.set()


def _mask_logs(host: Computer, terminal: Terminal) -> None:
    """Logs tell no secrets, and go where everything else goes."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(MaskFilter(host.mask))
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(terminal)


def _read(paths: list[Path], terminal: Terminal) -> Configuration:
    try:
        found = read_all(paths)
    except SMCPError as error:
        raise misread(error) from None
    for words in found.unknown:
        terminal.show(words, "yellow")
    if not found.servers:
        terminal.show("no MCP servers: --config names a file of them", "yellow")
    return found


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)", text)
    if not found or float(found[1]) <= 0:
        raise WrongUse(f"--idle-stop: {text!r} is not a time", "Write 30s, 10m or 1h.")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def _say_yes(*_: object) -> bool:
    return True


class _Once:
    """Says what became of the connection, once for each thing that becomes of it."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._last = ""

    def __call__(self, what: str) -> None:
        if what != self._last:
            self._say(advised(what))
        self._last = what


_TROUBLE: frozenset[State] = frozenset({"backoff", "failed", "auth_required"})


class OnPrompt:
    """The owner at his terminal: `approve` is what the Computer asks, `on_state` what it tells."""

    def __init__(self, terminal: Terminal, questions: Questions, progress: ServerProgress) -> None:
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
        from a2c_smcp.cli.prompt.editor import Lines
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
