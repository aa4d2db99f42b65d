"""The Computer's connection: lost, found again, and left without a trace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.computer import Computer
from a2c_smcp.errors import VersionMismatch
from a2c_smcp.mcp_host.config.servers import MCPServerConfig
from a2c_smcp.server import Limits, Settings, create_app
from a2c_smcp.server.run import address_of, listen, serving
from tests.computer.hosted import Host, Relay, children, hosted, joined_agent, joins
from tests.computer.supervised import naughty, text_of
from tests.peer import Peer
from tests.stage.agent import SOON
from tests.stage.calls import verdict
from tests.stage.worker import Worker
from tests.waiting import until

pytestmark = pytest.mark.covers("computer-recovers")


@pytest.mark.covers("computer-dedup")
async def test_a_call_survives_a_lost_connection_and_runs_once(shared_hub: Any, agent: Peer, host: Host) -> None:
    worker, relay = Worker(), Relay(shared_hub.url)
    async with relay.open() as url:
        said = await host(worker.computer, url=url, reconnect=SOON)
        call = asyncio.create_task(agent.call_tool("laptop", "work", timeout=20, req_id="r1"))
        await until(lambda: worker.runs)
        relay.cut()
        await until(lambda: joins(said) == 2)
        worker.go.set()
        result = await call
        assert await agent.call_tool("laptop", "work", timeout=20, req_id="r1") == result
        assert (text_of(result), worker.runs) == ("0", {0: 1})
        assert "notify:leave_office" not in dict(await agent.heard_until_now())


async def test_changes_without_a_connection_are_notified_after_reconnecting(
    shared_hub: Any, agent: Peer, host: Host
) -> None:
    computer, relay = Computer("laptop"), Relay(shared_hub.url)
    async with relay.open() as url:
        said = await host(computer, url=url, reconnect=SOON)
        (await agent.heard_until_now()).clear()
        relay.cut()
        computer.tool(lambda: "new", name="fresh", auto_apply=True)
        await until(lambda: joins(said) == 2)
        await agent.hears("notify:update_tool_list", computer="laptop")
        assert (await agent.call_tool("laptop", "fresh"))["content"][0]["text"] == "new"


@pytest.mark.covers("computer-dedup")
async def test_a_computer_rejoins_a_server_that_restarted_and_a_call_sent_again_finds_the_one_that_runs(
    office: str, tmp_path: Path
) -> None:
    worker = Worker()
    async with running_hub(0) as (first, stop_first):  # noqa: SIM117
        async with hosted(worker.computer, first, office, tmp_path, reconnect=SOON) as said:
            agent = await joined_agent(first, office, instance="an-instance-of-my-own")
            lost = asyncio.create_task(agent.call_tool("laptop", "work", timeout=20, req_id="r1"))
            await until(lambda: worker.runs)
            await stop_first()
            await asyncio.gather(lost, return_exceptions=True)
            await agent.close()
            async with running_hub(int(first.rpartition(":")[2])) as (second, _):
                await until(lambda: joins(said) == 2)
                agent = await joined_agent(second, office, instance="an-instance-of-my-own")
                again = asyncio.create_task(agent.call_tool("laptop", "work", timeout=20, req_id="r1"))
                worker.go.set()
                assert (text_of(await again), worker.runs) == ("0", {0: 1})
                await agent.close()


async def test_a_refusal_for_good_ends_it(serve: Callable[..., Any], tmp_path: Path) -> None:
    hub = await serve(require_version="0.99")
    with pytest.raises(VersionMismatch):
        async with asyncio.timeout(30):
            await Computer("laptop").run(hub.url, office="desk", state_folder=tmp_path)


async def never(*_: Any) -> Any:
    await asyncio.Event().wait()


USES_TOKEN = {"env": {"TOKEN": "${input:token}"}}
MADE: dict[str, tuple[dict[str, Any], list[Any], list[MCPServerConfig]]] = {
    "dialling": ({}, [], []),
    "starting": ({}, [], [naughty("hangs_at_initialize")]),
    "ready and scripted": ({}, [], [naughty("fine", vrl=".x = 1")]),
    "asking its owner": ({"prompt": never}, [{"type": "promptString", "id": "token"}], [naughty("fine", **USES_TOKEN)]),
    "running a command": (
        {"approve_command": lambda *_: True},
        [{"type": "command", "id": "token", "command": "sleep 600"}],
        [naughty("fine", **USES_TOKEN)],
    ),
}


@pytest.mark.parametrize(("is_served", "moment"), [(True, 0.0), (True, 0.3), (False, 0.3)])
@pytest.mark.parametrize(("options", "inputs", "servers"), MADE.values(), ids=MADE)
async def test_a_run_that_is_cancelled_leaves_nothing_behind(
    shared_hub: Any,
    office: str,
    tmp_path: Path,
    options: Any,
    inputs: Any,
    servers: Any,
    is_served: bool,
    moment: float,
) -> None:
    computer = Computer("laptop", **options)
    computer.define_inputs(inputs)
    for config in servers:
        computer.add_server(config)
    tasks, before = asyncio.all_tasks(), children()
    url = shared_hub.url if is_served else "http://127.0.0.1:9"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(moment):
            await computer.run(url, office=office, state_folder=tmp_path)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == tasks
    await until(lambda: children() <= before)


@pytest.mark.covers("computer-cancel", "calls-outcome")
async def test_a_cancel_that_comes_in_one_write_with_its_call_overtakes_it_and_the_tool_never_starts(
    shared_hub: Any, agent: Peer, host: Host
) -> None:
    worker, relay = Worker(), Relay(shared_hub.url)
    async with relay.open() as url:
        await host(worker.computer, url=url)
        relay.hold()
        call = asyncio.create_task(agent.call_tool("laptop", "work", timeout=20, req_id="r1"))
        await until(lambda: b"client:tool_call" in relay.held)
        await agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": "r1"})
        await until(lambda: b"notify:tool_call_cancel" in relay.held)
        relay.release()
        assert (await call)["code"] == 499
        assert verdict(await agent.call_tool("laptop", "work", timeout=20, req_id="r1")) == (499, "not_run")
        assert worker.runs == {}


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
