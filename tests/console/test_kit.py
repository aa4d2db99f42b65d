"""What all consoles stand on: HTML that is safe by construction, sessions, checks of requests, live pages."""

from __future__ import annotations

import asyncio
import json

import pytest

from a2c_smcp.console.app import Changes, ConsoleApp
from a2c_smcp.console.html import Html, Response, joined, tag, text
from a2c_smcp.console.pages import ConsoleSessions, Form, Page, View, button_form, chosen_language
from a2c_smcp.errors import Unavailable
from tests.console.browserless import Visitor, next_event

ATTACKS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "&lt;b&gt;",
    "</title>",
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_text_of_others_is_never_markup(attack: str) -> None:
    shown = tag("p", attack, title=attack)
    assert shown.count("<") == 2
    assert shown.count('"') == 2
    assert "&amp;" in tag("p", "a & b")


def test_characters_that_cannot_be_seen_are_shown() -> None:
    assert text("a\u202eb\x00") == r"a\u202eb\u0000"
    assert text("two\nlines") == "two\nlines"


def test_only_text_that_is_html_already_is_taken_as_it_is() -> None:
    inner = tag("b", "<")
    assert isinstance(inner, Html)
    assert joined(inner, "<", None, [inner], 3) == "<b>&lt;</b>&lt;<b>&lt;</b>3"


@pytest.mark.parametrize(
    "address",
    [
        *("javascript:alert(1)", "java\nscript:alert(1)", " javascript:1", "//evil.example", "/\\evil.example"),
        "data:text/html,x",
    ],
)
def test_an_address_that_a_browser_would_run_or_that_leads_elsewhere_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="no address"):
        tag("a", "x", href=address)


def test_code_in_elements_and_attributes_is_refused() -> None:
    for wrong in ("style", "iframe", "base"):
        with pytest.raises(ValueError, match="not made here"):
            tag(wrong)
    with pytest.raises(ValueError, match="not made here"):
        tag("script", "alert(1)", src="/x.js", type="module")
    for attribute in ("onclick", "style", "srcdoc"):
        with pytest.raises(ValueError, match="holds code"):
            tag("p", **{attribute: "x"})


def test_the_language_is_the_chosen_one_or_the_first_that_the_browser_asks_for() -> None:
    assert chosen_language("zh", "en") == "zh"
    assert chosen_language("", "fr;q=0.9, zh-CN;q=0.8, en;q=0.7") == "zh"
    assert chosen_language("xx", "fr") == "en"
    assert chosen_language("", "en;q=oops, zh;q=0.1") == "zh"


# An application


IDLE, LONGEST = 100, 1000


class _Small:
    """A console with one page, which shows a text, and one action, which sets it."""

    def __init__(self) -> None:
        self.shown = "first"
        self.now = 1_000_000.0
        self.changes = Changes()
        self.sessions = ConsoleSessions(clock=lambda: self.now, idle=IDLE, longest=LONGEST)
        page = Page("/", "Text", {"text": self._region}, frozenset(["text"]), menu="Text", pause=0)
        actions = {"/set": self._set, "/fail": self._fail}
        self.app = ConsoleApp(
            "a2c",
            [page],
            actions,
            changes=self.changes,
            sessions=self.sessions,
            entrance=lambda view: tag("p", "no way in"),
        )

    def _region(self, view: View) -> Html:
        return joined(tag("p", self.shown), button_form(view, "/set", tag("button", "Set")))

    async def _set(self, view: View, form: Form) -> Response | None:
        self.shown = form["text"][0]
        self.changes.changed("text")
        return None

    async def _fail(self, view: View, form: Form) -> Response | None:
        raise Unavailable("it <b>cannot</b> be")

    async def visitor(self) -> Visitor:
        visitor = Visitor(self.app)
        opened = await visitor.open(f"/open?link={self.sessions.new_link()}")
        assert opened.status == 200
        return visitor


@pytest.fixture
def small() -> _Small:
    return _Small()


@pytest.fixture
async def visitor(small: _Small) -> Visitor:
    """One who has opened a session."""
    return await small.visitor()


