"""A computer that is killed in the middle of a call, or stands still: nothing runs twice, or too late."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.errors import SMCPError
from tests.computer.killable_computer import killable_computer, notes_in
from tests.peer import NAMESPACE, Peer
from tests.ports import free_port
from tests.stage.agent import SOON
from tests.stage.calls import verdict
from tests.stage.worker import separate_server
from tests.waiting import until

WAITS, ENDS = {"text": "once", "ends": False}, {"text": "ended", "ends": True}


@pytest.mark.covers("computer-dedup", "calls-outcome")
async def test_a_call_sent_again_after_its_computer_was_killed_is_gone_and_has_run_once(
    serve: Callable[..., Any], connect: Callable[..., Any], office: str, tmp_path: Path
) -> None:
    hub = await serve(limits={"resume_grace": 60})
    agent: Peer = await connect(hub)
    await agent.join("agent", "planner", office)

    def call(req_id: str, params: dict[str, Any]) -> Any:
        data = {"agent": "planner", "computer": "laptop", "req_id": req_id, "tool_name": "note", "params": params}
        return agent.client.call("client:tool_call", {**data, "timeout": 60}, namespace=NAMESPACE, timeout=65)

    async with killable_computer(hub.url, office, tmp_path) as computer:
        assert (await call("ended", ENDS))["content"][0]["text"] == "ended"
        begun = asyncio.ensure_future(call("begun", WAITS))
        await until(lambda: "once" in notes_in(tmp_path))
        computer.kill()
        await computer.wait()
    async with killable_computer(hub.url, office, tmp_path):
        assert verdict(await begun) == (410, "unknown")  # the Server has sent it again
        for req_id, params, expected in (
            ("begun", WAITS, (410, "unknown")),
            ("ended", ENDS, (410, "done")),
            ("begun", ENDS, (400, "not_run")),
            ("ended", WAITS, (400, "not_run")),
        ):
            assert verdict(await call(req_id, params)) == expected
        assert (await call("new", ENDS))["content"][0]["text"] == "ended"
    assert notes_in(tmp_path) == ["ended", "once", "ended"]


@pytest.mark.covers("computer-dedup", "agent-rejoins")
@pytest.mark.parametrize("server_too", [False, True], ids=["the computer", "the computer and the Server"])
async def test_whatever_our_agent_does_about_a_killed_computer_its_tool_runs_once(
    office: str, tmp_path: Path, server_too: bool
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(separate_server(port))
        agent = AsyncSMCPAgentClient("planner", url=url, office=office, reconnect=SOON)
        await stack.enter_async_context(agent)
        computer = await stack.enter_async_context(killable_computer(url, office, tmp_path))
        call = asyncio.ensure_future(agent.emit_tool_call("laptop", "note", WAITS, timeout=30))
        await until(lambda: notes_in(tmp_path))
        for process in (computer, server) if server_too else (computer,):
            process.kill()
            await process.wait()
        if server_too:
            await stack.enter_async_context(separate_server(port))
        await stack.enter_async_context(killable_computer(url, office, tmp_path))
        with pytest.raises(SMCPError) as raised:
            await call
        assert raised.value.outcome == "unknown"
    assert notes_in(tmp_path) == ["once"]


@pytest.mark.covers("computer-cancel", "calls-too-late")
async def test_a_call_cancelled_during_a_standstill_does_not_run_afterwards(
    serve: Callable[..., Any], connect: Callable[..., Any], office: str, tmp_path: Path
) -> None:
    hub = await serve()
    agent: Peer = await connect(hub)
    await agent.join("agent", "planner", office)
    large = {"text": "x" * 5000, "ends": True}  # all of them are more than the computer reads at once
    async with killable_computer(hub.url, office, tmp_path) as computer:
        computer.send_signal(signal.SIGSTOP)
        calls = [agent.call_tool("laptop", "note", timeout=1, req_id=f"r{n}", params=large) for n in range(200)]
        assert {answer["code"] for answer in await asyncio.gather(*calls)} == {408}
        for number in range(200):
            await agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": f"r{number}"})
        computer.send_signal(signal.SIGCONT)
        assert (await agent.call_tool("laptop", "note", params=ENDS))["content"][0]["text"] == "ended"
        assert verdict(await agent.call_tool("laptop", "note", req_id="r0", params=large)) == (499, "not_run")
    assert notes_in(tmp_path) == ["ended"]
