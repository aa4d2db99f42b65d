"""A tool that asks two questions in a row, of MCP servers of both kinds: who answers, and how each of it ends.

The agent is a bare peer, the Server and the MCP servers are real.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.approval import Caller
from a2c_smcp.computer.computer import Computer
from a2c_smcp.protocol.questions import Answer, Question
from tests.agent.test_reconnect import separate_server
from tests.computer.hosted import Relay, hosted, joins, ready
from tests.computer.supervised import quick, script
from tests.computer.test_rejoin import SOON, joined_agent
from tests.peer import Peer
from tests.ports import free_port
from tests.waiting import until, until_it_goes

OLDER, NEWER = "older_asking.py", "asking.py"
both = pytest.mark.parametrize("file", [OLDER, NEWER], ids=["2025-11-25", "2026-07-28"])
SECRET = "correct-horse-battery-staple"


class Asking:
    """A computer whose MCP server asks, and the notes of that server."""

    def __init__(self, file: str, folder: Path, **options: Any) -> None:
        self._notes = folder / "notes"
        config = {
            "default_tool_meta": {"auto_apply": options.pop("auto_apply", True)},
            "questions_for_agents": options.pop("for_agents", []),
        }
        self.computer = Computer("laptop", policy=quick(), **options)
        self.computer.add_server(script(file, self._notes, name="asking", **config))

    @property
    def notes(self) -> list[str]:
        """A line for each run of a tool; levels of logs aside."""
        lines = self._notes.read_text().split() if self._notes.exists() else []
        return [line for line in lines if not line.startswith("level:")]

    @property
    def levels(self) -> list[str]:
        return [line for line in self._notes.read_text().split() if line.startswith("level:")]

    @asynccontextmanager
    async def at(self, url: str, office: str, folder: Path, **connection: Any) -> AsyncIterator[list[str]]:
        async with hosted(self.computer, url, office, folder, **connection) as said:
            await ready(self.computer, "asking")
            yield said


Start = Callable[..., Awaitable[Asking]]


@pytest.fixture
async def start(shared_hub: Any, office: str, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts such a computer, in the test's office: `await start(OLDER, on_question=…)`."""
    async with AsyncExitStack() as stack:

        async def begin(file: str = OLDER, **options: Any) -> Asking:
            asking = Asking(file, tmp_path, **options)
            await stack.enter_async_context(asking.at(shared_hub.url, office, tmp_path))
            return asking

        yield begin


