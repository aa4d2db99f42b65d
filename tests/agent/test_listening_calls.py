"""Progress, questions and logs of calls, with a real Server and a bare computer that tells what a test wants."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from a2c_smcp.agent import Answer, AsyncSMCPAgentClient, Question
from a2c_smcp.computer.computer import Computer
from a2c_smcp.errors import BadRequest, CallTimeout, SMCPError, UnsupportedEvent
from a2c_smcp.registry import ToolNeedsSignIn, report_progress
from tests.peer import Peer
from tests.stage.agent import Line, Twin
from tests.stage.raising import raises
from tests.waiting import until

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
DONE = {"content": [{"type": "text", "text": "done"}], "isError": False}
ASK = {"method": "elicitation/create", "params": {"mode": "form", "message": "Who?", "requestedSchema": SCHEMA}}
ECHO = {"name": "echo", "description": "", "params_schema": {}, "return_schema": None}


class Laptop:
    """A computer whose one tool does what the test says, with everything that it was asked."""

    def __init__(self, peer: Peer, office: str) -> None:
        self.peer, self.office = peer, office
        self.calls: list[dict[str, Any]] = []
        self.answered: list[dict[str, Any]] = []
        self.open: list[dict[str, Any]] = []
        self.acks: list[Any] = []
        self.news = asyncio.Event()
        peer.answers("client:get_tools", {"tools": [ECHO], "req_id": "x"})
        peer.answers("client:answer_question", self._on_answer)
        peer.answers("client:get_questions", lambda data: {"questions": self.open, "req_id": data["req_id"]})
        self.does()

    def does(self, *steps: Callable[[dict[str, Any]], Awaitable[Any]]) -> None:
        """Have calls do this, one step after the other. The last one may return the result."""

        async def call(data: dict[str, Any]) -> Any:
            self.calls.append(data)
            result = None
            for step in steps:
                result = await step(data)
            return result if isinstance(result, dict) and "delivered" not in result else DONE

        self.peer.answers("client:tool_call", call)

    def progress(self, progress: float, **more: Any) -> Callable[[dict[str, Any]], Awaitable[Any]]:
        return lambda call: self.tell("progress", call, progress=progress, **more)

    async def tell(self, what: str, call: dict[str, Any], **more: Any) -> Any:
        return await self.peer.ask(f"server:tell_{what}", {"agent": "planner", "req_id": call["req_id"], **more})

    async def ask(self, call: dict[str, Any], question_id: str = "q-1", **more: Any) -> None:
        """Asks, and waits for the next answer."""
        self.news.clear()
        assert await self.tell("question", call, question_id=question_id, request=ASK, **more) == {"delivered": True}
        await self.next_answer()

    async def next_answer(self) -> None:
        async with asyncio.timeout(60):
            await self.news.wait()

    def _on_answer(self, data: dict[str, Any]) -> Any:
        self.answered.append(data)
        self.news.set()
        return self.acks.pop(0) if self.acks else {"req_id": data["req_id"]}


@pytest.fixture
def laptop(computer: Peer, office: str) -> Laptop:
    return Laptop(computer, office)


def held(kind: Any, begun: Callable[..., Any], go: threading.Event, result: Any = None) -> Callable[..., Any]:
    """A callback for this kind of client that says when it has begun, and gives its result when it may go on."""

    def wait(*told: Any) -> Any:
        begun(*told)
        go.wait(60)
        return result

    async def wait_async(*told: Any) -> Any:
        begun(*told)
        await until(go.is_set)
        return result

    return wait_async if kind is AsyncSMCPAgentClient else wait


# Progress


@pytest.mark.covers("9-tell_progress", "agent-progress")
async def test_progress_reaches_the_callback_before_the_result(laptop: Laptop, agent: Twin) -> None:
    heard: list[Any] = []

    laptop.does(laptop.progress(1, total=2, message="half"), lambda _: until(lambda: heard), laptop.progress(2.5))
    result = await agent.emit_tool_call("laptop", "echo", on_progress=lambda *report: heard.append(report))
    assert result.text == "done"
    assert heard == [(1, 2, "half"), (2.5, None, None)]
    assert laptop.calls[0]["progress"] is True


@pytest.mark.covers("agent-progress")
async def test_all_progress_of_a_tool_that_reports_and_ends_at_once_reaches_the_callback(
    hosts: Any, planning: Any
) -> None:
    heard: list[float] = []
    computer = Computer("laptop")

    @computer.tool(auto_apply=True)
    async def burst() -> str:
        for progress in (0, 50, 100):
            report_progress(progress, 100)
        return "done"

    async with hosts(computer), planning() as agent:
        await agent.emit_tool_call("laptop", "burst", on_progress=lambda *report: heard.append(report[0]))
    assert heard == [0, 50, 100]


@pytest.mark.covers("agent-progress")
async def test_a_plain_call_asks_for_nothing_but_whole_results(laptop: Laptop, planner: Twin) -> None:
    await planner.emit_tool_call("laptop", "echo")
    assert laptop.calls[0].keys() == {"agent", "req_id", "computer", "tool_name", "params", "timeout", "blobs"}


@pytest.mark.covers("agent-progress")
@pytest.mark.parametrize(
    "odd", [{}, {"progress": 1}, {"progress": True}, {"progress": "2"}, {"progress": None}], ids=str
)
async def test_progress_that_does_not_grow_or_is_malformed_is_dropped(laptop: Laptop, planner: Twin, odd: Any) -> None:
    heard: list[Any] = []

    laptop.does(
        laptop.progress(1),
        lambda _: until(lambda: heard),
        lambda call: laptop.tell("progress", call, **odd),
        lambda _: laptop.tell("progress", {"req_id": "another"}, progress=7),
        laptop.progress(3, total="many", message=7),
    )
    await planner.emit_tool_call("laptop", "echo", on_progress=lambda *report: heard.append(report))
    assert heard[0] == (1, None, None)
    assert {report[0] for report in heard} <= {1, 3}


@pytest.mark.covers("agent-progress")
async def test_progress_after_the_result_and_of_another_computer_is_dropped(
    kind: Any, planning: Any, laptop: Laptop, office: str, connect: Any
) -> None:
    heard: list[Any] = []
    tower = Laptop(await connect(), office)
    await tower.peer.join("computer", "tower", office)

    async def work(call: dict[str, Any]) -> None:
        assert await tower.tell("progress", call, progress=1) == {"delivered": True}

    laptop.does(work)
    async with planning(kind) as agent:
        await agent.emit_tool_call("laptop", "echo", on_progress=lambda *report: heard.append(report))
        await laptop.tell("progress", laptop.calls[0], progress=2)
        await agent.list_room()
    assert heard == []


@pytest.mark.covers("agent-progress")
async def test_a_slow_callback_delays_nobody_and_gets_the_newest(laptop: Laptop, agent: Twin, kind: Any) -> None:
    heard, go, told = list[float](), threading.Event(), asyncio.Event()
    slow = held(kind, lambda progress, *_: heard.append(progress), go)

    async def work(call: dict[str, Any]) -> None:
        if call.get("progress"):
            await laptop.tell("progress", call, progress=1)
            await until(lambda: heard)
            for number in range(2, 8):
                await laptop.tell("progress", call, progress=number)
            told.set()
            await until(go.is_set)

    laptop.does(work)
    call = asyncio.ensure_future(agent.emit_tool_call("laptop", "echo", on_progress=slow))
    await told.wait()
    assert (await agent.emit_tool_call("laptop", "echo")).text == "done"
    go.set()
    await call
    assert heard == [1, 7]


@pytest.mark.covers("agent-progress")
async def test_a_callback_that_fails_is_logged(laptop: Laptop, agent: Twin, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("no")

    laptop.does(laptop.progress(1))
    assert (await agent.emit_tool_call("laptop", "echo", on_progress=fail)).text == "done"
    assert "on_progress failed" in caplog.text


@pytest.mark.covers("agent-progress", "registry-progress")
async def test_progress_reaches_a_call_of_the_registry(laptop: Laptop, agent: Twin) -> None:
    heard: list[Any] = []

    laptop.does(laptop.progress(1, total=2))
    result = await agent.registry.acall("echo", {}, on_progress=lambda *report: heard.append(report))
    assert result == "done"
    assert heard == [(1, 2, None)]
    assert await agent.use("echo") == "done"
    assert "progress" not in laptop.calls[-1]


@pytest.mark.covers("agent-progress", "registry-progress")
async def test_a_function_of_a_computer_reports_its_progress(kind: Any, hosts: Any, planning: Any) -> None:
    heard, computer = list[Any](), Computer("desk")

    @computer.tool(auto_apply=True)
    def count(steps: int) -> int:
        for step in range(1, steps + 1):
            report_progress(step, steps, f"step {step}")
        return steps

    async with hosts(computer), planning(kind) as agent:
        arguments = {"steps": 3}
        result = await agent.emit_tool_call("desk", "count", arguments, on_progress=lambda *told: heard.append(told))
        assert result.text == "3"
        assert (await agent.emit_tool_call("desk", "count", arguments)).text == "3"
    assert heard[-1] == (3, 3, "step 3")


@pytest.mark.covers("agent-call-options")
async def test_a_function_that_reports_progress_outlives_the_timeout_of_an_extended_call(
    hosts: Any, planning: Any
) -> None:
    computer = Computer("desk")

    @computer.tool(auto_apply=True)
    async def work(step: float) -> str:
        for number in range(10):
            report_progress(number)
            await asyncio.sleep(step)
        return "done"

    async with hosts(computer), planning() as agent:
        result = await agent.emit_tool_call("desk", "work", {"step": 0.2}, timeout=1, extend=True)
        assert result.text == "done"
        with pytest.raises(CallTimeout):
            await agent.emit_tool_call("desk", "work", {"step": 60}, timeout=1, extend=True)
        with pytest.raises(CallTimeout):
            await agent.emit_tool_call("desk", "work", {"step": 0.2}, timeout=1)


# Questions


async def answers(question: Question) -> Answer:
    return Answer("accept", {"name": "Ada"})


ANSWERS: list[tuple[Any, dict[str, Any]]] = [
    (answers, {"action": "accept", "content": {"name": "Ada"}}),
    (lambda question: {"name": question.message}, {"action": "accept", "content": {"name": "Who?"}}),
    (lambda question: Answer("decline"), {"action": "decline"}),
    (lambda question: None, {"action": "cancel"}),
    (lambda question: 7, {"action": "cancel"}),
    (lambda question: 1 / 0, {"action": "cancel"}),
]


@pytest.mark.parametrize("case", ANSWERS, ids=lambda case: str(case[1]))
@pytest.mark.covers("9-tell_question", "9-answer_question", "agent-questions")
async def test_a_question_is_answered_by_the_callback(laptop: Laptop, agent: Twin, case: Any) -> None:
    callback, expected = case
    laptop.does(laptop.ask)
    result = await agent.emit_tool_call("laptop", "echo", on_question=callback)
    assert result.text == "done"
    assert laptop.answered[0].items() >= expected.items()
    assert laptop.answered[0]["question_id"] == "q-1"
    assert ("content" in laptop.answered[0]) == ("content" in expected)
    assert laptop.calls[0]["questions"] is True


@pytest.mark.covers("agent-questions")
async def test_a_question_says_what_it_is_about(laptop: Laptop, planner: Twin, office: str) -> None:
    seen: list[Question] = []

    laptop.does(lambda call: laptop.ask(call, tool_name="echo", mcp_server="notes"))
    await planner.emit_tool_call("laptop", "echo", req_id="r-1", on_question=seen.append)
    where = {"computer": "laptop", "server": "notes", "tool": "echo", "agent": "planner", "office": office}
    assert seen == [Question("Who?", schema=SCHEMA, req_id="r-1", question_id="q-1", **where)]


@pytest.mark.covers("agent-questions")
async def test_a_callback_that_never_fits_cancels_in_the_end(laptop: Laptop, planner: Twin) -> None:
    laptop.acks = [BadRequest("no").to_wire() for _ in range(5)]

    laptop.does(laptop.ask, lambda _: until(lambda: laptop.answered[-1]["action"] == "cancel"))
    await planner.emit_tool_call("laptop", "echo", on_question=lambda question: {"name": ""})
    assert [answer["action"] for answer in laptop.answered] == ["accept"] * 5 + ["cancel"]


@pytest.mark.covers("agent-questions")
@pytest.mark.parametrize("code", [404, 410])
async def test_an_answer_to_a_question_that_is_over_is_dropped(
    laptop: Laptop, planner: Twin, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    laptop.acks = [{"code": code, "message": "it is over", "details": {}}]
    asked: list[Question] = []

    laptop.does(laptop.ask, lambda _: until(lambda: "was not taken" in caplog.text))
    assert (await planner.emit_tool_call("laptop", "echo", on_question=asked.append)).text == "done"
    assert len(asked) == len(laptop.answered) == 1
    assert "it is over" in caplog.text


@pytest.mark.covers("agent-questions")
async def test_an_answer_that_meets_a_passing_trouble_is_sent_again(laptop: Laptop, planner: Twin) -> None:
    laptop.acks = [{"code": 429, "message": "Too much at once", "details": {}}]

    laptop.does(laptop.ask, lambda _: until(lambda: len(laptop.answered) == 2))
    asked: list[Question] = []
    await planner.emit_tool_call("laptop", "echo", on_question=asked.append)
    assert len(asked) == 1
    assert [answer["action"] for answer in laptop.answered] == ["cancel", "cancel"]


@pytest.mark.covers("9-tell_question_ended", "agent-questions")
@pytest.mark.parametrize("ending", ["the question ends", "the result comes", "the call is cancelled"])
async def test_a_callback_is_cancelled_when(laptop: Laptop, planner: Twin, ending: str) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def wait(question: Question) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def work(call: dict[str, Any]) -> None:
        await laptop.tell("question", call, question_id="q-1", request=ASK)
        await begun.wait()
        if ending == "the question ends":
            await laptop.tell("question_ended", call, question_id="q-1")
            await cancelled.wait()
        elif ending == "the call is cancelled":
            await asyncio.Event().wait()

    laptop.does(work)
    call = asyncio.ensure_future(planner.emit_tool_call("laptop", "echo", on_question=wait))
    await begun.wait()
    if ending == "the call is cancelled":
        call.cancel()
    async with asyncio.timeout(60):
        await asyncio.wait([call])
        await cancelled.wait()
    assert call.cancelled() or call.result().text == "done"
    assert laptop.answered == []


@pytest.mark.covers("agent-questions")
async def test_a_question_is_put_once_however_often_it_is_told(laptop: Laptop, agent: Twin) -> None:
    asked: list[str] = []

    def answer(question: Question) -> dict[str, Any]:
        asked.append(question.question_id)
        return {"name": "Ada"}

    async def work(call: dict[str, Any]) -> None:
        for _ in range(3):
            await laptop.tell("question", call, question_id="q-1", request=ASK)
        await laptop.next_answer()
        await laptop.tell("question", call, question_id="q-1", request=ASK)
        await laptop.ask(call, "q-2")

    laptop.does(work)
    await agent.emit_tool_call("laptop", "echo", on_question=answer)
    assert asked == ["q-1", "q-2"]
    assert [answer["question_id"] for answer in laptop.answered] == ["q-1", "q-2"]


@pytest.mark.covers("agent-questions")
@pytest.mark.parametrize(
    "odd",
    [
        {"request": ASK},
        {"question_id": 7, "request": ASK},
        {"question_id": "odd", "request": {"mode": "riddle"}},
        {"question_id": "odd", "request": {"method": "sampling/createMessage", "params": {}}},
        {"question_id": "odd", "request": {"method": "elicitation/create", "params": {"message": 7}}},
    ],
    ids=str,
)
async def test_a_malformed_question_is_ignored(laptop: Laptop, planner: Twin, odd: Any) -> None:
    asked: list[str] = []

    def answer(question: Question) -> None:
        asked.append(question.question_id)

    laptop.does(lambda call: laptop.tell("question", call, **odd), laptop.ask)
    await planner.emit_tool_call("laptop", "echo", on_question=answer)
    assert asked == ["q-1"]


@pytest.mark.covers("agent-questions")
async def test_a_computer_cannot_ask_without_end(
    laptop: Laptop, planner: Twin, caplog: pytest.LogCaptureFixture
) -> None:
    go = asyncio.Event()

    async def wait(question: Question) -> None:
        await asyncio.Event().wait()

    laptop.does(lambda _: go.wait())
    laptop.open = [{"req_id": "r-1", "question_id": f"q-{number}", "request": ASK} for number in range(100)]
    call = asyncio.ensure_future(planner.emit_tool_call("laptop", "echo", req_id="r-1", on_question=wait))
    await until(lambda: laptop.calls)
    listening = planner.client._flows._listening
    listening.on_seated(laptop.office)
    await until(lambda: "there are too many" in caplog.text)
    assert len(listening._calls["r-1"].questions._open) == 32
    go.set()
    await call
    assert listening._calls == {}


@pytest.mark.covers("agent-questions")
async def test_the_clients_own_callback_answers_for_all_calls(kind: Any, planning: Any, laptop: Laptop) -> None:
    async def work(call: dict[str, Any]) -> None:
        if call.get("questions"):
            await laptop.ask(call, f"q-{len(laptop.calls)}")

    laptop.does(work)
    async with planning(kind, on_question=lambda question: {"name": "everybody's"}) as agent:
        await agent.emit_tool_call("laptop", "echo")
        await agent.use("echo")
        await agent.emit_tool_call("laptop", "echo", on_question=lambda question: {"name": "its own"})
        await agent.emit_tool_call("laptop", "echo", questions=False)
    assert [answer["content"]["name"] for answer in laptop.answered] == ["everybody's", "everybody's", "its own"]
    assert [call.get("questions") for call in laptop.calls] == [True, True, True, None]


@pytest.mark.covers("9-get_questions", "9-answer_question", "agent-questions")
async def test_questions_may_be_listed_and_answered_by_hand(kind: Any, planning: Any, laptop: Laptop) -> None:
    notices: list[str] = []
    listener = SimpleNamespace(on_notice=lambda event, data: notices.append(event))
    laptop.does(laptop.ask)
    laptop.open = [{"req_id": "r-1", "question_id": "q-1", "request": ASK, "tool_name": "echo"}, {"odd": 1}]
    async with planning(kind, event_handler=listener) as agent:
        call = asyncio.ensure_future(agent.emit_tool_call("laptop", "echo", questions=True))
        await until(lambda: "notify:tell_question" in notices)
        (question,) = await agent.get_questions("laptop")
        assert (question.message, question.tool, question.computer) == ("Who?", "echo", "laptop")
        await agent.answer_question("laptop", question.question_id, {"name": "Ada"})
        assert (await call).text == "done"
        with pytest.raises(BadRequest):
            await agent.answer_question("laptop", "q-1", 7)
        laptop.acks = [{"code": 410, "message": "it is over", "details": {}}]
        with raises(SMCPError, code=410):
            await agent.answer_question("laptop", "q-1", None)
    assert laptop.answered[0]["content"] == {"name": "Ada"}


# Connections that are lost


@pytest.mark.covers("agent-questions", "agent-rejoins")
async def test_a_question_told_while_the_agent_was_away_is_found_and_put_once(
    laptop: Laptop, far_agent: Twin, relay: Line
) -> None:
    asked, called = list[str](), asyncio.Event()

    def answer(question: Question) -> dict[str, Any]:
        asked.append(question.question_id)
        return {"name": question.question_id}

    async def work(call: dict[str, Any]) -> None:
        await laptop.ask(call, "q-1")
        called.set()
        await until(lambda: laptop.answered[-1]["question_id"] == "q-2")

    laptop.does(work)
    call = asyncio.ensure_future(far_agent.emit_tool_call("laptop", "echo", req_id="r-1", on_question=answer))
    await called.wait()
    await relay.lose(far_agent)
    laptop.open = [{"req_id": "r-1", "question_id": each, "request": ASK} for each in ("q-1", "q-2")]
    relay.reopen()
    assert (await call).text == "done"
    assert asked == ["q-1", "q-2"]
    assert len(laptop.calls) == 1


@pytest.mark.covers("agent-questions", "agent-rejoins")
async def test_an_answer_given_while_the_agent_was_away_arrives(
    laptop: Laptop, far_agent: Twin, kind: Any, relay: Line
) -> None:
    asked, go = threading.Event(), threading.Event()
    answer = held(kind, lambda question: asked.set(), go, {"name": "Ada"})
    laptop.does(laptop.ask)
    laptop.open = [{"req_id": "r-1", "question_id": "q-1", "request": ASK}]
    call = asyncio.ensure_future(far_agent.emit_tool_call("laptop", "echo", req_id="r-1", on_question=answer))
    await until(asked.is_set)
    await relay.lose(far_agent)
    go.set()
    relay.reopen()
    assert (await call).text == "done"
    assert [each["content"] for each in laptop.answered] == [{"name": "Ada"}]


@pytest.mark.covers("agent-progress", "agent-rejoins")
async def test_progress_goes_on_after_a_lost_connection(laptop: Laptop, far_agent: Twin, relay: Line) -> None:
    heard = list[Any]()

    async def work(call: dict[str, Any]) -> None:
        await laptop.tell("progress", call, progress=1)
        await until(lambda: heard)
        relay.cut()
        async with asyncio.timeout(60):
            progress = 1
            while len(heard) < 2:
                progress += 1
                await laptop.tell("progress", call, progress=progress)
                await asyncio.sleep(0.15)  # 10 a second are carried

    laptop.does(work)
    result = await far_agent.emit_tool_call("laptop", "echo", on_progress=lambda *report: heard.append(report))
    assert result.text == "done"
    assert len(laptop.calls) == 1


# Other options


@pytest.mark.covers("agent-call-options")
async def test_options_are_sent_as_fields(laptop: Laptop, agent: Twin) -> None:
    asked = {"questions": "result", "input_responses": {"q": {"action": "cancel"}}, "request_state": "s-1"}
    about = {"client_capabilities": {"roots": {}}, "client": {"name": "claude-desktop", "version": "1.2"}}
    options = {**asked, **about, "extend": True}
    await agent.emit_tool_call("laptop", "echo", meta={"traceparent": "00-1"}, **options)
    fields = {"tool_name": "echo", "params": {}, "timeout": 60, "blobs": True, "_meta": {"traceparent": "00-1"}}
    (sent,) = laptop.calls
    assert {key: sent[key] for key in sent.keys() - {"agent", "req_id", "computer"}} == {**fields, **options}


@pytest.mark.covers("agent-call-options")
async def test_what_a_server_asks_may_be_the_result(kind: Any, planning: Any, laptop: Laptop) -> None:
    requests = {"who": ASK, "where": {"method": "roots/list"}}

    async def work(call: dict[str, Any]) -> Any:
        if "input_responses" in call:
            return None
        return {"resultType": "input_required", "inputRequests": requests, "requestState": "s-1"}

    laptop.does(work)
    async with planning(kind, on_question=lambda question: None) as agent:
        asked = await agent.emit_tool_call("laptop", "echo", questions="result")
        assert asked.is_input_required
        assert asked.input_requests == requests
        assert asked.request_state == "s-1"
        responses = {"who": {"action": "cancel"}, "where": {"roots": []}}
        result = await agent.emit_tool_call(
            "laptop", "echo", input_responses=responses, request_state=asked.request_state
        )
    assert not result.is_input_required
    assert (result.input_requests, result.request_state, result.text) == ({}, None, "done")
    first, second = laptop.calls
    assert first["req_id"] != second["req_id"]
    assert (second["questions"], second["input_responses"], second["request_state"]) == ("result", responses, "s-1")


@pytest.mark.covers("agent-call-options")
@pytest.mark.parametrize("questions", [False, "result", "sometimes"])
async def test_options_that_exclude_one_another_are_refused(laptop: Laptop, planner: Twin, questions: Any) -> None:
    with pytest.raises(BadRequest, match="question"):
        await planner.emit_tool_call("laptop", "echo", questions=questions, on_question=answers)
    assert laptop.calls == []


@pytest.mark.covers("agent-call-options")
async def test_an_option_that_does_not_exist_is_refused(laptop: Laptop, agent: Twin) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'on_progres'"):
        await agent.emit_tool_call("laptop", "echo", on_progres=print)
    assert laptop.calls == []


@pytest.mark.covers("agent-call-options")
async def test_an_extended_call_outlives_its_timeout(laptop: Laptop, agent: Twin) -> None:
    laptop.does(lambda _: asyncio.sleep(3.5))
    assert (await agent.emit_tool_call("laptop", "echo", timeout=1, extend=True)).text == "done"
    assert laptop.calls[0]["timeout"] == 1


@pytest.mark.covers("agent-call-options")
async def test_a_failure_says_why_in_properties(laptop: Laptop, planner: Twin) -> None:
    hint = {"action": "user_authorization_required", "message": "sign in"}
    error = {"code": -32603, "message": "no", "data": {"a": 1}}
    meta = {"error_code": 4006, "auth_hint": hint, "mcp_server": "notes", "a2c_timeout": True, "a2c_mcp_error": error}

    async def work(call: dict[str, Any]) -> Any:
        return {"isError": True, "content": [{"type": "text", "text": "no"}], "_meta": meta}

    laptop.does(work)
    result = await planner.emit_tool_call("laptop", "echo")
    assert (result.error_code, result.auth_hint, result.mcp_server) == (4006, hint, "notes")
    assert (result.is_timeout, result.mcp_error) == (True, error)
    with pytest.raises(ToolNeedsSignIn, match="sign in"):
        await planner.use("echo")


@pytest.mark.covers("agent-registry")
@pytest.mark.parametrize(
    ("meta", "shown"),
    [
        ({"MCP_TOOL_TITLE": '"Echo"', "MCP_TOOL_ICONS": '[{"src": "https://a.example/e.png"}]'}, ("Echo", 1)),
        ({"MCP_TOOL_TITLE": "Echo", "MCP_TOOL_ICONS": "no list"}, ("Echo", 0)),
        ({"MCP_TOOL_TITLE": "7", "MCP_TOOL_ICONS": "{}"}, (None, 0)),
        ({}, (None, 0)),
    ],
    ids=str,
)
async def test_title_and_icons_of_a_tool_are_shown(planning: Any, meta: Any, shown: Any, laptop: Laptop) -> None:
    laptop.peer.answers("client:get_tools", {"tools": [{**ECHO, "meta": meta}], "req_id": "x"})
    async with planning() as agent:
        (listed,) = agent.registry.describe("mcp")
        assert (listed.get("title"), len(listed.get("icons", []))) == shown
        assert agent.registry["echo"].meta.get("title") == shown[0]


# Logs


class LogListener:
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def on_log(self, computer: str, log: dict[str, Any], office: str) -> None:
        self.heard.append((computer, log["mcp_server"], log["level"], log["data"], office))


@pytest.mark.covers("9-set_log_level", "9-tell_log", "agent-logs")
async def test_logs_reach_the_listener_while_they_are_wanted(
    kind: Any, planning: Any, laptop: Laptop, office: str
) -> None:
    listener, log = LogListener(), {"mcp_server": "notes", "level": "info", "data": {"a": 1}}
    laptop.peer.answers("client:set_log_level", lambda data: {"req_id": data["req_id"]})
    async with planning(kind, event_handler=listener) as agent:
        await laptop.peer.ask("server:tell_log", {"agent": "planner", **log, "data": "too early"})
        await agent.list_room()  # answered after the notice
        await agent.set_log_level("laptop", "info", "notes")
        await laptop.peer.ask("server:tell_log", {"agent": "planner", **log})
        await until(lambda: listener.heard)
        await agent.set_log_level("laptop", None, "notes")
        await laptop.peer.ask("server:tell_log", {"agent": "planner", **log, "data": "too late"})
        await agent.list_room()
    assert listener.heard == [("laptop", "notes", "info", {"a": 1}, office)]
    (asked,) = await laptop.peer.was_asked("client:set_log_level")
    assert (asked["level"], asked["mcp_server"]) == ("info", "notes")


@pytest.mark.covers("9-set_log_level", "agent-logs", "agent-rejoins")
async def test_a_level_is_set_again_after_a_lost_connection(laptop: Laptop, far_agent: Twin, relay: Line) -> None:
    laptop.peer.answers("client:set_log_level", lambda data: {"req_id": data["req_id"]})
    await far_agent.set_log_level("laptop", "debug")
    relay.cut()
    first, second = (await laptop.peer.was_asked("client:set_log_level", 2))[:2]
    assert first["level"] == second["level"] == "debug"
    assert "mcp_server" not in second


@pytest.mark.covers("agent-not-carried")
async def test_an_empty_answer_through_our_server_means_that_the_computer_does_not_know_it(
    laptop: Laptop, agent: Twin
) -> None:
    """What a published Server answers is in `tests/interop`."""
    for event in ("client:answer_question", "client:get_questions", "client:set_log_level", "client:withdraw_call"):
        laptop.peer.answers(event, None)
    with pytest.raises(UnsupportedEvent, match="computer 'laptop' does not know client:answer_question"):
        await agent.answer_question("laptop", "q-1", None)
    with pytest.raises(UnsupportedEvent):
        await agent.get_questions("laptop")
    with pytest.raises(UnsupportedEvent):
        await agent.set_log_level("laptop", "debug")
    with pytest.raises(UnsupportedEvent):
        await agent.withdraw("laptop", "r-1")
    assert not agent.client._flows.logs.all()
