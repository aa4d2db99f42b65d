"""What servers ask in the middle of a call: rounds of the newer protocol, requests of the older one, URLs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

import pytest

from a2c_smcp.errors import CallTimeout
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.mcp_host.failures import RequestRefused, ServerGone
from a2c_smcp.mcp_host.sessions.session import MCPSession
from a2c_smcp.mcp_host.sessions.tool_request import InputRefused, ToolRequest
from tests.computer.supervised import reading, session, text_of
from tests.mcp_host.scripts import Person, call, finished, form, heard, scripted, told
from tests.stage.cases import cases
from tests.waiting import until

pytestmark = pytest.mark.covers("questions-rounds")

CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
TASKS = {"io.modelcontextprotocol/tasks": {}}
EXTENSIONS = {**TASKS, "io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}}
ROOTS = {"method": "roots/list"}
SAMPLING = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}}
URL_REQUIRED = -32042


async def until_none_lingers(one: MCPSession) -> None:
    """Wait until no call counts that was left without an answer."""
    await until(lambda: not one._requests.server_requests._calls)


def asks(state: str | None = None, **requests: Any) -> dict[str, Any]:
    more = {} if state is None else {"requestState": state}
    return {"result": {"resultType": "input_required", "inputRequests": requests, **more}}


def later(state: str) -> dict[str, Any]:
    return {"result": {"resultType": "input_required", "requestState": state}}


def visit(id_: str = "v1", url: str = "https://example.com/pay") -> dict[str, Any]:
    data = {"elicitations": [{"mode": "url", "message": "Pay", "elicitationId": id_, "url": url}]}
    return {"error": {"code": URL_REQUIRED, "message": "a visit is required", "data": data}}


async def test_rounds_are_answered_and_the_call_is_sent_again_with_a_new_id_and_the_exact_state(
    modern: MCPSession,
) -> None:
    state = '{"b": 1,  "a": "ü\\u2028"}'
    person = Person(**{"Your name?": {"name": "Ada"}, "Sure?": {"sure": True}})
    rounds = asks(state, who=form()), asks(sure=form("Sure?")), finished()
    assert await told(modern, "plain", *rounds, on_input=person) == "done"
    first, second, third = await heard(modern, "tools/call")
    assert [each.params["message"] for each in person.asked] == ["Your name?", "Sure?"]
    assert len({each["id"] for each in (first, second, third)}) == 3
    assert second["params"]["requestState"] == state
    assert second["params"]["inputResponses"] == {"who": {"action": "accept", "content": {"name": "Ada"}}}
    assert second["params"]["arguments"] == first["params"]["arguments"]
    assert "requestState" not in third["params"]
    assert third["params"]["inputResponses"] == {"sure": {"action": "accept", "content": {"sure": True}}}
    assert first["params"].keys() == {"name", "arguments", "_meta"}


async def test_nothing_of_a_round_reaches_another_request(modern: MCPSession) -> None:
    person = Person(**{"Your name?": {"name": "Ada"}})
    waiting = asyncio.create_task(
        modern.call_tool(call("plain", asks("mine", who=form("Slow?")), finished(), key="slow", on_input=person))
    )
    await person.until_asked()
    await modern.call_tool(call("plain", asks("other", who=form()), finished(), key="quick", on_input=person))
    await modern.call_tool(call("plain", finished(), key="third", on_input=person))
    calls = [each["params"] for each in await heard(modern, "tools/call")]
    await cancel_and_wait(waiting)
    assert [each.get("requestState") for each in calls] == [None, None, "other", None]
    assert ["inputResponses" in each for each in calls] == [False, False, True, False]


async def test_input_requests_of_a_round_are_asked_at_the_same_time(modern: MCPSession) -> None:
    meeting = asyncio.Barrier(2)

    async def meet(_: object) -> dict[str, Any]:
        await asyncio.wait_for(meeting.wait(), 30)
        return {"action": "decline"}

    assert await told(modern, "plain", asks(a=form("A"), b=form("B")), finished(), on_input=meet) == "done"


async def test_a_state_without_questions_is_sent_back_after_a_pause(modern: MCPSession) -> None:
    assert text_of(await modern.call_tool(call("plain", later("s1"), later("s2"), finished()))) == "done"
    states = [each["params"].get("requestState") for each in await heard(modern, "tools/call")]
    assert states == [None, "s1", "s2"]


async def test_a_result_without_a_kind_is_complete_and_every_json_value_is_kept(modern: MCPSession) -> None:
    for value in (None, [1, None], "text", False):
        result = {"content": [], "structuredContent": value}
        assert await modern.call_tool(call("plain", {"result": result}, key=json.dumps(value))) == result


@cases(
    "answer, said",
    (asks(who=form()), "more than 10 times"),
    ({"result": {"resultType": "input_required"}}, "did not say which"),
    ({"result": {"resultType": "hologram"}}, "unknown kind 'hologram'"),
    (asks(who={"method": "x/y"}), "unknown kind 'x/y'"),
    (asks(who="odd"), "unknown kind"),
    (asks(who={"method": "elicitation/create", "params": []}), "unknown kind"),
    ({"result": {"resultType": "input_required", "inputRequests": ["odd"]}}, "not at most 16"),
    (asks(**{f"k{n}": form() for n in range(17)}), "not at most 16"),
    (asks(who=form("x" * 300_000)), "262144 bytes"),
    (asks("s" * 70_000, who=form()), "request state"),
    ({"result": {"resultType": "input_required", "requestState": 7}}, "request state"),
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_a_server_asks_in_a_wrong_way_is_an_error_result(
    modern: MCPSession, answer: dict[str, Any], said: str
) -> None:
    person = Person(**{"Your name?": {}})
    result = await modern.call_tool(call("plain", answer, on_input=person))
    assert result["isError"] is True
    assert said in text_of(result)
    assert "_meta" not in result


@pytest.mark.covers("questions-nobody")
@pytest.mark.parametrize("is_asked", [False, True])
async def test_where_nobody_can_answer_the_tool_is_told(modern: MCPSession, is_asked: bool) -> None:
    no = InputRefused("nobody is there")
    on_input = Person(**{"Your name?": no, "roots/list": no}) if is_asked else None
    assert await told(modern, "plain", asks(who=form(), roots=ROOTS), finished(), on_input=on_input) == "done"
    answered = (await heard(modern, "tools/call"))[1]["params"]["inputResponses"]
    assert answered == {"who": {"action": "cancel"}, "roots": {"roots": []}}
    refused = await told(modern, "plain", asks(ai=SAMPLING, who=form("Slow?")), finished(), key="ai")
    assert "sampling/createMessage: nobody can answer here" in refused


@pytest.mark.covers("questions-as-result")
async def test_an_agent_that_speaks_mcp_gets_the_input_requests_themselves_and_answers_them_later(
    modern: MCPSession,
) -> None:
    asked = asks("state", who=form(), ai=SAMPLING)
    declared = {"sampling": {}, "elicitation": {}, "extensions": {"x": {}}}
    first = call("plain", asked, finished(), input_as_result=True, capabilities=declared)
    assert await modern.call_tool(first) == asked["result"]
    declined = {"who": {"action": "decline"}}
    assert await told(modern, "plain", input_responses=declined, request_state="state") == "done"
    one_, two = (each["params"] for each in await heard(modern, "tools/call"))
    assert one_["_meta"][CAPABILITIES] == {**declared, "extensions": {"x": {}, **TASKS}}
    assert (two["inputResponses"], two["requestState"]) == (declined, "state")


@pytest.mark.covers("questions-as-result")
async def test_capabilities_are_declared_by_request(modern: MCPSession) -> None:
    await modern.call_tool(call("plain"))
    await modern.call_tool(call("plain", on_input=Person()))
    declared = [each["params"]["_meta"][CAPABILITIES] for each in await heard(modern, "tools/call")]
    assert declared == [{"extensions": EXTENSIONS}, {"elicitation": {"form": {}, "url": {}}, "extensions": EXTENSIONS}]


@pytest.mark.covers("questions-as-result")
async def test_resources_may_ask_too() -> None:
    uri = "script:" + json.dumps({"key": "r", "answers": [asks("s", who=form()), {"result": {"contents": []}}]})
    async with session(scripted("modern")) as one:
        assert (await one.read(reading(uri, input_as_result=True)))["requestState"] == "s"
        assert await one.read(reading(uri)) == {"contents": []}
    uri = uri.replace('"r"', '"other"')
    async with session(scripted("modern")) as one:
        person = Person(**{"Your name?": {"name": "Ada"}})
        assert await one.read(reading(uri, on_input=person)) == {"contents": []}
        assert (await heard(one, "resources/read"))[1]["params"]["requestState"] == "s"


@pytest.mark.covers("mcp-meta")
@pytest.mark.parametrize("era", ["modern", "older"])
async def test_the_callers_meta_travels_beside_our_own(one: MCPSession, era: str) -> None:
    theirs = {"a": {"b": None}, "progressToken": "mine", CAPABILITIES: {}, "io.modelcontextprotocol/logLevel": "debug"}
    await one.call_tool(call("plain", meta=theirs))
    meta = (await heard(one, "tools/call"))[0]["params"]["_meta"]
    assert meta["a"] == {"b": None}
    assert meta["progressToken"].startswith("a2c-")
    assert "io.modelcontextprotocol/logLevel" not in meta
    assert meta.get(CAPABILITIES) == ({"extensions": EXTENSIONS} if era == "modern" else None)


asking_once = pytest.mark.parametrize(
    ("era", "answer"), [("modern", asks(who=form())), ("older", {"ask": [form()]})], ids=["modern", "older"]
)


@asking_once
async def test_a_question_is_withdrawn_when_its_call_is_cancelled_or_out_of_time(one: MCPSession, answer: Any) -> None:
    person = Person()
    waiting = asyncio.create_task(one.call_tool(call("plain", answer, on_input=person)))
    await person.until_asked()
    await cancel_and_wait(waiting)
    await person.until_withdrawn()
    await until_none_lingers(one)
    with pytest.raises(CallTimeout):
        await one.call_tool(call("plain", answer, on_input=person, timeout=0.2))
    await person.until_withdrawn(2)
    assert await told(one, "plain", finished(), key="next") == "done"


@pytest.mark.covers("questions-push")
async def test_requests_of_older_servers_are_answered_as_they_came(older: MCPSession) -> None:
    odd = {"requestedSchema": {"type": "object", "properties": {}, "x-odd": [None]}, "x": 1}
    person = Person(**{"Your name?": {"name": None}, "roots/list": {"roots": [{"uri": "file:///x"}], "y": None}})
    result = await older.call_tool(call("plain", {"ask": [form(**odd), ROOTS]}, on_input=person))
    replies = result["structuredContent"]["replies"]
    assert replies["0"]["result"] == {"action": "accept", "content": {"name": None}}
    assert replies["1"]["result"] == {"roots": [{"uri": "file:///x"}], "y": None}
    assert person.asked[0].params == {**form()["params"], **odd}
    declared = (await heard(older, "initialize"))[0]["params"]["capabilities"]
    assert declared.keys() == {"elicitation", "sampling", "roots", "extensions"}
    assert declared["elicitation"] == {"form": {}, "url": {}}


REFUSES = Person(**dict.fromkeys(("Your name?", "roots/list", "sampling/createMessage"), InputRefused("no")))


@pytest.mark.covers("questions-nobody")
@pytest.mark.parametrize("on_input", [None, REFUSES], ids=["nobody is there", "refused"])
async def test_requests_of_older_servers_that_nobody_answers(older: MCPSession, on_input: Any) -> None:
    result = await older.call_tool(call("plain", {"ask": [form(), ROOTS, SAMPLING]}, on_input=on_input))
    replies = result["structuredContent"]["replies"]
    assert replies["0"]["result"] == {"action": "cancel"}
    assert replies["1"]["result"] == {"roots": []}
    assert replies["2"]["error"]["code"] == -32600


@pytest.mark.covers("questions-push")
async def test_a_question_that_the_server_cancels_is_withdrawn_and_frees_its_place(older: MCPSession) -> None:
    person = Person(**{"Your name?": {}})
    asked = {"ask": [form(f"Q{number}") for number in range(10)], "silent": 1}
    for turn in range(3):  # more than may wait for an answer at the same time
        waiting = asyncio.create_task(older.call_tool(call("plain", asked, key=str(turn), on_input=person)))
        await person.until_asked(10)
        number = (await heard(older, "tools/call"))[-1]["id"]
        cancels = [
            {"method": "notifications/cancelled", "params": {"requestId": f"{number}-{each}"}} for each in range(10)
        ]
        await older.call_tool(call("plain", finished(), key=f"cancel{turn}", notify=cancels))
        await person.until_withdrawn(10)
        person.forget()
        await cancel_and_wait(waiting)
        await until_none_lingers(older)
    result = await older.call_tool(call("plain", {"ask": [form()]}, key="last", on_input=person))
    assert result["structuredContent"]["replies"]["0"]["result"]["action"] == "accept"


@pytest.mark.covers("questions-push")
async def test_too_many_and_too_large_questions_are_refused(older: MCPSession) -> None:
    person = Person()
    asked = {"ask": [form("x" * 300_000)]}
    result = await older.call_tool(call("plain", asked, key="large", on_input=person))
    assert result["structuredContent"]["replies"]["0"]["error"]["code"] == -32602
    asked = {"ask": [form(f"Q{number}") for number in range(17)]}
    waiting = asyncio.create_task(older.call_tool(call("plain", asked, key="many", on_input=person)))
    await person.until_asked(16)
    refused: list[Any] = []
    while not refused:
        refused = [each for each in await heard(older) if "error" in each][1:]
    assert "16 requests wait" in refused[0]["error"]["message"]
    await cancel_and_wait(waiting)


@pytest.mark.covers("questions-url")
async def test_urls_that_a_call_requires_are_asked_once_and_the_call_is_sent_again(older: MCPSession) -> None:
    person = Person(Pay=None)
    assert await told(older, "plain", visit(), visit(), finished(), on_input=person) == "done"
    assert [each.params["url"] for each in person.asked] == ["https://example.com/pay"]
    assert person.asked[0].params["mode"] == "url"


@pytest.mark.covers("questions-url")
async def test_a_visit_that_the_server_announces_is_not_waited_for(older: MCPSession) -> None:
    person = Person(Pay=None)
    done = [{"method": "notifications/elicitation/complete", "params": {"elicitationId": "v1"}}]
    waiting = asyncio.create_task(told(older, "plain", *[visit()] * 6, finished(), key="visit", on_input=person))
    while not waiting.done():  # each announcement is worth a repetition; without them these are 12 s of pauses
        await older.call_tool(call("plain", finished(), key="announce", notify=done))
    assert await waiting == "done"


@pytest.mark.covers("questions-url")
async def test_urls_that_nobody_visits_are_not_shown_to_the_caller(older: MCPSession) -> None:
    result = await older.call_tool(call("plain", visit()))
    assert result["_meta"]["a2c_mcp_error"] == {"code": URL_REQUIRED, "message": "a visit is required"}
    declined = Person(Pay=InputRefused("no"))
    result = await older.call_tool(call("plain", visit(), on_input=declined))
    assert "nobody has" in text_of(result)
    assert "example.com" not in json.dumps(result)


@pytest.mark.covers("mcp-errors-kept")
@pytest.mark.parametrize("era", ["modern", "older"])
async def test_errors_of_a_call_keep_their_code_and_data(one: MCPSession) -> None:
    error = {"code": 4711, "message": "no paper", "data": {"tray": [1, None]}}
    result = await one.call_tool(call("plain", {"error": error}))
    assert (result["isError"], text_of(result), result["_meta"]) == (True, "no paper", {"a2c_mcp_error": error})
    result = await one.call_tool(call("plain", {"error": error | {"data": "x" * 70_000}}, key="large"))
    assert result["_meta"] == {"a2c_mcp_error": {"code": 4711, "message": "no paper"}}


@pytest.mark.covers("mcp-raw-results")
async def test_tools_are_listed_as_they_came(older: MCPSession) -> None:
    tool = next(tool for tool in older.tools if tool["name"] == "long")
    assert tool == {
        "name": "long",
        "title": "A long one",
        "icons": [{"src": "data:image/png;base64,AA=="}],
        "inputSchema": {"type": "object"},
        "outputSchema": {"type": ["object", "null"]},
        "execution": {"taskSupport": "required"},
    }


async def test_with_extend_the_timeout_counts_from_the_last_round(modern: MCPSession) -> None:
    person = Person(**{"Your name?": {}})
    pauses = [later(f"s{number}") for number in range(6)]  # 1.5 s together, at most 1 s each
    with pytest.raises(CallTimeout):
        await modern.call_tool(call("plain", *pauses, finished(), timeout=1.2))
    assert (
        await told(modern, "plain", *pauses, finished(), key="x", timeout=1.2, extend=True, on_input=person) == "done"
    )


async def test_a_resource_that_refuses_raises(modern: MCPSession) -> None:
    uri = "script:" + json.dumps({"key": "r", "answers": [{"error": {"code": 5, "message": "no", "data": 1}}]})
    with pytest.raises(RequestRefused) as caught:
        await modern.read(reading(uri))
    assert caught.value.details == {"mcp_code": 5, "mcp_message": "no", "mcp_data": 1}
    assert await modern.call_tool(ToolRequest("plain", {"none": None}, 30))
    assert (await heard(modern, "tools/call"))[-1]["params"]["arguments"] == {"none": None}


@pytest.mark.covers("questions-url")
async def test_urls_that_a_resource_requires_are_asked_or_not_shown(modern: MCPSession) -> None:
    scripts = [{"key": key, "answers": [visit(), {"result": {"contents": []}}]} for key in ("nobody", "asked")]
    nobody, asked = (f"script:{json.dumps(script)}" for script in scripts)
    assert await modern.read(reading(asked, on_input=Person(Pay=None))) == {"contents": []}
    with pytest.raises(RequestRefused) as caught:
        await modern.read(reading(nobody))
    assert caught.value.details == {"mcp_code": URL_REQUIRED, "mcp_message": "a visit is required"}


@pytest.mark.covers("questions-nobody")
async def test_an_answerer_that_fails_counts_as_nobody(older: MCPSession, modern: MCPSession, caplog: Any) -> None:
    async def broken(_: object) -> dict[str, Any]:
        raise ValueError("not my day")

    async def withdrawn(_: object) -> dict[str, Any]:
        never: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        never.cancel()
        return await never

    for on_input in (broken, withdrawn):
        result = await older.call_tool(call("plain", {"ask": [form()]}, key=on_input.__name__, on_input=on_input))
        assert result["structuredContent"]["replies"]["0"]["result"] == {"action": "cancel"}
        answers = asks(who=form()), finished()
        assert await told(modern, "plain", *answers, key=on_input.__name__, on_input=on_input) == "done"
        answered = (await heard(modern, "tools/call"))[-1]["params"]["inputResponses"]
        assert answered == {"who": {"action": "cancel"}}
    assert "not my day" in caplog.text


@pytest.mark.covers("questions-push")
@asking_once
async def test_a_question_is_withdrawn_when_its_server_is_gone(one: MCPSession, answer: dict[str, Any]) -> None:
    person = Person()
    waiting = asyncio.create_task(one.call_tool(call("plain", answer, on_input=person)))
    await person.until_asked()
    os.kill(int(str(one.diagnostics["pid"])), signal.SIGKILL)
    with pytest.raises(ServerGone, match="SIGKILL"):
        await waiting
    await person.until_withdrawn()
