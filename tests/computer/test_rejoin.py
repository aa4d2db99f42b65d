"""The Computer's connection: lost, found again, and left without a trace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.socketio.client import Reconnect
from a2c_smcp.errors import VersionMismatch
from a2c_smcp.server import Limits, Settings, create_app
from a2c_smcp.server.run import address_of, listen, serving
from tests.computer.hosted import Relay, children, hosted, joins
from tests.computer.supervised import naughty
from tests.peer import Peer
from tests.waiting import until

SOON = Reconnect(first=0.1, longest=0.2)


class Worker:
    """A computer with a tool that waits, and tells how often it ran."""

    def __init__(self) -> None:
        self.computer = Computer("laptop")
        self.runs = 0
        self.go = asyncio.Event()
        self.computer.tool(self.work, name="work", auto_apply=True)

    async def work(self) -> str:
        self.runs += 1
        await self.go.wait()
        return "done"


@pytest.mark.covers("computer-dedup", "computer-recovers")
async def test_a_call_survives_a_lost_connection_and_runs_once(
    shared_hub: Any, agent: Peer, office: str, tmp_path: Path
) -> None:
    worker, relay = Worker(), Relay(shared_hub.url)
    async with relay.open() as url, hosted(worker.computer, url, office, tmp_path, reconnect=SOON) as said:
        call = asyncio.create_task(agent.call_tool("laptop", "work", timeout=20, req_id="r1"))
        await until(lambda: worker.runs)
        relay.cut()
        await until(lambda: joins(said) == 2)
        worker.go.set()
        assert (await call)["content"][0]["text"] == "done"
        again = await agent.call_tool("laptop", "work", timeout=20, req_id="r1")
        assert (again["content"][0]["text"], worker.runs) == ("done", 1)
        assert "notify:leave_office" not in dict(await agent.heard_until_now())


@pytest.mark.covers("computer-recovers")
async def test_changes_without_a_connection_are_notified_after_reconnecting(
    shared_hub: Any, agent: Peer, office: str, tmp_path: Path
) -> None:
    computer, relay = Computer("laptop"), Relay(shared_hub.url)
    async with relay.open() as url, hosted(computer, url, office, tmp_path, reconnect=SOON) as said:
        (await agent.heard_until_now()).clear()
        relay.cut()
        computer.tool(lambda: "new", name="fresh", auto_apply=True)
        await until(lambda: joins(said) == 2)
        await agent.hears("notify:update_tool_list", computer="laptop")
        assert (await agent.call_tool("laptop", "fresh"))["content"][0]["text"] == "new"


@pytest.mark.covers("computer-dedup", "computer-recovers")
async def test_a_computer_rejoins_a_server_that_restarted_and_a_call_sent_again_finds_the_one_that_runs(
    office: str, tmp_path: Path
) -> None:
    worker = Worker()
    async with running_hub(0) as (first, stop_first):  # noqa: SIM117
        async with hosted(worker.computer, first, office, tmp_path, reconnect=SOON) as said:
            agent = await joined_agent(first, office)
            lost = asyncio.create_task(agent.call_tool("laptop", "work", timeout=20, req_id="r1"))
            await until(lambda: worker.runs)
            await stop_first()
            await asyncio.gather(lost, return_exceptions=True)
            await agent.close()
            async with running_hub(int(first.rpartition(":")[2])) as (second, _):
                await until(lambda: joins(said) == 2)
                agent = await joined_agent(second, office)
                again = asyncio.create_task(agent.call_tool("laptop", "work", timeout=20, req_id="r1"))
                worker.go.set()
                assert ((await again)["content"][0]["text"], worker.runs) == ("done", 1)
                await agent.close()


@pytest.mark.covers("computer-recovers")
async def test_a_refusal_for_good_ends_it(serve: Callable[..., Any], tmp_path: Path) -> None:
    hub = await serve(require_version="0.99")
    with pytest.raises(VersionMismatch):
        async with asyncio.timeout(30):
            await Computer("laptop").run(hub.url, office="desk", state_folder=tmp_path)


async def never(*_: Any) -> Any:
    await asyncio.Event().wait()


def dialling() -> Computer:
    return Computer("laptop")


def starting() -> Computer:
    computer = Computer("laptop")
    computer.add_server(naughty("hangs_at_initialize"))
    return computer


def ready_and_scripted() -> Computer:
    computer = Computer("laptop")
    computer.add_server(naughty("fine", vrl=".x = 1"))
    return computer


def asking_its_owner() -> Computer:
    computer = Computer("laptop", prompt=never)
    computer.define_inputs([{"type": "promptString", "id": "token", "description": "", "password": True}])
    computer.add_server(naughty("fine", env={"TOKEN": "${input:token}"}))
    return computer


def running_a_command() -> Computer:
    computer = Computer("laptop", approve_command=lambda *_: True)
    computer.define_inputs([{"type": "command", "id": "token", "description": "", "command": "sleep 600"}])
    computer.add_server(naughty("fine", env={"TOKEN": "${input:token}"}))
    return computer


@pytest.mark.covers("computer-recovers")
@pytest.mark.parametrize(("is_served", "moment"), [(True, 0.0), (True, 0.3), (False, 0.3)])
@pytest.mark.parametrize("made", [dialling, starting, ready_and_scripted, asking_its_owner, running_a_command])
async def test_a_run_that_is_cancelled_leaves_nothing_behind(
    shared_hub: Any, office: str, tmp_path: Path, made: Callable[[], Computer], is_served: bool, moment: float
) -> None:
    tasks, before = asyncio.all_tasks(), children()
    url = shared_hub.url if is_served else "http://127.0.0.1:9"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(moment):
            await made().run(url, office=office, state_folder=tmp_path)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == tasks
    await until(lambda: children() <= before)


@pytest.mark.covers("computer-cancel", "calls-outcome")
async def test_a_cancel_that_comes_in_one_write_with_its_call_overtakes_it_and_the_tool_never_starts(
    shared_hub: Any, agent: Peer, office: str, tmp_path: Path
) -> None:
    worker, relay = Worker(), Relay(shared_hub.url)
    async with relay.open() as url, hosted(worker.computer, url, office, tmp_path):
        relay.hold()
        call = asyncio.create_task(agent.call_tool("laptop", "work", timeout=20, req_id="r1"))
        await until(lambda: b"client:tool_call" in relay.held)
        await agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": "r1"})
        await until(lambda: b"notify:tool_call_cancel" in relay.held)
        relay.release()
        assert (await call)["code"] == 499
        again = await agent.call_tool("laptop", "work", timeout=20, req_id="r1")
        assert (again["code"], again["details"]["outcome"], worker.runs) == (499, "not_run", 0)


@asynccontextmanager
async def running_hub(port: int) -> AsyncIterator[tuple[str, Callable[[], Any]]]:
    """A Server at this port, and a way to stop it early."""
    listener = listen("127.0.0.1", port)
    context = serving(create_app(Settings(limits=Limits(drain_timeout=0.5))), listener)
    await context.__aenter__()
    stopped = False

    async def stop() -> None:
        nonlocal stopped
        if not stopped:
            stopped = True
            await context.__aexit__(None, None, None)

    try:
        yield f"http://{address_of(listener)}", stop
    finally:
        await stop()


async def joined_agent(url: str, office: str) -> Peer:
    agent = await Peer.connect(url, transports=["websocket"])
    await agent.join("agent", "planner", office)
    return agent
