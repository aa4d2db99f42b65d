"""What `/metrics` of a Server says after clients have come, called, failed and gone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from types import SimpleNamespace
from typing import Any, cast

import pytest

from a2c_smcp.errors import BadRequest
from a2c_smcp.protocol.events import lookup
from a2c_smcp.server import Settings, create_app
from a2c_smcp.server.auth.authentication import Principal
from a2c_smcp.server.connections import Connection
from a2c_smcp.server.observation.happened import EventRefused
from tests.conftest import TRANSPORTS
from tests.peer import Peer
from tests.stage.crew import Crew
from tests.stage.metrics import scrape, total
from tests.stage.place import Place

Samples = dict[str, float]

OK = {"content": [{"type": "text", "text": "3"}], "isError": False}
FAILED = {"content": [{"type": "text", "text": "no"}], "isError": True}


async def test_what_was_gathered_in_a_turn_is_counted_before_metrics_are_read() -> None:
    app = create_app(Settings(metrics=True))
    client = cast(Connection, SimpleNamespace(principal=Principal("key")))
    refused = EventRefused(client, lookup("client:tool_call"), BadRequest("no"))
    for count in (1, 2):
        app.observation.report_refused(refused)
        assert app.metrics.value("a2c_calls_total", event="client:tool_call", outcome="bad_request") == count
    await app.close()


@pytest.mark.covers("metrics")
@pytest.mark.one_process
async def test_calls_are_counted_by_event_and_outcome_and_measured(serve: Any, connect: Any) -> None:
    hub = await serve(metrics=True)
    agent, computer = await connect(hub), await connect(hub, query="?a2c_version=0.4.2")
    await agent.join("agent", "planner", "desk")
    await computer.join("computer", "laptop", "desk")
    computer.answers("client:tool_call", lambda data: FAILED if data["tool_name"] == "fail" else OK)
    computer.answers("client:odd", {"req_id": "r"})
    for tool in ("add", "add", "fail"):
        await agent.call_tool("laptop", tool)
    await agent.call_tool("nobody")
    await agent.request("client:odd", "laptop")
    await agent.ask("no:such_event", {})
    samples = await scrape(hub.url)
    calls = {name: value for name, value in samples.items() if name.startswith("a2c_calls_total")}
    assert calls == {
        'a2c_calls_total{event="client:tool_call",outcome="ok"}': 2,
        'a2c_calls_total{event="client:tool_call",outcome="tool_error"}': 1,
        'a2c_calls_total{event="client:tool_call",outcome="not_found"}': 1,
        'a2c_calls_total{event="other",outcome="ok"}': 1,
    }
    assert samples['a2c_call_duration_seconds_count{event="client:tool_call"}'] == 3
    assert samples['a2c_call_duration_seconds_bucket{event="client:tool_call",le="+Inf"}'] == 3
    assert 0 < samples['a2c_call_duration_seconds_sum{event="client:tool_call"}'] < 30
    assert samples["a2c_calls_in_flight"] == 0
    assert samples["a2c_connections"] == samples["a2c_connects_total"] == 2
    assert samples["a2c_offices"] == 1
    assert samples['a2c_members{role="agent",version="0.1"}'] == 1
    assert samples['a2c_members{role="computer",version="0.4"}'] == 1
    assert samples['a2c_refused_total{code="404",reason="computer_not_found"}'] == 1
    assert samples['a2c_refused_total{code="400",reason="unsupported_event"}'] == 1
    assert samples["a2c_received_bytes_total"] > 500
    assert samples["a2c_sent_bytes_total"] > 500
    assert samples["a2c_ready"] == samples["a2c_node_up"] == samples["a2c_workers"] == 1
    assert samples["process_resident_memory_bytes"] > 1e6


@pytest.mark.covers("metrics")
async def test_a_scrape_of_any_worker_has_the_numbers_of_all(place: Place) -> None:
    crew = await Crew.start(place, "--metrics")
    peers = []
    while len(peers) < 4 or len({peer.sid.partition(".")[0] for peer in peers}) < 2:
        peers.append(await Peer.connect(crew.url, transports=TRANSPORTS["websocket"]))
    try:
        for number, peer in enumerate(peers):
            await peer.join("computer", f"laptop-{number}", "desk")
        for _ in range(6):  # the kernel chooses who answers
            samples = await scrape(crew.url)
            assert total(samples, "a2c_connections") == total(samples, "a2c_members") == len(peers)
            assert total(samples, "a2c_offices") == 1
            assert samples['a2c_node_up{node="w-1"}'] == samples['a2c_node_up{node="w-2"}'] == 1
            assert samples['a2c_workers{node="w-1"}'] == 2
        commits = [
            name for name in samples if re.match(r'a2c_directory_request_duration_seconds_count.*"commit"', name)
        ]
        assert sum(samples[name] for name in commits) >= len(peers)
        paused = crew.workers()["w-2"]
        os.kill(paused, signal.SIGSTOP)
        try:
            await until_one_is_down(crew.url)
        finally:
            with contextlib.suppress(ProcessLookupError):  # its parent ends a worker that stands still
                os.kill(paused, signal.SIGCONT)
    finally:
        await asyncio.gather(*(peer.close() for peer in peers))


async def until_one_is_down(url: str) -> None:
    """A connection that the paused worker would have to accept is not answered: the next one may be.

    Once its lease has ended, the worker is no node any more, and has no sample.
    """

    async def is_down() -> bool:
        try:
            async with asyncio.timeout(5):
                return (await scrape(url)).get('a2c_node_up{node="w-2"}') in (0, None)
        except TimeoutError:
            return False

    async with asyncio.timeout(240):
        while not await is_down():
            pass
