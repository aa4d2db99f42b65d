"""Several windows of MCP clients on one machine, each with a stdio bridge of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

from tests.stage.bridge import BridgedOffice, Heard
from tests.waiting import until


async def connected(office: BridgedOffice, client: str, *words: str) -> StdioServerParameters:
    """What `a2c-smcp connect` writes for this client, as the client starts it."""
    home = office.place.folder / f"home of {client}"
    home.mkdir(exist_ok=True)
    options = ("--url", office.url, "--write", "--json", *words)
    done = await office.place.run("connect", client, *options, HOME=str(home), COLUMNS="200")
    assert done.code == 0, done.err
    entry = _servers(Path(json.loads(done.out)["file"]))["a2c-desk"]
    assert entry["type"] == "stdio"
    return StdioServerParameters(command=entry["command"], args=entry["args"], env=office.place.environ)


def _servers(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text("utf-8"))["mcpServers"]
    return found


def holder_files(office: BridgedOffice) -> list[Path]:
    return [*(office.place.state / "a2c-smcp" / "bridge").glob("*.holder")]


def holders(office: BridgedOffice) -> list[dict[str, Any]]:
    """The bridges that hold an office for others: their process and socket."""
    texts = [file.read_text("utf-8") for file in holder_files(office)]
    return [json.loads(text) for text in texts if text]


def is_open(held: dict[str, Any]) -> bool:
    return Path(held["socket"]).is_socket()


def is_left(held: dict[str, Any]) -> bool:
    """True if the folder of its socket is there."""
    return Path(held["socket"]).parent.exists()


async def holder(office: BridgedOffice, *, other_than: int = 0) -> int:
    """The process of the only holder."""
    await until(lambda: [found["pid"] for found in holders(office)] not in ([], [other_than]))
    (found,) = holders(office)
    return int(found["pid"])


class Window:
    """A client in a task of its own, so that windows close in any order."""

    def __init__(
        self, office: BridgedOffice, where: StdioServerParameters, mode: Any, heard: Heard, *, waits: bool = True
    ) -> None:
        self.heard = heard
        self._connect = office.user if waits else office.client
        self._opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._closed = asyncio.Event()
        self._running = asyncio.create_task(self._run(where, mode))

    async def _run(self, where: StdioServerParameters, mode: Any) -> None:
        try:
            async with self._connect(where, mode, self.heard) as client:
                self._opened.set_result(client)
                await self._closed.wait()
        except BaseException as error:
            if not self._opened.done():
                self._opened.set_exception(error)
            raise

    async def opened(self) -> Client:
        return await self._opened

    async def close(self) -> None:
        self._closed.set()
        await self._running


@asynccontextmanager
async def windows(
    office: BridgedOffice, where: StdioServerParameters, mode: Any, *people: str
) -> AsyncIterator[list[Window]]:
    """A window for each, one after the other: the first one holds the office."""
    found: list[Window] = []
    try:
        for person in people:
            found.append(Window(office, where, mode, Heard(person)))
            await found[-1].opened()
        yield found
    finally:
        await asyncio.gather(*(window.close() for window in found))


@asynccontextmanager
async def alone(office: BridgedOffice, where: StdioServerParameters, mode: Any) -> AsyncIterator[Window]:
    """A window that may have no tools."""
    window = Window(office, where, mode, Heard(), waits=False)
    try:
        await window.opened()
        yield window
    finally:
        await window.close()
