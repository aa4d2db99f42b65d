"""The state of a call as its agent hears it: what it waits for, for whom, since when, and that it runs."""

from __future__ import annotations

import asyncio
import json
import re
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import CallStatus, Question
from a2c_smcp.agent.calls import StatesAsProgress
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.consent.approval import ApprovalRequest
from a2c_smcp.errors import CallTimeout
from a2c_smcp.protocol.results import failed_call
from a2c_smcp.registry import AsyncToolContext
from tests.computer.hosted import ready
from tests.computer.pseudo_terminal import Screen
from tests.computer.supervised import good, naughty, quick
from tests.conftest import Seat
from tests.peer import Peer
from tests.stage.agent import Twin
from tests.waiting import until, until_it_goes

pytestmark = pytest.mark.covers("9-tell_state", "call-states")

ASKED = {"type": "object", "properties": {"name": {"type": "string"}}}


class Desk:
    """A computer whose tool waits for its owner's word, asks if it is told to, and runs until the test says so."""

    def __init__(self, **options: Any) -> None:
        self.may, self.ends = asyncio.Event(), asyncio.Event()
        self.computer = Computer("laptop", approve=self.approve, **options)
        self.computer.tool(self.wipe, name="wipe")
        self.computer.tool(self.plan, name="plan", auto_apply=True)

    async def approve(self, request: ApprovalRequest) -> bool:
        return await self.may.wait()

    async def wipe(self) -> str:
        await self.ends.wait()
        return "wiped"

    async def plan(self, context: AsyncToolContext) -> str:
        await context.ask("Who?", ASKED)
        await self.ends.wait()
        return "planned"


def states(heard: list[CallStatus]) -> list[tuple[str, str]]:
    """Without `queued`, which a busy machine may make long enough to be told."""
    return [(status.state, status.reason) for status in heard if status.state != "queued"]


def is_told(heard: list[CallStatus], state: str) -> bool:
    return state in [status.state for status in heard]


async def test_a_call_says_for_whom_it_waits_and_that_it_runs_before_its_result(
    kind: Any, planning: Any, hosts: Any
) -> None:
    heard, waits, desk, began = list[CallStatus](), list[CallStatus](), Desk(), time.time()
    async with hosts(desk.computer), planning(kind) as agent:
        calling = asyncio.ensure_future(
            agent.emit_tool_call("laptop", "wipe", on_state=heard.append, on_waiting=waits.append)
        )
        await until(lambda: waits and is_told(heard, "waiting"))
        assert str(waits[0]) == "waiting for the owner of laptop"
        assert began - 1 <= waits[0].since <= time.time() + 1
        desk.may.set()
        await until(lambda: is_told(heard, "running"))
        desk.ends.set()
        assert (await calling).text == "wiped"
    assert states(heard) == [("waiting", "the owner of laptop"), ("running", "")]
    assert waits == [status for status in heard if status.state == "waiting"]


async def test_a_call_of_which_the_tool_asks_says_who_is_asked(hosts: Any, planner: Twin) -> None:
    heard, go, desk = list[CallStatus](), asyncio.Event(), Desk()

    async def answers(question: Question) -> dict[str, Any]:
        await go.wait()
        return {"name": "Ada"}

    async with hosts(desk.computer):
        calling = asyncio.ensure_future(
            planner.emit_tool_call("laptop", "plan", on_state=heard.append, on_question=answers)
        )
        await until(lambda: is_told(heard, "asked"))
        assert str(heard[-1]) == "asked, waiting for planner"
        go.set()
        await until(lambda: heard[-1].state == "running")
        desk.ends.set()
        assert (await calling).text == "planned"
    assert states(heard)[-2:] == [("asked", "planner"), ("running", "")]


async def test_a_call_that_waits_for_a_server_says_so(hosts: Any, planner: Twin, tmp_path: Path) -> None:
    heard, computer = list[CallStatus](), Computer("laptop")
    computer.add_server(naughty("waits_for", tmp_path / "door", name="slow", default_tool_meta={"auto_apply": True}))
    async with hosts(computer):
        calling = asyncio.ensure_future(planner.emit_tool_call("laptop", "anything", on_state=heard.append))
        await until(lambda: heard)
        calling.cancel()
        await asyncio.wait([calling])
    assert [(status.state, status.reason) for status in heard] == [("queued", "the start of 'slow'")]


