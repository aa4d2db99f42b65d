"""A running `a2c-smcp`, with everything that it prints, and the fixtures that start one."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest

from tests.conftest import TRANSPORTS
from tests.peer import PATIENCE, Peer
from tests.program import Running, start_program

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("A2C_")},
    "PYTHONUNBUFFERED": "1",
    "COLUMNS": "500",
    "NO_COLOR": "1",
    "TERM": "dumb",
}


STARTING = 60.0
"""A bound against hanging: a program may have to be started first, on a machine that is busy."""


SOON = 5.0
"""Well below the ten seconds that calls in flight are given."""


class Program:
    """A running program and everything it has said."""

    def __init__(self, process: Running | asyncio.subprocess.Process, encoding: str = "utf-8") -> None:
        self.process, self._encoding = process, encoding
        self.out: list[str] = []
        self.err: list[str] = []
        self.url = ""
        self._news = asyncio.Condition()
        self._ears = [
            asyncio.create_task(self._listen(stream, lines))
            for stream, lines in ((process.stdout, self.out), (process.stderr, self.err))
            if stream
        ]

    async def says(self, words: str, within: float = STARTING) -> str:
        """Waits for a line with these words."""

        def found() -> str | None:
            return next((line for line in (*self.out, *self.err) if words in line), None)

        async with asyncio.timeout(within), self._news:
            await self._news.wait_for(lambda: found() is not None or all(ear.done() for ear in self._ears))
        line = found()
        assert line is not None, (words, self.out, self.err)
        return line

    async def listens(self, within: float = STARTING) -> str:
        """Waits until it does. The URL."""
        return (await self.says("listening on ", within)).split()[2]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def ends(self, within: float = PATIENCE) -> int:
        """Its exit code."""
        async with asyncio.timeout(within):
            await asyncio.gather(*self._ears)
            return await self.process.wait()

    async def stops(self, number: int = SIGTERM) -> None:
        """It is asked to end, and ends well."""
        self.signal(number)
        assert await self.ends() == 0

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.ends()

    @property
    def said(self) -> str:
        return "\n".join((*self.out, *self.err))

    async def _listen(self, stream: asyncio.StreamReader, lines: list[str]) -> None:
        while line := await stream.readline():
            async with self._news:
                lines.append(line.decode(self._encoding).rstrip("\r\n"))
                self._news.notify_all()
        async with self._news:
            self._news.notify_all()


Starts = Callable[..., Awaitable[Program]]


@pytest.fixture
async def starts() -> AsyncIterator[Starts]:
    """Starts a Server on a free port and waits until it listens."""
    async with AsyncExitStack() as stack:

        async def start(*options: str | Path, port: int | None = 0, **variables: str) -> Program:
            where = () if port is None else ("--port", str(port))
            program = Program(await start_program("server", *where, *options, env=ENVIRONMENT | variables))
            stack.push_async_callback(program.kill)
            line = await program.says("listening on ")
            program.url = (json.loads(line)["message"] if line[0] == "{" else line).removeprefix("listening on ")
            return program

        yield start


@pytest.fixture
async def meets() -> AsyncIterator[Callable[..., Awaitable[Peer]]]:
    """Connects a client to a program."""
    async with AsyncExitStack() as stack:

        async def meet(program: Program, transport: str = "websocket", **options: Any) -> Peer:
            peer = await Peer.connect(program.url, transports=TRANSPORTS[transport], **options)
            stack.push_async_callback(peer.close)
            return peer

        yield meet
