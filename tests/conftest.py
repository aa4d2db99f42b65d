"""A real Server and raw Socket.IO clients that play agents and computers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, contextmanager
from typing import Any
from uuid import uuid4

import pytest

from a2c_smcp.server import Limits, Settings, SMCPApp, create_app
from a2c_smcp.server.run import address_of, listen, serving
from tests.peer import Peer, Wire

TRANSPORTS = {"websocket": ["websocket"], "polling": ["polling"], "upgrade": ["polling", "websocket"]}


class Hub:
    """A Server that is running somewhere."""

    def __init__(self, app: SMCPApp, address: str) -> None:
        self.app = app
        self.url = f"http://{address}"


@pytest.fixture(scope="session")
def fast_lane() -> bool:
    """Whether Servers relay requests as text."""
    return True


@pytest.fixture(scope="session")
def shared_hub(fast_lane: bool) -> Iterator[Hub]:
    """One Server with default settings for all tests that need no other."""
    with running(fast_lane=fast_lane) as hub:
        yield hub


@contextmanager
def running(**settings: Any) -> Iterator[Hub]:
    """A Server in a thread of its own."""
    app, listener = create_app(Settings(**settings)), listen("127.0.0.1", 0)
    hub = Hub(app, address_of(listener))
    ready: Future[Callable[[], None]] = Future()

    async def run() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        async with serving(app, listener):
            ready.set_result(lambda: loop.call_soon_threadsafe(stop.set))
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    stop = ready.result(timeout=10)
    try:
        yield hub
    finally:
        stop()
        thread.join(15)


@pytest.fixture
async def serve(fast_lane: bool) -> AsyncIterator[Callable[..., Any]]:
    """Starts a Server with settings of its own: `await serve(require_version="0.4", limits={"resume_grace": 0.2})`."""
    async with AsyncExitStack() as stack:

        async def start(*, limits: dict[str, Any] | None = None, **settings: Any) -> Hub:
            app = create_app(Settings(limits=Limits(**(limits or {})), **{"fast_lane": fast_lane, **settings}))
            listener = listen("127.0.0.1", 0)
            await stack.enter_async_context(serving(app, listener))
            return Hub(app, address_of(listener))

        yield start


@pytest.fixture
async def connect(shared_hub: Hub) -> AsyncIterator[Callable[..., Any]]:
    """Connects a client: `await connect()` to the shared Server, `await connect(hub, auth=…)` to another."""
    async with AsyncExitStack() as stack:

        async def start(hub: Hub | None = None, transport: str = "websocket", **options: Any) -> Peer:
            peer = await Peer.connect((hub or shared_hub).url, transports=TRANSPORTS[transport], **options)
            stack.push_async_callback(peer.close)
            return peer

        yield start


@pytest.fixture
async def connect_wire(shared_hub: Hub) -> AsyncIterator[Callable[..., Any]]:
    """Connects a websocket whose frames the test writes by hand."""
    async with AsyncExitStack() as stack:

        async def start(hub: Hub | None = None, **options: Any) -> Wire:
            wire = await Wire.connect((hub or shared_hub).url, **options)
            stack.push_async_callback(wire.close)
            return wire

        yield start


@pytest.fixture
def office() -> str:
    """An office that no other test knows."""
    return f"office-{uuid4().hex[:12]}"


@pytest.fixture
async def agent(connect: Callable[..., Any], office: str) -> Peer:
    """An agent called `planner`, in the test's office."""
    peer: Peer = await connect()
    await peer.join("agent", "planner", office)
    return peer


@pytest.fixture
async def computer(connect: Callable[..., Any], office: str) -> Peer:
    """A computer called `laptop`, in the test's office."""
    peer: Peer = await connect()
    await peer.join("computer", "laptop", office)
    return peer