async def test_a_link_opens_one_session_and_works_once(small: _Small) -> None:
    link = f"/open?link={small.sessions.new_link()}"
    first, second = Visitor(small.app), Visitor(small.app)
    assert (await first.get("/")).status == 401
    assert (await first.open(link)).header("set-cookie") == ""
    assert (await first.get("/")).status == 200
    assert (await second.open(link)).status == 401
    assert (await second.get("/")).status == 401


async def test_a_link_is_not_used_up_by_a_program_that_only_looks_at_it(small: _Small) -> None:
    link = f"/open?link={small.sessions.new_link()}"
    for method in ("HEAD", "GET"):
        looked = await Visitor(small.app).ask(method, link, headers={"x-a2c-session": None})
        assert (looked.status, looked.header("set-cookie")) == (200, "")
        assert "connection" not in looked.body
    assert (await Visitor(small.app).open(link)).status == 200


async def test_a_navigation_gets_a_page_that_holds_nothing_whatever_cookies_it_brings(
    small: _Small, visitor: Visitor
) -> None:
    """A browser can be led here from anywhere, and sends cookies of all ports of this machine."""
    for cookie in (None, f"a2c_console={visitor.secret}", f"x-a2c-session={visitor.secret}"):
        for path in ("/", "/nowhere", "/live?page=/", f"/?x-a2c-session={visitor.secret}"):
            led = await visitor.get(path, cookie=cookie, **{"x-a2c-session": None})
            assert (led.status, "no way in" in led.body, small.shown in led.body) == (200, True, False)
            assert led.header("set-cookie") == ""


@pytest.mark.parametrize("foreign", ['prefs={"a": 1}', "x=a b c", "bad[name]=1", "=", 'q="no end', "n=\u65e5", ";;"])
async def test_cookies_of_other_programs_of_this_host_hide_no_preference(visitor: Visitor, foreign: str) -> None:
    shown = await visitor.get("/", cookie=f"{foreign}; a2c_theme=dark")
    assert (shown.status, 'data-theme="dark"' in shown.body) == (200, True)


async def test_a_link_that_is_not_used_in_ten_minutes_is_over(small: _Small) -> None:
    link = small.sessions.new_link()
    small.now += 601
    assert (await Visitor(small.app).open(f"/open?link={link}")).status == 401


async def test_a_session_ends_some_time_after_its_last_request_and_at_the_latest_after_its_longest_time(
    small: _Small, visitor: Visitor
) -> None:
    for _ in range(9):
        small.now += 99
        assert (await visitor.get("/")).status == 200
    small.now += 99
    assert (await visitor.get("/")).status == 200
    small.now += 50
    assert (await visitor.get("/")).status == 401
    other = await small.visitor()
    small.now += 100
    assert (await other.get("/")).status == 401


async def test_an_open_page_keeps_its_session_and_hears_of_its_end(small: _Small, visitor: Visitor) -> None:
    async with visitor.stream() as events:
        await next_event(events, "regions")
        small.now += 500
        assert (await visitor.get("/")).status == 200
        small.sessions.end(next(iter(small.sessions._sessions.values())))
        await next_event(events, "event: ended")
    assert (await visitor.get("/")).status == 401


async def test_signing_out_ends_the_session(visitor: Visitor) -> None:
    kept = visitor.secret
    assert (await visitor.act("/sign-out")).status == 200
    assert visitor.secret == ""
    visitor.secret = kept
    assert (await visitor.get("/")).status == 401


