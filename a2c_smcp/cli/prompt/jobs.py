"""What goes on while the next command is typed. Ctrl-C ends the newest."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

__all__ = ["Job", "Jobs"]

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