async def test_a_call_that_waits_for_a_free_slot_of_its_server_says_so(hosts: Any, planner: Twin) -> None:
    first, second = list[CallStatus](), list[CallStatus]()
    computer = Computer("laptop", policy=quick(calls_at_once=1))
    computer.add_server(good(default_tool_meta={"auto_apply": True}))
    async with hosts(computer):
        await ready(computer, "good")
        calls = []
        for heard, state in ((first, "running"), (second, "queued")):
            calling = planner.emit_tool_call("laptop", "slow", {"steps": 6000}, on_state=heard.append)
            calls.append(asyncio.ensure_future(calling))
            await until(partial(is_told, heard, state))
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
    assert states(first) == [("running", "")]
    assert second[-1].reason == "the MCP server 'good'"


@pytest.mark.covers("owner-silent")
async def test_an_owner_who_stays_silent_is_no_timeout_of_a_tool_at_any_door(
    kind: Any, planning: Any, hosts: Any
) -> None:
    desk = Desk()
    async with hosts(desk.computer), planning(kind) as agent:

        async def silent() -> None:
            """Not if the machine stands still for a second: then the Server answers for the computer."""
            with pytest.raises(CallTimeout) as direct:
                await agent.emit_tool_call("laptop", "wipe", timeout=1)
            assert (direct.value.outcome, direct.value.details.get("reason")) == ("not_run", "owner_silent")

        await until_it_goes(silent)


@pytest.mark.covers("owner-silent", "error-codes")
async def test_a_registry_raises_the_silence_of_an_owner_as_it_came(computer: Peer, kind: Any, planning: Any) -> None:
    silent = CallTimeout("the owner did not answer within 60 s; nothing was run", outcome="not_run")
    silent.details["reason"] = "owner_silent"
    tool = {"name": "wipe", "description": "", "params_schema": {}, "return_schema": None}
    computer.answers("client:get_tools", {"tools": [tool], "req_id": "x"})
    computer.answers("client:tool_call", failed_call(silent))
    async with planning(kind) as agent:
        with pytest.raises(CallTimeout) as raised:
            await agent.use("wipe")
    assert (raised.value.outcome, raised.value.details["reason"]) == ("not_run", "owner_silent")


async def test_a_call_of_the_registry_that_waits_reports_it_as_progress(hosts: Any, planner: Twin) -> None:
    heard, desk = list[tuple[float, float | None, str | None]](), Desk()
    async with hosts(desk.computer):
        await until(lambda: "wipe" in planner.registry)
        calling = planner.registry.acall("wipe", {}, on_progress=lambda *report: heard.append(report))
        task = asyncio.ensure_future(calling)
        await until(lambda: "waiting for the owner of laptop" in [message for *_, message in heard])
        desk.may.set()
        desk.ends.set()
        assert await task == "wiped"


# A computer that lies


def told_by(laptop: Peer, *told: dict[str, Any]) -> None:
    async def call(data: dict[str, Any]) -> dict[str, Any]:
        for each in told:
            await laptop.ask("server:tell_state", {"agent": "planner", "req_id": data["req_id"], **each})
        return {"content": [{"type": "text", "text": "done"}], "isError": False}

    laptop.answers("client:tool_call", call)


async def test_a_state_that_is_unknown_here_is_passed_on_and_a_malformed_one_is_not(
    computer: Peer, planner: Twin
) -> None:
    heard: list[CallStatus] = []
    long = "\x1b[31m" + "x" * 100_000
    told_by(
        computer,
        {"state": "dreaming", "since": 1, "reason": long},
        {"state": 7, "since": 1},
        {"state": "running", "since": "now"},
        {"state": "", "since": 1},
        {"req_id": "another", "state": "waiting", "since": 1},
    )
    result = await planner.emit_tool_call("laptop", "echo", on_state=heard.append)
    assert result.text == "done"
    assert [(status.state, status.since, len(status.reason)) for status in heard] == [("dreaming", 1, 240)]


