"""A Server that stood still: calls that it reads afterwards may have been cancelled long ago."""

from __future__ import annotations

import asyncio
from signal import SIGCONT, SIGSTOP

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.errors import CallTimeout
from tests.peer import Peer
from tests.ports import free_port
from tests.stage.calls import RESULT
from tests.stage.worker import separate_server


@pytest.mark.covers("calls-given-up")
async def test_a_call_given_up_while_the_server_stood_still_does_not_reach_its_computer(office: str) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with separate_server(port) as server:
        computer = await Peer.connect(url, transports=["websocket"])
        await computer.join("computer", "laptop", office)
        computer.answers("client:tool_call", RESULT)
        async with AsyncSMCPAgentClient("planner", url=url, office=office) as agent:
            await agent.emit_tool_call("laptop", "work", req_id="before")
            server.send_signal(SIGSTOP)
            try:
                with pytest.raises(CallTimeout):
                    await agent.emit_tool_call("laptop", "work", timeout=1, req_id="given up")
            finally:
                server.send_signal(SIGCONT)
            await computer.hears("notify:tool_call_cancel", req_id="given up")
            await asyncio.wait_for(agent.emit_tool_call("laptop", "work", req_id="after"), 10)
        asked = [data["req_id"] for event, data in computer.asked if event == "client:tool_call"]
        await computer.close()
        assert asked == ["before", "after"]
