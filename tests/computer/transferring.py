"""Processes that tests kill in the middle of a transfer: a computer that offers and takes files, and an agent."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.consent.approval import Caller
from a2c_smcp.computer.content.blob_handles import BlobLimits
from tests.computer.servers.contents import binary
from tests.program import Running
from tests.stage.agent import SOON
from tests.stage.worker import speaking
from tests.waiting import until_it_goes

SIZE = 12_000_000
QUICK = BlobLimits(age=1.0, upload_idle=1.0)
"""For tests that wait until what is left is removed."""


def spooled_in(folder: Path) -> list[Path]:
    return [path for path in (folder / "state" / "blobs").rglob("*") if path.is_file() and path.suffix != ".lock"]


async def offered(agent: AsyncSMCPAgentClient) -> str:
    """The handle of a content that the computer offers this agent."""
    (seat,) = (member["seat"] for member in await agent.list_room() if member["role"] == "agent")  # type: ignore[typeddict-item]
    return (await agent.emit_tool_call("laptop", "offer", {"seat": seat})).text


def parts_in(folder: Path) -> list[Path]:
    return [*(folder / "landing" / ".a2c-upload").glob("*")]


def computer_in(folder: Path, office: str, limits: BlobLimits | None = None) -> Computer:
    """Its tool `offer` spools a content of `SIZE` for the agent `planner` in this seat, and returns the handle."""
    computer = Computer("laptop", landing=folder / "landing", blob_limits=limits)

    @computer.tool(auto_apply=True)
    async def offer(seat: str) -> str:
        return (await computer.blobs.spool(Caller(office, "planner", seat=seat), binary(SIZE), "x/y")).handle

    return computer


def offering_computer(url: str, office: str, folder: Path) -> AbstractAsyncContextManager[Running]:
    """A computer called laptop, joined."""
    return speaking("computer", url, office, folder, says=f"joined {office}\n", script=Path(__file__), stderr=2)


def sending_agent(url: str, office: str, folder: Path, which: str) -> AbstractAsyncContextManager[Running]:
    """An agent called planner that fetches (`fetch`) or sends (`put`), and is in the middle of it."""
    return speaking(which, url, office, folder, says="in the middle\n", script=Path(__file__), stderr=2)


async def run_computer(url: str, office: str, folder: Path) -> None:
    computer, state = computer_in(folder, office), folder / "state"
    tell = partial(print, flush=True)
    await computer.run(url, office=office, state_folder=state, reconnect=SOON, on_connection=tell)


async def run_agent(which: str, url: str, office: str, folder: Path) -> None:
    def report(done: float, total: float, message: object) -> None:
        if done < total:
            print("in the middle", flush=True)

    agent = AsyncSMCPAgentClient("planner", url=url, office=office)
    await until_it_goes(agent.connect)  # the Server keeps the seat of an agent that was killed for a few seconds
    if which == "put":
        await agent.put_bytes("laptop", binary(SIZE), on_progress=report)
    else:
        handle = await offered(agent)
        await agent.save_blob("laptop", handle, folder / "fetched" / "file", on_progress=report)
    await agent.disconnect()


if __name__ == "__main__":
    role, url, office, folder = sys.argv[1:]
    if role == "computer":
        asyncio.run(run_computer(url, office, Path(folder)))
    else:
        asyncio.run(run_agent(role, url, office, Path(folder)))
