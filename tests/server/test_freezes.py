"""Operators freeze computers, offices and the Server: nothing gets through, what runs ends, and a person ends it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.errors import ConfigError, RateLimited
from a2c_smcp.protocol.events import EVENTS, Action
from a2c_smcp.server import Settings, create_app
from a2c_smcp.server.freezes import Freeze
from tests.conftest import Hub, Seat
from tests.peer import Peer
from tests.stage.calls import MINE, RESULT, Gate, call_and_forget, running_call, sessions, verdict
from tests.stage.metrics import scrape
from tests.stage.operators import ADMIN, freeze, operate, thaw
from tests.waiting import until

pytestmark = pytest.mark.covers("freeze")

CANCEL, STATE = "notify:tool_call_cancel", "notify:update_state"
FIELDS: dict[str, Any] = {
    "tool_name": "add",
    "params": {},
    "timeout": 5,
    "mcp_server": "files",
    "uri": "file:///a",
    "name": "a",
    "nonce": "n" * 32,
    "kid": "k",
    "sealed": "c2VhbA==",
    "question_id": "q",
    "action": "cancel",
    "level": "info",
    "ref": {},
    "argument": {},
    "call_id": "r",
    "blob": "YQ==",
    "blob_handle": "h" * 20,
    "chunk_index": 0,
}
"""What some request or other must have."""
SCOPES = pytest.mark.parametrize("scope", ["all", "office", "computer"])


class Stage:
    """An agent and a computer in an office of a Server whose operators may freeze."""

    def __init__(self, hub: Hub, office: str, agent: Peer, computer: Peer) -> None:
        self.hub, self.office, self.agent, self.computer = hub, office, agent, computer

    def scope(self, name: str) -> dict[str, Any]:
        office = {"office": self.office}
        return {"all": {"all": True}, "office": office, "computer": {**office, "computer": "laptop"}}[name]

    async def freeze(self, **more: Any) -> Any:
        return await freeze(self.hub.url, office=self.office, **more)

    async def thaw(self, **more: Any) -> Any:
        return await thaw(self.hub.url, office=self.office, **more)


@pytest.fixture
async def hub(serve: Callable[..., Any]) -> Hub:
    hub: Hub = await serve(admin_key=ADMIN, metrics=True, limits={"resume_grace": 60})
    return hub


@pytest.fixture
async def stage(hub: Hub, seat: Seat, office: str) -> Stage:
    agent = await seat("agent", "planner", office, hub=hub, instance=MINE)
    return Stage(hub, office, agent, await seat("computer", "laptop", office, hub=hub, instance=MINE))


@SCOPES
async def test_no_request_gets_through_and_everything_else_goes_on(stage: Stage, seat: Seat, scope: str) -> None:
    agent, computer = stage.agent, stage.computer
    await freeze(stage.hub.url, **stage.scope(scope), reason="an incident")
    computer.answers("client:tool_call", RESULT)
    refused = await agent.call_tool("laptop")
    assert verdict(refused) == (423, "not_run")
    assert (refused["details"]["by"], refused["details"]["reason"]) == ("operator", "an incident")
    assert "an incident" in refused["message"]
    for event in [*(row.name for row in EVENTS if row.action is Action.FORWARD), "client:newer"]:
        answer = await agent.request(event, "laptop", office_id=stage.office, **FIELDS)
        assert (event, answer["code"]) == (event, 423)
    assert computer.asked == []
    assert [row.get("frozen") for row in await sessions(agent)] == [None, True]
    await computer.ask("server:update_desktop", {"computer": "laptop"})
    await agent.hears("notify:update_desktop")
    assert await computer.ask("server:leave_office", {"office_id": stage.office}) == (True, None)
    await agent.hears("notify:leave_office")
    successor = await seat("computer", "laptop", stage.office, hub=stage.hub)
    successor.answers("client:tool_call", RESULT)
    assert (await agent.call_tool("laptop"))["code"] == 423, "whoever comes back under its name is frozen"
    await thaw(stage.hub.url, **stage.scope(scope))
    assert await agent.call_tool("laptop") == RESULT


async def test_an_office_that_is_not_frozen_notices_nothing(stage: Stage, seat: Seat) -> None:
    other = f"{stage.office}-other"
    agent = await seat("agent", "planner", other, hub=stage.hub)
    computer = await seat("computer", "laptop", other, hub=stage.hub)
    call = await running_call(agent, computer, gate := Gate())
    await stage.freeze()
    gate.open()
    assert await call == RESULT
    assert await agent.call_tool("laptop") == RESULT
    assert STATE not in [event for event, _ in await agent.heard_until_now()]


@SCOPES
async def test_what_runs_is_cancelled_and_answered_at_once(stage: Stage, scope: str) -> None:
    """The computer never answers its cancel."""
    calls = [await running_call(stage.agent, stage.computer, Gate(), req_id="r1", timeout=60)]
    calls.append(asyncio.create_task(stage.agent.call_tool("laptop", req_id="r1", timeout=60)))
    stage.computer.answers("client:get_tools", Gate())
    calls.append(asyncio.create_task(stage.agent.request("client:get_tools", "laptop")))
    await stage.computer.was_asked("client:get_tools")
    await freeze(stage.hub.url, **stage.scope(scope), reason="an incident")
    first, duplicate, read = await asyncio.gather(*calls)
    assert await stage.computer.hears(CANCEL) == {"agent": "planner", "req_id": "r1"}
    for answer in (first, duplicate):
        assert verdict(answer) in ((499, "unknown"), (423, "not_run"))
    assert verdict(first) == (499, "unknown")
    assert first["_meta"] == {"a2c_cancelled": True, "a2c_cancel_reason": "frozen"}
    assert (first["details"]["by"], first["details"]["reason"]) == ("operator", "an incident")
    assert read["code"] == 423


async def test_a_call_that_waits_for_its_computer_ends_and_is_never_sent(stage: Stage, seat: Seat) -> None:
    await stage.computer.drop()
    call = asyncio.create_task(stage.agent.call_tool("laptop", timeout=60))
    await until(lambda: _in_flight(stage.hub))
    await stage.freeze()
    assert verdict(await call) == (499, "not_run")
    back = await seat("computer", "laptop", stage.office, hub=stage.hub, instance=MINE)
    assert [event for event, _ in await back.heard_until_now() if event == CANCEL] == []
    assert back.asked == []


def _in_flight(hub: Hub) -> int:
    operations = hub.app.operations
    assert operations
    return len(operations.view.hub.calls)


async def test_a_computer_that_was_away_is_told_of_the_cancel_when_it_is_back(stage: Stage, seat: Seat) -> None:
    call = await running_call(stage.agent, stage.computer, Gate(), req_id="r1", timeout=60)
    await stage.computer.drop()
    await stage.freeze()
    assert verdict(await call) == (499, "unknown")
    back = await seat("computer", "laptop", stage.office, hub=stage.hub, instance=MINE)
    assert await back.hears(CANCEL) == {"agent": "planner", "req_id": "r1"}
    assert back.asked == []


async def test_agents_and_computers_hear_of_a_freeze_and_of_its_end(stage: Stage, seat: Seat) -> None:
    told = {"computer": "laptop", "office_id": stage.office}
    await stage.freeze()
    for peer in (stage.agent, stage.computer):
        assert await peer.hears(STATE, frozen=True) == {**told, "frozen": True}
    await seat("computer", "tablet", stage.office, hub=stage.hub)
    await stage.agent.hears(STATE, computer="tablet", frozen=True)
    await stage.freeze(computer="laptop")
    await stage.thaw()
    await stage.agent.hears(STATE, computer="tablet", frozen=False)
    heard = [data for event, data in await stage.agent.heard_until_now() if event == STATE]
    assert [data["frozen"] for data in heard if data["computer"] == "laptop"] == [True], "it is frozen by itself, too"
    await stage.thaw(computer="laptop")
    assert await stage.computer.hears(STATE, frozen=False) == {**told, "frozen": False}


@pytest.mark.covers("9-update_state")
async def test_what_a_computer_says_of_itself_reaches_its_agent(stage: Stage) -> None:
    for frozen in (True, False):
        assert await stage.computer.ask("server:update_state", {"computer": "laptop", "frozen": frozen}) is None
        told = {"computer": "laptop", "office_id": stage.office, "frozen": frozen}
        assert await stage.agent.hears(STATE, frozen=frozen) == told


async def test_a_call_that_is_sent_again_is_not_said_not_to_have_run(stage: Stage, seat: Seat) -> None:
    """The agent has lost its connection, and the Server knows nothing of the call any more."""
    await stage.freeze()
    assert verdict(await stage.agent.call_tool("laptop", sent_before=True)) == (423, "unknown")


async def test_an_answer_from_before_the_freeze_is_still_given(stage: Stage, seat: Seat) -> None:
    gate = Gate()
    await call_and_forget(stage.agent, stage.computer, answer=gate)
    await stage.agent.drop()
    gate.open()
    await stage.computer.heard_until_now()
    await until(lambda: not _in_flight(stage.hub))
    await stage.freeze()
    back = await seat("agent", "planner", stage.office, hub=stage.hub, instance=MINE)
    assert await back.call_tool("laptop", req_id="r1", timeout=30) == RESULT
    assert verdict(await back.call_tool("laptop", req_id="r2")) == (423, "not_run")


async def test_a_flood_is_refused_and_costs_nobody_else_anything(stage: Stage) -> None:
    await stage.freeze()
    answers = await asyncio.gather(*(stage.agent.call_tool("laptop") for _ in range(1000)))
    assert {verdict(answer) for answer in answers} == {(423, "not_run")}
    assert stage.computer.asked == []
    assert await stage.agent.ask("server:leave_office", {"office_id": stage.office}) == (True, None)


async def test_operators_see_what_is_frozen_and_all_of_it_is_recorded(stage: Stage) -> None:
    changed = await stage.freeze(reason=" an incident ")
    assert (changed["freeze"]["reason"], changed["computers"], changed["missing"]) == ("an incident", 1, [])
    await freeze(stage.hub.url)
    (_, listed), (_, offices) = [await operate(stage.hub.url, "GET", path) for path in ("freezes", "offices")]
    assert [(row["office"], row["computer"]) for row in listed["freezes"]] == [(None, None), (stage.office, None)]
    assert listed["freezes"][0]["by"]
    assert [row["frozen"] for row in offices["offices"]] == [1]
    _, members = await operate(stage.hub.url, "GET", "members")
    assert {row["name"]: row["frozen"] for row in members["members"]} == {"planner": False, "laptop": True}
    await stage.agent.call_tool("laptop")
    samples = await scrape(stage.hub.urls[0])
    assert [value for name, value in samples.items() if name.startswith("a2c_frozen")] == [2]
    changed = await thaw(stage.hub.url)
    assert [row["office"] for row in changed["still"]] == [stage.office]
    await stage.thaw()
    assert (await operate(stage.hub.url, "GET", "freezes"))[1] == {"freezes": []}


async def test_a_freeze_of_what_is_not_there_holds_whoever_comes(hub: Hub, seat: Seat, office: str) -> None:
    changed = await freeze(hub.url, office=office, computer="laptop")
    assert changed["computers"] == 0
    agent = await seat("agent", "planner", office, hub=hub)
    await seat("computer", "laptop", office, hub=hub)
    await agent.hears(STATE, computer="laptop", frozen=True)
    assert (await agent.call_tool("laptop"))["code"] == 423


@pytest.mark.parametrize(
    ("action", "scope", "code"),
    [
        ("freeze", {}, 400),
        ("freeze", {"all": False}, 400),
        ("freeze", {"all": True, "office": "desk"}, 400),
        ("freeze", {"all": "yes"}, 400),
        ("freeze", {"computer": "laptop"}, 400),
        ("freeze", {"office": ""}, 400),
        ("freeze", {"office": "a\nb"}, 400),
        ("freeze", {"office": 1}, 400),
        ("freeze", {"office": "desk", "computer": ["laptop"]}, 400),
        ("freeze", {"office": "desk", "reason": "x" * 501}, 400),
        ("freeze", {"office": "desk", "reason": "two\nlines"}, 400),
        ("freeze", {"office": "desk", "reason": 7}, 400),
        ("thaw", {"office": "desk"}, 404),
        ("thaw", {}, 400),
    ],
)
async def test_what_cannot_be_frozen_is_refused_and_nothing_changes(
    hub: Hub, action: str, scope: dict[str, Any], code: int
) -> None:
    status, refusal = await operate(hub.url, "POST", action, json=scope)
    assert (status, refusal["code"]) == (code, code)
    assert (await operate(hub.url, "GET", "freezes"))[1] == {"freezes": []}


@pytest.mark.one_process
async def test_only_a_person_ends_it_and_no_restart(serve: Callable[..., Any], seat: Seat, tmp_path: Path) -> None:
    kept = tmp_path / "freezes.json"
    first = await serve(admin_key=ADMIN, freezes=kept)
    assert (await freeze(first.url, office="desk", reason="an incident"))["unkept"] == ""
    assert kept.stat().st_mode & 0o077 == 0
    second = await serve(freezes=kept)
    agent = await seat("agent", "planner", "desk", hub=second)
    await seat("computer", "laptop", "desk", hub=second)
    assert (await agent.call_tool("laptop"))["details"]["reason"] == "an incident"
    await thaw(first.url, office="desk")
    third = await serve(admin_key=ADMIN, freezes=kept)
    assert (await operate(third.url, "GET", "freezes"))[1] == {"freezes": []}


async def test_there_are_only_so_many_freezes_and_all_can_always_be_frozen(hub: Hub) -> None:
    freezes = hub.app.hub.freezes
    await asyncio.gather(*(freezes.freeze(Freeze(f"office-{number}")) for number in range(1000)))
    with pytest.raises(RateLimited):
        await freezes.freeze(Freeze("one-more"))
    await freezes.freeze(Freeze("office-7", reason="another one"))
    await freeze(hub.url)
    _, listed = await operate(hub.url, "GET", "freezes")
    assert len(listed["freezes"]) == 1001


@pytest.mark.one_process
async def test_a_freeze_that_a_restart_would_end_says_so(hub: Hub, serve: Callable[..., Any], tmp_path: Path) -> None:
    assert (await freeze(hub.url))["unkept"]
    nowhere = await serve(admin_key=ADMIN, freezes=tmp_path / "missing" / "freezes.json")
    changed = await freeze(nowhere.url, office="desk")
    assert "cannot be written" in changed["unkept"]
    assert len((await operate(nowhere.url, "GET", "freezes"))[1]["freezes"]) == 1


@pytest.mark.one_process
@pytest.mark.parametrize("content", ["{", "[]", '{"number": 1, "frozen": [{"office": 7}]}', "\0"])
def test_a_server_does_not_start_without_knowing_what_is_frozen(tmp_path: Path, content: str) -> None:
    kept = tmp_path / "freezes.json"
    kept.write_text(content)
    with pytest.raises(ConfigError, match="frozen cannot be read"):
        create_app(Settings(freezes=kept))


@pytest.mark.one_process
async def test_a_freeze_and_a_thaw_are_entries_of_the_audit(serve: Callable[..., Any], tmp_path: Path) -> None:
    hub = await serve(admin_key=ADMIN, audit=tmp_path / "audit.jsonl")
    await freeze(hub.url, office="desk", computer="laptop", reason="an incident")
    await thaw(hub.url, office="desk", computer="laptop")
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    facts = [line for line in lines if line.get("event") == "operator"]
    assert [line["action"] for line in facts] == ["freeze", "thaw"]
    for line in facts:
        assert (line["office"], line["computer"], line["reason"]) == ("desk", "laptop", "an incident")
        assert line["address"]
