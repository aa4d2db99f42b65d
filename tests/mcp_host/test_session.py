"""One MCP session: older and newer protocol, raw results, ends of calls, announcements."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.errors import BadRequest, CallTimeout
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.mcp_host.failures import RequestRefused, ServerGone, StartFailed
from a2c_smcp.mcp_host.sessions.listings import WindowList, repaired_tool
from a2c_smcp.mcp_host.sessions.session import MCPSession
from a2c_smcp.mcp_host.sessions.tool_request import ToolRequest
from tests.computer.pace import within
from tests.computer.supervised import (
    Notebook,
    naughty,
    of_the_sdk,
    quick,
    reading,
    script,
    session,
    start_and_stop,
    text_of,
)
from tests.stage.cases import cases

pytestmark = pytest.mark.covers("mcp-robust")

WINDOW = "window://naughty/clock"


def heard(result: dict[str, Any], method: str) -> list[dict[str, Any]]:
    return [message["params"] for message in result["structuredContent"]["heard"] if message["method"] == method]


@pytest.mark.covers("mcp-eras", "mcp-raw-results")
async def test_the_newest_revision_is_used_with_servers_that_know_it(newest: MCPSession) -> None:
    assert newest.revision == "2026-07-28"
    result = await newest.call_tool(ToolRequest("add", {"a": 1, "b": 2}, 60))
    assert (result["structuredContent"], "resultType" in result) == ({"result": 3}, False)
    assert "resultType" not in await newest.read(reading("window://good/two"))
    for tool in ("fail", "no_such_tool"):
        assert (await newest.call_tool(ToolRequest(tool, {}, 60)))["isError"] is True
    with pytest.raises(RequestRefused):
        await newest.read(reading("window://good/none"))
    await newest.check(5)


@pytest.mark.covers("mcp-eras")
@pytest.mark.parametrize(("mode", "revision"), [("fine", "2025-11-25"), ("oldest", "2024-11-05")])
async def test_older_servers_are_used_in_their_own_revision(mode: str, revision: str) -> None:
    async with session(naughty(mode)) as one:
        assert one.revision == revision
        assert not one.legacy
        assert text_of(await one.call_tool(ToolRequest("echo", {"a": 1}, 60))) == '{"a": 1}'
        await one.check(5)


@pytest.mark.covers("mcp-eras")
async def test_a_server_that_ignores_the_probe_is_not_waited_for_twice() -> None:
    async with session(naughty("ignores_discover"), policy=quick(probe_limit=0.3)) as one:
        assert one.legacy
    await start_and_stop(naughty("ignores_discover"), policy=quick(probe_limit=600), legacy=True)


async def test_arguments_that_cannot_be_written_fail_their_own_call_only(fine: MCPSession) -> None:
    with pytest.raises(BadRequest):
        await fine.call_tool(ToolRequest("echo", {"x": object()}, 60))
    assert text_of(await fine.call_tool(ToolRequest("echo", {"a": 1}, 60))) == '{"a": 1}'


@pytest.mark.covers("mcp-raw-results")
async def test_results_pass_through_untouched(fine: MCPSession) -> None:
    assert await fine.call_tool(ToolRequest("odd", {"kind": "extra"}, 60)) == {
        "content": [{"type": "hologram", "data": 1}],
        "mood": {"deep": [1, None]},
        "_meta": {"a": {"b": 1}},
    }
    assert await fine.call_tool(ToolRequest("odd", {"kind": "no_content"}, 60)) == {}
    numbers = await fine.call_tool(ToolRequest("odd", {"kind": "numbers"}, 60))
    assert numbers["structuredContent"]["n"] == 123456789012345678901234567890


@pytest.mark.covers("mcp-raw-results")
async def test_arguments_arrive_unchanged(fine: MCPSession) -> None:
    arguments = {"none": None, "deep": [{"none": None}], "big": 10**40, "odd": "\ud800", "text": "漢\u2028"}
    assert json.loads(text_of(await fine.call_tool(ToolRequest("echo", arguments, 60)))) == arguments


@pytest.mark.covers("mcp-raw-results")
async def test_a_failing_tool_and_an_odd_answer_are_results(fine: MCPSession) -> None:
    refused = await fine.call_tool(ToolRequest("error", {}, 60))
    assert refused == {
        "isError": True,
        "content": [{"type": "text", "text": "the disk is full"}],
        "_meta": {"a2c_mcp_error": {"code": -32000, "message": "the disk is full"}},
    }
    for kind, said in {"no_object": "not an MCP result", "input": "unknown kind 'input_required'"}.items():
        odd = await fine.call_tool(ToolRequest("odd", {"kind": kind}, 60))
        assert (odd["isError"], said in text_of(odd)) == (True, True)


@pytest.mark.parametrize("method", ["sampling/createMessage", "x/unknown"])
async def test_requests_of_a_server_that_nobody_answers_are_refused(fine: MCPSession, method: str) -> None:
    params = {"messages": [], "maxTokens": 1}
    reply = (await fine.call_tool(ToolRequest("ask", {"method": method, "params": params}, 60)))["structuredContent"]
    assert reply["error"]["code"] < 0
    assert (await fine.call_tool(ToolRequest("ask", {"method": "ping"}, 60)))["structuredContent"]["result"] == {}


async def test_a_cancelled_call_is_cancelled_at_the_server_and_others_go_on(fine: MCPSession) -> None:
    calls = [asyncio.create_task(fine.call_tool(ToolRequest("never", {"n": n}, 30))) for n in range(3)]
    await fine.call_tool(ToolRequest("echo", {}, 60))
    calls[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await calls[1]
    assert len(heard(await fine.call_tool(ToolRequest("heard", {}, 60)), "notifications/cancelled")) == 1
    assert [call.done() for call in calls] == [False, True, False]
    await cancel_and_wait(*calls)


async def test_a_call_that_takes_too_long_is_cancelled_and_the_connection_goes_on(fine: MCPSession) -> None:
    with within(1), pytest.raises(CallTimeout, match=r"'never' took longer than 0\.2 s"):
        await fine.call_tool(ToolRequest("never", {}, 0.1998))
    assert len(heard(await fine.call_tool(ToolRequest("heard", {}, 60)), "notifications/cancelled")) == 1


async def test_progress_is_reported_in_order_and_extends_the_timeout_up_to_a_cap(newest: MCPSession) -> None:
    told: list[tuple[float, float | None, str | None]] = []
    slow = {"steps": 8, "pause": 0.1}
    told_of = ToolRequest("slow", slow, 0.5, extend=True, on_progress=lambda *how_far: told.append(how_far))
    assert text_of(await newest.call_tool(told_of)) == "done"
    assert told == [(float(n), 8.0, f"step {n}") for n in range(1, 9)]
    for extending in ({"cap": 0.4, "extend": True}, {}):
        with pytest.raises(CallTimeout):
            await newest.call_tool(ToolRequest("slow", slow, 0.5, **extending))


async def test_a_progress_callback_that_fails_does_no_harm(fine: MCPSession, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: object) -> None:
        raise ValueError("not my day")

    await fine.call_tool(ToolRequest("progress", {"steps": 2, "pause": 0}, 60, on_progress=broken))
    assert "a progress callback failed" in caplog.text


async def test_a_crash_in_a_call_fails_every_call_in_flight_at_once_with_the_reason() -> None:
    events = Notebook()
    async with session(naughty(), events=events) as one:
        waiting = [asyncio.create_task(one.call_tool(ToolRequest("never", {}, 30))) for _ in range(3)]
        await one.call_tool(ToolRequest("echo", {}, 60))
        with within(1):
            with pytest.raises(ServerGone, match="exited with code 5: falling over"):
                await one.call_tool(ToolRequest("crash", {}, 30))
            for call in waiting:
                with pytest.raises(ServerGone):
                    await call
        await events.until(lambda told: told)
        assert [entry[0] for entry in events.entries] == ["lost"]
        with pytest.raises(ServerGone):
            await one.call_tool(ToolRequest("echo", {}, 60))


async def test_a_server_that_dies_while_idle_is_noticed_at_once() -> None:
    events = Notebook()
    async with session(naughty("crash_idle", 0.1), events=events):
        await events.until(lambda told: told)
        kind, failure = events.entries[0]
        assert (kind, failure.message) == ("lost", "MCP server is gone: it exited with code 9")


@cases(
    "mode, limits, said",
    ("hangs_at_initialize", {"start_limit": 0.5}, r"not ready within 0\.5 s"),
    ("hangs_at_list", {"listing_limit": 0.3}, "did not list its tools"),
)
async def test_a_start_that_never_ends_fails_with_its_limit(mode: str, limits: dict[str, float], said: str) -> None:
    with pytest.raises(StartFailed, match=said):
        await start_and_stop(naughty(mode), policy=quick(**limits))


async def test_pages_that_never_end_are_cut_off() -> None:
    async with session(naughty("endless_pages"), policy=quick(listing_pages=20)) as one:
        assert [tool["name"] for tool in one.tools] == [f"t{n}" for n in range(20)]
    async with session(naughty("same_page")) as one:
        assert [tool["name"] for tool in one.tools] == ["echo"]


@pytest.mark.covers("mcp-bounded")
async def test_the_first_thousand_of_five_thousand_tools_are_used(caplog: pytest.LogCaptureFixture) -> None:
    async with session(naughty("many_tools")) as one:
        assert [tool["name"] for tool in one.tools] == [f"tool-{n}" for n in range(1000)]
        (warning,) = one.warnings
    assert warning.startswith("4000 or more of its tools are left out: at most 1000 tools")
    assert warning in caplog.text


@pytest.mark.parametrize(("revision", "left_out"), [("2026-07-28", ["wrong"]), ("2025-11-25", [])])
async def test_a_tool_that_asks_for_a_wrong_header_is_left_out_and_named(revision: str, left_out: list[str]) -> None:
    async with session(script("recorder.py", revision)) as one:
        assert one.revision == revision
        assert {"seen", "wrong"} - {tool["name"] for tool in one.tools} == {*left_out}
        assert one.warnings == [f"tool {name!r} is left out: its schema has a wrong x-mcp-header" for name in left_out]


@pytest.mark.covers("mcp-bounded")
async def test_a_tool_that_is_too_large_is_left_out_and_named() -> None:
    async with session(naughty("large_tool")) as one:
        assert [tool["name"] for tool in one.tools] == ["echo"]
        assert one.warnings == ["tool 'large' is left out: it has 6291521 bytes, at most 65536 are taken"]


async def test_malformed_tools_are_repaired_or_left_out_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    async with session(naughty("malformed")) as one:
        assert one.tools == [
            {"name": "no_schema", "inputSchema": {"type": "object"}},
            {"name": "odd_parts", "inputSchema": {"type": "object"}, "x-extra": 1},
            {"name": "echo", "inputSchema": {"type": "object"}},
        ]
    assert "3 of the tools it lists cannot be used" in caplog.text
    async with session(naughty("no_list")) as one:
        assert one.tools == []


@pytest.mark.parametrize("raw", [None, [], {}, {"name": ""}, {"name": 7}, {"name": "x" * 257}])
def test_a_tool_without_a_usable_name_is_left_out(raw: object) -> None:
    assert repaired_tool(raw) is None


@pytest.mark.covers("desktop-watch")
def test_windows_keep_the_servers_order_and_come_once() -> None:
    uris: list[object] = ["window://b", "file:///x", 7, "window://a", "window://b"]
    found = WindowList()
    assert found.take(["odd", *({"uri": uri} for uri in uris)])
    assert [window["uri"] for window in found.windows] == ["window://b", "window://a"]


@pytest.mark.covers("desktop-watch")
async def test_windows_are_used_if_they_can_be_subscribed_to(caplog: pytest.LogCaptureFixture) -> None:
    async with session(naughty()) as one:
        assert one.windows == [{"uri": WINDOW}]
        assert (await one.read(reading(WINDOW)))["contents"][0]["uri"] == WINDOW
    async with session(naughty("unsubscribable")) as one:
        assert one.windows == []
    assert "its windows stay off the desktop" in caplog.text
    async with session(naughty("unsubscribable", desktop="any")) as one:
        assert one.windows == [{"uri": WINDOW}]


@pytest.mark.covers("desktop-watch")
async def test_new_and_updated_windows_are_reported_and_can_be_read() -> None:
    events, uri = Notebook(), "window://good/three"
    async with session(of_the_sdk(), events=events) as one:
        await one.call_tool(ToolRequest("open_window", {"uri": uri, "text": "new here"}, 60))
        await events.until(lambda _: events.of("windows_changed"))
        assert uri in [window["uri"] for window in one.windows]
        assert (await one.read(reading(uri)))["contents"][0]["text"] == "new here"
        await one.call_tool(ToolRequest("touch_window", {"uri": uri}, 60))
        await events.until(lambda _: events.of("window_updated", uri))


@pytest.mark.covers("desktop-watch")
async def test_changes_are_reported_only_if_something_has_changed() -> None:
    events = Notebook()
    async with session(of_the_sdk(), events=events) as one:
        await one.call_tool(ToolRequest("open_window", {"uri": "window://good/two", "text": "again"}, 60))
        await one.call_tool(ToolRequest("touch_window", {"uri": "window://nobody/listed"}, 60))
        await one.call_tool(ToolRequest("grow", {"name": "novel"}, 60))
        await events.until(lambda told: events.of("tools_changed"))
        assert set(events.entries) == {("resource_list_changed", None), ("tools_changed", None)}
        assert text_of(await one.call_tool(ToolRequest("novel", {}, 60))) == "novel"


@pytest.mark.covers("mcp-eras")
async def test_a_list_whose_changes_are_not_announced_is_read_again_when_its_time_is_over(tmp_path: Path) -> None:
    events = Notebook()
    config = script("library.py", "newer", tmp_path / "notes", "forgetful")
    async with session(config, policy=quick(shortest_ttl=0.02), events=events) as one:
        before = len(one.tools)
        await events.until(lambda told: len(told) >= 2)
        assert len(one.tools) >= before + 2
        assert set(events.entries) == {("tools_changed", None)}


@pytest.mark.covers("desktop-watch")
async def test_updates_in_a_tight_loop_are_merged_and_block_nothing() -> None:
    events = Notebook()
    async with session(naughty("updates"), policy=quick(notice_pause=0.1), events=events) as one:
        began = time.monotonic()
        for number in range(20):
            assert text_of(await one.call_tool(ToolRequest("echo", {"n": number}, 60))) == f'{{"n": {number}}}'
        await events.until(lambda told: len(told) > 3)
        took = time.monotonic() - began
        assert len(events.of("window_updated", WINDOW)) <= took / 0.1 + 2
