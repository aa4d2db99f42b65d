"""A Python program that is a computer: what it logs of its connection, and how Ctrl-C ends it."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.computer.hosted import Relay

PROGRAM = """
import asyncio, logging, sys
from pathlib import Path
from a2c_smcp.computer import Computer

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
url, office, folder = sys.argv[1:]
asyncio.run(Computer("laptop").run(url, office=office, state_folder=Path(folder), api_key="a key of a client"))
print("ended in order")
"""
BESIDE = """
import asyncio, sys
from pathlib import Path
from a2c_smcp.computer import Computer

async def main():
    url, office, folder = sys.argv[1:]
    running = asyncio.create_task(Computer("laptop").run(url, office=office, state_folder=Path(folder)))
    print("running", flush=True)
    await running

asyncio.run(main())
"""


@asynccontextmanager
async def program(text: str, url: str, office: str, folder: Path) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", text, url, office, str(folder), stdout=PIPE, stderr=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def logs(process: Process, line: str) -> None:
    """Waits for a line that begins like this."""
    assert process.stderr
    async with asyncio.timeout(60):
        while not (said := (await process.stderr.readline()).decode()).startswith(line):
            assert said, f"it never said {line!r}"


@pytest.mark.covers("computer-recovers")
async def test_the_state_of_the_connection_is_logged_and_ctrl_c_gives_no_traceback(
    shared_hub: Any, office: str, tmp_path: Path
) -> None:
    relay = Relay(shared_hub.url)
    async with relay.open() as url, program(PROGRAM, url, office, tmp_path) as process:
        await logs(process, f"INFO laptop: connecting to {url}")
        await logs(process, f"INFO laptop: joined {office}")
        relay.close()
        await logs(process, "WARNING laptop: connection lost")
        await logs(process, "WARNING laptop: not connected: 503 ")
        relay.reopen()
        await logs(process, f"INFO laptop: joined {office}")
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(60):
            told, complaints = await process.communicate()
        assert (process.returncode, told.decode().strip()) == (0, "ended in order")
        assert b"Traceback" not in complaints
        assert b"a key of a client" not in complaints


async def test_where_it_is_not_the_whole_program_ctrl_c_stays_the_programs(
    shared_hub: Any, office: str, tmp_path: Path
) -> None:
    async with program(BESIDE, shared_hub.url, office, tmp_path) as process:
        assert process.stdout
        assert await process.stdout.readline() == b"running\n"
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(60):
            _, complaints = await process.communicate()
        assert process.returncode != 0
        assert b"KeyboardInterrupt" in complaints
