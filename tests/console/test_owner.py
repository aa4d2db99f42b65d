"""The owner's console without a browser: what it shows of a running computer, and what its answers do; the webhook."""

from __future__ import annotations

import asyncio
import html
import json
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import web

from a2c_smcp.audit.observers import Observed
from a2c_smcp.computer.calls.incoming import CallClock, ProgressListeners
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.configuration.files import Configuration
from a2c_smcp.computer.configuration.watch import ConfigurationChanges
from a2c_smcp.computer.consent.approval import (
    ApprovalRequest,
    Caller,
    DecisionFor,
    Grant,
    PendingApprovals,
    PendingQuestions,
)
from a2c_smcp.computer.consent.risk import Effect, Risk, Unusual
from a2c_smcp.computer.observation import ApprovalAnswered
from a2c_smcp.console.owner.calls import _window
from a2c_smcp.console.owner.console import OwnerConsole
from a2c_smcp.console.owner.state import OwnerState
from a2c_smcp.console.pages import View, words_in
from a2c_smcp.console.webhook import Webhook
from a2c_smcp.protocol.questions import Answer, Question
from a2c_smcp.registry import AsyncToolContext
from tests.console.browserless import PATIENCE, Visitor, next_event, received
from tests.waiting import until

PLANNER = Caller("desk", "planner")
ROOT = Path(__file__).parents[2]
FORM = {
    "type": "object",
    "properties": {
        "seats": {"type": "integer", "title": "Seats", "minimum": 1, "maximum": 8},
        "note": {"type": "string"},
    },
    "required": ["seats"],
}


class Owned:
    """A running computer with two tools of its own, and its console."""

    def __init__(self, **options: Any) -> None:
        self.approvals = PendingApprovals()
        self.questions = PendingQuestions(self.approvals.numbers, self.approvals.first_added)
        self.computer = Computer("laptop", approve=self.approvals, on_question=self.questions, **options)
        self.ran: list[str] = []

        @self.computer.tool
        def write(text: str) -> str:
            """Writes <b>text</b>."""
            self.ran.append(text)
            return "written"

        files = ConfigurationChanges(self.computer, [], Configuration(), pytest.fail, None, None)
        self.state = OwnerState(self.computer, self.approvals, self.questions, files)
        self.links: list[str] = []
        self.console = OwnerConsole(self.state, "http://127.0.0.1:7200", self.links.append)
        self.state.follow()
        self.added = asyncio.Queue[object]()
        for pending in (self.approvals, self.questions):
            pending.on_added.append(self.added.put_nowait)

        @self.computer.tool(auto_apply=True)
        async def plan(context: AsyncToolContext) -> str:
            return (await context.ask("How many?", FORM)).action

    def ask(self, timeout: float = 30) -> asyncio.Task[dict[str, Any]]:
        """A call of a tool that asks the owner."""
        return asyncio.create_task(self.computer.execute_tool(PLANNER, "call plan", "plan", {}, timeout))

    def call(self, text: str, timeout: float = 30) -> asyncio.Task[dict[str, Any]]:
        params = {"text": text}
        return asyncio.create_task(self.computer.execute_tool(PLANNER, f"call {text}", "write", params, timeout))

    async def pends(self, asking: Awaitable[Any]) -> asyncio.Task[Any]:
        """Asks the owner, and returns as soon as the request waits."""
        task = asyncio.ensure_future(asking)
        await self.approvals.first_added.wait()
        return task

    async def visitor(self) -> Visitor:
        visitor = Visitor(self.console.app)
        await visitor.open(self.console.link())
        return visitor


@pytest.fixture
async def owned() -> AsyncIterator[Owned]:
    owned = Owned()
    async with owned.computer:
        yield owned


@pytest.fixture
async def visitor(owned: Owned) -> Visitor:
    return await owned.visitor()


