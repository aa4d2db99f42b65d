"""Unexpected exceptions are answered with a bare 500 and logged for the operator (WIRE §3)."""

from __future__ import annotations

from typing import Any

import pytest

from a2c_smcp.protocol.offices import Office
from a2c_smcp.server import MemoryDirectory
from tests.peer import Peer

SECRET = "/home/somebody/secret.json"


class BrokenDirectory(MemoryDirectory):
    """Answers until it is broken."""

    is_broken = False

    def cached_office(self, office_id: str) -> Office:
        if self.is_broken:
            raise RuntimeError(SECRET)
        return super().cached_office(office_id)


@pytest.mark.covers("always-an-ack", "error-shape")
async def test_an_unforeseen_failure_is_a_bare_500_and_the_next_request_works(
    serve: Any, connect: Any, office: str, caplog: pytest.LogCaptureFixture
) -> None:
    directory = BrokenDirectory()
    hub = await serve(directory=directory)
    agent: Peer = await connect(hub)
    await agent.join("agent", "planner", office)
    room = {"agent": "planner", "req_id": "r", "office_id": office}
    call = {**room, "computer": "laptop", "tool_name": "t", "params": {}, "timeout": 1}
    directory.is_broken = True
    bare = {"code": 500, "message": "Internal error", "details": {}}
    assert await agent.ask("server:list_room", room) == {"error": bare, **bare}
    answer = await agent.ask("client:tool_call", call)
    assert answer["isError"] is True
    assert SECRET not in repr(answer)
    assert await agent.ask("server:leave_office", {"office_id": office}) == (False, "500 Internal error")
    assert SECRET in caplog.text, "the operator sees the traceback"
    directory.is_broken = False
    assert (await agent.ask("server:list_room", room))["req_id"] == "r"