def begin(agent: Peer, tool: str = "book", timeout: int = 30, **more: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(agent.call_tool("laptop", tool, timeout=timeout, **more))


async def asked(agent: Peer, text: str) -> dict[str, Any]:
    """Waits for the question whose message begins so."""

    def found() -> Any:
        told = [data for name, data in agent.heard if name == "notify:tell_question"]
        return next((each for each in told if each["request"]["params"]["message"].startswith(text)), None)

    await until(lambda: found() is not None)
    question: dict[str, Any] = found()
    return question


async def answer(agent: Peer, question: dict[str, Any], action: str = "accept", **content: Any) -> Any:
    more = {"content": content} if content else {}
    told = {"question_id": question["question_id"], "action": action, **more}
    return await agent.request("client:answer_question", "laptop", **told)


async def questions_of(agent: Peer) -> list[dict[str, Any]]:
    questions: list[dict[str, Any]] = (await agent.request("client:get_questions", "laptop"))["questions"]
    return questions


def accepted(given: dict[str, Any]) -> bool:
    return given.keys() == {"req_id"}


def said(result: dict[str, Any]) -> Any:
    assert not result.get("isError"), result
    return json.loads(result["content"][0]["text"])


def booking(file: str, result: dict[str, Any]) -> tuple[Any, Any]:
    found = said(result)
    return (found["city"], found["count"]) if file == NEWER else _of_older(found)


def _of_older(found: dict[str, Any]) -> tuple[Any, Any]:
    return found["where"]["content"]["city"], found["seats"]["content"]["count"]


@both
@pytest.mark.covers("questions-who", "questions-answers")
async def test_two_questions_in_a_row_are_answered_by_the_agent_and_the_tool_runs_once(
    start: Start, agent: Peer, office: str, file: str
) -> None:
    asking = await start(file)
    call = begin(agent, req_id="c1", questions=True)
    first = await asked(agent, "Which city?")
    assert (first["agent"], first["computer"], first["req_id"]) == ("planner", "laptop", "c1")
    assert (first["tool_name"], first["mcp_server"]) == ("book", "asking")
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
    assert booking(file, await call) == ("BER", 2)
    assert asking.notes == ["book"]
    assert (await answer(agent, second, count=3))["code"] == 410
    assert await questions_of(agent) == []


@both
@pytest.mark.covers("questions-who")
async def test_the_owner_is_asked_first_and_the_agent_hears_nothing(start: Start, agent: Peer, file: str) -> None:
    asked_owner: list[Question] = []

    async def on_question(question: Question) -> Answer | dict[str, int]:
        asked_owner.append(question)
        return Answer("accept", {"city": "PEK"}) if "city" in question.fields else {"count": 3}

    asking = await start(file, on_question=on_question)
    assert booking(file, await begin(agent, questions=True)) == ("PEK", 3)
    assert booking(file, await begin(agent)) == ("PEK", 3)
    assert asking.notes == ["book", "book"]
    first = asked_owner[0]
    assert (first.server, first.tool, first.agent, first.mode) == ("asking", "book", "planner", "form")
    assert first.message == "Which city?"
    assert not first.is_secret
    assert "notify:tell_question" not in dict(await agent.heard_until_now())


@both
@pytest.mark.covers("questions-who")
@pytest.mark.parametrize("options", [{}, {"questions": "result"}, {"extend": True}], ids=["plain", "result", "extend"])
async def test_the_owner_is_told_when_the_time_for_an_answer_is_over(
    start: Start, agent: Peer, file: str, options: dict[str, Any]
) -> None:
    """With `extend` that is known to nobody: each sign of life moves it."""
    ends: list[float | None] = []

    def on_question(question: Question) -> Answer:
        ends.append(question.until)
        return Answer("decline")

    await start(file, on_question=on_question)
    began = time.time()
    await begin(agent, "sign", timeout=20, **options)
    [end] = ends
    assert (end is None) is ("extend" in options)
    assert end is None or began + 19 < end < time.time() + 20


@both
@pytest.mark.covers("questions-who")
async def test_an_owner_that_cannot_be_asked_now_leaves_the_question_to_the_agent(
    start: Start, agent: Peer, file: str
) -> None:
    await start(file, on_question=lambda question: None)
    call = begin(agent, questions=True)
    await answer(agent, await asked(agent, "Which city?"), city="BER")
    await answer(agent, await asked(agent, "How many seats"), count=4)
    assert booking(file, await call) == ("BER", 4)


@pytest.mark.covers("questions-who")
async def test_where_nobody_can_answer_the_tool_is_told_so(start: Start, agent: Peer) -> None:
    asking = await start()
    assert said(await begin(agent)) == {"where": {"action": "cancel"}}
    assert asking.notes == ["book"]
    assert "notify:tell_question" not in dict(await agent.heard_until_now())


@pytest.mark.covers("questions-who")
async def test_a_newer_server_is_not_even_told_that_questions_can_be_answered(start: Start, agent: Peer) -> None:
    asking = await start(NEWER)
    assert (await begin(agent))["isError"]
    assert asking.notes == []


@pytest.mark.covers("questions-who", "questions-answers")
@pytest.mark.parametrize("given", [Answer("accept", {"city": "PAR"}), "nonsense", ValueError("no")])
async def test_an_owners_answer_that_cannot_be_used_is_none(start: Start, agent: Peer, given: Any) -> None:
    async def on_question(question: Question) -> Any:
        if isinstance(given, Exception):
            raise given
        return given

    await start(on_question=on_question)
    assert said(await begin(agent, questions=True)) == {"where": {"action": "cancel"}}


@both
@pytest.mark.covers("questions-ended")
async def test_a_cancel_between_two_questions_withdraws_the_second_one(start: Start, agent: Peer, file: str) -> None:
    asking = await start(file)
    call = begin(agent, req_id="c1", questions=True)
    await answer(agent, await asked(agent, "Which city?"), city="BER")
    second = await asked(agent, "How many seats")
    await agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": "c1"})
    assert (await call)["code"] == 499
    ended = await agent.hears("notify:tell_question_ended", question_id=second["question_id"])
    assert ended["req_id"] == "c1"
    assert (await answer(agent, second, count=1))["code"] == 410
    assert await questions_of(agent) == []
    if file == OLDER:
        await until(lambda: asking.notes == ["book", "cancelled"])
    else:
        assert asking.notes == []


@both
@pytest.mark.covers("questions-ended")
async def test_an_unanswered_question_counts_against_the_deadline_of_its_call(
    start: Start, agent: Peer, file: str
) -> None:
    await start(file)
    call = begin(agent, timeout=2, questions=True)
    question = await asked(agent, "Which city?")
    assert (await call)["code"] == 408
    await agent.hears("notify:tell_question_ended", question_id=question["question_id"])
    assert (await answer(agent, question, city="BER"))["code"] == 410


@pytest.mark.covers("questions-ended")
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
@pytest.mark.covers("questions-answers")
async def test_a_question_is_its_agents_alone(
    start: Start, agent: Peer, connect: Callable[..., Any], office: str, file: str
) -> None:
    asking = await start(file)
    call = begin(agent, questions=True)
    question = await asked(agent, "Which city?")
    for unknown in ("x", "0" * 32):
        told = await agent.request("client:answer_question", "laptop", question_id=unknown, action="accept")
        assert told["code"] == 404
    opened = asking.computer.questions
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
@pytest.mark.covers("questions-survive", "computer-dedup")
async def test_an_agent_that_reconnects_between_two_questions_finds_the_open_one_and_the_tool_runs_once(
    start: Start, shared_hub: Any, office: str, file: str
) -> None:
    asking = await start(file)
    agent = await Peer.connect(shared_hub.url, transports=["websocket"])
    await agent.join("agent", "planner", office, instance="i" * 16)
    lost = begin(agent, req_id="c1", questions=True)
    await answer(agent, await asked(agent, "Which city?"), city="BER")
    second = await asked(agent, "How many seats")
    await agent.drop()
    lost.cancel()
    again = await Peer.connect(shared_hub.url, transports=["websocket"])
    await again.join("agent", "planner", office, instance="i" * 16)
    (opened,) = await questions_of(again)
    assert opened["question_id"] == second["question_id"]
    call = begin(again, req_id="c1", questions=True)
    assert accepted(await answer(again, opened, count=1))
    assert booking(file, await call) == ("BER", 1)
    assert asking.notes == ["book"]
    await again.close()


@pytest.mark.covers("questions-survive")
async def test_a_question_asked_while_the_agent_is_away_stays_open_for_it(
    start: Start, agent: Peer, shared_hub: Any, office: str
) -> None:
    release = asyncio.Event()

    async def on_question(question: Question) -> Answer | None:
        if "city" not in question.fields:
            return None
        await release.wait()
        return Answer("accept", {"city": "PEK"})

    asking = await start(on_question=on_question)
    lost = begin(agent, req_id="c1", questions=True)
    await until(lambda: asking.notes)
    await agent.drop()
    lost.cancel()
    again = await until_it_goes(lambda: joined_agent(shared_hub.url, office))
    assert await questions_of(again) == []  # the computer has heard that the first connection is gone
    release.set()
    (opened,) = await until_it_goes(lambda: _one_question_of(again))
    call = begin(again, req_id="c1", questions=True)
    await answer(again, opened, count=4)
    assert booking(OLDER, await call) == ("PEK", 4)
    assert asking.notes == ["book"]
    await again.close()


@pytest.mark.covers("questions-survive")
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
        assert booking(OLDER, await call) == ("BER", 1)
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


@pytest.mark.covers("questions-survive")
async def test_a_server_killed_between_two_questions_loses_nothing_and_the_tool_runs_once(
    office: str, tmp_path: Path
) -> None:
    port, asking = free_port(), Asking(OLDER, tmp_path)
    url = f"http://127.0.0.1:{port}"
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(separate_server(port))
        told = await stack.enter_async_context(asking.at(url, office, tmp_path, reconnect=SOON))
        agent = await joined_agent(url, office)
        lost = begin(agent, req_id="c1", questions=True, timeout=60)
        await answer(agent, await asked(agent, "Which city?"), city="BER")
        second = await asked(agent, "How many seats")
        server.kill()
        await server.wait()
        lost.cancel()
        await agent.close()
        await stack.enter_async_context(separate_server(port))
        await until(lambda: joins(told) == 2)
        again = await joined_agent(url, office)
        (opened,) = await questions_of(again)
        assert opened["question_id"] == second["question_id"]
        call = begin(again, req_id="c1", questions=True, timeout=60)
        await answer(again, opened, count=3)
        assert booking(OLDER, await call) == ("BER", 3)
        await again.close()
    assert asking.notes == ["book"]


@both
@pytest.mark.covers("questions-private")
async def test_a_secret_question_never_reaches_an_agent_and_the_owner_reads_of_it(
    start: Start, agent: Peer, file: str, caplog: pytest.LogCaptureFixture
) -> None:
    await start(file)
    result = await begin(agent, "sign", questions=True)
    assert (said(result)["answer"] == {"action": "cancel"}) if file == OLDER else result["isError"]
    assert "notify:tell_question" not in dict(await agent.heard_until_now())
    assert "nobody can answer: only the owner of the computer may be asked this" in caplog.text


@pytest.mark.covers("questions-private")
async def test_a_url_never_reaches_an_agent_unless_the_owner_allows_it(start: Start, agent: Peer) -> None:
    seen: list[str] = []

    async def on_question(question: Question) -> Answer:
        seen.append(question.url)
        return Answer("accept", {"ignored": 1})

    asking = await start(on_question=on_question)
    assert said(await begin(agent, "visit", questions=True))["result"] == {"action": "accept"}
    assert seen == ["https://example.org/consent"]
    params = {"url": "javascript:alert(1)"}
    assert said(await begin(agent, "visit", params=params))["result"] == {"action": "cancel"}
    assert seen == ["https://example.org/consent"]
    assert asking.notes == ["visit", "visit"]
    assert "notify:tell_question" not in dict(await agent.heard_until_now())


@pytest.mark.covers("questions-private")
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


@pytest.mark.covers("questions-private", "secrets-masked")
@pytest.mark.parametrize("who", ["owner", "agent"])
async def test_the_answer_to_a_password_question_is_nowhere_else(
    start: Start, agent: Peer, who: str, caplog: pytest.LogCaptureFixture
) -> None:
    def on_question(question: Question) -> Answer | None:
        return Answer("accept", {"password": SECRET}) if who == "owner" else None

    caplog.set_level(0)
    asking = await start(on_question=on_question, for_agents=["secret"])
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
    kept = [computer.logs("asking"), computer.history, computer.status(), await agent.heard_until_now(), result]
    assert SECRET not in repr(kept)
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("a2c_smcp")]
    assert SECRET not in "".join(ours)


@pytest.mark.covers("questions-ended")
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
    await until(lambda: not asking.computer.questions.of(Caller(office, "planner")))
    assert asking.notes == ["book"]


@pytest.mark.covers("questions-answers")
async def test_open_questions_of_an_agent_are_bounded(start: Start, agent: Peer) -> None:
    await start()
    calls = [begin(agent, questions=True, req_id=f"c{number}") for number in range(18)]
    done, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    assert said(next(iter(done)).result()) == {"where": {"action": "cancel"}}
    for number in range(18):
        await agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": f"c{number}"})
    await asyncio.gather(*waiting)
