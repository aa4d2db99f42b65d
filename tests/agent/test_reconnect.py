"""Connections that are cut and Servers that are killed during calls."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer.computer import Computer
from a2c_smcp.connection import ConnectionLost
from a2c_smcp.errors import CallTimeout, SMCPError, Unavailable
from a2c_smcp.server import Limits, Settings, create_app
from a2c_smcp.server.run import listen, serving
from tests.agent.twins import KINDS, SOON, at_work
from tests.computer.hosted import Relay, hosted
from tests.peer import Peer
from tests.ports import free_port
from tests.program import start_program
from tests.waiting import until

both = pytest.mark.parametrize("kind", KINDS, ids=["async", "blocking"])


class Worker:
    """A computer with a tool that waits until it may go on, and counts how often it ran for whom."""

    def __init__(self) -> None:
        self.computer = Computer("laptop")
        self.runs: Counter[int] = Counter()
        self.go = asyncio.Event()
        self.computer.tool(self.work, auto_apply=True)

    async def work(self, number: int = 0, seconds: float = 0) -> int:
        self.runs[number] += 1
        await (asyncio.sleep(seconds) if seconds else self.go.wait())
        return number


@asynccontextmanager
async def separate_server(port: int) -> AsyncIterator[Any]:
    """A Server in a process of its own, which can be killed."""
    process = await start_program("server", "--port", str(port), stderr=asyncio.subprocess.DEVNULL)
    try:
        assert process.stdout
        async with asyncio.timeout(30):
            await process.stdout.readline()
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@both
@pytest.mark.covers("agent-rejoins")
async def test_a_killed_server_loses_no_call_and_no_tool_runs_twice(kind: Any, office: str, tmp_path: Path) -> None:
    port, worker, total = free_port(), Worker(), 50
    url = f"http://127.0.0.1:{port}"
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(separate_server(port))
        await stack.enter_async_context(hosted(worker.computer, url, office, tmp_path, reconnect=SOON))
        agent = await stack.enter_async_context(at_work(kind, url=url, office=office))
        calls = [
            asyncio.ensure_future(agent.emit_tool_call("laptop", "work", {"number": number, "seconds": 3}))
            for number in range(total)
        ]
        await until(lambda: len(worker.runs) == total)
        first.send_signal(signal.SIGKILL)
        await first.wait()
        await asyncio.sleep(2)  # how long the Server is away
        await stack.enter_async_context(separate_server(port))
        results = await asyncio.gather(*calls)
        assert [result.text for result in results] == [str(number) for number in range(total)]
        assert worker.runs == Counter(range(total))


@both
@pytest.mark.covers("agent-rejoins")
async def test_a_server_that_is_stopped_and_started_again_loses_no_call(kind: Any, office: str, tmp_path: Path) -> None:
    """It lets calls end for a while, refuses new ones meanwhile, and then goes."""
    port, worker, total = free_port(), Worker(), 20
    url = f"http://127.0.0.1:{port}"

    def a_server(drain_timeout: float) -> Any:
        settings = Settings(limits=Limits(drain_timeout=drain_timeout))
        return serving(create_app(settings), listen("127.0.0.1", port))

    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        await first.enter_async_context(a_server(3))
        await stack.enter_async_context(hosted(worker.computer, url, office, tmp_path, reconnect=SOON))
        agent = await stack.enter_async_context(at_work(kind, url=url, office=office))

        def call(number: int) -> asyncio.Future[Any]:
            return asyncio.ensure_future(agent.emit_tool_call("laptop", "work", {"number": number}))

        running = [call(number) for number in range(total)]
        await until(lambda: len(worker.runs) == total)
        stopping = asyncio.create_task(first.aclose())
        await asyncio.sleep(0.1)  # it has begun to refuse
        refused = [call(number) for number in range(total, 2 * total)]
        await stopping
        assert not any(each.done() for each in (*running, *refused))
        await stack.enter_async_context(a_server(0))
        await until(lambda: len(worker.runs) == 2 * total)
        worker.go.set()
        results = await asyncio.gather(*running, *refused)
        assert [result.text for result in results] == [str(number) for number in range(2 * total)]
        assert worker.runs == Counter(range(2 * total))


@both
@pytest.mark.covers("agent-rejoins")
async def test_a_call_survives_lost_connections(kind: Any, shared_hub: Any, office: str, tmp_path: Path) -> None:
    worker, relay = Worker(), Relay(shared_hub.url)
    async with (
        relay.open() as url,
        hosted(worker.computer, shared_hub.url, office, tmp_path),
        at_work(kind, url=url, office=office) as agent,
    ):
        calling = asyncio.ensure_future(agent.emit_tool_call("laptop", "work", {"number": 7}))
        await until(lambda: worker.runs)
        for _ in range(3):
            relay.close()
            await until(lambda: not agent.is_connected)
            relay.reopen()
            await until(lambda: agent.is_connected)
        worker.go.set()
        assert (await calling).text == "7"
        assert worker.runs == {7: 1}
        assert {each["name"] for each in await agent.list_room()} == {"laptop", "planner"}
        assert "work" in agent.registry


@pytest.mark.covers("agent-rejoins", "agent-reacts")
async def test_changes_during_an_outage_are_found_after_it(shared_hub: Any, office: str, tmp_path: Path) -> None:
    worker, relay = Worker(), Relay(shared_hub.url)
    async with relay.open() as url, at_work(AsyncSMCPAgentClient, url=url, office=office) as agent:
        async with hosted(worker.computer, shared_hub.url, office, tmp_path):
            await until(lambda: "work" in agent.registry)
            relay.close()
            await until(lambda: not agent.is_connected)
        other = Computer("tower")
        other.tool(lambda: "there", name="look", auto_apply=True)
        async with hosted(other, shared_hub.url, office, tmp_path):
            relay.reopen()
            await until(lambda: set(agent.registry) == {"look"})


@pytest.mark.covers("agent-rejoins", "agent-cancels")
async def test_a_call_given_up_during_an_outage_is_cancelled_after_it(
    shared_hub: Any, office: str, tmp_path: Path
) -> None:
    worker, relay = Worker(), Relay(shared_hub.url)
    async with (
        relay.open() as url,
        hosted(worker.computer, shared_hub.url, office, tmp_path),
        at_work(AsyncSMCPAgentClient, url=url, office=office) as agent,
    ):
        calling = asyncio.create_task(agent.emit_tool_call("laptop", "work"))
        await until(lambda: worker.runs)
        relay.close()
        await until(lambda: not agent.is_connected)
        calling.cancel()
        await asyncio.wait([calling])
        relay.reopen()
        await until(lambda: worker.computer.history[-1].get("error"))


@pytest.mark.covers("agent-rejoins")
async def test_calls_wait_for_a_connection_and_requests_of_unknown_kinds_are_not_sent_twice(
    shared_hub: Any, office: str, computer: Peer
) -> None:
    relay = Relay(shared_hub.url)
    computer.answers("client:count", lambda _: asyncio.Event().wait())
    computer.answers("client:tool_call", {"content": [{"type": "text", "text": "late"}]})
    async with relay.open() as url, at_work(AsyncSMCPAgentClient, url=url, office=office) as agent:
        asking = asyncio.create_task(agent.request("client:count", "laptop"))
        await computer.was_asked("client:count")
        relay.close()
        with pytest.raises(ConnectionLost):
            await asking
        with pytest.raises(CallTimeout):
            await agent.emit_tool_call("laptop", "work", timeout=0.1)
        calling = asyncio.create_task(agent.emit_tool_call("laptop", "work"))
        relay.reopen()
        assert (await calling).text == "late"
        assert len(await computer.was_asked("client:count")) == 1


@pytest.mark.covers("agent-rejoins", "agent-offices", "agent-handlers")
async def test_an_office_that_was_taken_during_an_outage_is_joined_again_when_it_is_free(
    serve: Any, connect: Any, office: str
) -> None:
    hub = await serve(limits={"resume_grace": 0.1})
    relay, lost = Relay(hub.url), []

    class Handler:
        def on_office_lost(self, office: str, error: SMCPError) -> None:
            lost.append((office, error.code))

    async with relay.open() as url:
        agent_at_work = at_work(AsyncSMCPAgentClient, url=url, office=office, event_handler=Handler())
        async with agent_at_work as agent:
            relay.close()
            await until(lambda: not agent.is_connected)
            usurper = await connect(hub)
            await until_joined(usurper, office)
            relay.reopen()
            await until(lambda: lost)
            await usurper.close()
            await until_seated(agent)
            assert lost == [(office, 403)]


async def until_joined(peer: Peer, office: str) -> None:
    """Waits until the seat is free."""
    request = {"role": "agent", "name": "usurper", "office_id": office}
    async with asyncio.timeout(30):
        while await peer.ask("server:join_office", request) != (True, None):  # noqa: ASYNC110, nothing tells
            await asyncio.sleep(0.02)


async def until_seated(agent: Any) -> None:
    """Waits until the agent sits in its office again."""
    async with asyncio.timeout(30):
        while not await is_seated(agent):  # noqa: ASYNC110, nothing tells
            await asyncio.sleep(0.02)


async def is_seated(agent: Any) -> bool:
    try:
        return "planner" in [each["name"] for each in await agent.list_room()]
    except SMCPError:
        return False


@pytest.mark.covers("agent-rejoins")
async def test_disconnecting_ends_calls_that_wait(shared_hub: Any, office: str, tmp_path: Path) -> None:
    worker = Worker()
    async with hosted(worker.computer, shared_hub.url, office, tmp_path):
        async with at_work(AsyncSMCPAgentClient, url=shared_hub.url, office=office) as agent:
            calling = asyncio.create_task(agent.emit_tool_call("laptop", "work"))
            await until(lambda: worker.runs)
        with pytest.raises(Unavailable):
            await calling
