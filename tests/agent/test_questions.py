"""A tool that asks two questions in a row, for both agents, through a real Server, computer and MCP server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import Answer, AsyncSMCPAgentClient, Question
from a2c_smcp.errors import CallCancelled
from tests.stage.agent import SOON, Line, Twin
from tests.stage.questions import OLDER, Asking, both
from tests.stage.questions import booked as content_booked
from tests.stage.worker import MortalServer
from tests.waiting import until

pytestmark = pytest.mark.covers("agent-questions")


class Person:
    """Answers questions, and may be made to wait before an answer."""

    def __init__(self) -> None:
        self.asked: list[Question] = []
        self.gates: dict[int, asyncio.Event] = {}
        self._loop = asyncio.get_running_loop()

    def wait_before(self, number: int) -> asyncio.Event:
        gate = self.gates[number] = asyncio.Event()
        return gate

    async def _answer(self, question: Question) -> Answer | dict[str, Any]:
        self.asked.append(question)
        if gate := self.gates.get(len(self.asked)):
            await gate.wait()
        return {"city": "PEK"} if "city" in question.fields else Answer("accept", {"count": 3})

    async def answer(self, question: Question) -> Any:
        """In the loop of the test, whichever loop or thread asks."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._answer(question), self._loop))


def booked(result: Any) -> tuple[str, int]:
    assert not result.is_error, result.text
    return content_booked(json.loads(result.text))


Desk = Callable[..., AbstractAsyncContextManager[tuple[Twin, Asking]]]


@pytest.fixture
def desk(planning: Any, shared_hub: Any, office: str, tmp_path: Path) -> Desk:
    """A computer whose MCP server asks, and an agent, whose own way to the Server may be another one."""

    @asynccontextmanager
    async def begin(
        file: str, kind: Any = AsyncSMCPAgentClient, url: str = "", computer_url: str = "", **options: Any
    ) -> AsyncIterator[tuple[Twin, Asking]]:
        asking = Asking(file, tmp_path)
        async with (
            asking.at(computer_url or shared_hub.url, office, tmp_path, reconnect=SOON),
            planning(kind, url=url or shared_hub.url, **options) as agent,
        ):
            yield agent, asking

    return begin


@both
async def test_two_questions_in_a_row(kind: Any, file: str, desk: Desk) -> None:
    person = Person()
    async with desk(file, kind) as (agent, asking):
        result = await agent.emit_tool_call("laptop", "book", on_question=person.answer)
        assert booked(result) == ("PEK", 3)
        assert asking.notes == ["book"]
    first, second = person.asked
    assert first.message == "Which city?"
    assert second.message.startswith("How many seats")
    assert (first.computer, first.server, first.tool, first.agent) == ("laptop", "asking", "book", "planner")
    assert first.question_id != second.question_id


@both
async def test_the_registrys_tools_ask_the_agent(file: str, desk: Desk) -> None:
    person = Person()
    async with desk(file, on_question=person.answer) as (agent, asking):
        assert await agent.use("book")
    assert len(person.asked) == 2
    assert asking.notes == ["book"]


async def test_an_answer_that_does_not_fit_is_asked_for_again_with_the_reason(kind: Any, desk: Desk) -> None:
    problems: list[str] = []

    def answer(question: Question) -> Any:
        problems.append(question.problem)
        if "city" in question.fields:
            return {"city": "BER" if question.problem else "Atlantis"}
        return {"count": 1}

    async with desk(OLDER, kind) as (agent, asking):
        assert booked(await agent.emit_tool_call("laptop", "book", on_question=answer)) == ("BER", 1)
        assert asking.notes == ["book"]
    assert (problems[0], problems[2]) == ("", "")
    assert "city" in problems[1]


@both
async def test_a_call_cancelled_between_two_questions(file: str, desk: Desk) -> None:
    person = Person()
    person.wait_before(2)
    async with desk(file) as (agent, asking):
        call = asyncio.ensure_future(agent.emit_tool_call("laptop", "book", req_id="r-1", on_question=person.answer))
        await until(lambda: len(person.asked) == 2)
        await agent.cancel("r-1")
        with pytest.raises(CallCancelled):
            await call
        assert await agent.get_questions("laptop") == []
        if file == OLDER:
            await until(lambda: asking.notes == ["book", "cancelled"])
        else:
            assert asking.notes == []  # the tool itself begins when all questions are answered


@both
async def test_an_agent_that_reconnects_between_two_questions(kind: Any, relay: Line, file: str, desk: Desk) -> None:
    person = Person()
    first = person.wait_before(1)
    async with desk(file, kind, relay.url) as (agent, asking):
        call = asyncio.ensure_future(agent.emit_tool_call("laptop", "book", on_question=person.answer))
        await until(lambda: len(person.asked) == 1)
        await relay.lose(agent)
        first.set()
        relay.reopen()
        assert booked(await call) == ("PEK", 3)
        assert asking.notes == ["book"]
    assert len(person.asked) == 2


@both
async def test_a_server_killed_between_two_questions(kind: Any, file: str, mortal: MortalServer, desk: Desk) -> None:
    person = Person()
    second = person.wait_before(2)
    async with desk(file, kind, mortal.url, mortal.url) as (agent, asking):
        call = asyncio.ensure_future(agent.emit_tool_call("laptop", "book", on_question=person.answer))
        await until(lambda: len(person.asked) == 2)
        await mortal.kill()
        second.set()
        await mortal.start()
        assert booked(await call) == ("PEK", 3)
        assert asking.notes == ["book"]
    assert len(person.asked) == 2


@both
async def test_what_a_server_asks_may_be_the_result(file: str, desk: Desk) -> None:
    """MCP's own way, for agents that speak MCP themselves."""
    async with desk(file) as (agent, asking):
        result = await agent.emit_tool_call("laptop", "book", questions="result")
        for content in ({"city": "BER"}, {"count": 4}):
            assert result.is_input_required
            (key,) = result.input_requests
            result = await agent.emit_tool_call(
                "laptop",
                "book",
                input_responses={key: {"action": "accept", "content": content}},
                request_state=result.request_state,
            )
        assert booked(result) == ("BER", 4)
        assert asking.notes == ["book"]
