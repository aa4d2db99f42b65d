"""Every event of 002, by its own name and by its older one, over every transport."""

from __future__ import annotations

from typing import Any

import pytest

from tests.peer import Peer
from tests.server.conftest import TRANSPORTS

RESULT = {
    "content": [{"type": "text", "text": "3"}],
    "isError": False,
    "structuredContent": {"n": 3},
    "_meta": {"x": 1},
}


@pytest.mark.covers("002-join_office", "002-tool_call", "transports", "002-enter_office")
@pytest.mark.parametrize("agent_transport", TRANSPORTS)
@pytest.mark.parametrize("computer_transport", TRANSPORTS)
async def test_a_call_travels_over_every_pair_of_transports(
    connect: Any, office: str, agent_transport: str, computer_transport: str
) -> None:
    agent, computer = await connect(transport=agent_transport), await connect(transport=computer_transport)
    await agent.join("agent", "planner", office)
    await computer.join("computer", "laptop", office)
    computer.answers("client:tool_call", RESULT)
    assert await agent.call_tool("laptop", params={"a": 1, "b": 2}) == RESULT
    assert await agent.hears("notify:enter_office") == {"office_id": office, "computer": "laptop"}
    ((event, request),) = computer.asked
    assert event == "client:tool_call"
    assert request["params"] == {"a": 1, "b": 2}
