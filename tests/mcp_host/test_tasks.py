"""Tasks of both kinds, followed to their end, and tasks that a server gives to us."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest
from mcp import MCPError

from a2c_smcp.errors import CallTimeout
from a2c_smcp.mcp_host.sessions.own_tasks import MOST_TASKS, RELATED_TASK, OwnTasks
from tests.computer.supervised import session, text_of
from tests.mcp_host.scripts import Person, call, finished, form, heard, scripted
from tests.waiting import until

TASKS = "io.modelcontextprotocol/tasks"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
Told = list[tuple[float, float | None, str | None]]


def older(status: str = "working", id_: str = "t1", **more: Any) -> dict[str, Any]:
    return {"taskId": id_, "status": status, "ttl": 60000, "pollInterval": 100, **more}


def newer(status: str = "working", id_: str = "t1", **more: Any) -> dict[str, Any]:
    return {"resultType": "complete", "taskId": id_, "status": status, "ttlMs": None, "pollIntervalMs": 100, **more}


def begun(**more: Any) -> dict[str, Any]:
    """The answer that names a task of the extension."""
    return {"result": newer(**more) | {"resultType": "task"}}


def task_of(*polls: dict[str, Any], id_: str = "t1", **more: Any) -> dict[str, Any]:
    return {id_: {"polls": list(polls), **more}}


@pytest.mark.covers("tasks-followed")
async def test_a_tool_that_needs_a_task_is_called_with_one_and_followed_to_its_result() -> None:
    told: Told = []
    polls = [older(statusMessage="half"), older(statusMessage="half"), older("completed")]
    tasks = task_of(*polls, result=finished("long done"))
    async with session(scripted("older")) as one:
        asked = call("long", {"result": {"task": older()}}, tasks=tasks, on_progress=lambda *step: told.append(step))
        assert text_of(await one.call_tool(asked)) == "long done"
        sent = (await heard(one, "tools/call"))[0]["params"]
        assert len(await heard(one, "tasks/get")) == 3
        assert await heard(one, "tasks/cancel") == []
    assert sent["task"]["ttl"] >= 30_000
    assert told == [(1.0, None, "half")]


@pytest.mark.covers("tasks-followed")
async def test_other_tools_are_called_without_a_task() -> None:
    async with session(scripted("older")) as one:
        for tool in ("plain", "maybe"):
            await one.call_tool(call(tool, finished(), key=tool))
        assert all("task" not in each["params"] for each in await heard(one, "tools/call"))
        assert text_of(await one.call_tool(call("long", finished("at once"), key="long"))) == "at once"


@pytest.mark.covers("tasks-followed")
@pytest.mark.parametrize(
    ("poll", "result", "said"),
    [
        (older("failed"), {"error": {"code": 7, "message": "it broke"}}, "it broke"),
        (older("failed"), {"result": {"isError": True, "content": [{"type": "text", "text": "bad"}]}}, "bad"),
        (older("cancelled", statusMessage="by hand"), finished(), "the server cancelled the task: by hand"),
        (
            {"error": {"code": -32602, "message": "Task has expired"}},
            finished(),
            "cannot be followed: Task has expired",
        ),
        (older("dreaming"), finished(), "not one of MCP's"),
    ],
    ids=["error", "result", "cancelled", "expired", "odd"],
)
async def test_tasks_that_do_not_succeed_are_error_results(poll: Any, result: Any, said: str) -> None:
    async with session(scripted("older")) as one:
        asked = call("long", {"result": {"task": older()}}, tasks=task_of(poll, result=result))
        ended = await one.call_tool(asked)
        assert ended["isError"] is True
        assert said in text_of(ended)


@pytest.mark.covers("tasks-followed")
@pytest.mark.parametrize("id_", [None, "", 7, "x" * 2000])
async def test_a_task_without_a_usable_id_is_an_error_result(id_: Any) -> None:
    for era, answer in (("older", {"result": {"task": older(id_=id_)}}), ("modern", begun(id_=id_))):
        async with session(scripted(era)) as one:
            assert "no usable id" in text_of(await one.call_tool(call("long", answer)))


@pytest.mark.covers("tasks-followed", "questions-push")
async def test_questions_of_a_task_go_to_the_call_that_follows_it() -> None:
    other, mine = Person(**{"Your name?": {"by": "other"}}), Person(**{"Your name?": {"by": "mine"}})
    related = form(_meta={RELATED_TASK: {"taskId": "t1"}})
    foreign = form(_meta={RELATED_TASK: {"taskId": "unknown"}})
    tasks = task_of(older("input_required"), result={"ask": [related, foreign]})
    async with session(scripted("older")) as one:
        waiting = asyncio.create_task(one.call_tool(call("plain", {"silent": 1}, key="older", on_input=other)))
        await until(lambda: one._pending)
        asked = call("long", {"result": {"task": older("input_required")}}, key="x", tasks=tasks, on_input=mine)
        replies = (await one.call_tool(asked))["structuredContent"]["replies"]
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert replies["0"]["result"]["content"] == {"by": "mine"}
    assert replies["1"]["result"] == {"action": "cancel"}
    assert other.asked == []


@pytest.mark.covers("tasks-followed")
@pytest.mark.parametrize("era", ["older", "modern"])
async def test_a_task_is_cancelled_with_its_call_and_at_its_deadline(era: str) -> None:
    answer = {"result": {"task": older()}} if era == "older" else begun()
    poll = older() if era == "older" else newer()
    async with session(scripted(era)) as one:
        with pytest.raises(CallTimeout):
            await one.call_tool(call("long", answer, tasks=task_of(poll), timeout=0.3))
        waiting = asyncio.create_task(one.call_tool(call("long", answer, key="again")))
        while len(await heard(one, "tasks/get")) < 3:
            pass
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        cancels: list[dict[str, Any]] = []
        while len(cancels) < 2:
            cancels = await heard(one, "tasks/cancel")
        assert {each["params"]["taskId"] for each in cancels} == {"t1"}


@pytest.mark.covers("tasks-followed")
async def test_with_extend_the_status_of_a_task_is_a_sign_of_life() -> None:
    polls = [newer() for _ in range(20)] + [newer("completed", result=finished()["result"])]
    async with session(scripted("modern")) as one:
        asked = call("long", begun(), tasks=task_of(*polls), timeout=1.5, extend=True)
        assert text_of(await one.call_tool(asked)) == "done"


@pytest.mark.covers("tasks-followed")
@pytest.mark.parametrize(("interval", "most"), [(0, 30), (-5, 30), ("soon", 4), (10**9, 4)])
async def test_polling_is_bounded_whatever_a_server_says(interval: Any, most: int) -> None:
    slow = newer(pollIntervalMs=interval)
    async with session(scripted("modern")) as one:
        with pytest.raises(CallTimeout):
            await one.call_tool(call("long", begun(pollIntervalMs=interval), tasks=task_of(slow), timeout=1))
        assert len(await heard(one, "tasks/get")) <= most


@pytest.mark.covers("tasks-followed")
async def test_an_announced_status_is_polled_at_once() -> None:
    asleep = older(pollInterval=60_000)
    tasks = task_of(asleep, older("completed"), result=finished())
    news = [{"method": "notifications/tasks/status", "params": older(statusMessage="soon")}]
    told: Told = []
    async with session(scripted("older")) as one:
        asked = call(
            "long", {"result": {"task": asleep}}, tasks=tasks, on_progress=lambda *step: told.append(step), timeout=8
        )
        waiting = asyncio.create_task(one.call_tool(asked))
        while not waiting.done():
            await one.call_tool(call("plain", finished(), key="news", notify=news))
        assert text_of(await waiting) == "done"
    assert (1.0, None, "soon") in told


@pytest.mark.covers("tasks-followed", "questions-rounds")
async def test_input_that_a_task_of_the_extension_asks_for_is_sent_once() -> None:
    person = Person(**{"Your name?": {"name": "Ada"}, "Age?": {"age": 5}})
    asking = newer("input_required", inputRequests={"who": form(), "age": form("Age?")})
    tasks = task_of(asking, updated=[asking, newer("completed", result=finished()["result"])])
    async with session(scripted("modern")) as one:
        result = await one.call_tool(call("long", begun(), tasks=tasks, on_input=person))
        assert text_of(result) == "done"
        (update,) = await heard(one, "tasks/update")
        polls = await heard(one, "tasks/get")
    assert update["params"]["inputResponses"] == {
        "who": {"action": "accept", "content": {"name": "Ada"}},
        "age": {"action": "accept", "content": {"age": 5}},
    }
    assert len(person.asked) == 2
    assert polls[0]["params"]["_meta"][CAPABILITIES]["extensions"] == {TASKS: {}}


@pytest.mark.covers("tasks-followed")
async def test_a_question_of_a_task_is_withdrawn_when_the_task_ends_without_it() -> None:
    person = Person()
    polls = [newer("input_required", inputRequests={"who": form()})] * 3
    tasks = task_of(*polls, newer("completed", result=finished()["result"]))
    async with session(scripted("modern")) as one:
        assert text_of(await one.call_tool(call("long", begun(), tasks=tasks, on_input=person))) == "done"
    assert len(person.asked) == 1
    await person.until_withdrawn()


@pytest.mark.covers("tasks-followed")
@pytest.mark.parametrize(
    ("poll", "said"),
    [
        (newer("failed", error={"code": 7, "message": "it broke", "data": 1}), "it broke"),
        (newer("failed", statusMessage="why"), "its task failed: why"),
        (newer("cancelled"), "the server cancelled the task"),
        (newer("completed"), "no result"),
        (newer("input_required", inputRequests={"who": {"method": "x"}}), "unknown kind 'x'"),
        (newer("input_required", inputRequests={"ai": {"method": "sampling/createMessage"}}), "nobody can answer"),
        (newer("input_required", inputRequests={f"k{n}": form() for n in range(17)}), "not at most 16"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_tasks_of_the_extension_that_do_not_succeed_are_error_results(poll: Any, said: str) -> None:
    async with session(scripted("modern")) as one:
        ended = await one.call_tool(call("long", begun(), tasks=task_of(poll)))
        assert ended["isError"] is True
        assert said in text_of(ended)
        assert len(await heard(one, "tasks/cancel")) == (poll["status"] == "input_required")
        if "error" in poll:
            assert ended["_meta"] == {"a2c_mcp_error": poll["error"]}


@pytest.mark.covers("tasks-followed")
async def test_true_progress_is_reported_instead_of_status_messages() -> None:
    told: Told = []
    tasks = task_of(*[newer(statusMessage=f"m{n}") for n in range(5)], newer("completed", result=finished()["result"]))
    progress = [
        {"method": "notifications/progress", "params": {"progressToken": f"a2c-{n}", "progress": 0.5}}
        for n in range(1, 20)
    ]
    async with session(scripted("modern")) as one:
        asked = call("long", begun(), tasks=tasks, notify=progress, on_progress=lambda *step: told.append(step))
        await one.call_tool(asked)
    assert told[0] == (0.5, None, None)


@pytest.mark.covers("tasks-served")
async def test_a_server_may_ask_with_a_task_and_fetch_the_answer() -> None:
    person = Person(**{"Your name?": {"name": "Ada"}})
    asked = form(task={"ttl": 5000})
    async with session(scripted("older")) as one:
        result = await one.call_tool(
            call(
                "plain",
                {"ask": [asked], "then": {"ask_about": ["tasks/get", "tasks/list", "tasks/result"]}},
                on_input=person,
            )
        )
    replies = result["structuredContent"]["replies"]
    created = replies["0"]["result"]["task"]
    assert (created["status"], created["ttl"]) == ("working", 5000)
    assert replies["tasks/get"]["result"]["taskId"] == created["taskId"]
    assert [task["taskId"] for task in replies["tasks/list"]["result"]["tasks"]] == [created["taskId"]]
    assert replies["tasks/result"]["result"] == {
        "action": "accept",
        "content": {"name": "Ada"},
        "_meta": {RELATED_TASK: {"taskId": created["taskId"]}},
    }
    assert person.asked[0].params == form()["params"]


@pytest.mark.covers("tasks-served")
async def test_a_task_of_ours_is_cancelled_by_the_server_or_with_its_call() -> None:
    person = Person()
    async with session(scripted("older")) as one:
        script = {"ask": [form(task={})], "then": {"ask_about": ["tasks/cancel", "tasks/result", "tasks/cancel"]}}
        replies = (await one.call_tool(call("plain", script, on_input=person)))["structuredContent"]["replies"]
        await person.until_withdrawn()
        assert replies["tasks/result"]["error"]["message"] == "the task was cancelled"
        script = {"ask": [form(task={})], "then": finished()}
        assert text_of(await one.call_tool(call("plain", script, key="left", on_input=person))) == "done"
        await person.until_withdrawn(2)


@pytest.mark.covers("tasks-served")
async def test_tasks_of_ours_are_bounded_in_number_and_time() -> None:
    tasks, never = OwnTasks(), asyncio.Event()

    async def wait() -> dict[str, Any]:
        await never.wait()
        return {}

    async def done() -> dict[str, Any]:
        return {}

    async with anyio.create_task_group() as group:
        ended = tasks.create(None, done, group)["task"]["taskId"]
        await tasks.result({"taskId": ended})
        for _ in range(MOST_TASKS):
            tasks.create(10**12, wait, group)
        with pytest.raises(MCPError, match="there is no such task"):
            tasks.get({"taskId": ended})
        with pytest.raises(MCPError, match=f"there are {MOST_TASKS} tasks already"):
            tasks.create(1, wait, group)
        for task in tasks.list()["tasks"]:
            assert task["ttl"] == 60 * 60 * 1000
            tasks.cancel(task)
        short = tasks.create(1, wait, group)["task"]
        await until(lambda: short["taskId"] not in [task["taskId"] for task in tasks.list()["tasks"]])
        with pytest.raises(MCPError, match="there is no such task"):
            tasks.cancel({"taskId": ["odd"]})
