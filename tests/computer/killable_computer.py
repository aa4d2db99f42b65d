"""A computer in a process of its own, which tests can kill. Each run of its tool adds a line to a file."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from a2c_smcp.computer.computer import Computer
from tests.program import Running
from tests.stage.worker import speaking

__all__ = ["killable_computer", "notes_in"]


def notes_in(folder: Path) -> list[str]:
    """A line for each time that the tool `note` ran."""
    file = folder / "notes"
    return file.read_text().split() if file.exists() else []


def killable_computer(url: str, office: str, folder: Path) -> AbstractAsyncContextManager[Running]:
    """A computer called `laptop`, joined. Its tool is `note(text, ends)`; without `ends` it waits for ever."""
    return speaking(url, office, folder, says=f"joined {office}\n", script=Path(__file__), stderr=2)


async def main(url: str, office: str, folder: Path) -> None:
    computer = Computer("laptop")

    @computer.tool(auto_apply=True)
    async def note(text: str, ends: bool) -> str:
        with (folder / "notes").open("a") as notes:
            notes.write(f"{text}\n")
        if not ends:
            await asyncio.Event().wait()
        return text

    await computer.run(url, office=office, state_folder=folder, on_connection=lambda what: print(what, flush=True))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3], Path(sys.argv[3])))
