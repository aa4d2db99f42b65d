"""What `/metrics` of a computer says, on this machine only."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import aiohttp
import pytest

from a2c_smcp.bridge.serving.http import serving_http
from a2c_smcp.computer import Computer
from a2c_smcp.computer.calls.incoming import CallOptions
from a2c_smcp.computer.consent.approval import Caller, PendingApprovals
from a2c_smcp.computer.recording import ComputerMetrics, metrics_page
from tests.stage.lines import assert_nobody_holds_all_connections
from tests.stage.metrics import Samples, scrape
from tests.stage.place import Place, good


@pytest.mark.covers("metrics")
async def test_a_computer_counts_calls_servers_and_approvals(place: Place) -> None:
    place.write({"good": good(), "asking": good(default_tool_meta=None), "broken": {"command": "no-such-program"}})
    program = await place.start("up", "--port", "0", "--name", "laptop", "--metrics-port", "0")
    url = (await program.says("metrics at ")).removeprefix("metrics at ").removesuffix("/metrics")
    line = (await program.says("a2c-smcp agent call")).strip()
    assert (await place.paste(line)).code == 0
    assert (await place.paste(line.replace(" add ", " fail "))).code != 0
    samples: Samples = await scrape(url)
    assert samples["a2c_computer_connected"] == 1
    assert samples['a2c_computer_servers{state="ready"}'] == 2
    assert samples['a2c_computer_server_starts_total{server="good"}'] == 1
    assert samples['a2c_computer_server_starts_total{server="broken"}'] >= 1
    assert samples["a2c_computer_tools"] > 1
    assert samples['a2c_computer_calls_total{outcome="ok"}'] == 1
    assert samples["a2c_computer_call_duration_seconds_count"] == sum(
        value for name, value in samples.items() if name.startswith("a2c_computer_calls_total")
    )
    assert samples["a2c_computer_calls_in_flight"] == samples["a2c_computer_approvals_waiting"] == 0


async def test_the_page_is_served_under_the_names_of_this_machine_only() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    async with (
        Computer("laptop") as computer,
        serving_http(metrics_page(computer), listener, wants_key=False),
        aiohttp.ClientSession() as http,
    ):
        for host, status in (("localhost", 200), (f"127.0.0.1:{port}", 200), ("evil.example", 400), ("[::1", 400)):
            async with http.get(f"http://127.0.0.1:{port}/metrics", headers={"Host": host}) as response:
                assert response.status == status
                assert ("a2c_computer_servers" in await response.text()) == (status == 200)


@pytest.mark.covers("local-connections")
async def test_no_program_of_this_machine_can_hold_all_connections_of_the_page(place: Place) -> None:
    place.write({})
    program = await place.start("up", "--port", "0", "--name", "laptop", "--metrics-port", "0")
    url = (await program.says("metrics at ")).removeprefix("metrics at ")
    await assert_nobody_holds_all_connections(url, "GET /metrics HTTP/1.1\nHost: localhost\n\n")


class Asked:
    """A computer with a tool that needs approval, and its metrics."""

    def __init__(self, **options: Any) -> None:
        self.pending = PendingApprovals()
        self.computer = Computer("laptop", approve=self.pending, **options)
        self.computer.tool(lambda: "done", name="work", description="Works.")
        self.counted = ComputerMetrics(self.computer).metrics

    def call(self, req_id: str, options: CallOptions | None = None) -> asyncio.Task[dict[str, Any]]:
        running = self.computer.execute_tool(Caller("desk", "planner"), req_id, "work", {}, 30, options=options)
        return asyncio.create_task(running)

    def sample(self, name: str) -> float:
        [line] = [line for line in self.counted.render().splitlines() if line.startswith(f"{name} ")]
        return float(line.rpartition(" ")[2])


async def test_what_a_grant_allows_was_never_waiting() -> None:
    asked = Asked()
    async with asked.computer:
        first = asked.call("one")
        await asked.pending.first_added.wait()
        assert asked.sample("a2c_computer_approvals_waiting") == 1
        asked.pending.answer(next(iter(asked.pending)), "always")
        await first
        await asked.call("two")
        assert asked.sample("a2c_computer_approvals_waiting") == 0
        assert asked.sample('a2c_computer_approvals_total{by="owner",answer="always"}') == 1
        assert asked.sample('a2c_computer_approvals_total{by="grant",answer="yes"}') == 1


async def test_a_question_for_approval_that_the_client_never_answers_is_not_waiting_for_ever() -> None:
    asked = Asked(approve_by="client")
    async with asked.computer:
        result = await asked.call("one", CallOptions(questions="result"))
        assert result["resultType"] == "input_required"
        assert asked.sample("a2c_computer_approvals_waiting") == 0
