"""The console that commands of the prompt act on: the Computer, jobs, requests and the screen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from a2c_smcp.cli.form import Questions, TerminalForm, quoted
from a2c_smcp.cli.prompt import views
from a2c_smcp.cli.prompt.grants import Grants
from a2c_smcp.cli.prompt.language import BackgroundJob, BadLine
from a2c_smcp.cli.sign_in import SignInGuide
from a2c_smcp.cli.terminal import Terminal, printable
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.configuration.definitions import InputError
from a2c_smcp.computer.configuration.watch import ConfigurationChanges
from a2c_smcp.computer.consent.approval import PendingApproval, PendingApprovals, PendingQuestion, PendingQuestions
from a2c_smcp.errors import SMCPError
from a2c_smcp.files import PrivateFileUnusable
from a2c_smcp.loops import cancel_and_wait

if TYPE_CHECKING:
    from rich.console import RenderableType


logger = logging.getLogger(__name__)

ANSWERS = "y / n / always tool 1h"
QUESTION_ANSWERS = "answer / decline"
_ANNOUNCED, _ANNOUNCED_LINES = 600, 8
"""Characters and lines of a question that its announcement shows; `answer` shows all."""


class Console:
    """`live` draws a table below the line, again and again; `errors` has the last error of each server.

    `state` is the last change of the connection to the office.
    """

    def __init__(
        self,
        computer: Computer,
        terminal: Terminal,
        questions: Questions,
        requests: PendingApprovals,
        asked: PendingQuestions,
        guide: SignInGuide,
        files: ConfigurationChanges,
        *,
        url: str,
        office: str,
        folder: Path,
        errors: dict[str, str],
    ) -> None:
        self.computer, self.questions, self.errors, self.files = computer, questions, errors, files
        self.url, self.state = url, "not connected"
        self.requests, self.asked, self.guide = requests, asked, guide
        self.live: Callable[[], RenderableType] | None = None
        self.refresh: Callable[[], None] = lambda: None
        self.draws_below: Callable[[], bool] = lambda: False
        self._terminal = terminal
        self.jobs = BackgroundJobs(self.say, lambda: self.refresh(), self.show_failure)
        self.grants = Grants(computer.approvals, computer.name, folder, self.say)
        self.grants.enter(url, office)
        computer.owner.freezing.on_change.append(lambda _: self.refresh())
        requests.on_added.append(self._on_request)
        requests.on_removed.append(partial(self._on_gone, why=""))
        asked.on_added.append(self._on_question)
        asked.on_removed.append(partial(self._on_gone, why=": its call has ended, or its time is over"))
        for pending in requests:
            self._on_request(pending)
        for question in asked:
            self._on_question(question)

    def say(self, text: str, style: str = "") -> None:
        self._terminal.show(text, style)

    def draw(self, what: RenderableType) -> None:
        self._terminal.print(what)

    def show_failure(self, error: Exception) -> bool:
        """Show an error that the owner can act on. Returns false for other errors, which are bugs."""
        if not isinstance(error, BadLine | SMCPError | InputError | PrivateFileUnusable):
            return False
        message = error.message if isinstance(error, SMCPError) else str(error)
        self.say(self.computer.mask.logged(message), "red")
        return True

    def status(self) -> RenderableType:
        return views.status(self.computer.status(), self.errors, self.computer.statistics)

    def below(self) -> str:
        """Return the text below the line, with colours."""
        from rich.console import Group
        from rich.text import Text

        parts: list[Any] = [self.live()] if self.live else []
        parts += [Text(f"{printable(str(job))}, Ctrl-C ends it", "cyan") for job in self.jobs]
        if frozen := self.computer.owner.frozen:
            parts.append(Text(printable(f"{frozen}; thaw releases it"), "bold red"))

        def add(text: str, count: int, answers: str) -> None:
            more = f" (and {count - 1} more)" if count > 1 else ""
            parts.append(Text(f"{printable(text)}{more}: {answers}", "bold yellow"))

        if pending := [*self.requests]:
            add(views.who_wants(pending[0]), len(pending), ANSWERS)
        if asked := [*self.asked]:
            add(f"#{asked[0].number} {asked[0].who} asks a question", len(asked), QUESTION_ANSWERS)
        return self._rendered(Group(*parts)) if parts else ""

    def interrupt(self) -> bool:
        """End the newest job, or else the live table, whose last state stays. Returns whether there was one."""
        if self.jobs.interrupt():
            return True
        if self.live is None:
            return False
        self.draw(self.live())
        self.live = None
        self.refresh()
        return True

    def _rendered(self, what: RenderableType) -> str:
        console = self._terminal.console
        assert console
        with console.capture() as capture:
            console.print(what)
        return capture.get().rstrip("\n")

    def _on_request(self, pending: PendingApproval) -> None:
        self.say(f"{views.request(pending)}\n  {ANSWERS}", "yellow")
        self.refresh()

    def _on_gone(self, pending: PendingApproval | PendingQuestion, why: str) -> None:
        if pending.answer.cancelled():
            self.say(f"#{pending.number} is withdrawn{why}", "yellow")
        elif pending.where:
            self.say(f"#{pending.number} is answered in the {pending.where}")
        self.refresh()

    def form(self, pending: PendingQuestion) -> TerminalForm:
        """Return the form for a question."""
        goes_to = f"Your answer goes to the MCP server {printable(pending.question.server)}."
        who = printable(f"#{pending.number} {pending.who}")
        return TerminalForm(pending.question, self._terminal, who=who, goes_to=goes_to, open_page=self.guide.open_page)

    def _on_question(self, pending: PendingQuestion) -> None:
        console = self._terminal.console
        assert console
        message = quoted(pending.question.message, console, _ANNOUNCED, _ANNOUNCED_LINES)
        page = " to open a page" if pending.question.mode == "url" else ""
        lines = [f"#{pending.number} {pending.who} asks{page}:", *message, f"  {QUESTION_ANSWERS}"]
        self.say("\n".join(lines), "yellow")
        self.refresh()


class BackgroundJobs:
    """Jobs that run while the owner types.

    `on_change` is called when a job begins or ends; `failed` shows an error and returns whether it could.
    """

    def __init__(
        self, say: Callable[[str], None], on_change: Callable[[], None], failed: Callable[[Exception], bool]
    ) -> None:
        self._say, self._on_change, self._failed = say, on_change, failed
        self._tasks: dict[asyncio.Task[None], BackgroundJob] = {}

    def __iter__(self) -> Iterator[BackgroundJob]:
        return iter(self._tasks.values())

    def start(self, job: BackgroundJob, on_end: Callable[[], None]) -> None:
        task = asyncio.create_task(self._run(job), name=job.name)
        self._tasks[task] = job
        task.add_done_callback(lambda ended: self._ended(ended, on_end))
        self._on_change()

    def interrupt(self) -> bool:
        """Cancel the newest job. Returns whether there was one."""
        newest = next((task for task in reversed(self._tasks) if not task.cancelling()), None)
        return newest is not None and newest.cancel()

    async def close(self) -> None:
        await cancel_and_wait(*self._tasks)

    async def _run(self, job: BackgroundJob) -> None:
        try:
            await job.work()
        except Exception as error:
            if not self._failed(error):
                logger.exception("%s failed", job.name)

    def _ended(self, task: asyncio.Task[None], on_end: Callable[[], None]) -> None:
        job = self._tasks.pop(task)
        if task.cancelled():
            self._say(f"{job.name} is cancelled")
        on_end()
        self._on_change()
