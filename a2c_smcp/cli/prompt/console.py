"""What commands of the prompt act on: the Computer, its connection to an office, jobs, requests and the screen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from a2c_smcp.cli.errors import sentence
from a2c_smcp.cli.forms.form import Form, quoted
from a2c_smcp.cli.prompt import views
from a2c_smcp.cli.prompt.grants import Grants
from a2c_smcp.cli.prompt.language import BackgroundJob, BadLine
from a2c_smcp.cli.prompt.questions import Questions
from a2c_smcp.cli.sign_in import SignInGuide
from a2c_smcp.cli.terminal import Terminal, printable
from a2c_smcp.computer.calls.journal import journal_of
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.inputs.definitions import InputError
from a2c_smcp.computer.pending import PendingApproval, PendingApprovals, PendingQuestion, PendingQuestions
from a2c_smcp.computer.socketio.client import SMCPComputerClient
from a2c_smcp.errors import SMCPError
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.private_files import PrivateFileUnusable, instance_of

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["ANSWERS", "QUESTION_ANSWERS", "Console"]

logger = logging.getLogger(__name__)

ANSWERS = "y / n / always tool / always agent"
QUESTION_ANSWERS = "answer / decline"
_ANNOUNCED, _ANNOUNCED_LINES = 600, 8
"""Characters and lines of a question that its announcement shows; `answer` shows all."""


class Console:
    """`live` draws a table below the line, again and again; `errors` has the last error of each server."""

    def __init__(
        self,
        computer: Computer,
        terminal: Terminal,
        questions: Questions,
        requests: PendingApprovals,
        asked: PendingQuestions,
        guide: SignInGuide,
        *,
        url: str,
        office: str,
        folder: Path,
        errors: dict[str, str],
        say_connection: Callable[[str], None],
        **link: Any,
    ) -> None:
        self.computer, self.questions, self.errors = computer, questions, errors
        self.requests, self.asked, self.guide = requests, asked, guide
        self.live: Callable[[], RenderableType] | None = None
        self.refresh: Callable[[], None] = lambda: None
        self.draws_below: Callable[[], bool] = lambda: False
        self._terminal = terminal
        self.jobs = BackgroundJobs(self.say, lambda: self.refresh(), self.show_failure)
        self.grants = Grants(computer.approvals, computer.name, folder, self.say)
        self.connection = OfficeConnection(
            computer, url, office, say=say_connection, on_change=self._on_office_changed, **link
        )
        requests.on_added.append(self._on_request)
        requests.on_removed.append(self._on_request_gone)
        asked.on_added.append(self._on_question)
        asked.on_removed.append(self._on_question_gone)
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
        """What is drawn below the line now, with colours."""
        from rich.console import Group
        from rich.text import Text

        parts: list[Any] = [self.live()] if self.live else []
        parts += [Text(f"{printable(str(job))}, Ctrl-C ends it", "cyan") for job in self.jobs]
        if pending := [*self.requests]:
            more = f" (and {len(pending) - 1} more)" if len(pending) > 1 else ""
            parts.append(Text(f"{printable(views.who_wants(pending[0]))}{more}: {ANSWERS}", "bold yellow"))
        if asked := [*self.asked]:
            more = f" (and {len(asked) - 1} more)" if len(asked) > 1 else ""
            text = f"#{asked[0].number} {asked[0].who} asks a question{more}: {QUESTION_ANSWERS}"
            parts.append(Text(printable(text), "bold yellow"))
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

    def _on_office_changed(self) -> None:
        self.requests.leave_all()
        self.asked.leave_all()
        self.grants.enter(self.connection.url, self.connection.office)

    def _on_request(self, pending: PendingApproval) -> None:
        self.say(f"{views.request(pending)}\n  {ANSWERS}", "yellow")
        self.refresh()

    def _on_request_gone(self, pending: PendingApproval) -> None:
        if pending.answer.cancelled() or pending.has_left:
            self.say(f"#{pending.number} is withdrawn", "yellow")
        elif pending.where:
            self.say(f"#{pending.number} is answered in the {pending.where}")
        self.refresh()

    def form(self, pending: PendingQuestion) -> Form:
        """The form for a question."""
        goes_to = f"Your answer goes to the MCP server {printable(pending.question.server)}."
        who = printable(f"#{pending.number} {pending.who}")
        return Form(pending.question, self._terminal, who=who, goes_to=goes_to, open_page=self.guide.open_page)

    def _on_question(self, pending: PendingQuestion) -> None:
        console = self._terminal.console
        assert console
        message = quoted(pending.question.message, console, _ANNOUNCED, _ANNOUNCED_LINES)
        page = " to open a page" if pending.question.mode == "url" else ""
        lines = [f"#{pending.number} {pending.who} asks{page}:", *message, f"  {QUESTION_ANSWERS}"]
        self.say("\n".join(lines), "yellow")
        self.refresh()

    def _on_question_gone(self, pending: PendingQuestion) -> None:
        if pending.answer.cancelled() or pending.has_left:
            self.say(f"#{pending.number} is withdrawn: its call has ended, or its time is over", "yellow")
        elif pending.where:
            self.say(f"#{pending.number} is answered in the {pending.where}")
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
        tasks = [*self._tasks]
        await cancel_and_wait(*tasks)

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


class OfficeConnection:
    """The Computer's place in one office of one Server, or in none. Its MCP servers run all the same.

    `say` is called with each change of the connection, and `state` is the last one; `on_change` is called when the
    office or the Server changes.
    """

    def __init__(
        self,
        computer: Computer,
        url: str,
        office: str,
        *,
        say: Callable[[str], None],
        on_change: Callable[[], None],
        **link: Any,
    ) -> None:
        self.url, self.office, self.state = url, office, "not connected"
        self._computer, self._link = computer, link
        self._say, self._on_change = say, on_change
        self._serving: asyncio.Task[None] | None = None

    @property
    def api_key(self) -> str | None:
        key: str | None = self._link.get("api_key")
        return key

    @property
    def is_joined(self) -> bool:
        return self._serving is not None and not self._serving.done()

    async def join(self, office: str) -> None:
        """Leave the office before, and serve this one in a task."""
        await self.leave()
        self.office = office
        self._on_change()
        self._serving = asyncio.create_task(self._serve())

    async def connect(self, url: str, api_key: str | None) -> None:
        """Join the office of the same name at another Server. The key of one Server is never sent to another."""
        await self.leave()
        self.url, self._link = url, {**self._link, "api_key": api_key}
        await self.join(self.office)

    async def leave(self) -> None:
        serving, self._serving = self._serving, None
        if serving:
            await cancel_and_wait(serving)
            self._report(f"left {self.office}")
            self._on_change()

    async def _serve(self) -> None:
        try:
            with (
                instance_of(self._computer.name, self.url) as instance,
                journal_of(self._computer.name, self.url, self.office) as journal,
            ):
                kept: dict[str, Any] = {"instance": instance, "journal": journal}
                await SMCPComputerClient(
                    self._computer, self.url, self.office, on_connection=self._report, **kept, **self._link
                ).run()
        except SMCPError as error:
            reason = self._computer.mask.text(str(error))
            self._report(f"{sentence(f'not in {self.office}: {reason}')} `join OFFICE` or `connect URL` tries again")

    def _report(self, state: str) -> None:
        self.state = state
        self._say(state)
