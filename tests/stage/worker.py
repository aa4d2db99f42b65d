"""A computer whose tool waits, and a Server that can be killed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.computer import Computer
from tests.ports import free_port
from tests.program import Running, start_program


class Worker:
    """A computer whose tool waits until it may go on, or for as long as it is told. It counts how often it ran."""

    def __init__(self, name: str = "laptop", **options: Any) -> None:
        self.computer = Computer(name, **options)
        self.runs: Counter[int] = Counter()
        self.go = asyncio.Event()
        self.computer.tool(self.work, auto_apply=True)

    async def work(self, number: int = 0, seconds: float = -1) -> int:
        self.runs[number] += 1
        await (self.go.wait() if seconds < 0 else asyncio.sleep(seconds))
        return number


@asynccontextmanager
async def speaking(*words: str | Path, says: str = "", **options: Any) -> AsyncIterator[Running]:
    """A process whose first line begins so. It is killed at the end, unless it has ended."""
    process = await start_program(*words, **options)
    try:
        assert process.stdout
        async with asyncio.timeout(60):
            assert (await process.stdout.readline()).decode().startswith(says)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def separate_server(port: int) -> AbstractAsyncContextManager[Running]:
    """A Server in a process of its own."""
    return speaking("server", "--port", str(port), stderr=asyncio.subprocess.DEVNULL)


class MortalServer:
    """A Server in a process of its own, which can be killed and started again at its URL."""

    process: Running

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack, self._port = stack, free_port()
        self.url = f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        self.process = await self._stack.enter_async_context(separate_server(self._port))

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


@pytest.fixture
async def mortal() -> AsyncIterator[MortalServer]:
    async with AsyncExitStack() as stack:
        server = MortalServer(stack)
        await server.start()
        yield server