async def test_a_request_is_shown_at_once_and_the_answer_lets_the_tool_run(visitor: Visitor, owned: Owned) -> None:
    async with visitor.stream() as events:
        await next_event(events, "regions")
        call = owned.call("<script>alert(1)</script>")
        shown = await next_event(events, "Allow once")
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown
        assert (await visitor.act("/requests/decide", number="1", decision="yes")).status == 204
        assert not (await call).get("isError")
        await next_event(events, "Nothing waits for your answer")
    assert owned.ran == ["<script>alert(1)</script>"]
    assert "done" in (await visitor.get("/calls")).body


async def test_the_second_answer_to_a_request_does_nothing(visitor: Visitor, owned: Owned) -> None:
    call = await owned.pends(owned.call("once"))
    [pending] = owned.approvals
    owned.approvals.answer(pending, "no")
    refused = await visitor.act("/requests/decide", number="1", decision="yes")
    assert (refused.status, refused.body) == (409, "It was answered already, or withdrawn: nothing was done.")
    assert (await call)["isError"]
    assert owned.ran == []


async def test_an_answer_says_where_it_was_given_and_how_long_it_lasts(visitor: Visitor, owned: Owned) -> None:
    call = await owned.pends(owned.call("for an hour"))
    [pending] = owned.approvals
    await visitor.act("/requests/decide", number="1", decision="always", lasts="3600")
    await call
    assert (pending.where, await pending.answer) == ("console", DecisionFor("always", 3600, by="console"))
    assert "planner → write" in (await visitor.get("/tools")).body
    key = re.search(r'name="grant" value="([^"]+)"', (await visitor.get("/tools")).body)[1]  # type: ignore[index]
    assert (await visitor.act("/tools/forget", grant=html.unescape(key))).status == 204
    assert not owned.computer.approvals.grants


@pytest.mark.parametrize(
    ("decision", "lasts"), [("maybe", ""), ("", ""), ("always", "5"), ("always", ""), ("always_for_agent", "")]
)
async def test_an_answer_that_is_none_lets_nothing_run(
    visitor: Visitor, owned: Owned, decision: str, lasts: str
) -> None:
    call = await owned.pends(owned.call("x", timeout=1))
    assert (await visitor.act("/requests/decide", number="1", decision=decision, lasts=lasts)).status == 400
    assert (await call)["isError"]
    assert owned.ran == []


async def test_what_is_allowed_for_good_was_chosen_to_be_so(visitor: Visitor, owned: Owned) -> None:
    call = await owned.pends(owned.call("for good"))
    first, *_ = re.findall(r'<option value="(\w+)"', (await visitor.get("/")).body.partition('name="lasts"')[2])
    assert first == "3600"
    await visitor.act("/requests/decide", number="1", decision="always_for_agent", lasts="good")
    await call
    assert [(grant.tool, grant.until) for grant in owned.computer.approvals.grants] == [(None, None)]


ATTACK = "<img src=x onerror=alert(1)>\u202e"
RISK = Risk(
    f"Writes a file. {ATTACK}" + "x" * 20_000,
    (Effect("destroys", is_claimed=True), Effect("internet")),
    (Unusual("first_use"), Unusual("folder", ATTACK, ATTACK), Unusual("outside", "path", "/etc"), Unusual("many")),
)


