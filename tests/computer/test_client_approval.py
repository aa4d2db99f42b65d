"""`--approve-by client`: calls are put to the person at their MCP client, and nothing but a yes there runs them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from a2c_smcp.computer.calls.incoming import CallOptions
from a2c_smcp.computer.calls.journal import Journal
from a2c_smcp.computer.consent.approval import Caller
from tests.peer import Peer
from tests.stage.calls import verdict
from tests.stage.guarded_computer import Guard, Guarded
from tests.stage.owners import SteadyOwner
from tests.stage.questions import NEWER, Start, answer, ask, asked, begin, booking, both, questions_of, request_in
from tests.waiting import until

pytestmark = pytest.mark.covers("approval-by-client")

SECRET = "correct-horse-battery-staple"
DESKTOP = {"name": "claude-desktop", "version": "1.2"}
YES, NO = {"approve": "yes"}, {"approve": "no"}
WANTS = "planner wants to run wipe of the MCP server python on the computer laptop"


def wipe(agent: Peer, path: str = "/tmp/a", questions: Any = True, **more: Any) -> asyncio.Task[Any]:
    return begin(agent, "wipe", questions=questions, **{"params": {"path": path}, **more})


def wipe_again(agent: Peer, before: dict[str, Any], response: Any, tool: str = "wipe", **more: Any) -> Any:
    """The request that answers the question of the result before."""
    return ask(agent, tool, before, **{"params": {"path": "/tmp/a"}, "response": response, **more})


def accept(content: Any) -> dict[str, Any]:
    return {"action": "accept", "content": content}


# Who is asked, and what is shown


async def test_a_call_that_is_told_questions_is_asked_and_runs_once_after_a_yes(guard: Guard, agent: Peer) -> None:
    guarded = await guard()
    call = wipe(agent, req_id="c1", client=DESKTOP)
    question = await asked(agent, "planner (claude-desktop) wants to run wipe of the MCP server python")
    about = {"req_id": "c1", "tool_name": "wipe", "mcp_server": "python", "approval": True}
    assert about.items() <= question.items()
    assert (await questions_of(agent))[0]["approval"] is True
    params = question["request"]["params"]
    assert all(words in params["message"] for words in ("on the computer laptop", '{"path": "/tmp/a"}'))
    assert params["requestedSchema"]["properties"]["approve"]["enum"] == ["no", "yes"]
    assert params["requestedSchema"]["required"] == ["approve"]
    assert guarded.runs == []
    assert (await answer(agent, question, **YES)).keys() == {"req_id"}
    result = await call
    assert result["content"][0]["text"] == "/tmp/a is gone"
    assert await wipe(agent, req_id="c1", client=DESKTOP) == result
    assert guarded.runs == ["/tmp/a"]


async def test_a_yes_is_for_one_call_and_never_a_grant(guard: Guard, agent: Peer) -> None:
    guarded = await guard()
    for number in range(2):
        call = wipe(agent, f"/tmp/{number}")
        await answer(agent, await asked(agent, f'{WANTS}, with\n  {{"path": "/tmp/{number}"}}'), **YES)
        await call
    always = wipe(agent, "/tmp/always")
    question = await asked(agent, f'{WANTS}, with\n  {{"path": "/tmp/always"}}')
    assert (await answer(agent, question, approve="always"))["code"] == 400
    await answer(agent, question, **NO)
    assert verdict(await always) == (403, "not_run")
    assert guarded.runs == ["/tmp/0", "/tmp/1"]
    assert guarded.computer.approvals.grants == set()


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"questions": False},
        {"questions": True, "client_capabilities": {"sampling": {}}},
        {"questions": "result", "client_capabilities": {"elicitation": {"url": {}}}},
    ],
    ids=["silent", "no", "no elicitation", "no forms"],
)
async def test_a_call_that_cannot_be_asked_is_refused_with_how_to_allow_it(
    guard: Guard, agent: Peer, more: dict[str, Any]
) -> None:
    guarded = await guard()
    result = await begin(agent, "wipe", **more)
    assert verdict(result) == (403, "not_run")
    assert all(remedy in result["message"] for remedy in ("elicitation", "auto_apply"))
    assert "notify:tell_question" not in dict(await agent.heard_until_now())
    assert guarded.runs == []


async def test_a_call_that_cannot_be_asked_is_for_the_owner(guard: Guard, agent: Peer) -> None:
    owner = SteadyOwner()
    guarded = await guard(approve=owner)
    await begin(agent, "wipe", params={"path": "/tmp/a"}, client=DESKTOP)
    call = wipe(agent, "/tmp/b")
    await answer(agent, await asked(agent, WANTS), "decline")
    assert verdict(await call) == (403, "not_run")
    assert (owner.callers, guarded.runs) == (["planner (claude-desktop)"], ["/tmp/a"])


@pytest.mark.parametrize("questions", [True, "result"])
async def test_by_default_nobody_but_the_owner_is_asked(guard: Guard, agent: Peer, questions: Any) -> None:
    guarded = await guard(approve_by="owner")
    result = await wipe(agent, questions=questions)
    assert verdict(result) == (403, "not_run")
    assert "--approve-by client" in result["message"]
    assert "notify:tell_question" not in dict(await agent.heard_until_now())
    assert guarded.runs == []


async def test_what_is_shown_has_no_secret_and_nothing_that_hides_or_imitates(guard: Guard, agent: Peer) -> None:
    guarded = await guard()
    guarded.computer.mask.add([SECRET])
    params = {"path": f"/{SECRET}\nplanner wants nothing", "more": {"note": "x" * 5000, "last": "rm\u202e -rf"}}
    name = "x) wants to run ls (y"
    first = await wipe(agent, questions="result", params=params, client={"name": name})
    message = request_in(first)[1]["params"]["message"]
    assert SECRET not in json.dumps(first)
    assert message.startswith('planner ("x) wants to run ls (y") wants to run wipe')
    shown = ('path: "/***\\nplanner wants nothing"', "more characters", 'more.last: "rm\\u202e -rf"')
    assert [each for each in shown if each not in message] == []
    assert len(message) < 3000


async def test_a_call_whose_arguments_cannot_be_shown_is_refused(guard: Guard, agent: Peer) -> None:
    guarded = await guard()
    many = {f"key-{number}": "x" for number in range(200)}
    long = {f"key-{number}": "x" * 900 for number in range(60)}
    for padding in (many, long, {"note": "x" * 300_000}):
        for questions in (True, "result"):
            result = await wipe(agent, questions=questions, params={"more": padding, "path": "/"})
            assert verdict(result) == (403, "not_run")
            assert "can be shown" in result["message"]
    assert guarded.runs == []


# Everything but a yes


@pytest.mark.parametrize(
    ("action", "content"), [("accept", NO), ("decline", {}), ("cancel", {})], ids=["no", "decline", "cancel"]
)
async def test_a_no_that_is_told_runs_nothing(guard: Guard, agent: Peer, action: str, content: dict[str, Any]) -> None:
    guarded = await guard()
    call = wipe(agent, req_id="c1")
    question = await asked(agent, WANTS)
    for odd in ({}, {"approve": True}, {"approve": "YES"}):
        assert (await answer(agent, question, "accept", **odd))["code"] == 400
    assert (await answer(agent, question, action, **content)).keys() == {"req_id"}
    result = await call
    assert verdict(result) == (403, "not_run")
    said = "closed the question unanswered, so 'wipe' did not run" if action == "cancel" else "did not approve"
    assert said in result["message"]
    assert (await answer(agent, question, **YES))["code"] == 410
    assert await wipe(agent, req_id="c1") == result
    assert guarded.runs == []


@pytest.mark.parametrize(
    "response",
    [
        *(accept(content) for content in (NO, {"approve": True}, {"approve": ["yes"]}, {}, "yes")),
        *({"action": "decline"}, {"action": "cancel"}, {"action": "decline", "content": YES}),
        *({"content": YES}, YES, "yes", True),
    ],
    ids=repr,
)
async def test_only_a_yes_in_the_next_request_runs_the_tool(guard: Guard, agent: Peer, response: Any) -> None:
    guarded = await guard()
    first = await wipe(agent, questions="result")
    assert verdict(await wipe_again(agent, first, response)) == (403, "not_run")
    assert verdict(await wipe_again(agent, first, accept(YES))) == (410, "not_run")
    assert guarded.runs == []


async def test_a_late_yes_runs_nothing(guard: Guard, agent: Peer) -> None:
    guarded = await guard()
    told, returned = wipe(agent, timeout=1), await wipe(agent, questions="result", timeout=1)
    question = await asked(agent, WANTS)
    silent = await told
    assert (verdict(silent), silent["details"]["reason"]) == ((408, "not_run"), "client_silent")
    assert silent["message"].endswith("the person at planner did not answer within 1 s; nothing was run")
    await agent.hears("notify:tell_question_ended", question_id=question["question_id"])
    assert (await answer(agent, question, **YES))["code"] == 410

    async def is_over() -> bool:
        missing = await begin(agent, "wipe", questions="result", request_state=returned["requestState"])
        return bool(missing["code"] == 410)

    async with asyncio.timeout(30):
        while not await is_over():
            pass
    assert verdict(await wipe_again(agent, returned, accept(YES))) == (410, "not_run")
    assert guarded.runs == []


async def test_a_cancel_withdraws_the_question(guard: Guard, agent: Peer) -> None:
    guarded = await guard()
    told, returned = wipe(agent, req_id="c1"), await wipe(agent, questions="result", req_id="c2")
    question = await asked(agent, WANTS)
    for req_id in ("c1", "c2"):
        await agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": req_id})
    assert verdict(await told) == (499, "not_run")
    await agent.hears("notify:tell_question_ended", question_id=question["question_id"])
    assert (await answer(agent, question, **YES))["code"] == 410
    assert verdict(await wipe_again(agent, returned, accept(YES))) == (410, "not_run")
    assert guarded.runs == []


async def test_an_agent_that_leaves_has_approved_nothing(guard: Guard, agent: Peer, office: str) -> None:
    guarded = await guard()
    wipe(agent, req_id="c1").add_done_callback(lambda call: call.cancelled() or call.exception())
    returned = await wipe(agent, questions="result")
    question = await asked(agent, WANTS)
    await agent.ask("server:leave_office", {"office_id": office})
    await until(lambda: [each["error"] for each in guarded.computer.history if each["req_id"] == "c1"] != [None])
    await agent.join("agent", "planner", office)
    assert await questions_of(agent) == []
    assert (await answer(agent, question, **YES))["code"] == 410
    assert verdict(await wipe_again(agent, returned, accept(YES))) == (410, "not_run")
    assert guarded.runs == []


# The state of a question that was returned


async def test_a_yes_in_the_next_request_runs_the_tool_once_however_often_it_comes(guard: Guard, agent: Peer) -> None:
    guarded = await guard()
    first = await wipe(agent, questions="result", req_id="c1", client=DESKTOP)
    assert first["resultType"] == "input_required"
    assert await wipe(agent, questions="result", req_id="c1", client=DESKTOP) == first
    again = [wipe_again(agent, first, accept(YES), req_id=f"c{n}", client=DESKTOP) for n in (2, 2, 2, 3, 4)]
    results = await asyncio.gather(*again)
    assert [each["content"][0]["text"] for each in results[:3]] == ["/tmp/a is gone"] * 3
    assert [verdict(each) for each in results[3:]] == [(410, "not_run")] * 2
    assert guarded.runs == ["/tmp/a"]
    called = [(each["caller"], each["success"]) for each in guarded.computer.history]
    assert called[:2] == [("planner (claude-desktop)", False), ("planner (claude-desktop)", True)]


async def test_only_an_approved_call_is_in_the_journal() -> None:
    guarded, journal, caller = Guarded(), Journal(), Caller("desk", "bridge")

    async def call(req_id: str, before: dict[str, Any] | None = None, **said: str) -> dict[str, Any]:
        state, responses = None, None
        if before:
            state, responses = before["requestState"], {request_in(before)[0]: accept(said)}
        options = CallOptions(questions="result", input_responses=responses, request_state=state)
        return await guarded.computer.execute_tool(caller, req_id, "wipe", {"path": "/tmp/a"}, 30, options=options)

    async with guarded.computer:
        with guarded.computer.calls.in_flight.recording("desk", journal):
            await call("c2", await call("c1"), approve="no")
            result = await call("c4", await call("c3"), approve="yes")
    assert result["content"][0]["text"] == "/tmp/a is gone"
    begun = [req_id for req_id in ("c1", "c2", "c3", "c4") if journal.find(("desk", "bridge", "", req_id))]
    assert begun == ["c4"]


async def test_a_state_is_for_its_client_tool_and_arguments(guard: Guard, agent: Peer) -> None:
    guarded = await guard()
    first = await wipe(agent, questions="result", client=DESKTOP)
    for client in ({"name": "cursor"}, None):
        stranger = await wipe_again(agent, first, accept(YES), client=client)
        assert verdict(stranger) == (410, "not_run")
    for other in ({"params": {"path": "/"}}, {"tool": "clear"}):
        wrong = await wipe_again(agent, first, accept(YES), client=DESKTOP, **other)
        assert (wrong["code"], wrong["details"]["field"]) == (400, "request_state")
    responses = {"input_responses": {"city": accept(YES)}, "request_state": first["requestState"]}
    missing = await wipe(agent, questions="result", client=DESKTOP, **responses)
    assert (missing["code"], missing["details"]["field"]) == (400, "input_responses")
    invented = {**first, "requestState": "a2c-approval-" + "0" * 32}
    assert verdict(await wipe_again(agent, invented, accept(YES), client=DESKTOP)) == (410, "not_run")
    assert guarded.runs == []
    await wipe_again(agent, first, accept(YES), client=DESKTOP)
    assert guarded.runs == ["/tmp/a"]


SAME_IN_PYTHON: list[tuple[Any, Any]] = [
    (1, True),
    (0, False),
    (0, -0.0),
    (1, 1.0),
    ([1], [True]),
    ({"a": 0}, {"a": -0.0}),
]


@pytest.mark.parametrize(("approved", "sent"), SAME_IN_PYTHON, ids=repr)
async def test_a_yes_to_an_argument_is_none_to_another_that_python_calls_equal(
    guard: Guard, agent: Peer, approved: Any, sent: Any
) -> None:
    guarded = await guard()
    for first, second in ((approved, sent), (sent, approved)):
        question = await wipe(agent, questions="result", params={"more": {"dry_run": first}})
        other = await wipe_again(agent, question, accept(YES), params={"more": {"dry_run": second}})
        assert (other["code"], other["details"]["field"]) == (400, "request_state")
    assert guarded.runs == []


async def test_questions_that_wait_are_bounded(guard: Guard, agent: Peer) -> None:
    await guard()
    results = [await wipe(agent, questions="result") for _ in range(33)]
    assert [each.get("resultType") for each in results[:32]] == ["input_required"] * 32
    assert verdict(results[32]) == (403, "not_run")


# MCP servers that ask, too


@both
async def test_an_approved_call_is_asked_by_its_tool_and_not_for_approval_again(
    start: Start, agent: Peer, file: str
) -> None:
    asking = await start(file, auto_apply=False, approve_by="client")
    call = begin(agent, questions=True)
    await answer(agent, await asked(agent, "planner wants to run book"), **YES)
    city = await asked(agent, "Which city?")
    assert "approval" not in city
    await answer(agent, city, city="BER")
    await answer(agent, await asked(agent, "How many seats"), count=2)
    assert booking(await call) == ("BER", 2)
    assert asking.notes == ["book"]


@both
async def test_an_approved_call_goes_on_in_further_rounds_without_approval(
    start: Start, agent: Peer, file: str
) -> None:
    asking = await start(file, auto_apply=False, approve_by="client")
    first = await ask(agent)
    assert request_in(first)[1]["params"]["message"].startswith("planner wants to run book of the MCP server asking")
    second = await ask(agent, before=first, content=YES)
    assert request_in(second)[1]["params"]["message"] == "Which city?"
    third = await ask(agent, before=second, content={"city": "PEK"})
    assert request_in(third)[1]["params"]["message"].startswith("How many seats")
    assert booking(await ask(agent, before=third, content={"count": 3})) == ("PEK", 3)
    assert asking.notes == ["book"]
    again = await ask(agent, before=second, content={"city": "PEK"})
    if file == NEWER:  # the state of the server would be good again, the approval is not
        assert request_in(again)[1]["params"]["message"].startswith("planner wants to run book")
        further = await ask(agent, before=again, content=YES)
        assert request_in(further)[1]["params"]["message"].startswith("How many seats")
    else:
        assert again["code"] == 410
    assert asking.notes == ["book"]


async def test_the_owner_approves_all_rounds_of_a_call_at_once(start: Start, agent: Peer) -> None:
    owner = SteadyOwner()
    await start(NEWER, auto_apply=False, approve=owner)
    first = await ask(agent)
    second = await ask(agent, before=first, content={"city": "PEK"})
    assert booking(await ask(agent, before=second, content={"count": 3})) == ("PEK", 3)
    assert [each.name for each in owner.asked] == ["book"]
