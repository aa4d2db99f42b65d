"""Tasks of both kinds, followed to their end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from a2c_smcp.errors import CallTimeout
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.mcp_host.sessions.server_requests import RELATED_TASK
from a2c_smcp.mcp_host.sessions.session import MCPSession
from tests.computer.supervised import session, text_of
from tests.mcp_host.scripts import Person, call, finished, form, heard, scripted, told
from tests.stage.cases import cases
from tests.waiting import until

pytestmark = pytest.mark.covers("tasks-followed")

TASKS = "io.modelcontextprotocol/tasks"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
eras = pytest.mark.parametrize("era", ["older", "modern"])


def old_task(status: str = "working", id_: str = "t1", **more: Any) -> dict[str, Any]:
    return {"taskId": id_, "status": status, "ttl": 60000, "pollInterval": 100, **more}


BEGUN = {"result": {"task": old_task()}}


def new_task(status: str = "working", id_: str = "t1", **more: Any) -> dict[str, Any]:
    return {"resultType": "complete", "taskId": id_, "status": status, "ttlMs": None, "pollIntervalMs": 100, **more}


def begun(**more: Any) -> dict[str, Any]:
    """The answer that names a task of the extension."""
    return {"result": new_task(**more) | {"resultType": "task"}}


def task_of(*polls: dict[str, Any], id_: str = "t1", **more: Any) -> dict[str, Any]:
    return {id_: {"polls": list(polls), **more}}


async def test_a_tool_that_needs_a_task_is_called_with_one_and_followed_to_its_result(older: MCPSession) -> None:
    steps: list[Any] = []
    polls = [old_task(statusMessage="half"), old_task(statusMessage="half"), old_task("completed")]
    tasks = task_of(*polls, result=finished("long done"))
    asked = call("long", BEGUN, tasks=tasks, on_progress=lambda *step: steps.append(step))
    assert text_of(await older.call_tool(asked)) == "long done"
    sent = (await heard(older, "tools/call"))[0]["params"]
    assert len(await heard(older, "tasks/get")) == 3
    assert await heard(older, "tasks/cancel") == []
    assert sent["task"]["ttl"] >= 30_000
    assert steps == [(1.0, None, "half")]


async def test_other_tools_are_called_without_a_task(older: MCPSession) -> None:
    for tool in ("plain", "maybe"):
        await older.call_tool(call(tool, finished(), key=tool))
    assert all("task" not in each["params"] for each in await heard(older, "tools/call"))
    assert text_of(await older.call_tool(call("long", finished("at once"), key="long"))) == "at once"


@cases(
    "poll, result, said",
    (old_task("failed"), {"error": {"code": 7, "message": "it broke"}}, "it broke"),
    (old_task("failed"), {"result": {"isError": True, "content": [{"type": "text", "text": "bad"}]}}, "bad"),
    (old_task("cancelled", statusMessage="by hand"), finished(), "the server cancelled the task: by hand"),
    ({"error": {"code": -32602, "message": "Task has expired"}}, finished(), "cannot be followed: Task has expired"),
    (old_task("dreaming"), finished(), "not one of MCP's"),
    ids=["error", "result", "cancelled", "expired", "odd"],
)
async def test_tasks_that_do_not_succeed_are_error_results(
    older: MCPSession, poll: Any, result: Any, said: str
) -> None:
    asked = call("long", BEGUN, tasks=task_of(poll, result=result))
    ended = await older.call_tool(asked)
    assert ended["isError"] is True
    assert said in text_of(ended)


@eras
@pytest.mark.parametrize("id_", [None, "", 7, "x" * 2000])
async def test_a_task_without_a_usable_id_is_an_error_result(one: MCPSession, era: str, id_: Any) -> None:
    answer = {"result": {"task": old_task(id_=id_)}} if era == "older" else begun(id_=id_)
    assert "no usable id" in await told(one, "long", answer)


@pytest.mark.covers("questions-push")
async def test_questions_of_a_task_go_to_the_call_that_follows_it() -> None:
    other, mine = Person(**{"Your name?": {"by": "other"}}), Person(**{"Your name?": {"by": "mine"}})
    related = form(_meta={RELATED_TASK: {"taskId": "t1"}})
    foreign = form(_meta={RELATED_TASK: {"taskId": "unknown"}})
    tasks = task_of(old_task("input_required"), result={"ask": [related, foreign]})
    async with session(scripted("older")) as one:
        waiting = asyncio.create_task(one.call_tool(call("plain", {"silent": 1}, key="older", on_input=other)))
        await until(lambda: one._pending)
        asked = call("long", {"result": {"task": old_task("input_required")}}, key="x", tasks=tasks, on_input=mine)
        replies = (await one.call_tool(asked))["structuredContent"]["replies"]
        await cancel_and_wait(waiting)
    assert replies["0"]["result"]["content"] == {"by": "mine"}
    assert replies["1"]["result"] == {"action": "cancel"}
    assert other.asked == []


@eras
async def test_a_task_is_cancelled_with_its_call_and_at_its_deadline(one: MCPSession, era: str) -> None:
    answer = BEGUN if era == "older" else begun()
    poll = old_task() if era == "older" else new_task()
    with pytest.raises(CallTimeout):
        await one.call_tool(call("long", answer, tasks=task_of(poll), timeout=0.3))
    waiting = asyncio.create_task(one.call_tool(call("long", answer, key="again")))
    while len(await heard(one, "tasks/get")) < 3:
        pass
    await cancel_and_wait(waiting)
    cancels: list[dict[str, Any]] = []
    while len(cancels) < 2:
        cancels = await heard(one, "tasks/cancel")
    assert {each["params"]["taskId"] for each in cancels} == {"t1"}


async def test_with_extend_the_status_of_a_task_is_a_sign_of_life(modern: MCPSession) -> None:
    polls = [new_task() for _ in range(20)] + [new_task("completed", result=finished()["result"])]
    assert await told(modern, "long", begun(), tasks=task_of(*polls), timeout=1.5, extend=True) == "done"


@pytest.mark.parametrize(("interval", "most"), [(0, 30), (-5, 30), ("soon", 4), (10**9, 4)])
async def test_polling_is_bounded_whatever_a_server_says(modern: MCPSession, interval: Any, most: int) -> None:
    slow = new_task(pollIntervalMs=interval)
    with pytest.raises(CallTimeout):
        await modern.call_tool(call("long", begun(pollIntervalMs=interval), tasks=task_of(slow), timeout=1))
    assert len(await heard(modern, "tasks/get")) <= most


async def test_an_announced_status_is_polled_at_once(older: MCPSession) -> None:
    asleep = old_task(pollInterval=60_000)
    tasks = task_of(asleep, old_task("completed"), result=finished())
    news = [{"method": "notifications/tasks/status", "params": old_task(statusMessage="soon")}]
    steps: list[Any] = []
    asked = call(
        "long", {"result": {"task": asleep}}, tasks=tasks, on_progress=lambda *step: steps.append(step), timeout=8
    )
    waiting = asyncio.create_task(older.call_tool(asked))
    while not waiting.done():
        await older.call_tool(call("plain", finished(), key="news", notify=news))
    assert text_of(await waiting) == "done"
    assert (1.0, None, "soon") in steps


@pytest.mark.covers("questions-rounds")
async def test_input_that_a_task_of_the_extension_asks_for_is_sent_once(modern: MCPSession) -> None:
    person = Person(**{"Your name?": {"name": "Ada"}, "Age?": {"age": 5}})
    asking = new_task("input_required", inputRequests={"who": form(), "age": form("Age?")})
    tasks = task_of(asking, updated=[asking, new_task("completed", result=finished()["result"])])
    assert await told(modern, "long", begun(), tasks=tasks, on_input=person) == "done"
    (update,) = await heard(modern, "tasks/update")
    polls = await heard(modern, "tasks/get")
    assert update["params"]["inputResponses"] == {
        "who": {"action": "accept", "content": {"name": "Ada"}},
        "age": {"action": "accept", "content": {"age": 5}},
    }
    assert len(person.asked) == 2
    assert polls[0]["params"]["_meta"][CAPABILITIES]["extensions"][TASKS] == {}


async def test_a_question_of_a_task_is_withdrawn_when_the_task_ends_without_it(modern: MCPSession) -> None:
    person = Person()
    polls = [new_task("input_required", inputRequests={"who": form()})] * 3
    tasks = task_of(*polls, new_task("completed", result=finished()["result"]))
    assert await told(modern, "long", begun(), tasks=tasks, on_input=person) == "done"
    assert len(person.asked) == 1
    await person.until_withdrawn()


@cases(
    "poll, said",
    (new_task("failed", error={"code": 7, "message": "it broke", "data": 1}), "it broke"),
    (new_task("failed", statusMessage="why"), "its task failed: why"),
    (new_task("cancelled"), "the server cancelled the task"),
    (new_task("completed"), "no result"),
    (new_task("input_required", inputRequests={"who": {"method": "x"}}), "unknown kind 'x'"),
    (new_task("input_required", inputRequests={"ai": {"method": "sampling/createMessage"}}), "nobody can answer"),
    (new_task("input_required", inputRequests={f"k{n}": form() for n in range(17)}), "not at most 16"),
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_tasks_of_the_extension_that_do_not_succeed_are_error_results(
    modern: MCPSession, poll: Any, said: str
) -> None:
    ended = await modern.call_tool(call("long", begun(), tasks=task_of(poll)))
    assert ended["isError"] is True
    assert said in text_of(ended)
    assert len(await heard(modern, "tasks/cancel")) == (poll["status"] == "input_required")
    if "error" in poll:
        assert ended["_meta"] == {"a2c_mcp_error": poll["error"]}


async def test_true_progress_is_reported_instead_of_status_messages(modern: MCPSession) -> None:
    steps: list[Any] = []
    tasks = task_of(
        *[new_task(statusMessage=f"m{n}") for n in range(5)], new_task("completed", result=finished()["result"])
    )
    progress = [
        {"method": "notifications/progress", "params": {"progressToken": f"a2c-{n}", "progress": 0.5}}
        for n in range(1, 20)
    ]
    await told(modern, "long", begun(), tasks=tasks, notify=progress, on_progress=lambda *step: steps.append(step))
    assert steps[0] == (0.5, None, None)


@pytest.mark.covers("questions-push")
async def test_a_question_that_asks_for_a_task_is_answered_like_any_other(older: MCPSession) -> None:
    person = Person(**{"Your name?": {"name": "Ada"}})
    result = await older.call_tool(call("plain", {"ask": [form(task={"ttl": 5000})]}, on_input=person))
    assert "tasks" not in (await heard(older, "initialize"))[0]["params"]["capabilities"]
    replies = result["structuredContent"]["replies"]
    assert replies["0"]["result"] == {"action": "accept", "content": {"name": "Ada"}}
    assert person.asked[0].params == form()["params"]
