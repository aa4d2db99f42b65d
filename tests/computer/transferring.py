"""Processes that tests kill in the middle of a transfer: a computer that offers and takes files, and an agent."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer.approval import Caller
from a2c_smcp.computer.blobs.limits import BlobLimits
from a2c_smcp.computer.computer import Computer
from a2c_smcp.endpoint import Reconnect
from tests.computer.servers.contents import binary
from tests.program import Running, start_program
from tests.waiting import until_it_goes

__all__ = ["SIZE", "offering_computer", "parts_in", "sending_agent", "spooled_in"]

SIZE = 12_000_000
SOON = Reconnect(first=0.1, longest=0.2)
QUICK = BlobLimits(age=1.0, upload_idle=1.0)
"""For tests that wait until what is left is removed."""


def spooled_in(folder: Path) -> list[Path]:
    return [path for path in (folder / "state" / "blobs").rglob("*") if path.is_file() and path.suffix != ".lock"]


def parts_in(folder: Path) -> list[Path]:
    return [*(folder / "landing" / ".a2c-upload").glob("*")]


def computer_in(folder: Path, office: str, limits: BlobLimits | None = None) -> Computer:
    """Its tool `offer` spools a content of `SIZE` for the agent `planner`, and returns the handle."""
    computer = Computer("laptop", landing=folder / "landing", blob_limits=limits)

    @computer.tool(auto_apply=True)
    async def offer() -> str:
        return (await computer.blobs.spool(Caller(office, "planner"), binary(SIZE), "x/y")).handle

    return computer


@asynccontextmanager
async def offering_computer(url: str, office: str, folder: Path) -> AsyncIterator[Running]:
    """A computer called laptop, joined."""
    async with _process("computer", url, office, folder) as process:
        assert await _line(process) == f"joined {office}\n".encode()
        yield process


@asynccontextmanager
async def sending_agent(url: str, office: str, folder: Path, which: str) -> AsyncIterator[Running]:
    """An agent called planner that fetches (`fetch`) or sends (`put`), and is in the middle of it."""
    async with _process(which, url, office, folder) as process:
        assert await _line(process) == b"in the middle\n"
        yield process


@asynccontextmanager
async def _process(*arguments: str | Path) -> AsyncIterator[Running]:
    process = await start_program(*arguments, script=Path(__file__), stderr=2)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def _line(process: Running) -> bytes:
    assert process.stdout
    async with asyncio.timeout(60):
        return await process.stdout.readline()


async def run_computer(url: str, office: str, folder: Path) -> None:
    await computer_in(folder, office).run(
        url,
        office=office,
        state_folder=folder / "state",
        reconnect=SOON,
        on_connection=lambda what: print(what, flush=True),
    )


async def run_agent(which: str, url: str, office: str, folder: Path) -> None:
    def report(done: float, total: float, message: object) -> None:
        if done < total:
            print("in the middle", flush=True)

    agent = AsyncSMCPAgentClient("planner", url=url, office=office)
    await until_it_goes(agent.connect)  # the Server keeps the seat of an agent that was killed for a few seconds
    if which == "put":
        await agent.put_bytes("laptop", binary(SIZE), on_progress=report)
    else:
        handle = (await agent.emit_tool_call("laptop", "offer")).text
        await agent.save_blob("laptop", handle, folder / "fetched" / "file", on_progress=report)
    await agent.disconnect()


if __name__ == "__main__":
    role, url, office, folder = sys.argv[1:]
    if role == "computer":
        asyncio.run(run_computer(url, office, Path(folder)))
    else:
        asyncio.run(run_agent(role, url, office, Path(folder)))
