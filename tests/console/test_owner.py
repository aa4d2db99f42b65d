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
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import web

from a2c_smcp.computer.approval import ApprovalRequest, Caller, DecisionFor
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.observation import ApprovalAnswered, ComputerHappened
from a2c_smcp.computer.pending import PendingApprovals, PendingQuestions
from a2c_smcp.console.languages import words_in
from a2c_smcp.console.owner.calls import _window
from a2c_smcp.console.owner.console import OwnerConsole
from a2c_smcp.console.owner.state import OwnerState
from a2c_smcp.console.pages import View
from a2c_smcp.console.webhook import Webhook
from a2c_smcp.protocol.questions import Answer, Question
from a2c_smcp.registry import AsyncToolContext
from tests.console.browserless import PATIENCE, Visitor, next_event
from tests.waiting import until

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

    def __init__(self) -> None:
        self.approvals = PendingApprovals()
        self.questions = PendingQuestions(self.approvals.numbers, self.approvals.first_added)
        self.computer = Computer("laptop", approve=self.approvals, on_question=self.questions)
        self.ran: list[str] = []

        @self.computer.tool
        def write(text: str) -> str:
            """Writes <b>text</b>."""
            self.ran.append(text)
            return "written"

        self.state = OwnerState(self.computer, self.approvals, self.questions)
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
        caller = Caller("desk", "planner")
        return asyncio.create_task(self.computer.execute_tool(caller, "call plan", "plan", {}, timeout))

    def call(self, text: str, timeout: float = 30) -> asyncio.Task[dict[str, Any]]:
        caller = Caller("desk", "planner")
        return asyncio.create_task(self.computer.execute_tool(caller, f"call {text}", "write", {"text": text}, timeout))

    async def visitor(self) -> Visitor:
        visitor = Visitor(self.console.app)
        await visitor.get(self.console.link().removeprefix(self.console.url))
        return visitor


@pytest.fixture
async def owned() -> AsyncIterator[Owned]:
    owned = Owned()
    async with owned.computer:
        yield owned


async def test_a_request_is_shown_at_once_and_the_answer_lets_the_tool_run(owned: Owned) -> None:
    visitor = await owned.visitor()
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


async def test_the_second_answer_to_a_request_does_nothing(owned: Owned) -> None:
    visitor = await owned.visitor()
    call = owned.call("once")
    await owned.approvals.first_added.wait()
    [pending] = owned.approvals
    owned.approvals.answer(pending, "no")
    refused = await visitor.act("/requests/decide", number="1", decision="yes")
    assert (refused.status, refused.body) == (409, "It was answered already, or withdrawn: nothing was done.")
    assert (await call)["isError"]
    assert owned.ran == []


async def test_an_answer_says_where_it_was_given_and_how_long_it_lasts(owned: Owned) -> None:
    visitor = await owned.visitor()
    call = owned.call("for an hour")
    await owned.approvals.first_added.wait()
    [pending] = owned.approvals
    await visitor.act("/requests/decide", number="1", decision="always", lasts="3600")
    await call
    assert (pending.where, await pending.answer) == ("console", DecisionFor("always", 3600, by="console"))
    assert "planner → write" in (await visitor.get("/tools")).body
    key = re.search(r'name="grant" value="([^"]+)"', (await visitor.get("/tools")).body)[1]  # type: ignore[index]
    assert (await visitor.act("/tools/forget", page="/tools", grant=html.unescape(key))).status == 204
    assert not owned.computer.approvals.grants


@pytest.mark.parametrize(("decision", "lasts"), [("maybe", ""), ("", ""), ("always", "5")])
async def test_an_answer_that_is_none_lets_nothing_run(owned: Owned, decision: str, lasts: str) -> None:
    visitor = await owned.visitor()
    call = owned.call("x", timeout=1)
    await owned.approvals.first_added.wait()
    assert (await visitor.act("/requests/decide", number="1", decision=decision, lasts=lasts)).status == 400
    assert (await call)["isError"]
    assert owned.ran == []


