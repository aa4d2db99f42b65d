"""Whether an agent sends a call again if the tool may have run, or if the computer is expected back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.agent.retries import Resend, RetriedRequest
from a2c_smcp.computer.computer import Computer
from a2c_smcp.endpoint import Reconnect
from a2c_smcp.errors import CallTimeout, ComputerNotFound, ResultGone, SMCPError
from a2c_smcp.registry import MCPRegistry, Retry
from tests.agent.test_reconnect import Worker, both, separate_server
from tests.agent.twins import at_work
from tests.computer.hosted import Relay, hosted
from tests.peer import Peer
from tests.ports import free_port
from tests.waiting import until

LATER = Reconnect(first=2.0, longest=2.0)


@asynccontextmanager
async def foreign(url: str, office: str) -> AsyncIterator[Peer]:
    """A computer of another make: without an instance, it does not know a call that comes again."""
    peer = await Peer.connect(url, transports=["websocket"])
    try:
        await peer.join("computer", "laptop", office)
        peer.answers("client:tool_call", lambda _: asyncio.Event().wait())
        yield peer
    finally:
        await peer.close()


@both
@pytest.mark.covers("agent-never-twice")
async def test_after_a_killed_server_a_call_is_not_repeated_to_a_computer_that_does_not_deduplicate(
    kind: Any, office: str
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(separate_server(port))
        before = await stack.enter_async_context(foreign(url, office))
        agent = await stack.enter_async_context(at_work(kind, url=url, office=office))
        call = asyncio.ensure_future(agent.emit_tool_call("laptop", "pay", timeout=20))
        await before.was_asked("client:tool_call")
        first.kill()
        await first.wait()
        await stack.enter_async_context(separate_server(port))
        after = await stack.enter_async_context(foreign(url, office))
        with pytest.raises(ResultGone) as gone:
            await call
        assert gone.value.outcome == "unknown"
        assert [event for event, _ in after.asked if event == "client:tool_call"] == []


@pytest.mark.covers("agent-never-twice", "calls-outcome")
async def test_a_call_that_was_never_sent_says_so(shared_hub: Any, office: str, computer: Peer) -> None:
    relay = Relay(shared_hub.url)
    async with relay.open() as url, at_work(AsyncSMCPAgentClient, url=url, office=office) as agent:
        await until(lambda: agent.computers)
        with pytest.raises(ComputerNotFound) as unknown:
            await agent.emit_tool_call("nowhere", "work")
        relay.close()
        await until(lambda: not agent.is_connected)
        with pytest.raises(CallTimeout) as late:
            await agent.emit_tool_call("laptop", "work", timeout=0.1)
        assert (unknown.value.details["outcome"], late.value.details["outcome"]) == ("not_run", "not_run")
        assert "client:tool_call" not in [event for event, _ in computer.asked]


@pytest.mark.covers("agent-never-twice", "calls-outcome")
async def test_a_call_that_was_sent_and_not_answered_may_have_run(shared_hub: Any, office: str, computer: Peer) -> None:
    computer.answers("client:tool_call", lambda _: asyncio.Event().wait())
    relay = Relay(shared_hub.url)
    async with relay.open() as url, at_work(AsyncSMCPAgentClient, url=url, office=office) as agent:
        call = asyncio.create_task(agent.emit_tool_call("laptop", "work", timeout=1))
        await computer.was_asked("client:tool_call")
        relay.close()
        with pytest.raises(CallTimeout) as late:
            await call
        assert late.value.details["outcome"] == "unknown"


@pytest.mark.covers("agent-never-twice")
async def test_a_registry_retries_no_remote_tool_that_may_have_run(
    shared_hub: Any, office: str, computer: Peer
) -> None:
    """Its computer says that the tool may be called twice, and is believed."""
    meta = {"MCP_TOOL_ANNOTATION": '{"idempotentHint": true, "readOnlyHint": true}'}
    tool = {"name": "pay", "description": "", "params_schema": {"type": "object"}, "return_schema": None, "meta": meta}
    error: dict[str, Any] = {"code": 408, "message": "No answer in time", "details": {"outcome": "unknown"}}
    computer.answers("client:get_tools", lambda request: {"tools": [tool], "req_id": request["req_id"]})
    computer.answers("client:tool_call", lambda _: error)
    options = {"registry": MCPRegistry(retry=Retry(attempts=3, first_pause=0)), "trusted_computers": ["laptop"]}
    async with at_work(AsyncSMCPAgentClient, url=shared_hub.url, office=office, **options) as agent:
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
    office: str, tmp_path: Path
) -> None:
    port, worker, left = free_port(), Worker(), []
    url = f"http://127.0.0.1:{port}"

    class Handler:
        def on_computer_leave_office(self, data: dict[str, Any]) -> None:
            left.append(data["computer"])

    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(separate_server(port))
        at_desk = at_work(AsyncSMCPAgentClient, url=url, office=office, event_handler=Handler())
        agent = await stack.enter_async_context(at_desk)
        await stack.enter_async_context(hosted(worker.computer, url, office, tmp_path / "a", reconnect=LATER))
        other = await stack.enter_async_context(AsyncExitStack())
        await other.enter_async_context(hosted(Computer("other"), url, office, tmp_path / "b"))
        await until(lambda: len(agent.computers) == 2 and "work" in agent.registry)
        first.kill()
        await until(lambda: not agent.is_connected)
        await other.aclose()
        await stack.enter_async_context(separate_server(port))
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

    async def connected(self) -> Any:
        return self

    def version(self) -> int:
        return self.count

    async def after_version(self, seen: int, timeout: float) -> None:
        raise AssertionError("it must not wait")

    def expected_until(self, computer: object, office: object) -> float:
        return 0.0

    async def ask(self, *_: object) -> Any:
        if self.count == 0:
            self.count += 1
            return ComputerNotFound("laptop").to_wire()
        return {"content": []}


@pytest.mark.covers("agent-waits-for-return")
async def test_a_request_is_repeated_to_a_computer_that_entered_just_after_it() -> None:
    request = RetriedRequest(_Entering(), "client:tool_call", {"computer": "laptop"}, None, Resend.DEDUPLICATED)
    assert await request.answer(10) == {"content": []}


@pytest.mark.covers("agent-call-options")
@pytest.mark.parametrize(("extend", "timeouts"), [(True, [7, 7]), (False, [7, 6])])
async def test_a_call_that_is_sent_again_has_the_remaining_time_unless_it_is_extended(
    extend: bool, timeouts: list[int]
) -> None:
    """The timeout of an extended call is the longest silence of its tool (WIRE §9)."""
    state, sent = _Entering(), list[Any]()
    ask = state.ask

    async def record(event: str, data: dict[str, Any], *rest: object) -> Any:
        sent.append(data["timeout"])
        return await ask(event, data, *rest)

    state.ask = record  # type: ignore[method-assign]
    data = {"computer": "laptop", "timeout": 7} | ({"extend": True} if extend else {})
    request = RetriedRequest(state, "client:tool_call", data, None, Resend.DEDUPLICATED)
    assert await request.answer(9) == {"content": []}
    assert sent == timeouts
