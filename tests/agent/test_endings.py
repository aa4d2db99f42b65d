"""Connects, joins, leaves and disconnects that are interrupted, repeated, or made without a connection."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient, Credentials, SMCPAgentClient
from a2c_smcp.errors import BadRequest, CallCancelled, CallTimeout, NotAuthenticated, Unavailable
from a2c_smcp.server import DefaultAuthenticationProvider
from tests.peer import Peer
from tests.stage.agent import SOON, Line, Twin
from tests.stage.proxies import Silent
from tests.stage.raising import raises
from tests.stage.worker import Worker
from tests.waiting import until, until_it_goes

PATIENCE = 60


class Provider:
    """Shows a key, or fails as it is told to."""

    def __init__(self, key: str = "") -> None:
        self.key, self.failure = key, None
        self.asked = 0

    def credentials(self) -> Credentials:
        self.asked += 1
        if self.failure:
            raise self.failure
        return Credentials.of_key(self.key)


@pytest.mark.covers("agent-asks")
async def test_an_exception_of_a_credentials_provider_is_raised_by_connect(kind: Any, planning: Any) -> None:
    provider = Provider()
    provider.failure = LookupError("the vault is closed")
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(LookupError, match="vault"):
            await planning(kind, auth=provider).__aenter__()


@pytest.mark.covers("agent-rejoins")
async def test_a_credentials_provider_that_raises_on_a_reconnect_is_called_again(relay: Line, planning: Any) -> None:
    provider = Provider()
    async with planning(url=relay.url, auth=provider) as agent:
        provider.failure = LookupError("the vault is closed")
        relay.cut()
        await until(lambda: provider.asked > 2)
        provider.failure = None
        await until(lambda: agent.is_connected)


@pytest.mark.covers("agent-offices")
async def test_disconnecting_while_connecting_ends_the_connect(office: str) -> None:
    async with asyncio.timeout(PATIENCE), Silent() as server:
        agent = AsyncSMCPAgentClient("planner", url=server.url, office=office)
        connecting = asyncio.create_task(agent.connect())
        await until(lambda: server.dials)
        await agent.disconnect()
        with pytest.raises(Unavailable):
            await connecting


@pytest.mark.covers("agent-rejoins", "agent-handlers", "agent-desktop")
async def test_an_agent_that_is_refused_for_good_forgets_its_computers_and_can_connect_again(
    kind: Any, planning: Any, serve: Any, connect: Any, office: str
) -> None:
    hub = await serve(auth=DefaultAuthenticationProvider("the right key"))
    provider, refused = Provider("the right key"), list[Exception]()
    computer: Peer = await connect(hub, auth={"token": "the right key"})
    answer_like_a_computer(computer)
    await computer.join("computer", "laptop", office)

    handler = SimpleNamespace(on_refused=refused.append)
    async with (
        Line.opened(hub.url) as relay,
        planning(kind, url=relay.url, auth=provider, event_handler=handler) as agent,
    ):
        frames = agent.watch_desktop("laptop")
        assert await anext(frames) == ["window://a.b/c"]
        assert set(agent.registry) == {"add"}
        provider.key = "a revoked key"
        relay.cut()
        await until(lambda: refused)
        assert (len(agent.registry), agent.computers) == (0, [])
        assert await anext(frames, "the end") == "the end"
        with pytest.raises(NotAuthenticated):
            await agent.get_tools("laptop")
        provider.key = "the right key"
        await agent.connect()
        assert set(agent.registry) == {"add"}


def answer_like_a_computer(computer: Peer) -> None:
    tool = {"name": "add", "description": "", "params_schema": {}, "return_schema": None}
    computer.answers("client:get_tools", {"tools": [tool], "req_id": "x"})
    computer.answers("client:get_desktop", {"desktops": ["window://a.b/c"], "req_id": "x"})
    computer.answers("client:tool_call", {"content": [{"type": "text", "text": "done"}]})


@pytest.mark.covers("agent-handlers", "agent-asks")
async def test_an_agent_that_connects_again_gets_events_and_calls_as_before(
    kind: Any, planning: Any, computer: Peer
) -> None:
    """Event loops differ from one connection to the next."""
    heard: list[str] = []
    answer_like_a_computer(computer)

    handler = SimpleNamespace(on_tools_received=lambda computer, tools, office: heard.append(computer))
    async with planning(kind, event_handler=handler) as agent:
        for _ in range(2):
            await agent.connect()
            await agent.connect()
            await until(lambda: heard)
            await asyncio.gather(*(agent.emit_tool_call("laptop", "add") for _ in range(300)))
            await agent.disconnect()
            await agent.disconnect()
            heard.clear()


@pytest.mark.covers("agent-handlers", "agent-offices")
async def test_a_handler_may_disconnect(kind: Any, planning: Any, office: str, computer: Peer) -> None:
    answer_like_a_computer(computer)
    done: list[str] = []

    async def leave(data: Any) -> None:
        await agent.client.disconnect()
        done.append("disconnected")

    def leave_and_wait(data: Any) -> None:
        agent.client.disconnect()
        done.append("disconnected")

    handler = leave if kind is AsyncSMCPAgentClient else leave_and_wait
    async with planning(kind, office=[], event_handler=SimpleNamespace(on_computer_enter_office=handler)) as agent:
        joining = asyncio.ensure_future(agent.join_office(office))
        await until(lambda: done)
        await asyncio.wait([joining], timeout=PATIENCE)
        assert not agent.is_connected


@pytest.mark.covers("agent-offices", "agent-rejoins")
async def test_an_office_left_without_a_connection_is_free_after_the_reconnect(
    relay: Line, planning: Any, office: str, connect: Any
) -> None:
    offices = [office, f"{office}-2"]
    async with planning(url=relay.url, office=offices) as agent:
        await relay.lose(agent)
        await agent.leave_office(office)
        relay.reopen()
        await until(lambda: agent.is_connected)
        assert agent.offices == offices[1:]
        await assert_free(office, connect)


@pytest.mark.covers("agent-offices")
async def test_a_join_that_was_given_up_leaves_no_seat_behind(planning: Any, office: str, connect: Any) -> None:
    async with planning(office=f"{office}-2") as agent:
        joining = asyncio.create_task(agent.join_office(office))
        await asyncio.sleep(0)
        joining.cancel()
        await asyncio.wait([joining])
        assert agent.offices == [f"{office}-2"]
        await assert_free(office, connect)


async def assert_free(office: str, connect: Any) -> None:
    """The office has no agent, or soon has none: in less than the time for which a lost connection's seats are kept."""
    another: Peer = await connect()
    await until_it_goes(lambda: another.join("agent", "another", office), seconds=4)


