"""The owner's side of the computer: what commands act on, and what he is told while he types."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from a2c_smcp.cli.errors import sentence
from a2c_smcp.cli.prompt import views
from a2c_smcp.cli.prompt.approvals import Grants, Requests, Waiting
from a2c_smcp.cli.prompt.language import WrongUse
from a2c_smcp.cli.prompt.questions import Questions
from a2c_smcp.cli.terminal import Terminal, printable
from a2c_smcp.computer.calls.journal import journal_of
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.inputs.definitions import InputError
from a2c_smcp.computer.private_files import PrivateFileUnusable, instance_of
from a2c_smcp.computer.socketio.client import SMCPComputerClient
from a2c_smcp.errors import SMCPError

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["ANSWERS", "Console", "Job", "Jobs", "Seat"]

ANSWERS = "y / n / always tool / always agent"


class Console:
    """`live` is drawn below the line, again and again; `errors` are the last ones of each server."""

    def __init__(
        self,
        computer: Computer,
        terminal: Terminal,
        questions: Questions,
        requests: Requests,
        *,
        url: str,
        office: str,
        folder: Path,
        errors: dict[str, str],
        say_connection: Callable[[str], None],
        **link: Any,
    ) -> None:
        self.computer, self.questions, self.requests, self.errors = computer, questions, requests, errors
        self.live: Callable[[], RenderableType] | None = None
        self.refresh: Callable[[], None] = lambda: None
        self.draws_below: Callable[[], bool] = lambda: False
        self._terminal = terminal
        self.jobs = Jobs(self.say, self._changed, self.tell_failure)
        self.grants = Grants(computer.approvals, computer.name, folder, self.say)
        self.seat = Seat(computer, url, office, say=say_connection, on_move=self._moved, **link)
        requests.on_come, requests.on_go = self._on_request, self._on_request_gone
        for waiting in requests:
            self._on_request(waiting)

    def say(self, text: str, style: str = "") -> None:
        self._terminal.show(text, style)

    def draw(self, what: RenderableType) -> None:
        self._terminal.print(what)

    def tell_failure(self, error: Exception) -> bool:
        """Whether it is something that the owner can do something about; then he is told."""
        if not isinstance(error, WrongUse | SMCPError | InputError | PrivateFileUnusable):
            return False
        message = error.message if isinstance(error, SMCPError) else str(error)
        self.say(self.computer.mask.logged(message), "red")
        return True

    def status(self) -> RenderableType:
        return views.status(self.computer.status(), self.errors, self.computer.statistics)

    def below(self) -> str:
        """What stands below the line now, with colours."""
        from rich.console import Group
        from rich.text import Text

        parts: list[Any] = [self.live()] if self.live else []
        parts += [Text(f"{printable(str(job))}, Ctrl-C ends it", "cyan") for job in self.jobs]
        if waiting := [*self.requests]:
            more = f" (and {len(waiting) - 1} more)" if len(waiting) > 1 else ""
            parts.append(Text(f"{printable(views.who_wants(waiting[0]))}{more}: {ANSWERS}", "bold yellow"))
        return self._rendered(Group(*parts)) if parts else ""

    def interrupt(self) -> bool:
        """Ends the newest of what goes on; a table that was live stays as it was last. Whether there was anything."""
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

    def _changed(self) -> None:
        self.refresh()

    def _moved(self) -> None:
        self.requests.refuse_all()
        self.grants.enter(self.seat.url, self.seat.office)

    def _on_request(self, waiting: Waiting) -> None:
        self.say(f"{views.request(waiting)}\n  {ANSWERS}", "yellow")
        self.refresh()

    def _on_request_gone(self, waiting: Waiting) -> None:
        if waiting.answer.cancelled():
            self.say(f"#{waiting.number} is withdrawn", "yellow")
        self.refresh()


logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Job:
    """A command that takes its time. `note` is how far it has got."""

    name: str
    work: Callable[[], Awaitable[None]] = field(repr=False)
    note: str = ""
    began: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        note = f", {self.note}" if self.note else ""
        return f"{self.name}: {time.monotonic() - self.began:.1f} s{note}"


class Jobs:
    """`on_change` hears of each that begins or ends; `failed` is told why, and says whether it has told the owner."""

    def __init__(
        self, say: Callable[[str], None], on_change: Callable[[], None], failed: Callable[[Exception], bool]
    ) -> None:
        self._say, self._on_change, self._failed = say, on_change, failed
        self._tasks: dict[asyncio.Task[None], Job] = {}

    def __iter__(self) -> Iterator[Job]:
        return iter(self._tasks.values())

    def start(self, job: Job, on_end: Callable[[], None]) -> None:
        task = asyncio.create_task(self._run(job), name=job.name)
        self._tasks[task] = job
        task.add_done_callback(lambda ended: self._ended(ended, on_end))
        self._on_change()

    def interrupt(self) -> bool:
        """Whether there was something to be ended."""
        newest = next((task for task in reversed(self._tasks) if not task.cancelling()), None)
        return newest is not None and newest.cancel()

    async def close(self) -> None:
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, job: Job) -> None:
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


class Seat:
    """`say` hears what becomes of the connection, `news` is the last of it; `on_move` hears that it is another one."""

    def __init__(
        self,
        computer: Computer,
        url: str,
        office: str,
        *,
        say: Callable[[str], None],
        on_move: Callable[[], None],
        **link: Any,
    ) -> None:
        self.url, self.office, self.news = url, office, "not connected"
        self._computer, self._link = computer, link
        self._say, self._on_move = say, on_move
        self._serving: asyncio.Task[None] | None = None

    @property
    def api_key(self) -> str | None:
        key: str | None = self._link.get("api_key")
        return key

    @property
    def is_taken(self) -> bool:
        return self._serving is not None and not self._serving.done()

    async def join(self, office: str) -> None:
        """Leaves the office it is in, and serves this one, until told otherwise."""
        await self.leave()
        self.office = office
        self._on_move()
        self._serving = asyncio.create_task(self._serve())

    async def connect(self, url: str, api_key: str | None) -> None:
        """The same office at another Server. The key of one Server is never shown to another."""
        await self.leave()
        self.url, self._link = url, {**self._link, "api_key": api_key}
        await self.join(self.office)

    async def leave(self) -> None:
        serving, self._serving = self._serving, None
        if serving:
            serving.cancel()
            await asyncio.wait([serving])
            self._tell(f"left {self.office}")
            self._on_move()

    async def _serve(self) -> None:
        try:
            with (
                instance_of(self._computer.name, self.url) as instance,
                journal_of(self._computer.name, self.url, self.office) as journal,
            ):
                kept: dict[str, Any] = {"instance": instance, "journal": journal}
                await SMCPComputerClient(
                    self._computer, self.url, self.office, on_connection=self._tell, **kept, **self._link
                ).run()
        except SMCPError as error:
            reason = self._computer.mask.text(str(error))
            self._tell(f"{sentence(f'not in {self.office}: {reason}')} `join OFFICE` or `connect URL` tries again")

    def _tell(self, news: str) -> None:
        self.news = news
        self._say(news)