def many_values() -> dict[str, Any]:
    return {f"key-{number}": "x" * 50 for number in range(20_000)}


@pytest.mark.parametrize("text", ["y" * 4_000_000, "y\n" * 1_000_000])
async def test_large_arguments_are_not_on_the_pages_that_stay_current_but_on_one_of_their_own(
    owned: Owned, text: str
) -> None:
    visitor = await owned.visitor()
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


async def test_arguments_with_many_values_say_how_much_is_not_shown(owned: Owned) -> None:
    visitor = await owned.visitor()
    request = ApprovalRequest(Caller("desk", "planner"), "write", "python", "write", many_values())
    asked = asyncio.create_task(owned.approvals(request))
    await owned.approvals.first_added.wait()
    page = await visitor.get("/")
    assert len(page.body) < 100_000
    assert f"it has {len(json.dumps(many_values())):,} characters" in page.body
    assert "key-19999" in (await visitor.get("/whole?request=1")).body
    owned.approvals.answer(next(iter(owned.approvals)), "no")
    await asked


async def test_a_large_window_says_how_much_of_it_is_not_shown(owned: Owned) -> None:
    visitor = await owned.visitor()
    view = View(words_in("en", {}), "en", "auto", "", "/desktop")
    shown = _window(view, f"window://org.example/large\n\n{'z' * 20_000}")
    assert "3,616 more characters are not shown here." in shown
    assert 'href="/whole?window=window%3A%2F%2Forg.example%2Flarge"' in shown
    assert "It is no longer there." in (await visitor.get("/whole?window=window%3A%2F%2Forg.example%2Fnone")).body


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "https://example.com/\u3000x", "file:///etc/passwd", "https://"]
)
async def test_a_question_is_not_accepted_if_its_page_is_not_opened(owned: Owned, url: str) -> None:
    visitor = await owned.visitor()
    question = Question("Look at it.", mode="url", url=url, server="files", tool="publish")
    asked = asyncio.create_task(owned.questions(question))
    await owned.approvals.first_added.wait()
    assert (await visitor.act("/requests/visit", number="1")).status == 400
    assert not asked.done()
    assert (await visitor.act("/requests/answer", number="1", action="decline")).status == 204
    assert (await asked).action == "decline"


async def test_a_form_is_checked_and_its_answer_has_the_types_of_its_schema(owned: Owned) -> None:
    visitor = await owned.visitor()
    asked = asyncio.create_task(owned.questions(Question("How many?", schema=FORM, server="files", tool="plan")))
    await owned.approvals.first_added.wait()
    assert 'type="number"' in (await visitor.get("/")).body
    for wrong, why in (
        ("9", "Seats: it must be from 1 to 8"),
        ("", "Seats: an answer is needed"),
        ("x", "Seats: "),
    ):
        refused = await visitor.act("/requests/answer", number="1", action="accept", **{"field-0": wrong})
        assert refused.status == 400
        assert refused.body.startswith(why)
    assert (await visitor.act("/requests/answer", number="1", action="accept", **{"field-0": "3"})).status == 204
    answer = await asked
    assert (answer.action, answer.content, answer.by) == ("accept", {"seats": 3}, "console")


async def test_a_server_that_is_busy_holds_up_no_page_of_the_desktop(owned: Owned) -> None:
    server = {"command": sys.executable, "args": [str(ROOT / "tests/computer/servers/naughty.py"), "fine"]}
    await owned.computer.put_server({"name": "busy", "type": "stdio", "server_parameters": server})
    await until(lambda: owned.computer.status()["busy"].windows)
    visitor = await owned.visitor()
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


