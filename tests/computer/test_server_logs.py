"""Logs of MCP servers: the history for the owner, and who is told."""

from __future__ import annotations

import asyncio

import pytest

from a2c_smcp.computer.approval import Caller
from a2c_smcp.computer.secrets import Mask
from a2c_smcp.computer.server_logs import ServerLogs
from a2c_smcp.computer.tells import Tells
from a2c_smcp.errors import BadRequest
from a2c_smcp.mcp_host.sessions.logs import LogMessage
from tests.computer.test_tells import DELIVERED, Line

PLANNER, OTHER = Caller("desk", "planner"), Caller("desk", "other")
SECRET = "a secret of some length 123"


@pytest.mark.covers("logs-told")
def test_the_history_is_bounded_filtered_by_level_and_masked_when_it_is_shown() -> None:
    mask = Mask()
    logs = ServerLogs(Tells("laptop"), mask)
    for number in range(600):
        logs.add("one", LogMessage("debug" if number % 2 else "error", "x", {"number": number}))
    logs.add("two", LogMessage("info", None, f"it is {SECRET}"))
    mask.add([SECRET])
    assert len(logs.of("one")) == 500
    assert {line.level for line in logs.of("one", "warning")} == {"error"}
    assert logs.of("one")[-1].text == '{"number":599}'
    assert [line.text for line in logs.of("two")] == ["it is ***"]
    logs.add("large", LogMessage("info", None, "x" * 200_000))
    logs.add("large", LogMessage("info", None, "y" * 200_000))
    assert [line.text[0] for line in logs.of("large")] == ["y"]
    with pytest.raises(BadRequest):
        logs.of("one", "loud")


@pytest.mark.covers("logs-told")
async def test_an_agent_is_told_what_it_asked_for_until_it_lapses_or_leaves() -> None:
    now, mask = 0.0, Mask([SECRET])
    tells, line = Tells("laptop"), Line(DELIVERED)
    logs = ServerLogs(tells, mask, lambda: now)

    def told() -> list[tuple[str, str, str]]:
        sent = [(data["agent"], data["mcp_server"], data["data"]) for _, data in line.sent]
        line.sent.clear()
        return sent

    def say(level: str = "info") -> None:
        for server in ("one", "two"):
            logs.add(server, LogMessage(level, None, f"{level} {SECRET}"))  # type: ignore[arg-type]

    with tells.connected("desk", line):
        say()
        assert (told(), logs.level_for("one")) == ([], None)
        logs.watch(PLANNER, None, "warning")
        logs.watch(PLANNER, "two", "debug")
        assert (logs.level_for("one"), logs.level_for("two")) == ("warning", "debug")
        say()
        assert told() == [("planner", "two", "info ***")]
        say("error")
        assert told() == [("planner", "one", "error ***"), ("planner", "two", "error ***")]
        logs.set_owners_level("one", "info")
        assert logs.level_for("one") == "info"
        now = 16 * 60.0
        say("error")
        assert (told(), logs.level_for("one"), logs.level_for("two")) == ([], "info", None)
        logs.watch(PLANNER, None, "debug")
        logs.watch(OTHER, None, "debug")
        logs.keep_only("desk", "planner")
        say()
        assert {agent for agent, *_ in told()} == {"planner"}
        logs.end("desk", "planner")
        say()
        assert told() == []
        await asyncio.sleep(0)
