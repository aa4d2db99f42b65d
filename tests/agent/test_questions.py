"""A tool that asks two questions in a row, for both agents, through a real Server, computer and MCP server."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import Answer, AsyncSMCPAgentClient, Question
from a2c_smcp.errors import CallCancelled
from tests.agent.test_reconnect import separate_server
from tests.agent.twins import KINDS, SOON, Twin, at_work
from tests.computer.hosted import Relay
from tests.computer.test_questions import NEWER, OLDER, Asking
from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.covers("agent-questions")

both = pytest.mark.parametrize("kind", KINDS, ids=["async", "blocking"])
of_both_kinds = pytest.mark.parametrize("file", [OLDER, NEWER], ids=["2025-11-25", "2026-07-28"])


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
    """What was booked in the end. The older server shows the answers themselves."""
    assert not result.is_error, result.text
    said = json.loads(result.text)
    if "where" in said:
        return said["where"]["content"]["city"], said["seats"]["content"]["count"]
    return said["city"], said["count"]


@asynccontextmanager
async def at_a_desk(kind: Any, file: str, url: str, office: str, folder: Path) -> AsyncIterator[tuple[Twin, Asking]]:
    """An agent, and a computer whose MCP server asks. The agent's own way to the Server may be another one."""
    asking = Asking(file, folder)
    async with (
        asking.at(url, office, folder, reconnect=SOON),
        at_work(kind, url=url, office=office) as agent,
    ):
        yield agent, asking


@both
@of_both_kinds
async def test_two_questions_in_a_row(kind: Any, file: str, shared_hub: Any, office: str, tmp_path: Path) -> None:
    person = Person()
    async with at_a_desk(kind, file, shared_hub.url, office, tmp_path) as (agent, asking):
        result = await agent.emit_tool_call("laptop", "book", on_question=person.answer)
        assert booked(result) == ("PEK", 3)
        assert asking.notes == ["book"]
    first, second = person.asked
    assert first.message == "Which city?"
    assert second.message.startswith("How many seats")
    assert (first.computer, first.server, first.tool, first.agent) == ("laptop", "asking", "book", "planner")
    assert first.question_id != second.question_id


@of_both_kinds
async def test_the_registrys_tools_ask_the_agent(file: str, shared_hub: Any, office: str, tmp_path: Path) -> None:
    person, asking = Person(), Asking(file, tmp_path)
    async with asking.at(shared_hub.url, office, tmp_path):
        options: dict[str, Any] = {"url": shared_hub.url, "office": office, "on_question": person.answer}
        async with at_work(AsyncSMCPAgentClient, **options) as agent:
            assert await agent.use("book")
    assert len(person.asked) == 2
    assert asking.notes == ["book"]


@both
async def test_an_answer_that_does_not_fit_is_asked_for_again_with_the_reason(
    kind: Any, shared_hub: Any, office: str, tmp_path: Path
) -> None:
    problems: list[str] = []

    def answer(question: Question) -> Any:
        problems.append(question.problem)
        if "city" in question.fields:
            return {"city": "BER" if question.problem else "Atlantis"}
        return {"count": 1}

    async with at_a_desk(kind, OLDER, shared_hub.url, office, tmp_path) as (agent, asking):
        assert booked(await agent.emit_tool_call("laptop", "book", on_question=answer)) == ("BER", 1)
        assert asking.notes == ["book"]
    assert (problems[0], problems[2]) == ("", "")
    assert "city" in problems[1]


@of_both_kinds
async def test_a_call_cancelled_between_two_questions(file: str, shared_hub: Any, office: str, tmp_path: Path) -> None:
    person = Person()
    person.wait_before(2)
    async with at_a_desk(AsyncSMCPAgentClient, file, shared_hub.url, office, tmp_path) as (agent, asking):
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
@of_both_kinds
async def test_an_agent_that_reconnects_between_two_questions(
    kind: Any, file: str, shared_hub: Any, office: str, tmp_path: Path
) -> None:
    person, relay, asking = Person(), Relay(shared_hub.url), Asking(file, tmp_path)
    first = person.wait_before(1)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asking.at(shared_hub.url, office, tmp_path))
        url = await stack.enter_async_context(relay.open())
        agent = await stack.enter_async_context(at_work(kind, url=url, office=office))
        call = asyncio.ensure_future(agent.emit_tool_call("laptop", "book", on_question=person.answer))
        await until(lambda: len(person.asked) == 1)
        relay.close()
        await until(lambda: not agent.is_connected)
        first.set()
        relay.reopen()
        assert booked(await call) == ("PEK", 3)
        assert asking.notes == ["book"]
    assert len(person.asked) == 2


@both
@of_both_kinds
async def test_a_server_killed_between_two_questions(kind: Any, file: str, office: str, tmp_path: Path) -> None:
    person, port = Person(), free_port()
    second = person.wait_before(2)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(separate_server(port))
        desk = at_a_desk(kind, file, f"http://127.0.0.1:{port}", office, tmp_path)
        agent, asking = await stack.enter_async_context(desk)
        call = asyncio.ensure_future(agent.emit_tool_call("laptop", "book", on_question=person.answer))
        await until(lambda: len(person.asked) == 2)
        server.send_signal(signal.SIGKILL)
        await server.wait()
        second.set()
        await stack.enter_async_context(separate_server(port))
        assert booked(await call) == ("PEK", 3)
        assert asking.notes == ["book"]
    assert len(person.asked) == 2


@of_both_kinds
async def test_what_a_server_asks_may_be_the_result(file: str, shared_hub: Any, office: str, tmp_path: Path) -> None:
    """MCP's own way, for agents that speak MCP themselves."""
    async with at_a_desk(AsyncSMCPAgentClient, file, shared_hub.url, office, tmp_path) as (agent, asking):
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