async def test_a_card_says_what_the_tool_does_and_what_is_unusual_in_words(visitor: Visitor, owned: Owned) -> None:
    risky = ApprovalRequest(PLANNER, "write_file", "files", "write_file", {}, risk=RISK)
    plain = replace(risky, name="get-sum", risk=Risk("Adds.", (Effect("reads"),)))
    asked = [await owned.pends(owned.approvals(request)) for request in (risky, plain)]
    await until(lambda: len([*owned.approvals]) == 2)
    english, chinese = (await visitor.get("/")).body, (await visitor.get("/", **{"accept-language": "zh"})).body
    card, other = english.partition("get-sum")[::2]
    assert '<span class="state bad"><span aria-hidden="true">✕</span> destroys (claimed by the server)</span>' in card
    assert '<span class="state warn"><span aria-hidden="true">↗</span> reaches the internet</span>' in card
    assert "This agent has not used this tool before." in card
    assert "path: outside of the folders of its server: /etc" in card
    assert '<span class="state good"><span aria-hidden="true">○</span> reads only</span>' in other
    assert "Unusual" not in other
    assert "<img" not in english
    assert "\u202e" not in english
    assert len(english) < 20_000
    assert "会删除或覆盖 (仅为服务器所称)" in chinese
    whole = (await visitor.get("/whole?request=1")).body
    assert "x" * 20_000 in whole
    assert "<img" not in whole
    for pending in [*owned.approvals]:
        owned.approvals.answer(pending, "no")
    assert [await each for each in asked] == ["no", "no"]


async def test_every_tool_of_a_server_is_allowed_apart_and_a_grant_shows_its_last_use(
    visitor: Visitor, owned: Owned
) -> None:
    call = await owned.pends(owned.call("one"))
    body = (await visitor.get("/")).body
    assert body.index("Every tool of this server for this agent …") < body.index("Allow every tool of this server<")
    await visitor.act("/requests/decide", number="1", decision="always_for_server", lasts="3600")
    await call
    owned.computer.approvals.add(Grant("planner"))
    owned.computer.approvals.add(Grant("planner", "python", "write"))
    tools = (await visitor.get("/tools")).body
    assert re.findall(r"planner → ([^<]+)</h3>", tools) == ["every tool", "every tool (python)", "write (python)"]
    assert tools.count("not used yet") == 3
    assert not (await owned.call("two")).get("isError")
    assert (await visitor.get("/tools")).body.count("last used 20") == 3


async def test_notices_and_a_sound_are_offered_where_requests_are_and_are_off(visitor: Visitor) -> None:
    body = (await visitor.get("/servers")).body
    for name in ("notify", "sound"):
        (field,) = re.findall(rf'<input type="checkbox" id="{name}"[^>]*>', body)
        assert "checked" not in field


async def test_calls_that_wait_run_were_refused_cancelled_not_answered_or_failed_are_told_apart(
    visitor: Visitor, owned: Owned
) -> None:
    """And a duration is that of the tool, without the wait for the owner."""

    @owned.computer.tool
    def fail() -> str:
        raise ValueError("it cannot be")

    async def ended(call: asyncio.Task[Any], answer: str = "") -> str:
        async with asyncio.timeout(PATIENCE):
            while not [*owned.approvals]:
                await owned.added.get()
        assert owned.state.running[0].state == "waiting"
        assert ">waiting<" in (await visitor.get("/calls")).body
        assert "<h2>Running</h2>" not in (await visitor.get("/")).body
        if answer:
            await visitor.act("/requests/decide", number=str(next(iter(owned.approvals)).number), decision=answer)
        await asyncio.wait([call])
        return owned.state.past[0].state

    assert await ended(owned.call("a"), "yes") == "done"
    done = owned.state.past[0]
    assert done.ended
    assert done.began <= done.since
    assert done.seconds is not None
    assert 0 < done.seconds <= done.ended - done.since
    assert await ended(owned.call("b"), "no") == "refused"
    assert await ended(owned.call("c", timeout=0.5)) == "timed out"
    failing = asyncio.create_task(owned.computer.execute_tool(PLANNER, "f", "fail", {}, 30))
    assert await ended(failing, "yes") == "tool error"
    call = await owned.pends(owned.call("d"))
    async with asyncio.timeout(PATIENCE):
        while not [*owned.approvals]:
            await owned.added.get()
    owned.computer.calls.cancel(PLANNER, "call d")
    await asyncio.wait([call])
    assert owned.state.past[0].state == "cancelled"
    assert [call.seconds is None for call in owned.state.past] == [True, False, True, True, False]
    page = (await visitor.get("/calls")).body
    assert "CancelledError" not in page
    for state in ("done", "refused", "timed out", "tool error", "cancelled"):
        assert f">{state}<" in page
    assert "the owner did not answer within 0.5 s; nothing was run" in page
    assert ">waited " in page


