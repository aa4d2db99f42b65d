"""Whether an agent sends a call again if the tool may have run, or if the computer is expected back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from a2c_smcp.agent.retries import Resend, RetriedRequest
from a2c_smcp.computer.computer import Computer
from a2c_smcp.endpoint import Reconnect
from a2c_smcp.errors import CallTimeout, ComputerNotFound, ResultGone, SMCPError
from a2c_smcp.registry import MCPRegistry, Retry
from tests.peer import Peer
from tests.stage.agent import Line, Twin
from tests.stage.raising import raises
from tests.stage.worker import MortalServer, Worker
from tests.waiting import until

LATER = Reconnect(first=2.0, longest=2.0)


@asynccontextmanager
async def foreign(url: str, office: str, **instance: str) -> AsyncIterator[Peer]:
    """A computer of another make: without an instance, it does not know a call that comes again."""
    peer = await Peer.connect(url, transports=["websocket"])
    try:
        await peer.join("computer", "laptop", office, **instance)
        peer.answers("client:tool_call", lambda _: asyncio.Event().wait())
        yield peer
    finally:
        await peer.close()


@pytest.mark.covers("agent-never-twice")
async def test_after_a_killed_server_a_call_is_not_repeated_to_a_computer_that_does_not_deduplicate(
    kind: Any, planning: Any, mortal: MortalServer, office: str
) -> None:
    async with foreign(mortal.url, office) as before, planning(kind, url=mortal.url) as agent:
        call = asyncio.ensure_future(agent.emit_tool_call("laptop", "pay", timeout=20))
        await before.was_asked("client:tool_call")
        await mortal.kill()
        await mortal.start()
        async with foreign(mortal.url, office) as after:
            with raises(ResultGone, outcome="unknown"):
                await call
            assert [event for event, _ in after.asked if event == "client:tool_call"] == []


@pytest.mark.covers("agent-never-twice", "seat-computers")
@pytest.mark.parametrize("first", [{"instance": "an-instance-of-my-own"}, {}], ids=["instance", "none"])
async def test_a_call_that_a_computer_has_begun_is_not_sent_to_another_computer_of_its_name(
    kind: Any, planning: Any, mortal: MortalServer, office: str, first: dict[str, str]
) -> None:
    """The other one says that it deduplicates, and has never heard of the call: it would run the tool once more."""
    async with foreign(mortal.url, office, **first) as before, planning(kind, url=mortal.url) as agent:
        call = asyncio.ensure_future(agent.emit_tool_call("laptop", "pay", {"card": "4711"}, timeout=20))
        await before.was_asked("client:tool_call")
        await mortal.kill()
        await mortal.start()
        async with foreign(mortal.url, office, instance="an-instance-of-another") as after:
            with raises(ResultGone, outcome="unknown"):
                await call
            assert [event for event, _ in after.asked if event == "client:tool_call"] == []
            after.answers("client:tool_call", {"content": []})
            assert not (await agent.emit_tool_call("laptop", "pay", timeout=20)).is_error  # a new one is for it


@pytest.mark.covers("agent-never-twice", "calls-outcome")
async def test_a_call_that_was_never_sent_says_so(computer: Peer, far_planner: Twin, relay: Line) -> None:
    await until(lambda: far_planner.computers)
    with pytest.raises(ComputerNotFound) as unknown:
        await far_planner.emit_tool_call("nowhere", "work")
    await relay.lose(far_planner)
    with pytest.raises(CallTimeout) as late:
        await far_planner.emit_tool_call("laptop", "work", timeout=0.1)
    assert (unknown.value.details["outcome"], late.value.details["outcome"]) == ("not_run", "not_run")
    assert "client:tool_call" not in [event for event, _ in computer.asked]


@pytest.mark.covers("agent-never-twice", "calls-outcome")
async def test_a_call_that_was_sent_and_not_answered_may_have_run(
    computer: Peer, far_planner: Twin, relay: Line
) -> None:
    computer.answers("client:tool_call", lambda _: asyncio.Event().wait())
    call = asyncio.create_task(far_planner.emit_tool_call("laptop", "work", timeout=1))
    await computer.was_asked("client:tool_call")
    relay.close()
    with raises(CallTimeout, outcome="unknown"):
        await call


@pytest.mark.covers("agent-never-twice")
async def test_a_registry_retries_no_remote_tool_that_may_have_run(planning: Any, computer: Peer) -> None:
    """Its computer says that the tool may be called twice, and is believed."""
    meta = {"MCP_TOOL_ANNOTATION": '{"idempotentHint": true, "readOnlyHint": true}'}
    tool = {"name": "pay", "description": "", "params_schema": {"type": "object"}, "return_schema": None, "meta": meta}
    error: dict[str, Any] = {"code": 408, "message": "No answer in time", "details": {"outcome": "unknown"}}
    computer.answers("client:get_tools", lambda request: {"tools": [tool], "req_id": request["req_id"]})
    computer.answers("client:tool_call", lambda _: error)
    options = {"registry": MCPRegistry(retry=Retry(attempts=3, first_pause=0)), "trusted_computers": ["laptop"]}
    async with planning(**options) as agent:
        await until(lambda: "pay" in agent.registry)
        with pytest.raises(SMCPError):
            await agent.use("pay")
        assert len(await computer.was_asked("client:tool_call")) == 1
        error["details"] = {"outcome": "not_run"}
        with pytest.raises(SMCPError):
            await agent.use("pay")
        assert len(await computer.was_asked("client:tool_call", 4)) == 4, "that it has not run is worth another try"


@pytest.mark.covers("agent-waits-for-return")
async def test_a_new_call_waits_for_a_computer_that_is_expected_back_after_a_restart(
    planning: Any, hosts: Any, mortal: MortalServer, tmp_path: Path
) -> None:
    worker, left = Worker(), list[str]()
    handler = SimpleNamespace(on_computer_leave_office=lambda data: left.append(data["computer"]))
    async with (
        planning(url=mortal.url, event_handler=handler) as agent,
        hosts(worker.computer, mortal.url, reconnect=LATER),
    ):
        async with hosts(Computer("other"), mortal.url, state_folder=tmp_path / "other"):
            await until(lambda: len(agent.computers) == 2 and "work" in agent.registry)
            await mortal.kill()
            await until(lambda: not agent.is_connected)
        await mortal.start()
        await until(lambda: agent.is_connected)
        begun = time.monotonic()
        with_registry = asyncio.ensure_future(agent.use("work", number=1, seconds=0.1))
        in_vain = asyncio.ensure_future(agent.emit_tool_call("other", "anything", timeout=30))
        called = await agent.emit_tool_call("laptop", "work", {"number": 2, "seconds": 0.1}, 30)
        assert (called.text, await with_registry) == ("2", {"result": 1})
        with pytest.raises(ComputerNotFound):
            await in_vain
        assert time.monotonic() - begun <= 20, "as long as the grace, and not for the whole of its timeout"
        await until(lambda: left == ["other"])


class _Entering:
    """A connection on which a computer enters just after the first request, before the refusal is read."""

    is_deduplicated = True

    def __init__(self) -> None:
        self.count = 0
        self.timeouts: list[int] = []

    async def connected(self) -> Any:
        return self

    def version(self) -> int:
        return self.count

    async def after_version(self, seen: int, timeout: float) -> None:
        raise AssertionError("it must not wait")

    def expected_until(self, computer: object, office: object) -> float:
        return 0.0

    def seat_of(self, computer: object, office: object) -> str | None:
        return None

    async def ask(self, event: str, data: dict[str, Any], *_: object) -> Any:
        self.timeouts.append(data["timeout"])
        if self.count == 0:
            self.count += 1
            return ComputerNotFound("laptop").to_wire()
        return {"content": []}


@pytest.mark.covers("agent-call-options", "agent-waits-for-return")
@pytest.mark.parametrize(("extend", "timeouts"), [(True, [7, 7]), (False, [7, 6])])
async def test_a_call_to_a_computer_that_entered_just_after_it_is_sent_again_with_the_remaining_time_unless_extended(
    extend: bool, timeouts: list[int]
) -> None:
    """The timeout of an extended call is the longest silence of its tool (WIRE §9)."""
    state = _Entering()
    data = {"computer": "laptop", "timeout": 7} | ({"extend": True} if extend else {})
    request = RetriedRequest(state, "client:tool_call", data, None, Resend.DEDUPLICATED)
    assert await request.answer(9) == {"content": []}
    assert state.timeouts == timeouts
