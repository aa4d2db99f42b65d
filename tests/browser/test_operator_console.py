"""The operator's console in a real Chromium: sign-in, live updates, steering, hostile names, both themes, a phone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import expect
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.browser.conftest import axe, watched
from tests.browser.operator_server import CLIENT, MEMBERS, Member, Server, opened, sign_in

SECONDS = 60_000
"""A bound against hanging in milliseconds, nothing that is measured."""

PAGES = ("/", "/offices", "/members", "/calls", "/refusals", "/keys", "/account", "/office?id=desk")
HOSTILE = "<img src=x onerror=window.hit=1>"
"""What is tried in every field that a peer can set."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    MEMBERS.close()
    server.close()


@pytest.fixture
def page(chromium: Any, server: Server) -> Iterator[Any]:
    """A page of an operator who has signed in. Errors of its scripts fail the test."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(SECONDS)
    failed = watched(page)
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.on("dialog", lambda dialog: failed.append(dialog.message))
    sign_in(page, server)
    yield page
    assert not failed
    context.close()


def test_only_the_admin_key_signs_in_and_the_session_ends_with_sign_out(chromium: Any, server: Server) -> None:
    context = chromium.new_context()
    page = context.new_page()
    sign_in(page, server, CLIENT)
    page.wait_for_selector("[role=alert]:visible")
    sign_in(page, server)
    page.wait_for_selector(".tiles")
    assert context.cookies() == []
    other = context.new_page()
    opened(other, server, "/members")
    page.click("details.settings summary")
    page.click("form[action$='/sign-out'] button")
    page.wait_for_selector("input[name=key]")
    other.wait_for_selector("#session-over:visible")
    context.close()


def test_members_come_and_go_without_a_reload(page: Any, server: Server) -> None:
    opened(page, server, "/members?search=laptop")
    laptop = Member(server.url, "computer", "laptop", "desk")
    page.wait_for_selector("text=laptop")
    page.click("tr:has-text('laptop') summary")
    page.click("tr:has-text('laptop') button.danger")
    laptop.hears("41/smcp")
    page.wait_for_selector("text=Nothing matches.")


def test_a_call_is_shown_while_it_runs_and_when_it_has_ended(page: Any, server: Server) -> None:
    tablet, planner = Member(server.url, "computer", "tablet", "lab"), Member(server.url, "agent", "planner", "lab")
    opened(page, server, "/calls")
    call = {"agent": "planner", "req_id": "r1", "computer": "tablet", "tool_name": "read_file", "params": {}}
    planner.emit("client:tool_call", 2, **call, timeout=30)
    asked = tablet.hears("read_file")
    page.wait_for_selector("#running >> text=read_file")
    number = re.match(r"42/smcp,(\d+)", asked)
    assert number
    tablet.socket.send(f"43/smcp,{number[1]}" + json.dumps([{"content": [], "isError": True}]))
    page.wait_for_selector("#ended tr:has-text('read_file') >> text=tool error")
    opened(page, server, "/")
    page.wait_for_selector("#troubled tr:has-text('tablet') >> text=tool error")
    chinese = page.context.browser.new_context(locale="zh-CN", storage_state=page.context.storage_state()).new_page()
    opened(chinese, server, "/")
    chinese.wait_for_selector("#troubled tr:has-text('tablet') >> text=工具错误")
    chinese.context.close()


def test_a_key_is_made_shown_once_and_revoked(page: Any, server: Server) -> None:
    opened(page, server, "/keys")
    page.fill("input[name=principal]", "carol")
    page.click("button.main")
    key = page.inner_text("#new-key-value")
    assert key.startswith("a2c_")
    assert key not in server.keys.read_text() + page.url
    page.reload()
    page.wait_for_selector("main >> text=A new key is shown once, within a minute.")
    assert len(json.loads(server.keys.read_text())) == 1
    opened(page, server, "/keys")
    page.click("tr:has-text('carol') summary:has-text('Revoke')")
    page.click("tr:has-text('carol') button.danger:has-text('Revoke')")
    page.wait_for_selector("tr:has-text('carol')", state="detached")
    assert json.loads(server.keys.read_text()) == {}


def test_the_red_button_stops_everything_and_a_banner_ends_that(page: Any, server: Server) -> None:
    opened(page, server, "/")
    summary = page.get_by_text("Freeze the whole Server").first
    summary.click()
    page.fill("#freeze input[name=reason]", "<b>an incident</b>")
    page.click("#freeze button.danger")
    expect(page.locator("#frozen")).to_contain_text("<b>an incident</b>")
    opened(page, server, "/keys")
    expect(page.locator("#frozen")).to_contain_text("The whole Server is frozen.")
    page.locator("#frozen summary").click()
    page.locator("#frozen button").click()
    expect(page.locator("#frozen")).to_be_empty()


def test_hostile_reasons_and_versions_are_shown_as_text_and_run_nothing(page: Any, server: Server) -> None:
    """Reasons quote what peers have sent: names of computers that are not there, and errors of computers."""
    absent = f"absent {HOSTILE}"
    laptop, planner = Member(server.url, "computer", "evil", "reasons"), Member(server.url, "agent", "p", "reasons")
    call = {"agent": "p", "req_id": "r", "computer": "evil", "tool_name": "t", "params": {}, "timeout": 60}
    planner.emit("client:tool_call", 2, **{**call, "computer": absent})
    planner.hears(absent[:6])
    planner.emit("client:tool_call", 3, **call)
    number = re.match(r"42/smcp,(\d+)", laptop.hears("tool_name"))
    assert number
    error = {"code": 404, "message": f"error {HOSTILE}", "details": {"about": HOSTILE}}
    laptop.socket.send(f"43/smcp,{number[1]}" + json.dumps([{**error, "error": error}]))
    planner.hears("error ")
    planner.emit("server:join_office", 4, role=HOSTILE, name="p", office_id="reasons")
    with pytest.raises(InvalidStatus):
        connect(f"{server.url.replace('http', 'ws')}/socket.io/?EIO=4&transport=websocket&a2c_version={quote(HOSTILE)}")
    for path in PAGES:
        opened(page, server, path)
        assert page.evaluate("[window.hit, window.blocked]") == [None, []], path
        assert page.locator("main img, main script").count() == 0, path
    for path, shown in (("/refusals", "a2c_version"), ("/refusals", HOSTILE), ("/calls", absent)):
        opened(page, server, path)
        page.wait_for_selector(f"main >> text={shown}")


def test_hostile_names_are_shown_as_text_and_run_nothing(page: Any, server: Server) -> None:
    names = (HOSTILE, "'\"><script>window.hit=1</script>", "javascript:window.hit=1", "{{hit}}")
    members = [Member(server.url, "computer", name, name) for name in names]
    planner = Member(server.url, "agent", HOSTILE, HOSTILE)
    call = {"agent": HOSTILE, "req_id": HOSTILE, "computer": HOSTILE, "tool_name": HOSTILE, "params": {}, "timeout": 60}
    planner.emit("client:tool_call", 3, **call)
    members[0].hears("tool_name")
    planner.emit("client:tool_call", 4, **{**call, "computer": names[1], "req_id": names[1]})
    for path in (*PAGES, "/members?search=%3Cimg+src%3Dx+onerror%3Dwindow.hit%3D1%3E"):
        opened(page, server, path)
        assert page.evaluate("window.hit") is None
        assert page.locator("main img, main script").count() == 0
    opened(page, server, "/calls")
    page.wait_for_selector(f"#running >> text={HOSTILE}")
    opened(page, server, "/members")
    for name in names:
        assert page.locator("td", has_text=name).count() > 0, "nothing is cut"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_fault_that_axe_finds(chromium: Any, server: Server, scheme: str) -> None:
    context = chromium.new_context(color_scheme=scheme, bypass_csp=True)  # for the checker, which is put into the page
    page = context.new_page()
    page.goto(f"{server.console}/")
    page.wait_for_selector("input[name=key]")
    faults = {"sign-in": axe(page)}
    sign_in(page, server)
    for path in PAGES:
        opened(page, server, path)
        faults[path] = axe(page)
    assert not any(faults.values()), faults
    context.close()


def test_a_phone_shows_all_pages_and_chinese(chromium: Any, server: Server) -> None:
    context = chromium.new_context(viewport={"width": 390, "height": 800}, locale="zh-CN")
    page = context.new_page()
    sign_in(page, server)
    page.wait_for_selector(".tiles")
    assert page.inner_text("h1") == "概览"
    assert page.locator(".chart text").first.bounding_box()["height"] >= 9, "charts can be read"
    for path in PAGES:
        opened(page, server, path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    context.close()


@pytest.mark.parametrize("locale", ["en-GB", "zh-CN"])
def test_every_tab_can_be_read_on_a_phone(chromium: Any, server: Server, locale: str) -> None:
    context = chromium.new_context(viewport={"width": 390, "height": 800}, locale=locale)
    page = context.new_page()
    sign_in(page, server)
    boxes = [tab.bounding_box() for tab in page.locator("nav a").all()]
    assert len(boxes) == 6
    assert max(box["x"] + box["width"] for box in boxes) <= 390
    context.close()


def test_nothing_but_our_own_files_may_run(page: Any, server: Server) -> None:
    answer = page.goto(f"{server.console}/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert page.evaluate("document.querySelectorAll('script:not([src]), [style], [onclick]').length") == 0


def test_a_session_that_is_over_says_so(page: Any, server: Server) -> None:
    opened(page, server, "/")
    page.evaluate("localStorage.clear()")
    page.goto(f"{server.console}/keys")
    page.wait_for_selector("input[name=key]")