HELD = 1.0
"""Seconds that a person takes to answer: much longer than the tool runs."""


async def asked(owned: Owned) -> None:
    async with asyncio.timeout(PATIENCE):
        while not [*owned.questions]:
            await owned.added.get()


@pytest.mark.covers("owner-durations")
async def test_a_duration_does_not_include_the_time_that_a_person_took_to_answer_questions(
    visitor: Visitor, owned: Owned
) -> None:
    @owned.computer.tool(auto_apply=True)
    async def both(context: AsyncToolContext) -> None:
        await asyncio.gather(context.ask("One?", FORM), context.ask("Two?", FORM))

    async def answered(count: int) -> None:
        while len([*owned.questions]) < count:
            await owned.added.get()
        for question in [*owned.questions]:
            await asyncio.sleep(HELD / count)
            await visitor.act("/requests/answer", number=str(question.number), action="decline")

    for tool, count in (("plan", 1), ("both", 2)):
        call = asyncio.create_task(owned.computer.execute_tool(PLANNER, f"call {tool}", tool, {}, 30))
        await asked(owned)
        assert owned.state.running[0].state == "asked"
        assert ">asked<" in (await visitor.get("/calls")).body
        assert ">asked<" in (await visitor.get("/")).body.partition("<h2>Running</h2>")[2]
        async with asyncio.timeout(PATIENCE):
            await answered(count)
            assert not (await call).get("isError")
        watched = owned.state.past[0]
        assert watched.ended
        assert watched.seconds is not None
        assert watched.seconds < HELD <= watched.ended - watched.began
    median = owned.computer.statistics.of("python").p50
    assert median is not None
    assert median < HELD


@pytest.mark.covers("owner-durations")
async def test_a_call_that_ends_while_it_asks_has_run_until_it_asked(visitor: Visitor, owned: Owned) -> None:
    late = owned.ask(timeout=HELD)
    await asked(owned)
    assert (await late)["isError"]
    given_up = asyncio.create_task(owned.computer.execute_tool(PLANNER, "call again", "plan", {}, 30))
    await until(lambda: bool(owned.state.running) and owned.state.running[0].state == "asked")
    await asyncio.sleep(HELD)
    owned.computer.calls.cancel(PLANNER, "call again")
    await asyncio.wait([given_up])
    assert [call.state for call in owned.state.past] == ["cancelled", "timed out"]
    assert all(call.seconds is not None and call.seconds < HELD for call in owned.state.past)
    assert "CancelledError" not in (await visitor.get("/calls")).body


@pytest.mark.covers("owner-durations")
async def test_the_clock_of_a_call_counts_what_it_waits_apart_from_what_it_runs_until_its_end() -> None:
    listeners, clock, key = ProgressListeners("laptop"), CallClock(), ("desk", "planner", "", "r1")
    with listeners.timed(key, clock):
        assert clock.ran is None
        listeners.changed(key, "running")
        with listeners.asking(key, "the owner"), listeners.asking(key, "the owner"):
            ran = clock.ran
            assert clock.state == "asked"
        assert clock.state == "running"
        assert clock.ran == ran
        clock.end()
        ended = clock.ran, clock.waited
        listeners.changed(key, "asked")
    assert (clock.state, clock.ran, clock.waited) == ("running", *ended)
    assert ended > (ran, 0.0)


def many_values() -> dict[str, Any]:
    return {f"key-{number}": "x" * 50 for number in range(20_000)}


