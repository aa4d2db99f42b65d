"""Progress, long calls, logs and `_meta` of calls, through a real Server with real MCP servers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.computer.hosted import CarelessServer, progress_in
from tests.peer import Peer
from tests.stage.questions import NEWER, Asking, Start, begin, both, said
from tests.waiting import until


@both
@pytest.mark.covers("tells-progress")
async def test_progress_is_told_before_the_answer_and_only_for_calls_that_ask(
    start: Start, agent: Peer, file: str
) -> None:
    await start(file)
    for number in range(20):
        before = len(agent.heard)
        await begin(agent, "chat", req_id=f"c{number}", progress=True)
        told = progress_in(agent, f"c{number}")
        assert (told[0], told[-1]) == (1, 3), agent.heard[before:]
    last = next(data for name, data in reversed(agent.heard) if name == "notify:tell_progress")
    about = {"agent": "planner", "computer": "laptop", "office_id": agent.office, "req_id": "c19"}
    assert last == {**about, "seat": await agent.seat(), "progress": 3, "total": 3, "message": "step 3"}
    await begin(agent, "chat", req_id="silent")
    await agent.heard_until_now()
    assert progress_in(agent, "silent") == []


@pytest.mark.covers("tells-progress")
async def test_a_call_sent_again_is_told_its_progress_once(start: Start, agent: Peer) -> None:
    await start()
    params = {"steps": 4, "pause": 0.25}
    calls = [begin(agent, "chat", req_id="c1", progress=True, params=params) for _ in range(2)]
    await asyncio.gather(*calls)
    told = progress_in(agent, "c1")
    assert told == sorted(set(told))


@pytest.mark.covers("calls-extend")
async def test_with_extend_the_timeout_is_the_longest_silence(start: Start, agent: Peer) -> None:
    asking = await start()
    params = {"steps": 15, "pause": 0.2}
    assert said(await begin(agent, "chat", timeout=1, extend=True, params=params)) == "done"
    assert (await begin(agent, "chat", timeout=1, params=params))["code"] == 408
    silent = await begin(agent, "chat", timeout=1, extend=True, params={"steps": 1, "pause": 20})
    assert silent["code"] == 408
    await until(lambda: asking.notes.count("cancelled") == 2)


@pytest.mark.covers("logs-told", "9-set_log_level")
async def test_logs_are_kept_for_the_owner_and_told_to_an_agent_that_asks(
    start: Start, agent: Peer, office: str
) -> None:
    asking = await start()
    await begin(agent, "chat")
    await until(lambda: asking.computer.owner.logs("asking"))
    lines = asking.computer.owner.logs("asking", "debug")
    assert lines[0][1:] == ("debug", "chat", '{"step":0}')
    assert asking.computer.owner.logs("asking", "info") == []
    assert "notify:tell_log" not in dict(await agent.heard_until_now())

    async def set_level(**about: Any) -> Any:
        return await agent.request("client:set_log_level", "laptop", **about)

    for wrong in ({"level": "loud"}, {}, {"level": "debug", "mcp_server": ""}):
        assert (await set_level(**wrong))["code"] == 400
    assert (await set_level(level="debug", mcp_server="nothing"))["code"] == 404
    assert await set_level(level="debug", mcp_server="asking", req_id="l1") == {"req_id": "l1"}
    assert asking.levels == ["level:debug"]
    await begin(agent, "chat")
    told = await agent.hears("notify:tell_log", mcp_server="asking", level="debug", logger="chat")
    assert (told["agent"], told["data"]) == ("planner", {"step": 0})
    await agent.ask("server:leave_office", {"office_id": office})
    agent.heard.clear()
    await until(lambda: asking.computer.owner.server_logs.level_for("asking") is None)
    await agent.join("agent", "planner", office)
    await begin(agent, "chat")
    assert "notify:tell_log" not in dict(await agent.heard_until_now())
    await asking.computer.owner.set_log_level("asking", "warning")
    assert asking.levels[-1] == "level:warning"


@pytest.mark.covers("meta-passed")
async def test_meta_of_the_agent_reaches_the_server_and_back_without_our_own_keys(start: Start, agent: Peer) -> None:
    await start()
    own = {"a2c_x": 1, "error_code": 4006, "auth_hint": {}, "progressToken": "mine"}
    meta = {"traceparent": "00-1-2-01", "example.org/x": {"y": [1]}, **own}
    result = await begin(agent, "meta", _meta=meta)
    arrived = said(result)
    assert arrived.pop("progressToken") != "mine"
    assert arrived == {"traceparent": "00-1-2-01", "example.org/x": {"y": [1]}}
    assert (result["_meta"], result["content"][0]["_meta"]) == ({"own": 1}, {"own": 1})


@pytest.mark.covers("tools-meta")
async def test_tools_say_their_title_icons_and_execution(start: Start, agent: Peer) -> None:
    await start()
    meta = (await agent.request("client:get_tools", "laptop"))["tools"][0]["meta"]
    title, icons, execution = (json.loads(meta[f"MCP_TOOL_{name}"]) for name in ("TITLE", "ICONS", "EXECUTION"))
    assert (title, execution) == ("A tool", {"taskSupport": "forbidden"})
    assert icons[0]["src"] == "https://example.org/icon.png"


MALFORMED: list[tuple[str, Any]] = [
    *(("progress", "yes"), ("questions", "always"), ("extend", 1), ("input_responses", []), ("request_state", 5)),
    *(("client_capabilities", "all"), ("_meta", [1])),
]


@pytest.mark.covers("computer-malformed")
@pytest.mark.parametrize(("field", "value"), MALFORMED)
async def test_a_malformed_option_is_refused_with_its_name(start: Start, agent: Peer, field: str, value: Any) -> None:
    asking = await start()
    refused = await begin(agent, "chat", **{field: value})
    assert (refused["code"], refused["details"]["field"], asking.notes) == (400, field, [])


@pytest.mark.covers("tells-sent", "questions-who")
@both
async def test_behind_a_server_that_does_not_carry_tells_the_tool_hears_that_nobody_can_answer(
    tmp_path: Path, file: str
) -> None:
    server, asking = CarelessServer(), Asking(file, tmp_path)
    async with server.open() as url, asking.at(url, "desk", tmp_path):
        call = {"agent": "planner", "req_id": "c1", "computer": "laptop", "tool_name": "book", "params": {}}
        result = await server.ask("client:tool_call", {**call, "timeout": 20, "questions": True, "progress": True})
        if file == NEWER:
            assert result["isError"]
        else:
            assert said(result) == {"where": {"action": "cancel"}}
            assert asking.notes == ["book"]
