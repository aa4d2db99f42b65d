"""The echo application on a real socket, in our web server and in another one, and clients that write by hand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from a2c_smcp.server.run import address_of, listen
from tests.engine.by_hand import PATIENCE, Visitor
from tests.engine.echo import MAX_PAYLOAD, PATHS, Echo, application, serving
from tests.web_server import by_uvicorn

Visits = Callable[..., Awaitable[Visitor]]
QUIET = 60.0
"""A ping interval that no test sees the end of: what is not about pings is not disturbed by them."""


class Stage:
    """An ASGI application that becomes another one for each test: uvicorn takes its time to start and to end."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.app: Echo = application("engine.io")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """In a thread of its own."""
    door = listen("127.0.0.1", 0)
    stage = Stage(f"http://{address_of(door)}")
    ready: Future[Callable[[], None]] = Future()

    async def run() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        async with by_uvicorn(stage, door, waits_for_clients=False, ws="websockets-sansio", ws_max_size=MAX_PAYLOAD):
            ready.set_result(lambda: loop.call_soon_threadsafe(stop.set))
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    stop = ready.result(timeout=60)
    yield stage
    stop()
    thread.join(15)


@pytest.fixture(params=["program", "mounted"])
async def visits(request: pytest.FixtureRequest, stage: Stage) -> AsyncIterator[Visits]:
    """Starts an echo application: `await visits("engine.io")`, `await visits("socket.io", ping_interval=0.1)`."""
    timeout = aiohttp.ClientTimeout(PATIENCE)
    async with AsyncExitStack() as stack, aiohttp.ClientSession(timeout=timeout) as http:

        async def start(name: str, **options: float) -> Visitor:
            echo = application(name, **{"ping_interval": QUIET, "ping_timeout": QUIET, **options})
            if request.param == "mounted":
                stage.app = echo
                return Visitor(http, stage.url, PATHS[name])
            door = listen("127.0.0.1", 0)
            await stack.enter_async_context(serving(echo, door))
            return Visitor(http, f"http://{address_of(door)}", PATHS[name])

        yield start