@pytest.mark.parametrize("text", ["y" * 4_000_000, "y\n" * 1_000_000])
async def test_large_arguments_are_not_on_the_pages_that_stay_current_but_on_one_of_their_own(
    visitor: Visitor, owned: Owned, text: str
) -> None:
    calls = [owned.call(f"{text}{number}") for number in range(4)]
    async with asyncio.timeout(PATIENCE):
        while len([*owned.approvals]) < len(calls):
            await owned.added.get()
    for path, link in (("/", "/whole?request=1"), ("/calls", "/whole?call=1")):
        page = await visitor.get(path)
        assert len(page.body) < 50_000
        assert "more characters" in page.body
        assert "Show everything" in page.body
        assert f'href="{link}"' in page.body
        whole = await visitor.get(link)
        assert f"{text}0".replace("\n", "\\n") in html.unescape(whole.body)
        assert "data-live-url" not in whole.body
        assert (await visitor.get(f"/live?page={quote(link)}")).status == 404
    for pending in [*owned.approvals]:
        owned.approvals.answer(pending, "no")
    await asyncio.gather(*calls)
    assert "It is no longer there." in (await visitor.get("/whole?request=1")).body
    assert f"{text}0".replace("\n", "\\n") in html.unescape((await visitor.get("/whole?call=1")).body)


async def test_arguments_with_many_values_say_how_much_is_not_shown(visitor: Visitor, owned: Owned) -> None:
    request = ApprovalRequest(PLANNER, "write", "python", "write", many_values())
    asked = await owned.pends(owned.approvals(request))
    page = await visitor.get("/")
    assert len(page.body) < 100_000
    assert f"it has {len(json.dumps(many_values())):,} characters" in page.body
    assert "key-19999" in (await visitor.get("/whole?request=1")).body
    owned.approvals.answer(next(iter(owned.approvals)), "no")
    await asked


async def test_a_large_window_says_how_much_of_it_is_not_shown(visitor: Visitor, owned: Owned) -> None:
    view = View(words_in("en", {}), "en", "auto", "", "/desktop")
    shown = _window(view, f"window://org.example/large\n\n{'z' * 20_000}")
    assert "3,616 more characters are not shown here." in shown
    assert 'href="/whole?window=window%3A%2F%2Forg.example%2Flarge"' in shown
    assert "It is no longer there." in (await visitor.get("/whole?window=window%3A%2F%2Forg.example%2Fnone")).body


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "https://example.com/\u3000x", "file:///etc/passwd", "https://"]
)
async def test_a_question_is_not_accepted_if_its_page_is_not_opened(visitor: Visitor, owned: Owned, url: str) -> None:
    question = Question("Look at it.", mode="url", url=url, server="files", tool="publish")
    asked = await owned.pends(owned.questions(question))
    assert (await visitor.act("/requests/visit", number="1")).status == 400
    assert not asked.done()
    assert (await visitor.act("/requests/answer", number="1", action="decline")).status == 204
    assert (await asked).action == "decline"


async def test_a_form_is_checked_and_its_answer_has_the_types_of_its_schema(visitor: Visitor, owned: Owned) -> None:
    asked = await owned.pends(owned.questions(Question("How many?", schema=FORM, server="files", tool="plan")))
    assert 'type="number"' in (await visitor.get("/")).body
    for wrong, why in (("9", "Seats: it must be from 1 to 8"), ("", "Seats: an answer is needed"), ("x", "Seats: ")):
        refused = await visitor.act("/requests/answer", number="1", action="accept", **{"field-0": wrong})
        assert refused.status == 400
        assert refused.body.startswith(why)
    assert (await visitor.act("/requests/answer", number="1", action="accept", **{"field-0": "3"})).status == 204
    answer = await asked
    assert (answer.action, answer.content, answer.by) == ("accept", {"seats": 3}, "console")


