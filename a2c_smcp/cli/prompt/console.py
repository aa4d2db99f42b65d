"""The owner's side of the computer: what commands act on, and what he is told while he types."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from a2c_smcp.cli.prompt import views
from a2c_smcp.cli.prompt.approvals import Requests, Waiting
from a2c_smcp.cli.prompt.grants import Grants
from a2c_smcp.cli.prompt.jobs import Jobs
from a2c_smcp.cli.prompt.language import WrongUse
from a2c_smcp.cli.prompt.questions import Questions
from a2c_smcp.cli.prompt.seat import Seat
from a2c_smcp.cli.terminal import Terminal, printable
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.inputs.definitions import InputError
from a2c_smcp.computer.private_files import PrivateFileUnusable
from a2c_smcp.errors import SMCPError

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["ANSWERS", "Console"]

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
        return views.status(self.computer.status(), self.errors, self.computer.tally)

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
