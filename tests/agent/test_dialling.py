"""Dialling a Server that is away, silent or ends during the dial; how soon clients reconnect."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer.computer import Computer
from a2c_smcp.connection import Connection
from a2c_smcp.endpoint import Endpoint, Reconnect
from a2c_smcp.errors import Unavailable
from tests.computer.hosted import joins
from tests.stage.proxies import Proxy, Silent
from tests.stage.worker import MortalServer
from tests.waiting import until

Record = Callable[[str, object], None]
APART = 5.0
BACK = 10.0
EACH = 2  # a dial tries a websocket, and polling when that hangs
STEP = 97  # bytes, a prime: the cuts fall into heads and bodies alike


def test_attempts_are_never_more_than_five_seconds_apart_however_many_have_failed() -> None:
    pauses = [Reconnect().delay(attempt) for attempt in range(5000)]
    assert max(pauses) <= APART
    assert len({round(pause, 6) for pause in pauses[100:]}) > 1000, "those who were lost together do not meet again"
    assert Reconnect().pause(0, spent=60) == 0, "a connection that has lasted is dialled again at once"
    assert Reconnect().pause(5000, spent=APART) == 0, "what a dial has cost is no longer waited for"


@pytest.mark.covers("back-soon")
async def test_after_an_outage_of_ten_seconds_all_clients_are_back_within_ten(
    hosts: Any, mortal: MortalServer, record_testsuite_property: Record
) -> None:
    many = 50
    agents = [AsyncSMCPAgentClient(f"agent-{number}", url=mortal.url) for number in range(many)]
    async with AsyncExitStack() as stack:
        for agent in agents:
            await stack.enter_async_context(agent)
        said = await stack.enter_async_context(hosts(Computer("laptop"), mortal.url))
        await mortal.kill()
        await until(lambda: not any(agent.is_connected for agent in agents))
        await asyncio.sleep(10)  # how long the Server is away
        await mortal.start()
        begun, took = time.monotonic(), []

        async def back(agent: AsyncSMCPAgentClient) -> None:
            await until(lambda: agent.is_connected)
            took.append(time.monotonic() - begun)

        await asyncio.gather(*map(back, agents), until(lambda: joins(said) == 2, BACK))
        took.sort()
        for what, seconds in (("median", took[many // 2]), ("95 %", took[int(many * 0.95)]), ("last", took[-1])):
            record_testsuite_property(f"back after an outage, seconds: {what}", round(seconds, 2))
        assert took[-1] <= BACK


@pytest.mark.covers("back-soon")
async def test_a_server_that_accepts_and_never_answers_is_dialled_again(tmp_path: Path) -> None:
    said: list[str] = []
    async with Silent() as server:
        running = Computer("laptop").run(server.url, office="desk", state_folder=tmp_path, on_connection=said.append)
        serving = asyncio.create_task(running)
        with pytest.raises(Unavailable, match=f"{server.url} cannot be reached, timed out$"):
            await asyncio.wait_for(AsyncSMCPAgentClient("planner", url=server.url).connect(), APART + 2)
        await until(lambda: server.dials > 2 * EACH, APART)
        serving.cancel()
    assert said == [f"not connected: 503 Server unavailable: {server.url} cannot be reached, timed out; trying again"]


class Ration(Proxy):
    """So many bytes from the Server get through, then it ends or goes silent."""

    def __init__(self, url: str, size: int, *, hangs_up: bool) -> None:
        super().__init__(url)
        self.left = size
        self._hangs_up = hangs_up
        self.is_used_up = asyncio.Event()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await self.dial()
        told = asyncio.create_task(self._tell(reader, back))
        try:
            while self.left and (data := await there.read(65536)):
                passed, self.left = data[: self.left], max(0, self.left - len(data))
                writer.write(passed)
                await writer.drain()
            if not self.left:
                self.is_used_up.set()
                await (self._cut() if self._hangs_up else asyncio.Event().wait())
        except OSError:
            pass
        finally:
            told.cancel()
            for each in (writer, back):
                each.transport.abort()

    @staticmethod
    async def _tell(reader: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                back.write(data)
                await back.drain()

    async def _cut(self) -> None:
        """End the other connections as well."""
        for task in self._tasks.keys() - {asyncio.current_task()}:
            task.cancel()


@pytest.fixture
async def complaints() -> list[str]:
    """What asyncio logs about things that were not closed."""
    found: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: found.append(context["message"]))
    return found


async def bytes_of_a_dial(url: str) -> int:
    """How much a Server says until a connection is open."""
    plenty = 10**6
    async with Ration(url, plenty, hangs_up=True) as ration, Connection(Endpoint(url=ration.url), lambda *_: None):
        return plenty - ration.left


@pytest.mark.covers("back-soon")
@pytest.mark.parametrize("hangs_up", [True, False], ids=["hangs up", "goes silent"])
async def test_a_dial_that_ends_at_any_byte_ends_at_once_and_leaves_nothing_open(
    shared_hub: Any, complaints: list[str], hangs_up: bool
) -> None:
    """A Server that goes silent is given up by the client."""
    tasks, total = asyncio.all_tasks(), await bytes_of_a_dial(shared_hub.url)
    for size in range(1, total, STEP):
        async with Ration(shared_hub.url, size, hangs_up=hangs_up) as ration:
            dial = asyncio.create_task(dialled(ration.url))
            await asyncio.wait_for(ration.is_used_up.wait(), 20)
            if not hangs_up:
                await asyncio.sleep(0)
                dial.cancel()
            with suppress(asyncio.CancelledError, Unavailable):
                await asyncio.wait_for(dial, 3)
    await until(lambda: asyncio.all_tasks() <= tasks)
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []


async def dialled(url: str) -> None:
    async with Connection(Endpoint(url=url), lambda *_: None) as connection:
        await connection.lost.wait()


@pytest.mark.covers("back-soon")
async def test_a_connection_whose_server_went_silent_leaves_nothing_open(serve: Any, complaints: list[str]) -> None:
    hub = await serve(limits={"ping_interval": 0.2, "ping_timeout": 0.2})
    async with Ration(hub.url, await bytes_of_a_dial(hub.url), hangs_up=False) as ration:
        await asyncio.wait_for(dialled(ration.url), 5)
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []


async def test_a_client_adds_no_handler_to_a_logger_and_writes_nothing_to_the_terminal(shared_hub: Any) -> None:
    program = f"""
import asyncio, logging
from a2c_smcp.agent import AsyncSMCPAgentClient
async def main():
    async with AsyncSMCPAgentClient("quiet", url={shared_hub.url!r}):
        named = [logging.getLogger(name) for name in logging.root.manager.loggerDict]
        print([(each.name, each.handlers) for each in named if each.handlers])
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 20)
    assert (out.decode().strip(), err.decode()) == ("[]", "")