async def test_a_server_that_is_busy_holds_up_no_page_of_the_desktop(visitor: Visitor, owned: Owned) -> None:
    server = {"command": sys.executable, "args": [str(ROOT / "tests/computer/servers/naughty.py"), "fine"]}
    await owned.computer.put_server({"name": "busy", "type": "stdio", "server_parameters": server})
    await until(lambda: owned.computer.status()["busy"].windows)
    pid = int(str(owned.computer.status()["busy"].diagnostics["pid"]))
    os.kill(pid, signal.SIGSTOP)
    try:
        async with asyncio.timeout(5):  # a window may take ten
            assert "The windows are being read." in (await visitor.get("/desktop")).body
        async with visitor.stream("/desktop") as events:
            await next_event(events, "The windows are being read.")
            os.kill(pid, signal.SIGCONT)
            assert "The windows are being read." not in await next_event(events, "window://naughty/clock")
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_a_question_shows_how_long_it_still_waits_as_an_approval_does(visitor: Visitor, owned: Owned) -> None:
    calls = owned.call("x", timeout=30), owned.ask(timeout=300)
    async with asyncio.timeout(PATIENCE):
        while not ([*owned.approvals] and [*owned.questions]):
            await owned.added.get()
    for language, words in (("en", "expires in"), ("zh-CN", "剩余时间")):
        page = (await visitor.get("/", **{"accept-language": language})).body
        shown = re.findall(rf'<span>{words} <time data-until="(\d+)">', page)
        left = sorted(int(each) / 1000 - time.time() for each in shown)
        assert left == [pytest.approx(30, abs=10), pytest.approx(300, abs=10)]
    next(iter(owned.questions)).settle(Answer("decline"))
    owned.approvals.answer(next(iter(owned.approvals)), "no")
    await asyncio.gather(*calls)


@pytest.mark.parametrize("default", ["I \u2764\ufe0f you", "a\u200db", "one\ntwo\n", "\nfirst is empty", "a\tb"])
async def test_a_default_that_is_sent_as_it_is_shown_is_the_default(
    visitor: Visitor, owned: Owned, default: str
) -> None:
    """A browser sends lines with CRLF, and what is shown of characters that cannot be seen."""
    schema = {"type": "object", "properties": {"note": {"type": "string", "default": default}}}
    asked = await owned.pends(owned.questions(Question("What?", schema=schema, server="files", tool="plan")))
    page = (await visitor.get("/")).body
    field = re.search(r'<input value="([^"]*)"|<textarea[^>]*>\n([^<]*)</textarea>', page)
    assert field
    shown = html.unescape(field[1] or field[2]).replace("\n", "\r\n")
    assert (await visitor.act("/requests/answer", number="1", action="accept", **{"field-0": shown})).status == 204
    assert (await asked).content == {"note": default}


async def test_a_page_without_a_session_has_a_new_link_printed_but_not_shown(owned: Owned) -> None:
    stranger = Visitor(owned.console.app)
    asked = await stranger.post("/new-link", {})
    assert json.loads(asked.body) == {"goes_to": "/?asked=1"}
    assert len(owned.links) == 1
    assert owned.links[0].partition("link=")[2] not in (await stranger.get("/?asked=1")).body


async def test_what_a_field_expects_is_said_in_the_language_of_the_page(visitor: Visitor, owned: Owned) -> None:
    asked = await owned.pends(owned.questions(Question("How many?", schema=FORM, server="files", tool="plan")))
    assert "whole number from 1 to 8" in (await visitor.get("/")).body
    assert "1 到 8 的整数" in (await visitor.get("/", **{"accept-language": "zh-CN"})).body
    await visitor.act("/requests/answer", number="1", action="cancel")
    assert (await asked).action == "cancel"


