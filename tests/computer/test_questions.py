"""A tool that asks two questions in a row, of MCP servers of both kinds: who answers, and how each of it ends.

The agent is a bare peer, the Server and the MCP servers are real.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.consent.approval import Caller, PendingQuestion
from a2c_smcp.protocol.questions import Answer, Question
from tests.computer.hosted import Relay, joined_agent, joins
from tests.peer import Peer
from tests.ports import free_port
from tests.stage.agent import SOON
from tests.stage.owners import AnsweringOwner
from tests.stage.questions import (
    NEWER,
    OLDER,
    Asking,
    Start,
    accepted,
    answer,
    asked,
    begin,
    booking,
    both,
    questions_of,
    said,
)
from tests.stage.worker import separate_server
from tests.waiting import until, until_it_goes

pytestmark = pytest.mark.covers(
    "questions-who", "questions-answers", "questions-ended", "questions-survive", "questions-private"
)

SECRET = "correct-horse-battery-staple"


@both
async def test_two_questions_in_a_row_are_answered_by_the_agent_and_the_tool_runs_once(
    start: Start, agent: Peer, office: str, file: str
) -> None:
    asking = await start(file)
    call = begin(agent, req_id="c1", questions=True)
    first = await asked(agent, "Which city?")
    about = {"agent": "planner", "computer": "laptop", "req_id": "c1", "tool_name": "book", "mcp_server": "asking"}
    assert about.items() <= {key: value for key, value in first.items() if key != "request"}.items()
    assert len(first["question_id"]) == 32
    assert first["request"]["method"] == "elicitation/create"
    assert first["request"]["params"]["requestedSchema"]["required"] == ["city"]
    kept = ("req_id", "question_id", "tool_name", "mcp_server", "request")
    assert await questions_of(agent) == [{key: first[key] for key in kept}]
    refused = await answer(agent, first, city="PAR")
    assert (refused["code"], refused["details"]["errors"][0]["path"]) == (400, "/city")
    assert accepted(await answer(agent, first, city="BER"))
    second = await asked(agent, "How many seats")
    assert accepted(await answer(agent, first, city="BER"))
    assert (await answer(agent, first, city="PEK"))["code"] == 410
    assert accepted(await answer(agent, second))
    assert booking(await call) == ("BER", 2)
    assert asking.notes == ["book"]
    assert (await answer(agent, second, count=3))["code"] == 410
    assert await questions_of(agent) == []


@both
async def test_the_owner_is_asked_first_and_the_agent_hears_nothing(start: Start, agent: Peer, file: str) -> None:
    owner = AnsweringOwner(*[Answer("accept", {"city": "PEK"}), {"count": 3}] * 2)
    asking = await start(file, on_question=owner)
    for questions in (True, False):
        assert booking(await begin(agent, questions=questions)) == ("PEK", 3)
    assert asking.notes == ["book", "book"]
    first = owner.asked[0]
    assert (first.server, first.tool, first.agent, first.mode) == ("asking", "book", "planner", "form")
    assert (first.message, first.is_secret) == ("Which city?", False)
    assert "notify:tell_question" not in dict(await agent.heard_until_now())


@both
@pytest.mark.parametrize("options", [{}, {"questions": "result"}, {"extend": True}], ids=["plain", "result", "extend"])
async def test_the_owner_is_told_when_the_time_for_an_answer_is_over(
    start: Start, agent: Peer, file: str, options: dict[str, Any]
) -> None:
    """With `extend` that is known to nobody: each sign of life moves it."""
    owner = AnsweringOwner(Answer("decline"))
    await start(file, on_question=owner)
    began = time.time()
    await begin(agent, "sign", timeout=20, **options)
    [end] = [question.until for question in owner.asked]
    assert (end is None) is ("extend" in options)
    assert end is None or began + 19 < end < time.time() + 20


@both
async def test_an_owner_that_cannot_be_asked_now_leaves_the_question_to_the_agent(
    start: Start, agent: Peer, file: str
) -> None:
    await start(file, on_question=lambda question: None)
    call = begin(agent, questions=True)
    await answer(agent, await asked(agent, "Which city?"), city="BER")
    await answer(agent, await asked(agent, "How many seats"), count=4)
    assert booking(await call) == ("BER", 4)


@both
async def test_where_nobody_can_answer_the_tool_is_told_so_and_does_not_run_on_a_newer_server(
    start: Start, agent: Peer, file: str
) -> None:
    asking = await start(file)
    result = await begin(agent)
    assert said(result) == {"where": {"action": "cancel"}} if file == OLDER else result["isError"]
    assert asking.notes == (["book"] if file == OLDER else [])
    assert "notify:tell_question" not in dict(await agent.heard_until_now())


@pytest.mark.parametrize("given", [Answer("accept", {"city": "PAR"}), "nonsense", ValueError("no")])
async def test_an_owners_answer_that_cannot_be_used_is_none(start: Start, agent: Peer, given: Any) -> None:
    await start(on_question=AnsweringOwner(given))
    assert said(await begin(agent, questions=True)) == {"where": {"action": "cancel"}}


@both
async def test_a_cancel_between_two_questions_withdraws_the_second_one(start: Start, agent: Peer, file: str) -> None:
    asking = await start(file)
    call, second = await at_the_second_question(agent)
    await agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": "c1"})
    assert (await call)["code"] == 499
    ended = await agent.hears("notify:tell_question_ended", question_id=second["question_id"])
    assert ended["req_id"] == "c1"
    assert (await answer(agent, second, count=1))["code"] == 410
    assert await questions_of(agent) == []
    await until(lambda: asking.notes == (["book", "cancelled"] if file == OLDER else []))


@both
async def test_an_unanswered_question_counts_against_the_deadline_of_its_call(
    start: Start, agent: Peer, file: str
) -> None:
    await start(file)
    call = begin(agent, timeout=2, questions=True)
    question = await asked(agent, "Which city?")
    assert (await call)["code"] == 408
    await agent.hears("notify:tell_question_ended", question_id=question["question_id"])
    assert (await answer(agent, question, city="BER"))["code"] == 410


async def test_a_cancel_withdraws_the_question_to_the_owner(start: Start, agent: Peer) -> None:
    waiting, withdrawn = asyncio.Event(), asyncio.Event()

    async def on_question(question: Question) -> Answer:
        waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            withdrawn.set()
        raise AssertionError

    await start(on_question=on_question)
    call = begin(agent, req_id="c1")
    await waiting.wait()
    await agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": "c1"})
    assert (await call)["code"] == 499
    await asyncio.wait_for(withdrawn.wait(), 10)


@both
async def test_a_question_is_its_agents_alone(
    start: Start, agent: Peer, connect: Callable[..., Any], office: str, file: str
) -> None:
    asking = await start(file)
    call = begin(agent, questions=True)
    question = await asked(agent, "Which city?")
    for unknown in ("x", "0" * 32):
        told = await agent.request("client:answer_question", "laptop", question_id=unknown, action="accept")
        assert told["code"] == 404
    opened = asking.computer.agents.questions
    for other in (Caller(office, "somebody"), Caller("elsewhere", "planner")):
        assert opened.of(other) == []
        with pytest.raises(Exception, match="No such question"):
            await opened.answer(other, question["question_id"], Answer("accept", {"city": "BER"}))
    for action in ({"action": "perhaps"}, {}, {"action": "accept", "content": [1]}):
        told = {"question_id": question["question_id"], **action}
        assert (await agent.request("client:answer_question", "laptop", **told))["code"] == 400
    assert accepted(await answer(agent, question, "decline"))
    result = await call
    assert said(result) == {"where": {"action": "decline"}} if file == OLDER else result["isError"]


@both
@pytest.mark.covers("computer-dedup")
async def test_an_agent_that_reconnects_between_two_questions_finds_the_open_one_and_the_tool_runs_once(
    start: Start, connect: Callable[..., Any], office: str, file: str
) -> None:
    asking = await start(file)
    agent = await connect()
    await agent.join("agent", "planner", office, instance="i" * 16)
    lost, second = await at_the_second_question(agent)
    await agent.drop()
    lost.cancel()
    again = await connect()
    await again.join("agent", "planner", office, instance="i" * 16)
    assert await finished(again, second) == ("BER", 1)
    assert asking.notes == ["book"]


async def at_the_second_question(agent: Peer) -> tuple[asyncio.Task[Any], Any]:
    call = begin(agent, req_id="c1", questions=True, timeout=60)
    await answer(agent, await asked(agent, "Which city?"), city="BER")
    return call, await asked(agent, "How many seats")


async def finished(agent: Peer, question: Any) -> Any:
    """The booking of the call that is made again, whose question is still open."""
    (opened,) = await questions_of(agent)
    assert opened["question_id"] == question["question_id"]
    call = begin(agent, req_id="c1", questions=True, timeout=60)
    assert accepted(await answer(agent, opened, count=1))
    return booking(await call)


async def test_a_question_asked_while_the_agent_is_away_stays_open_for_it(
    start: Start, shared_hub: Any, office: str
) -> None:
    release = asyncio.Event()

    async def on_question(question: Question) -> Answer | None:
        if "city" not in question.fields:
            return None
        await release.wait()
        return Answer("accept", {"city": "PEK"})

    asking = await start(on_question=on_question)
    agent = await joined_agent(shared_hub.url, office, instance="i" * 16)
    lost = begin(agent, req_id="c1", questions=True)
    await until(lambda: asking.notes)
    await agent.drop()
    lost.cancel()
    again = await joined_agent(shared_hub.url, office, instance="i" * 16)
    assert await questions_of(again) == []
    release.set()
    (opened,) = await until_it_goes(lambda: _one_question_of(again))
    call = begin(again, req_id="c1", questions=True)
    await answer(again, opened, count=4)
    assert booking(await call) == ("PEK", 4)
    assert asking.notes == ["book"]
    await again.close()


async def test_a_computer_that_reconnects_tells_its_open_questions_again_under_the_same_ids(
    shared_hub: Any, agent: Peer, office: str, tmp_path: Path
) -> None:
    asking, relay = Asking(OLDER, tmp_path), Relay(shared_hub.url)
    async with relay.open() as url, asking.at(url, office, tmp_path, reconnect=SOON) as told:
        call = begin(agent, questions=True)
        first = await asked(agent, "Which city?")
        relay.cut()
        await until(lambda: joins(told) == 2)
        assert accepted(await until_it_goes(lambda: _accepted(agent, first, city="BER")))
        await answer(agent, await asked(agent, "How many seats"), count=1)
        assert booking(await call) == ("BER", 1)
    ids = [data["question_id"] for name, data in agent.heard if name == "notify:tell_question"]
    assert len(set(ids)) == 2
    assert asking.notes == ["book"]


async def _one_question_of(agent: Peer) -> list[dict[str, Any]]:
    questions = await questions_of(agent)
    assert len(questions) == 1
    return questions


async def _accepted(agent: Peer, question: dict[str, Any], **content: Any) -> Any:
    given = await answer(agent, question, **content)
    assert accepted(given), given
    return given


async def test_a_server_killed_between_two_questions_loses_nothing_and_the_tool_runs_once(
    office: str, tmp_path: Path
) -> None:
    port, asking = free_port(), Asking(OLDER, tmp_path)
    url = f"http://127.0.0.1:{port}"
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(separate_server(port))
        told = await stack.enter_async_context(asking.at(url, office, tmp_path, reconnect=SOON))
        agent = await joined_agent(url, office, instance="i" * 16)
        lost, second = await at_the_second_question(agent)
        server.kill()
        await server.wait()
        lost.cancel()
        await agent.close()
        await stack.enter_async_context(separate_server(port))
        await until(lambda: joins(told) == 2)
        again = await joined_agent(url, office, instance="i" * 16)
        assert await finished(again, second) == ("BER", 1)
        await again.close()
    assert asking.notes == ["book"]


@both
async def test_a_secret_question_never_reaches_an_agent_and_the_owner_reads_of_it(
    start: Start, agent: Peer, file: str, caplog: pytest.LogCaptureFixture
) -> None:
    await start(file)
    result = await begin(agent, "sign", questions=True)
    assert (said(result)["answer"] == {"action": "cancel"}) if file == OLDER else result["isError"]
    assert "notify:tell_question" not in dict(await agent.heard_until_now())
    assert "nobody can answer: only the owner of the computer may be asked this" in caplog.text


async def test_a_url_never_reaches_an_agent_unless_the_owner_allows_it(start: Start, agent: Peer) -> None:
    owner = AnsweringOwner(Answer("accept", {"ignored": 1}))
    asking = await start(on_question=owner)
    assert said(await begin(agent, "visit", questions=True))["result"] == {"action": "accept"}
    params = {"url": "javascript:alert(1)"}
    assert said(await begin(agent, "visit", params=params))["result"] == {"action": "cancel"}
    assert [question.url for question in owner.asked] == ["https://example.org/consent"]
    assert asking.notes == ["visit", "visit"]
    assert "notify:tell_question" not in dict(await agent.heard_until_now())


@pytest.mark.parametrize(("allowed", "tool"), [("secret", "sign"), ("url", "visit")])
async def test_an_owner_may_let_agents_answer_what_is_private(
    start: Start, agent: Peer, allowed: str, tool: str
) -> None:
    await start(for_agents=[allowed])
    call = begin(agent, tool, questions=True)
    question = await asked(agent, "")
    given = await (answer(agent, question, password=SECRET) if tool == "sign" else answer(agent, question))
    assert accepted(given)
    assert SECRET not in json.dumps(await call)
    refused = await begin(agent, "visit" if tool == "sign" else "sign", questions=True)
    assert '"action": "cancel"' in refused["content"][0]["text"]


@pytest.mark.covers("secrets-masked")
@pytest.mark.parametrize("who", ["owner", "agent"])
async def test_the_answer_to_a_password_question_is_nowhere_else(
    start: Start, agent: Peer, who: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    owner = AnsweringOwner(Answer("accept", {"password": SECRET}) if who == "owner" else None)
    asking = await start(on_question=owner, for_agents=["secret"])
    await agent.request("client:set_log_level", "laptop", level="debug")
    call = begin(agent, "sign", questions=True, progress=True)
    if who == "agent":
        assert (await answer(agent, await asked(agent, "Your password"), city=SECRET))["code"] == 400
        await answer(agent, await asked(agent, "Your password"), password=SECRET)
    result = await call
    assert said(result)["said"] == "signed with ***"
    assert (await agent.hears("notify:tell_log"))["data"] == "it is ***"
    assert (await agent.hears("notify:tell_progress"))["message"] == "signing with ***"
    computer = asking.computer
    kept = [computer.owner.logs("asking"), computer.history, computer.status(), await agent.heard_until_now(), result]
    assert SECRET not in repr(kept)
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("a2c_smcp")]
    assert SECRET not in "".join(ours)


async def test_a_question_has_nobody_once_another_agent_is_in_the_office(
    start: Start, agent: Peer, connect: Callable[..., Any], office: str
) -> None:
    asking = await start()
    begin(agent, req_id="c1", questions=True).add_done_callback(lambda call: call.cancelled() or call.exception())
    question = await asked(agent, "Which city?")
    await agent.ask("server:leave_office", {"office_id": office})
    other = await connect()
    await other.join("agent", "other", office)
    assert await questions_of(other) == []
    assert (await answer(other, question, city="BER"))["code"] == 404
    await until(lambda: asking.notes == ["book", "cancelled"])


async def test_open_questions_of_an_agent_are_bounded(start: Start, agent: Peer) -> None:
    await start(NEWER)
    calls = [begin(agent, questions=True, req_id=f"c{number}") for number in range(18)]
    done, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    assert "elicitation was cancel" in next(iter(done)).result()["content"][0]["text"]
    for number in range(18):
        await agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": f"c{number}"})
    await asyncio.gather(*waiting)


@pytest.mark.covers("questions-whose")
async def test_an_owner_is_told_no_tool_where_several_calls_may_ask(start: Start, agent: Peer) -> None:
    asked_of_owner: list[Question] = []

    async def owner(question: Question) -> dict[str, Any]:
        asked_of_owner.append(question)
        return {"name": "Ada"}

    asking = await start(on_question=owner)
    long = begin(agent, "wait")
    await until(lambda: asking.notes == ["wait", "waits"])
    greeting = begin(agent, "greet", params={"name": "you"})
    assert said(await greeting) == {"name": "Ada"}
    assert said(await begin(agent, "go")) == "gone"
    assert said(await long) == "went"
    assert said(await begin(agent, "greet", params={"name": "me"})) == {"name": "Ada"}
    first, second = asked_of_owner
    assert (first.message, first.server, first.tool, first.agent, first.req_id) == ("Who is you?", "asking", "", "", "")
    assert (second.message, second.tool, second.agent) == ("Who is me?", "greet", "planner")
    waits = asyncio.get_running_loop().create_future()
    assert PendingQuestion(1, first, waits).who == "asking, in one of several calls,"
