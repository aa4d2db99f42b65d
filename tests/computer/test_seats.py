"""What a computer keeps for an agent belongs to the agent's seat (WIRE §4, §5): nobody else of its name gets at it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.consent.approval import Caller
from a2c_smcp.registry import AsyncToolContext
from a2c_smcp.server.auth.api_keys import DefaultAuthenticationProvider
from tests.computer.hosted import Relay, hosted, joins
from tests.peer import Peer
from tests.stage.agent import SOON
from tests.stage.owners import WaitingOwner
from tests.stage.questions import OLDER, Asking, answer, asked, begin, questions_of
from tests.waiting import until, until_it_goes

MINE = "an-instance-of-my-own"
ALICE, BOB, LAPTOP = "a-key-of-alice-1234", "a-key-of-bob-123456", "a-key-of-a-laptop"
LONG, SHORT = {"resume_grace": 60}, {"resume_grace": 0.2}


class Desk:
    """A computer with a tool that waits, and one that needs approval; and what has run."""

    def __init__(self, **options: Any) -> None:
        self.owner = WaitingOwner()
        self.go = asyncio.Event()
        self.runs: list[str] = []
        self.ended: list[str] = []
        self.computer = Computer("laptop", approve=self.owner, **options)
        self.computer.tool(self.work, auto_apply=True)
        self.computer.tool(self.pay)

    async def work(self, what: str, context: AsyncToolContext) -> str:
        self.runs.append(what)
        try:
            await context.progress(1, 2, what)
            await self.go.wait()
            await context.progress(2, 2, what)
        finally:
            self.ended.append(what)
        return f"the secret of {what}"

    def pay(self) -> str:
        self.runs.append("pay")
        return "paid"


class Stage:
    """A Server with two keys of agents, and their connections."""

    def __init__(self, hub: Any, office: str, connect: Callable[..., Any]) -> None:
        self.hub, self.office, self._connect = hub, office, connect

    async def agent(self, key: str = ALICE, instance: str | None = MINE) -> Peer:
        """An agent called planner, joined once the seat is free."""
        peer: Peer = await self._connect(self.hub, auth={"token": key})
        more = {"instance": instance} if instance else {}
        await until_it_goes(lambda: peer.join("agent", "planner", self.office, **more))
        return peer

    @asynccontextmanager
    async def host(self, computer: Computer, folder: Path, url: str = "") -> AsyncIterator[list[str]]:
        async with hosted(computer, url or self.hub.url, self.office, folder, api_key=LAPTOP, reconnect=SOON) as said:
            yield said


@pytest.fixture
def staged(serve: Any, connect: Any, office: str) -> Callable[..., Any]:
    async def start(**limits: Any) -> Stage:
        return Stage(
            await serve(auth=DefaultAuthenticationProvider([ALICE, BOB, LAPTOP]), limits=limits), office, connect
        )

    return start


def call(agent: Peer, tool: str, req_id: str, **more: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(agent.call_tool("laptop", tool, req_id=req_id, timeout=600, **more))


SUCCESSORS = pytest.mark.parametrize(
    "successor", [{"key": BOB}, {"key": BOB, "instance": None}, {"instance": "another-instance"}, {"instance": None}]
)


@pytest.mark.covers("seat-kept")
@SUCCESSORS
async def test_another_agent_of_the_name_gets_no_result_no_progress_and_no_file_of_the_one_that_was_lost(
    staged: Any, tmp_path: Path, successor: dict[str, Any]
) -> None:
    stage, desk = await staged(**SHORT), Desk()
    async with stage.host(desk.computer, tmp_path):
        alice = await stage.agent()
        for number in ("done", "running"):
            call(alice, "work", number, params={"what": number}, progress=True).add_done_callback(_heard)
            await until(lambda number=number: number in desk.runs)
            if number == "done":
                desk.go.set()
                await until(lambda: "done" in desk.ended)
                desk.go.clear()
        mine = Caller(stage.office, "planner", seat=await alice.seat())
        file = (await desk.computer.blobs.spool(mine, b"x" * 100_000, "text/plain")).handle
        await alice.request("client:set_log_level", "laptop", level="debug")
        await alice.drop()
        bob = await stage.agent(**successor)
        await until(lambda: "running" in desk.ended)
        assert (await bob.request("client:get_blob", "laptop", blob_handle=file))["code"] == 4018
        desk.go.set()
        for number in ("done", "running"):
            own = await bob.call_tool("laptop", "work", req_id=number, params={"what": "bob"}, timeout=60)
            assert own["content"][0]["text"] == "the secret of bob", "its own call, which ran"
        assert [name for name, _ in await bob.heard_until_now() if "tell" in name] == []
        assert desk.runs == ["done", "running", "bob", "bob"]


def _heard(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


@pytest.mark.covers("seat-kept", "questions-ended")
@SUCCESSORS
async def test_another_agent_of_the_name_can_neither_see_nor_answer_a_question_of_the_one_that_was_lost(
    staged: Any, tmp_path: Path, successor: dict[str, Any]
) -> None:
    stage, asking = await staged(**SHORT), Asking(OLDER, tmp_path)
    async with stage.host(asking.computer, tmp_path):
        alice = await stage.agent()
        begin(alice, req_id="c1", questions=True).add_done_callback(_heard)
        question = await asked(alice, "Which city?")
        await alice.drop()
        bob = await stage.agent(**successor)
        assert await questions_of(bob) == []
        assert (await answer(bob, question, city="BER"))["code"] == 404
        await until(lambda: asking.notes == ["book", "cancelled"])


@pytest.mark.covers("seat-kept", "seat-withdrawn")
@SUCCESSORS
async def test_another_agent_of_the_name_cannot_approve_a_call_of_the_one_that_was_lost(
    staged: Any, tmp_path: Path, successor: dict[str, Any]
) -> None:
    stage, desk = await staged(**SHORT), Desk(approve_by="client")
    async with stage.host(desk.computer, tmp_path):
        alice = await stage.agent()
        call(alice, "pay", "told", questions=True).add_done_callback(_heard)
        told = await alice.hears("notify:tell_question")
        result = await call(alice, "pay", "result", questions="result")
        await alice.drop()
        bob = await stage.agent(**successor)
        given = {"question_id": told["question_id"], "action": "accept", "content": {"approve": "yes"}}
        assert (await bob.request("client:answer_question", "laptop", **given))["code"] == 404
        (key,) = result["inputRequests"]
        response = {"action": "accept", "content": {"approve": "yes"}}
        more = {"input_responses": {key: response}, "request_state": result["requestState"], "questions": "result"}
        assert (await call(bob, "pay", "again", **more))["isError"] is True
        assert desk.runs == []


@pytest.mark.covers("seat-withdrawn")
@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "leaves"])
async def test_a_call_that_waits_for_the_owner_is_withdrawn_when_its_agent_has_left_and_a_late_yes_runs_nothing(
    staged: Any, tmp_path: Path, is_lost: bool
) -> None:
    stage, desk = await staged(**SHORT), Desk()
    async with stage.host(desk.computer, tmp_path):
        alice = await stage.agent()
        call(alice, "pay", "r1").add_done_callback(_heard)
        await until(lambda: desk.owner.asked)
        await (alice.drop() if is_lost else alice.close())
        await until(lambda: desk.owner.withdrawn)
        desk.owner.answer.set_result("yes")
        again = await stage.agent()
        assert (await call(again, "pay", "r2"))["content"][0]["text"] == "paid"
        assert desk.runs == ["pay"], "only what it called itself"


@pytest.mark.covers("9-withdraw_call")
async def test_a_call_that_is_withdrawn_ends_only_if_it_waits(staged: Any, tmp_path: Path) -> None:
    stage, desk = await staged(**LONG), Desk()
    async with stage.host(desk.computer, tmp_path):
        alice = await stage.agent()
        paying, working = call(alice, "pay", "r1"), call(alice, "work", "r2", params={"what": "a"})
        await until(lambda: desk.owner.asked and desk.runs)
        for req_id in ("r2", "r3", "x" * 128):
            assert "code" not in await alice.request("client:withdraw_call", "laptop", call=req_id)
        for wrong in ({}, {"call": 1}, {"call": ""}, {"call": "x" * 129}):
            refused = await alice.request("client:withdraw_call", "laptop", **wrong)
            assert (refused["code"], refused["details"]["field"]) == (400, "call")
        assert (desk.owner.withdrawn, desk.ended, paying.done(), working.done()) == (0, [], False, False)
        await alice.request("client:withdraw_call", "laptop", call="r1")
        ended = await paying
        assert (ended["code"], ended["details"]["outcome"], desk.owner.withdrawn) == (499, "not_run", 1)
        desk.owner.answer.set_result("yes")
        assert (await call(alice, "pay", "r1"))["code"] == 499, "a duplicate has the same outcome"
        assert (await call(alice, "pay", "r3"))["content"][0]["text"] == "paid", "it was not there to be withdrawn"
        desk.go.set()
        assert (await working)["content"][0]["text"] == "the secret of a"


@pytest.mark.covers("9-withdraw_call", "questions-ended")
@pytest.mark.parametrize("how", [True, "result"], ids=["told", "result"])
async def test_a_call_that_asks_its_agent_is_withdrawn_with_its_question(staged: Any, tmp_path: Path, how: Any) -> None:
    stage, asking = await staged(**LONG), Asking(OLDER, tmp_path)
    async with stage.host(asking.computer, tmp_path):
        alice = await stage.agent()
        calling = begin(alice, req_id="c1", questions=how)
        if how == "result":
            await calling
        else:
            await asked(alice, "Which city?")
        await alice.request("client:withdraw_call", "laptop", call="c1")
        await until(lambda: asking.notes == ["book", "cancelled"])
        await calling


@pytest.mark.covers("seat-withdrawn")
async def test_an_agent_that_is_back_within_its_grace_finds_its_request_still_waiting(
    staged: Any, tmp_path: Path
) -> None:
    stage, desk = await staged(**LONG), Desk()
    async with stage.host(desk.computer, tmp_path):
        alice = await stage.agent()
        call(alice, "pay", "r1").add_done_callback(_heard)
        await until(lambda: desk.owner.asked)
        await alice.drop()
        again = await stage.agent()
        joined = call(again, "pay", "r1")
        await again.heard_until_now()
        desk.owner.answer.set_result("yes")
        assert ((await joined)["content"][0]["text"], desk.runs) == ("paid", ["pay"])
        assert (len(desk.owner.asked), desk.owner.withdrawn) == (1, 0)


@pytest.mark.covers("seat-kept", "computer-dedup")
async def test_a_call_that_runs_goes_on_without_its_agent_and_the_result_waits_for_the_same_seat(
    staged: Any, tmp_path: Path
) -> None:
    stage, desk = await staged(**SHORT), Desk()
    async with stage.host(desk.computer, tmp_path):
        alice, watcher = await stage.agent(), await stage._connect(stage.hub, auth={"token": LAPTOP})
        await watcher.join("computer", "watcher", stage.office)
        call(alice, "work", "r1", params={"what": "a"}).add_done_callback(_heard)
        await until(lambda: desk.runs)
        await alice.drop()
        await watcher.hears("notify:leave_office", agent="planner")
        desk.go.set()
        again = await stage.agent()
        result = await call(again, "work", "r1", params={"what": "a"})
        assert (result["content"][0]["text"], desk.runs) == ("the secret of a", ["a"])


@pytest.mark.covers("seat-withdrawn")
async def test_a_call_that_runs_is_cancelled_when_its_agent_leaves_by_itself(staged: Any, tmp_path: Path) -> None:
    stage, desk = await staged(**SHORT), Desk()
    async with stage.host(desk.computer, tmp_path):
        alice = await stage.agent()
        call(alice, "work", "r1", params={"what": "a"}).add_done_callback(_heard)
        await until(lambda: desk.runs)
        await alice.ask("server:leave_office", {"office_id": stage.office})
        await until(lambda: desk.ended)


@pytest.mark.covers("seat-present", "seat-kept")
async def test_a_computer_that_missed_the_change_of_agents_takes_nobody_for_the_one_before(
    staged: Any, tmp_path: Path
) -> None:
    stage, desk = await staged(**LONG), Desk()
    relay = Relay(stage.hub.url)
    async with relay.open() as url, stage.host(desk.computer, tmp_path, url) as said:
        alice = await stage.agent()
        call(alice, "pay", "waiting").add_done_callback(_heard)
        await until(lambda: desk.owner.asked)
        desk.go.set()
        assert (await call(alice, "work", "r1", params={"what": "a"}))["content"][0]["text"] == "the secret of a"
        relay.close()
        await alice.ask("server:leave_office", {"office_id": stage.office})
        bob = await stage.agent(BOB)
        own = call(bob, "work", "r1", params={"what": "b"})
        await bob.heard_until_now()
        relay.reopen()
        await until(lambda: joins(said) == 2)
        assert ((await own)["content"][0]["text"], desk.runs) == ("the secret of b", ["a", "b"])
        await until(lambda: desk.owner.withdrawn)


@pytest.mark.covers("seat-present", "seat-withdrawn")
async def test_a_computer_that_missed_that_its_agent_left_withdraws_what_waits(staged: Any, tmp_path: Path) -> None:
    stage, desk = await staged(**LONG), Desk()
    relay = Relay(stage.hub.url)
    async with relay.open() as url, stage.host(desk.computer, tmp_path, url):
        alice = await stage.agent()
        call(alice, "pay", "waiting").add_done_callback(_heard)
        await until(lambda: desk.owner.asked)
        relay.close()
        await alice.ask("server:leave_office", {"office_id": stage.office})
        relay.reopen()
        await until(lambda: desk.owner.withdrawn)