async def test_the_webhook_is_signed_tried_again_and_told_of_the_end(owned: Owned) -> None:
    """The receiver verifies with the example of the guide."""
    guide = (ROOT / "docs/guides/console.md").read_text("utf-8")
    example: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", guide, re.DOTALL)[0], example)
    secret, told, attempts = b"0123456789abcdef", asyncio.Queue[dict[str, Any]](), []

    async def receive(request: web.Request) -> web.Response:
        body = await request.read()
        assert example["is_genuine"](secret, dict(request.headers), body)
        assert not example["is_genuine"](b"another", dict(request.headers), body)
        assert not example["is_genuine"](secret, dict(request.headers), body + b" ")
        attempts.append(body)
        if len(attempts) == 1:
            return web.Response(status=503)
        told.put_nowait(await request.json())
        return web.json_response({"decision": "yes"})

    async with received(receive) as url:
        hook = Webhook(url, secret, computer="laptop", mask=owned.computer.mask, first_pause=0.01)
        hook.follow(owned.approvals, owned.questions)
        call = owned.call("tell them")
        async with asyncio.timeout(PATIENCE):
            event = await told.get()
            assert (event["type"], event["agent"], event["tool"]) == ("approval.requested", "planner", "write")
            assert event["arguments"] == {"text": "tell them"}
            assert not call.done(), "the answer of the receiver is none"
            owned.approvals.answer(next(iter(owned.approvals)), "no")
            ended = await told.get()
        assert (ended["type"], ended["outcome"], ended["where"]) == ("approval.ended", "answered", "terminal")
        await call
        assert owned.ran == []
        await hook.close()


@asynccontextmanager
async def told_by_webhook(owned: Owned) -> AsyncIterator[asyncio.Queue[dict[str, Any]]]:
    """What a receiver is told of the requests of this owner."""
    told = asyncio.Queue[dict[str, Any]]()

    async def receive(request: web.Request) -> web.Response:
        told.put_nowait(await request.json())
        return web.Response()

    async with received(receive) as url:
        hook = Webhook(url, b"0123456789abcdef", computer="laptop", mask=owned.computer.mask, first_pause=0.01)
        hook.follow(owned.approvals, owned.questions)
        yield told
        await hook.close()


async def test_the_webhook_is_told_what_the_tool_does_and_what_is_unusual(owned: Owned) -> None:
    async with told_by_webhook(owned) as told:
        asked = asyncio.create_task(owned.approvals(ApprovalRequest(PLANNER, "write", "files", "w", {}, risk=RISK)))
        async with asyncio.timeout(PATIENCE):
            event = await told.get()
        asked.cancel()
    assert event["effects"] == [{"kind": "destroys", "is_claimed": True}, {"kind": "internet", "is_claimed": False}]
    assert event["unusual"][0] == {"kind": "first_use", "argument": "", "value": ""}
    assert event["unusual"][2] == {"kind": "outside", "argument": "path", "value": "/etc"}
    assert event["description"].startswith("Writes a file. <img src=x onerror=alert(1)>\\u202e")
    assert len(event["description"]) < 1200


async def test_the_webhook_is_told_of_arguments_that_utf_8_or_64_bits_cannot_hold(owned: Owned) -> None:
    async with told_by_webhook(owned) as told:
        arguments = {"text": "\ud800", "number": 10**40}
        request = ApprovalRequest(PLANNER, "write", "python", "write", arguments)
        asked = asyncio.create_task(owned.approvals(request))
        async with asyncio.timeout(PATIENCE):
            assert (await told.get())["arguments"] == arguments
        owned.approvals.answer(next(iter(owned.approvals)), "yes")
        assert await asked == "yes"


async def test_the_webhook_says_of_a_question_when_it_ends(owned: Owned) -> None:
    async with told_by_webhook(owned) as told:
        call = owned.ask(timeout=300)
        async with asyncio.timeout(PATIENCE):
            event = await told.get()
        assert (event["type"], event["tool"]) == ("question.asked", "plan")
        assert event["expires"] - time.time() == pytest.approx(300, abs=10)
        next(iter(owned.questions)).settle(Answer("decline"))
        await call


