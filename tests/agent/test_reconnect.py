"""Connections that are cut and Servers that are killed during calls."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from a2c_smcp.computer.computer import Computer
from a2c_smcp.connection import ConnectionLost
from a2c_smcp.errors import CallCancelled, CallTimeout, Unavailable
from a2c_smcp.server import Limits, Settings, create_app
from a2c_smcp.server.run import listen, serving
from tests.peer import Peer
from tests.ports import free_port
from tests.stage.agent import SOON, Line, Twin
from tests.stage.worker import MortalServer, Worker
from tests.waiting import until, until_it_goes

pytestmark = pytest.mark.covers("agent-rejoins")


async def test_a_killed_server_loses_no_call_and_no_tool_runs_twice(
    kind: Any, planning: Any, hosts: Any, mortal: MortalServer
) -> None:
    worker, total = Worker(), 50
    async with hosts(worker.computer, mortal.url, reconnect=SOON), planning(kind, url=mortal.url) as agent:
        calls = [
            asyncio.ensure_future(agent.emit_tool_call("laptop", "work", {"number": number, "seconds": 3}))
            for number in range(total)
        ]
        await until(lambda: len(worker.runs) == total)
        await mortal.kill()
        await asyncio.sleep(2)  # how long the Server is away
        await mortal.start()
        results = await asyncio.gather(*calls)
        assert [result.text for result in results] == [str(number) for number in range(total)]
        assert worker.runs == Counter(range(total))


async def test_a_server_that_is_stopped_and_started_again_loses_no_call(kind: Any, planning: Any, hosts: Any) -> None:
    """It lets calls end for a while, refuses new ones meanwhile, and then goes."""
    port, worker, total = free_port(), Worker(), 20
    url = f"http://127.0.0.1:{port}"

    def a_server(drain_timeout: float) -> Any:
        settings = Settings(limits=Limits(drain_timeout=drain_timeout))
        return serving(create_app(settings), listen("127.0.0.1", port))

    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        await first.enter_async_context(a_server(3))
        await stack.enter_async_context(hosts(worker.computer, url, reconnect=SOON))
        agent = await stack.enter_async_context(planning(kind, url=url))

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


async def test_a_call_survives_lost_connections(kind: Any, relay: Line, hosts: Any, planning: Any) -> None:
    worker = Worker()
    async with hosts(worker.computer), planning(kind, url=relay.url) as agent:
        calling = asyncio.ensure_future(agent.emit_tool_call("laptop", "work", {"number": 7}))
        await until(lambda: worker.runs)
        for _ in range(3):
            await relay.lose(agent)
            relay.reopen()
            await until(lambda: agent.is_connected)
        worker.go.set()
        assert (await calling).text == "7"
        assert worker.runs == {7: 1}
        assert {each["name"] for each in await agent.list_room()} == {"laptop", "planner"}
        assert "work" in agent.registry


@pytest.mark.covers("agent-reacts")
async def test_changes_during_an_outage_are_found_after_it(far_planner: Twin, relay: Line, hosts: Any) -> None:
    worker = Worker()
    async with hosts(worker.computer):
        await until(lambda: "work" in far_planner.registry)
        await relay.lose(far_planner)
    other = Computer("tower")
    other.tool(lambda: "there", name="look", auto_apply=True)
    async with hosts(other):
        relay.reopen()
        await until(lambda: set(far_planner.registry) == {"look"})


@pytest.mark.covers("agent-cancels")
async def test_a_call_given_up_during_an_outage_is_cancelled_after_it(relay: Line, hosts: Any, planning: Any) -> None:
    worker = Worker()
    async with hosts(worker.computer), planning(url=relay.url) as agent:
        calling = asyncio.create_task(agent.emit_tool_call("laptop", "work"))
        await until(lambda: worker.runs)
        await relay.lose(agent)
        calling.cancel()
        await asyncio.wait([calling])
        relay.reopen()
        await until(lambda: worker.computer.history[-1].get("error"))


async def test_calls_wait_for_a_connection_and_requests_of_unknown_kinds_are_not_sent_twice(
    computer: Peer, far_planner: Twin, relay: Line
) -> None:
    computer.answers("client:count", lambda _: asyncio.Event().wait())
    computer.answers("client:tool_call", {"content": [{"type": "text", "text": "late"}]})
    asking = asyncio.create_task(far_planner.request("client:count", "laptop"))
    await computer.was_asked("client:count")
    relay.close()
    with pytest.raises(ConnectionLost):
        await asking
    with pytest.raises(CallTimeout):
        await far_planner.emit_tool_call("laptop", "work", timeout=0.1)
    calling = asyncio.create_task(far_planner.emit_tool_call("laptop", "work"))
    relay.reopen()
    assert (await calling).text == "late"
    assert len(await computer.was_asked("client:count")) == 1


@pytest.mark.covers("agent-offices", "agent-handlers")
async def test_an_office_that_was_taken_during_an_outage_is_joined_again_when_it_is_free(
    planning: Any, serve: Any, connect: Any, office: str
) -> None:
    hub = await serve(limits={"resume_grace": 0.1})
    lost: list[Any] = []
    handler = SimpleNamespace(on_office_lost=lambda office, error: lost.append((office, error.code)))
    async with Line.opened(hub.url) as relay, planning(url=relay.url, event_handler=handler) as agent:
        await relay.lose(agent)
        usurper: Peer = await connect(hub)
        await until_it_goes(lambda: usurper.join("agent", "usurper", office))
        relay.reopen()
        await until(lambda: lost)
        await usurper.close()
        members = await until_it_goes(agent.list_room)
        assert "planner" in [each["name"] for each in members]
        assert lost == [(office, 403)]


async def test_disconnecting_ends_calls_that_wait(hosts: Any, planning: Any) -> None:
    worker = Worker()
    async with hosts(worker.computer):
        async with planning() as agent:
            calling = asyncio.create_task(agent.emit_tool_call("laptop", "work"))
            await until(lambda: worker.runs)
        with pytest.raises((Unavailable, CallCancelled)):
            await calling
