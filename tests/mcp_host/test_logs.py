"""Logs of MCP servers: levels, and what a flood of messages costs."""

from __future__ import annotations

from typing import Any

import pytest

from a2c_smcp.errors import BadRequest, ServerNotFound
from a2c_smcp.mcp_host.manager import Manager
from a2c_smcp.mcp_host.sessions.server_info import LARGEST, RATE, LogMessage, ServerLog
from a2c_smcp.mcp_host.sessions.tool_request import ToolRequest
from tests.computer.supervised import QUICK, Notebook, session, text_of
from tests.mcp_host.scripts import call, finished, heard, scripted

pytestmark = pytest.mark.covers("server-logs")

LEVEL = "io.modelcontextprotocol/logLevel"


def message(data: Any, level: str = "info", **more: Any) -> dict[str, Any]:
    return {"method": "notifications/message", "params": {"level": level, "data": data, **more}}


@pytest.mark.parametrize("era", ["older", "modern"])
async def test_messages_arrive_in_order_and_before_the_answer(era: str) -> None:
    told = Notebook()
    said = [message({"a": None}, logger="disk"), message("text", "error"), message("odd", "loud")]
    async with session(scripted(era), on_log=told) as one:
        await one.call_tool(call("plain", finished(), notify=said))
        assert told.entries == [(LogMessage("info", "disk", {"a": None}),), (LogMessage("error", None, "text"),)]


@pytest.mark.parametrize("era", ["older", "modern"])
async def test_the_level_is_set_and_set_again_after_a_restart(era: str) -> None:
    async with Manager(policy=QUICK) as manager:
        manager.add(scripted(era))
        await manager[era].request_logs("warning")
        await manager.start()
        assert await levels(manager, era) == ["warning"]
        await manager[era].request_logs("debug")
        assert (await levels(manager, era))[-1] == "debug"
        await manager.stop(era)
        await manager.start(era)
        assert await levels(manager, era) == ["debug"]
        await manager[era].request_logs(None)
        assert (await levels(manager, era))[-1] == ("emergency" if era == "older" else None)


async def levels(manager: Manager, era: str) -> list[str | None]:
    """The levels that the server was told: by a request, or with each call."""
    result = await manager[era].requests.call_tool(ToolRequest("heard", {}, 30))
    messages = result["structuredContent"]["heard"]
    if era == "older":
        return [each["params"]["level"] for each in messages if each.get("method") == "logging/setLevel"]
    return [each["params"]["_meta"].get(LEVEL) for each in messages if each.get("method") == "tools/call"]


async def test_a_level_that_is_none_of_mcps_is_refused() -> None:
    async with Manager(policy=QUICK) as manager:
        manager.add(scripted("older"))
        with pytest.raises(BadRequest, match="'loud' is not a log level"):
            await manager["older"].request_logs("loud")
        with pytest.raises(ServerNotFound):
            await manager["nobody"].request_logs("info")


def test_a_flood_is_dropped_and_counted() -> None:
    now = 100.0
    told: list[LogMessage] = []
    log = ServerLog(told.append, lambda: now)
    for number in range(10 * RATE):
        log.add({"level": "info", "data": number})
    assert [each.data for each in told] == list(range(RATE))
    assert log.dropped == 9 * RATE
    now += 0.5
    log.add({"level": "info", "data": "again"})
    assert [each.data for each in told[RATE:]] == [f"{9 * RATE} messages are left out: more than 100 a second", "again"]


async def test_large_messages_are_left_out_and_a_failing_callback_does_no_harm(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[LogMessage] = []

    def keep(said: LogMessage) -> None:
        told.append(said)
        raise ValueError("not my day")

    large = [message("word " * 16 * LARGEST), message(["x" * LARGEST]), message("x", logger="l" * 10_000)]
    async with session(scripted("older"), on_log=keep) as one:
        assert text_of(await one.call_tool(call("plain", finished(), notify=large))) == "done"
        assert await heard(one, "initialize")
    assert told[0].data == f"[{5 * 16 * LARGEST} characters, left out]"
    assert told[1].data == f"a value of more than {LARGEST} bytes is left out"
    assert told[2] == ("info", None, "x")
    assert "a callback for a log message failed" in caplog.text