async def test_the_webhook_says_that_what_ends_with_its_call_was_answered_by_nobody(owned: Owned) -> None:
    async with told_by_webhook(owned) as told:
        happened: list[Observed] = []
        owned.computer.observation.add(happened.append)
        calls = owned.call("x"), owned.ask()
        ends: dict[str, tuple[str, str]] = {}
        async with asyncio.timeout(PATIENCE):
            for _ in calls:
                await told.get()
            for req_id in ("call x", "call plan"):
                owned.computer.calls.cancel(PLANNER, req_id)
            for _ in calls:
                event = await told.get()
                ends[event["type"]] = event["outcome"], event["where"]
        assert ends == dict.fromkeys(("approval.ended", "question.ended"), ("withdrawn", ""))
        await asyncio.wait(calls)
        assert [each.decision for each in happened if isinstance(each, ApprovalAnswered)] == ["none"]


async def test_a_listener_that_fails_hides_no_request_and_leaves_none_behind(owned: Owned) -> None:
    def fail(_: object) -> None:
        raise ValueError("a listener has failed")

    seen: list[int] = []
    for pending in (owned.approvals, owned.questions):
        pending.on_added[:0] = [fail]
        pending.on_removed[:0] = [fail]
    owned.approvals.on_added.append(lambda each: seen.append(each.number))
    call = await owned.pends(owned.call("shown"))
    listed = asyncio.Event()
    owned.questions.on_added.append(lambda _: listed.set())
    question = asyncio.create_task(owned.questions(Question("How many?", schema=FORM)))
    async with asyncio.timeout(PATIENCE):
        await listed.wait()
    assert seen == [1]
    owned.approvals.answer(next(iter(owned.approvals)), "yes")
    assert not (await call).get("isError")
    next(iter(owned.questions)).settle(Answer("decline"))
    assert (await question).action == "decline"
    assert ([*owned.approvals], [*owned.questions]) == ([], [])


async def test_the_red_button_is_on_every_page_and_so_is_the_banner_that_releases(
    visitor: Visitor, owned: Owned
) -> None:
    waiting = await owned.pends(owned.call("never"))
    for page in ("/", "/servers", "/tools", "/calls", "/desktop", "/log?server=x", "/whole?call=1", "/change"):
        shown = (await visitor.get(page)).body
        assert shown.count("Freeze now") == 1, page
        assert "until you release it" in shown
    async with visitor.stream("/tools") as events:
        await next_event(events, "Freeze now")
        assert (await visitor.act("/freeze", reason="<b>too fast</b>\n")).status == 204
        told = await next_event(events, "nothing is let through")
        assert "&lt;b&gt;too fast&lt;/b&gt;" in told
        assert (await waiting)["_meta"]["a2c_cancel_reason"] == "frozen"
        assert [*owned.approvals] == []
        for page in ("/", "/servers", "/tools", "/calls", "/desktop", "/whole?call=1", "/change"):
            shown = (await visitor.get(page)).body
            assert ("Release" in shown, "Freeze now" in shown, "console" in shown) == (True, False, True), page
        assert (await owned.call("no"))["code"] == 423
        assert (await visitor.act("/thaw")).status == 204
        await next_event(events, "Freeze now")
    assert owned.computer.owner.frozen is None
    assert owned.ran == []


async def test_nobody_without_a_session_freezes_or_releases(owned: Owned) -> None:
    stranger = Visitor(owned.console.app)
    assert (await stranger.act("/freeze", reason="x")).status == 401
    assert owned.computer.owner.frozen is None
    owned.computer.owner.freeze()
    assert (await stranger.act("/thaw")).status == 401
    assert owned.computer.owner.frozen


async def test_a_release_that_cannot_be_kept_is_told_and_does_not_happen(tmp_path: Path) -> None:
    owned = Owned(state_folder=tmp_path)
    async with owned.computer:
        visitor = await owned.visitor()
        await visitor.act("/freeze", reason="")
        folder = tmp_path / "freezes"
        folder.rename(tmp_path / "away")
        folder.touch()
        refused = await visitor.act("/thaw")
        assert refused.status == 400
        assert owned.computer.owner.frozen
