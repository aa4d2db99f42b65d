"""What stands between a call and its tool: the owner, the clock, and changes made meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from a2c_smcp.computer.calls.incoming import CallStatistics
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.consent.approval import ApprovalRequest, Caller, Grant
from tests.computer.hosted import ready
from tests.computer.supervised import naughty, quick, script, text_of
from tests.peer import Peer
from tests.stage.guarded_computer import Guard
from tests.stage.place import Place
from tests.waiting import until

pytestmark = pytest.mark.covers("computer-approval")

AGENT = Caller("desk", "planner")


class ThinkingOwner:
    """Thinks until told what to say, in a way that blocks or in one that does not."""

    def __init__(self) -> None:
        self.asked: list[ApprovalRequest] = []
        self.says: Any = "yes"
        self.go = threading.Event()
        self.is_withdrawn = False
        self.is_through = threading.Event()

    def blocking(self, request: ApprovalRequest) -> Any:
        self.asked.append(request)
        self.go.wait(20)
        self.is_through.set()
        return self.says

    async def patient(self, request: ApprovalRequest) -> Any:
        self.asked.append(request)
        try:
            await until(self.go.is_set)
        except asyncio.CancelledError:
            self.is_withdrawn = True
            raise
        return self.says


class Tool:
    """A computer with a tool that needs approval, and one that does not."""

    def __init__(self, approve: Callable[[ApprovalRequest], Any]) -> None:
        self.runs = 0
        self.computer = Computer("laptop", approve=approve)
        self.computer.tool(self.work, name="work")
        self.computer.tool(lambda: "free", name="free", auto_apply=True)

    def work(self) -> str:
        self.runs += 1
        return "done"

    async def call(self, name: str = "work", timeout: float = 10, req_id: str = "r1") -> dict[str, Any]:
        return await self.computer.execute_tool(AGENT, req_id, name, {}, timeout)

    async def __aenter__(self) -> Tool:
        await self.computer.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.computer.__aexit__(None, None, None)


async def test_a_blocking_approval_does_not_delay_other_calls() -> None:
    owner = ThinkingOwner()
    async with Tool(owner.blocking) as tool:
        call = asyncio.create_task(tool.call())
        await until(lambda: owner.asked)
        assert text_of(await tool.call("free", req_id="r2")) == "free"
        owner.go.set()
        assert text_of(await call) == "done"


@pytest.mark.parametrize("says", ["yes", "always"])
async def test_an_approval_after_the_deadline_runs_nothing_and_grants_nothing(says: str) -> None:
    owner = ThinkingOwner()
    owner.says = says
    async with Tool(owner.blocking) as tool:
        assert (await tool.call(timeout=0.1))["code"] == 408
        owner.go.set()
        await until(owner.is_through.is_set)
        assert (await tool.call())["code"] == 408, "the same call has had its answer"
        assert (tool.runs, tool.computer.approvals.grants) == (0, set())


async def _never(request: ApprovalRequest) -> bool:
    return await asyncio.get_running_loop().create_future()


@pytest.mark.covers("owner-silent")
async def test_an_owner_who_says_nothing_is_no_slow_tool(
    guard: Guard, agent: Peer, place: Place, shared_hub: Any, office: str
) -> None:
    guarded = await guard(approve=_never, approve_by="owner")
    result = await agent.call_tool("laptop", "wipe", timeout=1)
    assert (result["code"], result["details"]) == (408, {"reason": "owner_silent", "outcome": "not_run"})
    assert result["message"].endswith("the owner did not answer within 1 s; nothing was run")
    assert (guarded.computer.history[-1]["error"] or "").endswith("nothing was run")
    await agent.close()
    where = ("--url", shared_hub.url, "--office", office, "--timeout", "1")
    ended = await place.run("agent", "call", "laptop", "wipe", *where)
    said = (
        "The owner did not answer within 1 s; nothing was run. Ask them, and call again; --timeout gives them more time"
    )
    assert (ended.code, ended.err.splitlines()) == (1, ["waiting for the owner of laptop", f"{said}."])
    assert guarded.runs == []


def _future(request: ApprovalRequest) -> asyncio.Future[str]:
    return asyncio.ensure_future(_yes(request))


def _unannotated(request):  # type: ignore[no-untyped-def]
    answer = asyncio.get_running_loop().create_future()
    answer.get_loop().call_soon(answer.set_result, "yes")
    return answer


async def _yes(request: ApprovalRequest) -> str:
    return "yes"


class Approver:
    def __call__(self, request: ApprovalRequest) -> Awaitable[str]:
        return _future(request)


@pytest.mark.parametrize("approve", [_future, _unannotated, lambda request: _yes(request), Approver(), partial(_yes)])
async def test_a_plain_function_may_return_something_to_be_awaited(approve: Any) -> None:
    async with Tool(approve) as tool:
        assert text_of(await tool.call()) == "done"


async def test_a_function_that_blocks_may_hand_its_question_to_a_loop_from_its_thread() -> None:
    loop = asyncio.get_running_loop()
    async with Tool(lambda request: asyncio.run_coroutine_threadsafe(_yes(request), loop)) as tool:
        assert text_of(await tool.call()) == "done"


@pytest.mark.covers("computer-cancel")
async def test_a_cancel_withdraws_the_question() -> None:
    owner = ThinkingOwner()
    async with Tool(owner.patient) as tool:
        call = asyncio.create_task(tool.call())
        await until(lambda: owner.asked)
        tool.computer.calls.cancel(AGENT, "r1")
        assert (await call)["code"] == 499
        assert owner.is_withdrawn
        assert tool.computer.history[-1]["error"]


@pytest.mark.parametrize("says", ["no", False, None, "perhaps", OSError("no terminal")])
async def test_only_a_yes_is_a_yes(says: Any) -> None:
    def approve(request: ApprovalRequest) -> Any:
        if isinstance(says, Exception):
            raise says
        return says

    async with Tool(approve) as tool:
        answer = await tool.call()
        assert (answer["code"], tool.runs) == (403, 0)
        assert "terminal" not in repr(answer)


@pytest.mark.parametrize(
    ("says", "grant", "is_wide"),
    [("always", Grant("planner", "python", "work"), False), ("always_for_agent", Grant("planner"), True)],
)
async def test_always_is_remembered_for_the_agent_and_the_tool_or_all_tools_until_revoked(
    says: Any, grant: Grant, is_wide: bool
) -> None:
    owner, granted = ThinkingOwner(), list[Grant]()
    owner.says = says
    owner.go.set()
    tool = Tool(owner.patient)
    tool.computer.tool(lambda: "other", name="other")
    tool.computer.approvals.on_grant = granted.append
    async with tool:
        for req_id in ("r1", "r2"):
            assert text_of(await tool.call(req_id=req_id)) == "done"
        assert (len(owner.asked), granted) == (1, [grant])
        owner.says = "no"
        assert (await tool.call("other", req_id="r3")).get("isError", False) is not is_wide
        assert (await tool.computer.execute_tool(Caller("desk", "x"), "r4", "work", {}, 10))["code"] == 403
        tool.computer.approvals.revoke(grant)
        assert (await tool.call(req_id="r5"))["code"] == 403


async def test_calls_are_counted_and_timed_without_the_owners_thinking() -> None:
    owner = ThinkingOwner()
    async with Tool(owner.patient) as tool:
        server = tool.computer.get_tools()[0]["mcp_server"]
        assert tool.computer.statistics.of(server) == (0, None)
        owner.go.set()
        await tool.call()
        owner.says = "no"
        await tool.call(req_id="r2")
        calls, p50 = tool.computer.statistics.of(server)
        assert calls == 1
        assert p50 is not None


def test_the_median_is_of_the_last_calls_of_each_server() -> None:
    statistics = CallStatistics()
    for seconds in (9.0, 1.0, 3.0):
        statistics.add("slow", seconds)
    statistics.add("quick", 0.1)
    assert (statistics.of("slow"), statistics.of("quick"), statistics.of("idle")) == ((3, 3.0), (1, 0.1), (0, None))
    for _ in range(200):
        statistics.add("slow", 2.0)
    assert statistics.of("slow") == (203, 2.0)


async def test_an_approved_tool_that_is_gone_meanwhile_does_not_run() -> None:
    owner = ThinkingOwner()
    async with Computer("laptop", approve=owner.patient) as computer:
        await computer.put_server(naughty("fine", name="fine"))
        await ready(computer, "fine")
        call = asyncio.create_task(computer.execute_tool(AGENT, "r1", "echo", {}, 10))
        await until(lambda: owner.asked)
        await computer.put_server(naughty("fine", name="fine", forbidden_tools=["echo"]))
        owner.go.set()
        assert (await call)["code"] == 403
        await computer.remove_server("fine")
        assert computer.get_tools() == []


@pytest.mark.covers("computer-recovers")
async def test_a_server_removed_during_a_call_fails_it_at_once() -> None:
    async with Computer("laptop", policy=quick(farewell_limit=0.1)) as computer:
        await computer.put_server(parrot())
        call = asyncio.create_task(computer.execute_tool(AGENT, "r1", "hang", {}, 60))
        await until(lambda: computer.history)
        async with asyncio.timeout(30):
            await computer.remove_server("parrot")
            assert (await call)["isError"] is True


@pytest.mark.covers("computer-recovers")
async def test_a_server_that_lets_three_calls_time_out_is_started_again() -> None:
    async with Computer("laptop", policy=quick(farewell_limit=0.1, health_limit=0.2)) as computer:
        await computer.put_server(parrot())
        answers = await asyncio.gather(*(computer.execute_tool(AGENT, f"r{n}", "hang", {}, 0.2) for n in range(3)))
        assert [answer["code"] for answer in answers] == [408] * 3
        await until(lambda: computer.status()["parrot"].starts == 2)
        await ready(computer, "parrot")
        assert (await computer.execute_tool(AGENT, "r9", "tell", {}, 5)).get("isError") is not True


def parrot() -> Any:
    return script("parrot.py", "/dev/null", name="parrot", default_tool_meta={"auto_apply": True})