async def test_a_question_shows_how_long_it_still_waits_as_an_approval_does(owned: Owned) -> None:
    visitor = await owned.visitor()
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
async def test_a_default_that_is_sent_as_it_is_shown_is_the_default(owned: Owned, default: str) -> None:
    """A browser sends lines with CRLF, and what is shown of characters that cannot be seen."""
    visitor = await owned.visitor()
    schema = {"type": "object", "properties": {"note": {"type": "string", "default": default}}}
    asked = asyncio.create_task(owned.questions(Question("What?", schema=schema, server="files", tool="plan")))
    await owned.approvals.first_added.wait()
    page = (await visitor.get("/")).body
    field = re.search(r'<input value="([^"]*)"|<textarea[^>]*>\n([^<]*)</textarea>', page)
    assert field
    shown = html.unescape(field[1] or field[2]).replace("\n", "\r\n")
    assert (await visitor.act("/requests/answer", number="1", action="accept", **{"field-0": shown})).status == 204
    assert (await asked).content == {"note": default}


async def test_a_page_without_a_session_has_a_new_link_printed_but_not_shown(owned: Owned) -> None:
    stranger = Visitor(owned.console.app)
    asked = await stranger.post("/new-link", {})
    assert asked.status == 303
    assert len(owned.links) == 1
    assert owned.links[0].partition("link=")[2] not in (await stranger.get("/?asked=1")).body


async def test_what_a_field_expects_is_said_in_the_language_of_the_page(owned: Owned) -> None:
    visitor = await owned.visitor()
    asked = asyncio.create_task(owned.questions(Question("How many?", schema=FORM, server="files", tool="plan")))
    await owned.approvals.first_added.wait()
    assert "whole number from 1 to 8" in (await visitor.get("/")).body
    assert "1 到 8 的整数" in (await visitor.get("/", **{"accept-language": "zh-CN"})).body
    await visitor.act("/requests/answer", number="1", action="cancel")
    assert (await asked).action == "cancel"


async def test_a_browser_that_asks_for_chinese_gets_it(owned: Owned) -> None:
    visitor = await owned.visitor()
    page = await visitor.get("/servers", **{"accept-language": "zh-CN"})
    assert "没有 MCP 服务器" in page.body


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
async def received(receive: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncIterator[str]:
    """The URL of a receiver of webhooks on this machine."""
    app = web.Application()
    app.router.add_post("/hook", receive)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    await runner.cleanup()


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


async def test_the_webhook_is_told_of_arguments_that_utf_8_or_64_bits_cannot_hold(owned: Owned) -> None:
    async with told_by_webhook(owned) as told:
        arguments = {"text": "\ud800", "number": 10**40}
        request = ApprovalRequest(Caller("desk", "planner"), "write", "python", "write", arguments)
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


async def test_the_webhook_says_that_what_ends_with_the_office_was_answered_by_nobody(owned: Owned) -> None:
    async with told_by_webhook(owned) as told:
        happened: list[ComputerHappened] = []
        owned.computer.observation.add(happened.append)
        calls = owned.call("x"), owned.ask()
        ends: dict[str, tuple[str, str]] = {}
        async with asyncio.timeout(PATIENCE):
            for _ in calls:
                await told.get()
            owned.approvals.leave_all()
            owned.questions.leave_all()
            for _ in calls:
                event = await told.get()
                ends[event["type"]] = event["outcome"], event["where"]
        assert ends == dict.fromkeys(("approval.ended", "question.ended"), ("withdrawn", ""))
        refused, _ = await asyncio.gather(*calls)
        assert "the computer has left the office" in str(refused), "nobody has said no"
        assert [each.decision for each in happened if isinstance(each, ApprovalAnswered)] == ["none"]


async def test_a_listener_that_fails_hides_no_request_and_leaves_none_behind(owned: Owned) -> None:
    def fail(_: object) -> None:
        raise ValueError("a listener has failed")

    seen: list[int] = []
    for pending in (owned.approvals, owned.questions):
        pending.on_added[:0] = [fail]
        pending.on_removed[:0] = [fail]
    owned.approvals.on_added.append(lambda each: seen.append(each.number))
    call = owned.call("shown")
    await owned.approvals.first_added.wait()
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
