"""An office whose computer has a bit of everything, and the bridge to it as MCP clients reach it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from a2c_smcp.computer import Computer
from a2c_smcp.registry import AsyncToolContext
from tests.computer.hosted import hosted, ready
from tests.program import PROGRAM, start_program
from tests.stage.guides import example_server
from tests.stage.signing_in import send

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache"
PATIENCE = 120.0
KEY = "a bearer key of this test".replace(" ", "-")


class BridgedOffice(NamedTuple):
    """The URL of the Server, the office, and an event that is set when the tool `wait` was cancelled."""

    url: str
    office: str
    cancelled: asyncio.Event
    folder: Path

    @property
    def command(self) -> list[str]:
        """What a client starts to speak with the bridge on stdin and stdout."""
        return [str(PROGRAM), "bridge", "--stdio", "--url", self.url, "--office", self.office]


@asynccontextmanager
async def bridged_office(url: str, office: str, folder: Path, **connection: Any) -> AsyncIterator[BridgedOffice]:
    computer, cancelled = Computer("laptop", approve=lambda request: True), asyncio.Event()
    for name in ("restaurant", "library"):
        computer.add_server({"name": name, "type": "stdio", "server_parameters": example_server(name)})

    @computer.tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @computer.tool
    async def wait(context: AsyncToolContext) -> None:
        """Wait until the call is cancelled."""
        try:
            await context.progress(1)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with hosted(computer, url, office, folder, **connection):
        await ready(computer, "restaurant", "library")
        yield BridgedOffice(url, office, cancelled, folder)


@asynccontextmanager
async def over_http(place: BridgedOffice) -> AsyncIterator[str]:
    """The URL of a bridge that listens. Clients need `KEY`."""
    words = ("bridge", "--port", "0", "--url", place.url, "--office", place.office, "--bearer-key", KEY)
    async with listening(*words, folder=place.folder) as url:
        yield url


@asynccontextmanager
async def listening(*words: str, folder: Path) -> AsyncIterator[str]:
    """Run a command that says where it listens. Yields the URL."""
    process = await start_program(*words, env=surroundings(folder))
    try:
        assert process.stdout
        async with asyncio.timeout(PATIENCE):
            said = (await process.stdout.readline()).decode()
        assert said.startswith("listening on "), said
        yield said.removeprefix("listening on ").strip()
    finally:
        process.terminate()
        async with asyncio.timeout(PATIENCE):
            await process.wait()


def surroundings(folder: Path) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("A2C_", "XDG_"))}
    return {**ours, "HOME": str(folder), "XDG_STATE_HOME": str(folder), "NO_COLOR": "1"}


def target(place: BridgedOffice, url: str | None) -> dict[str, Any]:
    """What the programs of clients connect to."""
    if url:
        return {"url": url, "headers": {"Authorization": f"Bearer {KEY}"}}
    command, *words = place.command
    return {"command": command, "args": words}


async def printed(command: Sequence[str | Path], environ: dict[str, str]) -> str:
    """What a client prints on stdout."""
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=environ, stdin=-3, stdout=-1, stderr=-1)
    try:
        async with asyncio.timeout(PATIENCE):
            out, err = (part.decode() for part in await process.communicate())
    except TimeoutError:
        process.kill()
        out, err = (part.decode() for part in await process.communicate())
        raise AssertionError(f"{command} is still running: {out}{err}") from None
    assert process.returncode == 0, out + err
    return out


async def run(place: BridgedOffice, command: Sequence[str | Path]) -> str:
    return await printed(command, surroundings(place.folder))


async def found_by(place: BridgedOffice, command: Sequence[str | Path]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await run(place, command))
    return found


@pytest.fixture
async def signing_in(tmp_path: Path) -> AsyncIterator[str]:
    """The URL of a Server at which clients sign in, with a computer in the office desk."""
    computer, joined = Computer("laptop"), asyncio.Event()

    @computer.tool(auto_apply=True)
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    words = (
        "server",
        "--mcp",
        "--sign-in",
        "--no-client-documents",
        "--port",
        "0",
        "--api-key",
        KEY,
    )  # no web in tests
    async with listening(*words, folder=tmp_path) as url:
        on_connection = lambda what: joined.set() if what.startswith("joined") else None  # noqa: E731
        options: dict[str, Any] = {"api_key": KEY, "state_folder": tmp_path, "on_connection": on_connection}
        running = asyncio.create_task(computer.run(url, office="desk", **options))
        await asyncio.wait_for(joined.wait(), PATIENCE)
        yield url
        running.cancel()
        await asyncio.wait([running])


async def visit(address: str) -> None:
    """As a browser does, which may be faster than a client that opens its port after the page."""
    try:
        await send("GET", address)
    except aiohttp.ClientConnectorError as error:
        raise AssertionError(address) from error