async def test_a_form_is_taken_only_from_a_page_of_this_session_and_of_this_address(small: _Small) -> None:
    visitor = await small.visitor()
    for refused in (
        *(visitor.post("/set", {"text": "x"}, origin=origin) for origin in ("http://evil.example", "null", "http://[")),
        visitor.post("/set", {"text": "x"}, origin=""),
        visitor.post("/set", {"text": "x"}, origin="http://127.0.0.1:7201"),
        visitor.post("/set", {"text": "x"}, **{"sec-fetch-site": "cross-site"}),
        visitor.post("/set", {"text": "x"}, **{"sec-fetch-site": "same-site"}),
    ):
        assert (await refused).status == 400
    for secret in ("", "another", None):
        assert (await visitor.post("/set", {"text": "x"}, **{"x-a2c-session": secret})).status == 401
    assert small.shown == "first"
    assert (await visitor.post("/set", {"text": "x"})).status == 204
    assert small.shown == "x"


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:7200", "127.0.0.1.evil.example", "", "10.0.0.1", "[::1].evil.example", "[::1"),
        *(
            "[::1]evil.example",
            "[::1]:80.evil.example",
            "127.0.0.1:80:evil.example",
            "::1",
            "[localhost]",
            "localhost:x",
        ),
        *("evil.example:7200@localhost", "localhost@evil.example", "local host", "[[::1]]", "[::1]]:80"),
    ],
)
async def test_a_request_under_a_foreign_name_is_refused(small: _Small, host: str) -> None:
    assert (await Visitor(small.app, host=host).get("/")).status == 421


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "[::1]:7200", "127.0.0.1"])
async def test_a_request_under_a_name_of_this_machine_is_answered(host: str) -> None:
    assert (await Visitor(_Small().app, host=host).get("/")).status == 401


async def test_every_answer_has_a_strict_policy_and_no_page_is_kept(visitor: Visitor) -> None:
    for path in ("/", "/nowhere", "/static/console.css", "/live?page=/", f"/?{'a=1&' * 60}"):
        answered = await visitor.get(path)
        assert answered.status in (200, 204, 404), path
        policy = answered.header("content-security-policy")
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
    page = await visitor.get("/")
    assert page.header("cache-control") == "no-store"
    assert "onclick" not in page.body
    assert "<style" not in page.body


async def test_only_files_of_ours_are_served(visitor: Visitor) -> None:
    assert (await visitor.get("/static/console.js")).header("content-type") == "text/javascript; charset=utf-8"
    for path in ("/static/../app.py", "/static/app.py", "/static/%2e%2e/app.py", "/static/", "/static/x.css"):
        assert (await visitor.get(path)).status == 404


async def test_a_page_that_is_open_shows_a_change_at_once_and_only_what_has_changed(visitor: Visitor) -> None:
    async with visitor.stream() as events:
        assert await next_event(events) == "200"
        first = json.loads((await next_event(events, "regions")).partition("data: ")[2])
        assert set(first) == {"menu", "text"}
        assert (await visitor.act("/set", text="<i>second</i>")).status == 204
        second = json.loads((await next_event(events, "regions")).partition("data: ")[2])
        assert set(second) == {"text"}
        assert "&lt;i&gt;second" in second["text"]


async def test_a_stream_that_is_opened_again_begins_with_everything(visitor: Visitor, small: _Small) -> None:
    for shown in ("one", "two"):
        small.shown = shown
        small.changes.changed("text")
        async with visitor.stream() as events:
            assert shown in await next_event(events, "regions")
    assert not small.changes.has_readers


async def test_two_tabs_see_the_same_change(visitor: Visitor, small: _Small) -> None:
    async with visitor.stream() as one, visitor.stream() as two:
        await asyncio.gather(next_event(one, "regions"), next_event(two, "regions"))
        small.shown = "both"
        small.changes.changed("text")
        await asyncio.gather(next_event(one, "both"), next_event(two, "both"))


async def test_an_action_that_fails_says_why_without_markup(visitor: Visitor) -> None:
    by_script = await visitor.act("/fail")
    assert (by_script.status, by_script.header("content-type")) == (409, "text/plain; charset=utf-8")
    assert by_script.body == "it <b>cannot</b> be"


async def test_language_and_appearance_are_kept(visitor: Visitor) -> None:
    assert '<html lang="en" data-theme="auto">' in (await visitor.get("/")).body
    assert (await visitor.act("/preferences", language="zh", theme="dark")).status == 204
    assert '<html lang="zh" data-theme="dark">' in (await visitor.get("/")).body
    await visitor.act("/preferences", language="<", theme="x")
    assert '<html lang="zh" data-theme="dark">' in (await visitor.get("/")).body