async def test_a_computer_tells_of_its_own_calls_only_and_a_flood_of_them_is_cut(
    computer: Peer, seat: Seat, office: str, planner: Twin
) -> None:
    heard, go = list[CallStatus](), asyncio.Event()
    tower = await seat("computer", "tower", office)

    async def slow(status: CallStatus) -> None:
        heard.append(status)
        await go.wait()

    async def call(data: dict[str, Any]) -> dict[str, Any]:
        about = {"agent": "planner", "req_id": data["req_id"], "since": 1}
        assert await tower.ask("server:tell_state", {**about, "state": "waiting"}) == {"delivered": True}
        told = ({**about, "state": f"s{number}"} for number in range(300))
        acks = await asyncio.gather(*(computer.ask("server:tell_state", each) for each in told))
        assert {"delivered": True} in acks
        assert 429 in [ack.get("code") for ack in acks]
        go.set()
        return {"content": [{"type": "text", "text": "done"}], "isError": False}

    computer.answers("client:tool_call", call)
    assert (await planner.emit_tool_call("laptop", "echo", on_state=slow)).text == "done"
    assert 1 <= len(heard) <= 10
    assert not is_told(heard, "waiting")


def test_states_are_progress_that_grows_whatever_the_tool_reports() -> None:
    heard: list[tuple[float, float | None, str | None]] = []
    reporting = StatesAsProgress(lambda *report: heard.append(report))
    reporting.on_state(CallStatus("running", 0))
    for progress in (0, 0.5, 1e300):
        reporting.on_state(CallStatus("waiting", 0, "the owner of laptop"))
        reporting.on_state(CallStatus("running", 0))
        reporting.on_progress(progress, 2, "works")
    reporting.on_state(CallStatus("asked", 0, "planner"))
    numbers = [progress for progress, _, _ in heard]
    assert numbers == sorted({*numbers})
    assert [message for _, _, message in heard][:3] == ["waiting for the owner of laptop", "running", "works"]
    assert heard[-1][1:] == (2, "asked, waiting for planner")


# The program


def seconds(screen: Screen) -> int | None:
    found = re.search(r"waiting for the owner of laptop \((\d+) s\)", screen.text)
    return int(found[1]) if found else None


async def test_the_program_shows_on_a_terminal_for_whom_it_waits_and_how_long(hosts: Any, terminal: Any) -> None:
    desk = Desk()
    async with hosts(desk.computer), terminal("call", "laptop", "wipe") as program:
        await program.shows(lambda screen: seconds(screen) is not None)
        await program.shows(lambda screen: (seconds(screen) or 0) > 0)
        desk.may.set()
        await program.shows(lambda screen: "running" in screen.text and "waiting" not in screen.text)
        desk.ends.set()
        await program.shows("wiped")


async def test_what_a_computer_says_of_a_call_controls_no_terminal(computer: Peer, terminal: Any) -> None:
    told = {"state": "waiting", "since": 1, "reason": "\x1b]0;evil\x07\u202e\nyou"}
    go = asyncio.Event()

    async def call(data: dict[str, Any]) -> dict[str, Any]:
        await computer.ask("server:tell_state", {"agent": "planner", "req_id": data["req_id"], **told})
        await go.wait()
        return {"content": [{"type": "text", "text": "done"}], "isError": False}

    computer.answers("client:tool_call", call)
    async with terminal("call", "laptop", "echo", "--name", "planner") as program:
        await program.shows("evil")
        assert r"waiting for \u001b]0;evil\u0007\u202e you" in program.screen.text
        assert "\x1b]0;evil" not in program.screen.raw
        go.set()
        await program.shows("done")


async def test_the_program_prints_nothing_but_the_result_on_stdout(hosts: Any, start: Any) -> None:
    desk = Desk()
    async with hosts(desk.computer):
        program = await start("call", "laptop", "wipe", "--json")
        assert await program.stderr.readline() == b"waiting for the owner of laptop\n"
        desk.may.set()
        desk.ends.set()
        out, _ = await program.communicate()
    assert json.loads(out)["content"][0]["text"] == "wiped"