@pytest.mark.covers("agent-reacts", "agent-offices")
async def test_a_computer_that_enters_an_office_being_left_is_ignored(planning: Any, office: str, connect: Any) -> None:
    peers = [await connect() for _ in range(10)]
    for peer in peers:
        answer_like_a_computer(peer)
    async with planning(office=[office, f"{office}-2"]) as agent:
        entering = [asyncio.create_task(peer.join("computer", f"c{n}", office)) for n, peer in enumerate(peers)]
        await agent.leave_office(office)
        await asyncio.gather(*entering)
        await agent.list_room()
        assert agent.computers == []


@pytest.mark.covers("agent-cancels", "agent-rejoins")
async def test_without_a_connection_a_call_is_cancelled_at_once(
    kind: Any, relay: Line, hosts: Any, planning: Any
) -> None:
    worker = Worker()
    async with hosts(worker.computer), planning(kind, url=relay.url) as agent:
        calling = asyncio.ensure_future(agent.emit_tool_call("laptop", "work", req_id="slow"))
        await until(lambda: worker.runs)
        await relay.lose(agent)
        await agent.cancel("slow")
        with raises(CallCancelled, details={"outcome": "unknown"}):
            await calling
        relay.reopen()
        await until(lambda: worker.computer.history[-1].get("error"))


@pytest.mark.covers("agent-cancels")
async def test_a_call_that_waits_for_others_can_be_cancelled_and_times_out(
    kind: Any, planning: Any, computer: Peer
) -> None:
    answer_like_a_computer(computer)
    computer.answers("client:tool_call", lambda _: asyncio.Event().wait())
    async with planning(kind) as agent:
        others = [asyncio.ensure_future(agent.emit_tool_call("laptop", "add")) for _ in range(256)]
        await computer.was_asked("client:tool_call", 256)
        in_line = asyncio.ensure_future(agent.emit_tool_call("laptop", "add", req_id="in-line"))
        with pytest.raises(CallTimeout, match="256 other calls"):
            await agent.emit_tool_call("laptop", "add", timeout=1)
        await agent.cancel("in-line")
        with pytest.raises(CallCancelled):
            await in_line
        assert len(await computer.was_asked("client:tool_call")) == 256
    await asyncio.gather(*others, return_exceptions=True)


@pytest.mark.covers("agent-rejoins")
async def test_a_request_of_an_unknown_kind_that_waited_for_a_connection_is_not_sent_twice(
    computer: Peer, far_planner: Twin, relay: Line
) -> None:
    computer.answers("client:count", lambda _: asyncio.Event().wait())
    await relay.lose(far_planner)
    asking = asyncio.create_task(far_planner.request("client:count", "laptop"))
    relay.reopen()
    await computer.was_asked("client:count")
    await until(lambda: relay.cut() or asking.done())  # polling survives a cut that falls between two polls
    with pytest.raises(Unavailable):
        await asking
    await until(lambda: far_planner.is_connected)
    assert len(await computer.was_asked("client:count")) == 1


@pytest.mark.covers("agent-asks")
@pytest.mark.parametrize("option", ["timeout", "expires"])
async def test_a_timeout_of_zero_is_refused(agent: Twin, option: str) -> None:
    with pytest.raises(BadRequest, match="timeout"):
        await agent.emit_tool_call("laptop", "add", **{option: 0})


@pytest.mark.covers("agent-offices")
async def test_a_cancelled_disconnect_leaves_nothing_behind(shared_hub: Any, office: str, computer: Peer) -> None:
    answer_like_a_computer(computer)
    before = asyncio.all_tasks()
    agent = AsyncSMCPAgentClient("planner", url=shared_hub.url, office=office, reconnect=SOON)
    await agent.connect()
    leaving = asyncio.create_task(agent.disconnect())
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait([leaving])
    assert not agent.is_connected
    await until(lambda: not {task for task in asyncio.all_tasks() - before if "a2c_smcp" in str(task.get_coro())})


def call_in_a_child(agent: SMCPAgentClient) -> str:
    """What a forked process is told, by way of a pipe."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            agent.emit_tool_call("laptop", "add")
        except Unavailable as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        return told.read()


@pytest.mark.covers("agent-twins")
async def test_a_forked_process_must_connect_for_itself(planning: Any, computer: Peer) -> None:
    answer_like_a_computer(computer)
    async with planning(SMCPAgentClient) as agent:
        async with asyncio.timeout(PATIENCE):
            assert "connect()" in await asyncio.to_thread(call_in_a_child, agent.client)
        assert (await agent.emit_tool_call("laptop", "add")).text == "done"
