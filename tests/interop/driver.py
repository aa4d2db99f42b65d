"""Peers in processes of their own: each does as it is told and reports what it hears, one JSON object a line."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any

__all__ = ["Driver", "PeerEnded", "PeerFailed"]

PATIENCE = 60.0
"""A bound against hanging, nothing that is measured."""

_LONGEST_LINE = 2**24


class PeerFailed(Exception):
    """A command raised something inside the peer: its class, and what it said."""


class PeerEnded(Exception):
    """The peer's process is gone, and with it whatever was waited for."""


class Driver:
    """The test's end of the lines that `peers/lines.py` and `javascript/client.mjs` describe."""

    def __init__(self, process: Process) -> None:
        self.heard: list[tuple[str, Any]] = []
        self._process = process
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._news = asyncio.Condition()
        self._has_ended = False
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, *command: str | Path, home: Path) -> Driver:
        """Starts a peer that knows nothing of ours: an empty home, no environment, a process group of its own."""
        environment = {"HOME": str(home), "PATH": os.environ["PATH"]}
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, cwd=home, env=environment, start_new_session=True, limit=_LONGEST_LINE
        )
        return cls(process)

    async def ask(self, do: str, **arguments: Any) -> Any:
        """The result of a command. Raises `PeerFailed`."""
        async with asyncio.timeout(PATIENCE):
            return await self.begin(do, **arguments)

    def begin(self, do: str, **arguments: Any) -> asyncio.Future[Any]:
        """A command whose result comes later, while others run."""
        number = next(self._ids)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"id": number, "do": do, **arguments}).encode() + b"\n")
        return answer

    async def hears(self, event: str, /, **fields: Any) -> Any:
        """Waits for an event with these fields. Each is heard once: the same again means that it came again."""

        def matches(heard: tuple[str, Any]) -> bool:
            return heard[0] == event and (not fields or fields.items() <= heard[1].items())

        async with asyncio.timeout(PATIENCE), self._news:
            await self._news.wait_for(lambda: self._has_ended or any(map(matches, self.heard)))
        if found := next(filter(matches, self.heard), None):
            self.heard.remove(found)
            return found[1]
        raise PeerEnded(f"waiting for {event}, after {self.heard}")

    async def close(self) -> None:
        """Ends the process and its group, whatever they are doing."""
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        await self._reading

    async def _read(self) -> None:
        assert self._process.stdout
        while line := await self._process.stdout.readline():
            await self._take(json.loads(line))
        async with self._news:
            self._has_ended = True
            self._news.notify_all()
        for answer in self._answers.values():
            answer.cancel()

    async def _take(self, line: dict[str, Any]) -> None:
        if "event" in line:
            async with self._news:
                self.heard.append((line["event"], line["data"]))
                self._news.notify_all()
            return
        answer = self._answers.pop(line["id"])
        if answer.done():
            return
        if line["ok"]:
            answer.set_result(line["result"])
        else:
            answer.set_exception(PeerFailed(line["error"], line["message"]))
