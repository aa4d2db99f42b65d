"""The owner's console in a real Chromium, beside a real computer, agent and MCP servers."""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Program, axe, of_kind, open_session, origin, until, watched
from tests.browser.mcp_server import ATTACK, HOST

PAGES = ("/", "/servers", "/tools", "/calls", "/desktop", "/log?server=files", "/whole?call=1")
expect.set_options(timeout=int(os.environ.get("PATIENCE_MS", "30000")))


def card(page: Any, text: str) -> Any:
    return page.locator(".request", has_text=text)


def text_of(result: Any) -> str:
    return str(result.content[0]["text"])


def test_a_call_is_approved_with_one_click_and_the_tool_runs(page: Any, program: Program) -> None:
    call = program.call("write_file", path="/notes/today.txt", content="buy milk")
    asked = card(page, "/notes/today.txt")
    expect(asked).to_contain_text("planner wants to run write_file of files")
    expect(asked).to_contain_text("buy milk")
    expect(asked.locator("time")).to_have_text(re.compile(r"00:\d\d"))
    expect(page).to_have_title(re.compile(r"\(1\) Requests"))
    asked.get_by_role("button", name="Allow once").click()
    assert "8 characters written" in text_of(call.result(30))
    expect(asked).to_have_count(0)


def test_the_goals_for_approvals_hold(page: Any, program: Program) -> None:
    """Asked → shown and answered → runs, by clocks of one machine."""
    shown, answered = [], []
    for number in range(7):
        path = f"/goal-{number}"
        page.evaluate(
            """(path) => { window.seenAt = 0; new MutationObserver((_, observer) => {
                if (document.body.textContent.includes(path)) { window.seenAt = Date.now(); observer.disconnect() }
            }).observe(document.body, { subtree: true, childList: true }) }""",
            path,
        )
        asked_at = time.time()
        call = program.call("write_file", path=path, content="x")
        asked = card(page, path)
        expect(asked).to_be_visible()
        shown.append(page.evaluate("window.seenAt") / 1000 - asked_at)
        page.evaluate(
            "addEventListener('click', () => { window.clickedAt = Date.now() }, { capture: true, once: true })"
        )
        asked.get_by_role("button", name="Allow once").click()
        ran_at = float(text_of(call.result(30)).rpartition(" ")[2])
        answered.append(ran_at - page.evaluate("window.clickedAt") / 1000)
    print(f"asked → shown: {statistics.median(shown):.3f} s, answered → runs: {statistics.median(answered):.3f} s")
    assert statistics.median(shown) <= 0.3
    assert statistics.median(answered) <= 0.1


def test_what_is_allowed_for_an_hour_is_not_asked_again_until_it_is_taken_back(page: Any, program: Program) -> None:
    call = program.call("write_file", path="/always", content="x")
    asked = card(page, "/always")
    asked.get_by_text("Allow it again without asking").click()
    expect(asked.get_by_label("How long")).to_have_value("3600")
    expect(asked.get_by_role("button", name="Allow every tool for this agent")).to_be_hidden()
    asked.get_by_role("button", name="This tool for this agent").click()
    call.result(30)
    assert "characters written" in text_of(program.call("write_file", path="/unasked", content="y").result(30))
    page.goto(f"{origin(program)}/tools")
    grant = page.locator("#permissions .card", has_text="planner")
    expect(grant).to_contain_text("write_file")
    expect(grant).to_contain_text("until")
    grant.get_by_role("button", name="Ask again").click()
    expect(grant).to_have_count(0)
    page.goto(origin(program))
    again = program.call("write_file", path="/asked-again", content="z")
    card(page, "/asked-again").get_by_role("button", name="Deny").click()
    again.exception(30)


def test_a_question_is_answered_in_its_form_after_a_mistake_was_explained(page: Any, program: Program) -> None:
    call = program.call("plan_trip")
    card(page, "wants to run plan_trip").get_by_role("button", name="Allow once").click()
    asked = card(page, "Which train shall I book")
    asked.get_by_label("City").select_option("Beijing")
    asked.get_by_label("Day of departure").fill("2027-01-31")
    seats = asked.get_by_label("Seats")
    expect(seats).to_have_value("2")
    page.evaluate("document.querySelectorAll('form').forEach((form) => { form.noValidate = true })")
    seats.fill("40")
    asked.get_by_role("button", name="Send answer").click()
    expect(page.get_by_role("alert")).to_contain_text("Seats: it must be from 1 to 8")
    expect(seats).to_have_value("40")
    seats.fill("4")
    asked.get_by_label("quiet zone").check()
    asked.get_by_label("With insurance").select_option("no")
    asked.get_by_role("button", name="Send answer").click()
    content = json.loads(text_of(call.result(30)))
    assert content == {
        "action": "accept",
        "content": {"city": "PEK", "day": "2027-01-31", "seats": 4, "extras": ["quiet zone"], "insured": False},
    }


def test_progress_is_shown_while_a_call_runs_and_an_empty_question_is_agreed_to(page: Any, program: Program) -> None:
    call = program.call("convert", steps=2)
    card(page, "wants to run convert").get_by_role("button", name="Allow once").click()
    running = page.locator("#running .card", has_text="convert")
    for step in (1, 2):
        expect(running).to_contain_text(f"{step} / 2 – picture {step}")
        expect(running.get_by_role("progressbar")).to_have_attribute("value", str(step))
        card(page, f"Go on after {step}?").get_by_role("button", name="Send answer").click()
    assert text_of(call.result(30)) == "converted"
    expect(running).to_have_count(0)


def test_a_card_says_in_words_what_the_tool_does_and_what_is_unusual(page: Any, program: Program) -> None:
    call, other = program.call("write_file", path="/etc/cron.d/x", content="x"), program.call("plan_trip")
    asked, plain = card(page, "/etc/cron.d/x"), card(page, "wants to run plan_trip")
    expect(asked.locator(".effects")).to_contain_text("✕ destroys (claimed by the server)")
    expect(plain.locator(".effects")).to_contain_text("? does not say what it does")
    expect(asked).to_contain_text("Writes a text file, and replaces one that is there.")
    expect(asked.locator(".note.warn")).to_contain_text("Unusual")
    for each in (asked, plain):
        each.get_by_role("button", name="Deny").click()
    call.exception(30)
    other.exception(30)


def test_every_tool_of_a_server_is_allowed_by_a_second_click_and_ended_by_one(page: Any, program: Program) -> None:
    call = program.call("write_file", path="/server", content="x")
    asked = card(page, "/server")
    asked.get_by_text("Allow it again without asking").click()
    allow = asked.get_by_role("button", name="Allow every tool of this server")
    expect(allow).to_be_hidden()
    asked.get_by_text("Every tool of this server for this agent").click()
    allow.click()
    call.result(30)
    page.goto(f"{origin(program)}/tools")
    grant = page.locator("#permissions .card", has_text="every tool (files)")
    expect(grant).to_contain_text("not used yet")
    grant.get_by_role("button", name="Ask again").click()
    expect(grant).to_have_count(0)


NOTED = """
    window.shown = []
    const Real = window.Notification
    window.Notification = class extends Real {
        constructor(title, options) { super(title, options); window.shown.push([title, options.body || '']) }
    }
    Document.prototype.hasFocus = () => false
    const { start } = OscillatorNode.prototype
    window.beeps = 0
    OscillatorNode.prototype.start = function (...at) { window.beeps += 1; return start.apply(this, at) }
"""
"""Notes what is shown and played. A page of a test has the focus always."""


def test_a_notification_and_a_sound_come_when_they_were_chosen_and_say_nothing_of_the_request(
    context: Any, page: Any, program: Program
) -> None:
    context.add_init_script(NOTED)
    page.goto(f"{origin(program)}/tools")
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")

    def calls(path: str) -> None:
        call = program.call("write_file", path=path, content="x")
        expect(page).to_have_title(re.compile(r"^\(\d+\) "))
        (pending,) = [page.evaluate("[window.shown.length, window.beeps]")]
        noted.append(pending)
        other = context.new_page()
        other.goto(origin(program))
        card(other, path).get_by_role("button", name="Deny").click()
        call.exception(30)
        other.close()
        expect(page).not_to_have_title(re.compile(r"^\("))

    noted: list[Any] = []
    calls("/unnoticed")
    page.locator(".settings > summary").click()
    notify, sound = page.get_by_label("Notify me of a new request"), page.get_by_label("Play a sound")
    expect(notify).not_to_be_checked()
    expect(sound).not_to_be_checked()
    notify.click()
    expect(page.get_by_role("alert")).to_contain_text("does not allow notifications")
    expect(notify).not_to_be_checked()
    context.grant_permissions(["notifications"], origin=origin(program))
    notify.check()
    sound.check()
    calls("/noticed")
    assert noted == [[0, 0], [1, 2]]
    assert page.evaluate("window.shown") == [["Something waits for your answer.", ""]]
    page.reload()
    page.locator(".settings > summary").click()
    expect(page.get_by_label("Notify me of a new request")).to_be_checked()
    expect(page.get_by_label("Play a sound")).to_be_checked()
    context.clear_permissions()


def test_a_request_that_times_out_is_withdrawn_and_the_focus_stays_near(page: Any, program: Program) -> None:
    call = program.call("write_file", timeout=2, path="/late", content="x")
    button = card(page, "/late").get_by_role("button", name="Allow once")
    button.focus()
    call.exception(30)
    expect(card(page, "/late")).to_have_count(0)
    assert page.evaluate("document.activeElement.textContent") == "Waiting for you"


def test_two_tabs_show_the_same_and_the_second_answer_is_none(context: Any, page: Any, program: Program) -> None:
    other = context.new_page()
    other.goto(origin(program))
    expect(other.locator("#connection")).to_have_attribute("data-state", "live")
    call = program.call("write_file", path="/two-tabs", content="x")
    expect(card(page, "/two-tabs")).to_be_visible()
    expect(card(other, "/two-tabs")).to_be_visible()
    card(other, "/two-tabs").get_by_role("button", name="Allow once").click()
    call.result(30)
    expect(card(page, "/two-tabs")).to_have_count(0)


def test_what_could_not_be_done_is_said_until_it_is_closed(page: Any, program: Program) -> None:
    call = program.call("write_file", path="/unknown-number", content="x")
    asked = card(page, "/unknown-number")
    asked.locator("input[name=number]").first.evaluate("(input) => { input.value = '999999' }")
    asked.get_by_role("button", name="Allow once").click()
    expect(page.get_by_role("alert")).to_contain_text("It was answered already, or withdrawn")
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.locator("#failure").bounding_box()["width"] > 300, "it uses the width of a phone"
    page.get_by_role("button", name="Close").click()
    expect(page.locator("#failure")).to_be_hidden()
    page.reload()
    asked.get_by_role("button", name="Deny").click()
    call.exception(30)


def test_many_tabs_do_not_use_up_the_connections_of_the_browser(context: Any, program: Program) -> None:
    tabs = [context.new_page() for _ in range(9)]
    for tab in tabs[:-1]:  # a browser without a screen takes all tabs for visible
        tab.goto(f"{origin(program)}/calls")
        expect(tab.locator("#connection")).to_have_attribute("data-state", "live")
        tab.evaluate(
            """() => {
                Object.defineProperty(document, 'visibilityState', { get: () => 'hidden' })
                document.dispatchEvent(new Event('visibilitychange'))
            }"""
        )
    tabs[-1].goto(origin(program))
    call = program.call("write_file", path="/ninth", content="x")
    card(tabs[-1], "/ninth").get_by_role("button", name="Deny").click()
    call.exception(30)


def test_what_is_typed_stays_when_something_else_comes(page: Any, program: Program) -> None:
    first = program.call("plan_trip")
    card(page, "wants to run plan_trip").get_by_role("button", name="Allow once").click()
    note = card(page, "Which train").get_by_label("Note for the conductor")
    note.fill("half a sent")
    second = program.call("write_file", path="/meanwhile", content="x")
    expect(card(page, "/meanwhile")).to_be_visible()
    assert page.evaluate("document.activeElement.value") == "half a sent"
    card(page, "/meanwhile").get_by_role("button", name="Deny").click()
    second.exception(30)
    card(page, "Which train").get_by_role("button", name="Decline").click()
    assert json.loads(text_of(first.result(30))) == {"action": "decline"}


def test_a_killed_server_is_seen_to_come_back_and_can_be_stopped_and_started(page: Any, program: Program) -> None:
    page.goto(f"{origin(program)}/servers")
    server = page.locator("#servers .card", has=page.get_by_role("heading", name="files", exact=True))
    expect(server).to_contain_text("ready")
    pid = re.search(r"pid (\d+)", server.text_content())[1]  # type: ignore[index]
    os.kill(int(pid), signal.SIGKILL)
    expect(server).not_to_contain_text(f"pid {pid}")
    expect(server).to_contain_text("ready")
    server.get_by_role("button", name="Stop files").click()
    expect(server).to_contain_text("stopped")
    server.get_by_role("button", name="Start files").click()
    expect(server).to_contain_text("ready")
    before = re.search(r"pid (\d+)", server.text_content())[1]  # type: ignore[index]
    server.get_by_role("button", name="Restart files").click()
    expect(server).not_to_contain_text(f"pid {before}")
    expect(server).to_contain_text("ready")


def test_a_sign_in_is_one_click_and_the_server_starts(context: Any, page: Any, program: Program) -> None:
    page.goto(f"{origin(program)}/servers")
    cloud = page.locator("#servers .card", has=page.get_by_role("heading", name="cloud", exact=True))
    expect(cloud).to_contain_text("auth_required")
    with context.expect_page() as opened:
        cloud.get_by_role("button", name="Sign in cloud").click()
    expect(opened.value.locator("body")).to_contain_text("Back on this computer")
    expect(cloud).to_contain_text("ready")
    cloud.get_by_role("button", name="Sign out cloud").click()
    expect(cloud.get_by_role("button", name="Sign out cloud")).to_have_count(0)
    expect(cloud).to_contain_text("auth_required")


def test_history_log_and_desktop_show_what_happened(page: Any, program: Program) -> None:
    text_of(program.call("read_file", path="/history.txt").result(30))
    page.goto(f"{origin(program)}/calls")
    row = page.locator("tbody tr", has_text="read_file").first
    expect(row).to_contain_text("planner")
    expect(row).to_contain_text("done")
    row.get_by_text("Arguments").click()
    expect(row).to_contain_text("/history.txt")
    page.goto(f"{origin(program)}/log?server=files")
    expect(page.locator("#log")).to_contain_text("read /history.txt")
    expect(page.locator("#log")).to_contain_text("started")
    expect(page.locator("#log")).to_contain_text("The end of stderr and the last messages are kept.")
    page.goto(f"{origin(program)}/desktop")
    expect(page.locator("#desktop")).to_contain_text("window://org.example.files/trips")
    expect(page.locator("#desktop")).to_contain_text("Kyoto, Friday: 2 seats")


def test_a_page_that_was_cut_off_is_complete_when_it_is_back(context: Any, page: Any, program: Program) -> None:
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    context.set_offline(True)
    page.evaluate("dispatchEvent(new Event('offline'))")
    call = program.call("write_file", path="/while-away", content="x")
    context.set_offline(False)
    card(page, "/while-away").get_by_role("button", name="Deny").click()
    call.exception(30)


def test_long_values_are_shown_in_full_on_a_click(page: Any, program: Program) -> None:
    content = "start " + "\n" * 2000 + "rm -rf everything" + " " * 3000 + "the end"
    call = program.call("write_file", path="/long", content=content)
    asked = card(page, "/long")
    expect(asked).to_contain_text("more characters")
    expect(asked).to_contain_text("the end")
    asked.get_by_text(f"Show all {len(content):,} characters").click()
    assert asked.locator("pre").text_content() == content
    asked.get_by_role("button", name="Deny").click()
    call.exception(30)


def test_nothing_that_others_write_is_ever_run_and_all_of_it_is_shown(page: Any, program: Program) -> None:
    attempts = [
        program.call("evil", text=ATTACK, timeout=120),
        program.call("evil_form", timeout=120),
        program.call("evil_page", timeout=120),
        program.call("evil_progress", timeout=120),
    ]
    for tool in ("evil of", "evil_form of", "evil_page of", "evil_progress of"):
        asked = card(page, f"wants to run {tool}")
        expect(asked).to_be_visible()
        if tool == "evil of":
            expect(asked).to_contain_text(ATTACK)
        asked.get_by_role("button", name="Allow once").click()
    expect(page.locator("#requests .request")).to_have_count(3)
    expect(page.locator("#requests")).to_contain_text(ATTACK)
    expect(page.locator("#running")).to_contain_text(f"1 / 3 – {ATTACK}")
    for path in (*PAGES, "/log?server=evil", f"/log?server={ATTACK}", "/nowhere", f"/{ATTACK}"):
        page.goto(f"{origin(program)}{path}")
        page.locator("main:not([hidden])").wait_for()
        assert page.evaluate("[window.xss, window.blocked]") == [None, []], path
        assert page.locator("img, main script, main iframe").count() == 0, path
    for path in ("/tools", "/calls", "/desktop", "/log?server=evil"):
        page.goto(f"{origin(program)}{path}")
        expect(page.locator("main")).to_contain_text(ATTACK)
    page.goto(origin(program))
    for left in (2, 1, 0):
        page.locator(".request").last.get_by_role("button", name="Decline").click()
        expect(page.locator(".request")).to_have_count(left)
    for attempt in attempts:
        attempt.exception(30)


def test_names_reasons_and_changes_of_others_are_shown_and_run_nothing(chromium: Any, tmp_path: Path) -> None:
    """Names of agents, MCP clients, tools, loggers and windows; why a server fails; how a tool has changed."""
    servers = {"names": of_kind("names"), "broken": of_kind("broken")}
    program = Program(tmp_path, servers, "--no-input", agent=ATTACK)
    context = chromium.new_context(locale="en-GB")
    try:
        page = open_session(context, program)
        broken = watched(page)
        page.goto(origin(program))
        until(lambda: program.said("names: ready"), "the tools")
        client = {"name": ATTACK, "version": "1"}
        calls = [program.call_for(client, ATTACK, {}), program.call_for(client, "change", {})]
        for number in ("#1", "#2"):
            asked = card(page, number)
            expect(asked).to_contain_text(f"{ATTACK} (")
            asked.get_by_role("button", name="Allow once").click()
        expect(page.locator("#requests")).to_contain_text("Nothing waits for your answer.")
        assert {text_of(call.result(30)) for call in calls} == {"called", "changed"}
        for path, shown in (
            ("/tools", "Its definition has changed"),
            ("/tools", f"+ {ATTACK}"),
            ("/calls", f"{ATTACK} ("),
            ("/servers", ATTACK),
            ("/desktop", HOST),
            ("/log?server=names", f"{ATTACK}: called"),
        ):
            page.goto(f"{origin(program)}{path}")
            expect(page.locator("main")).to_contain_text(shown)
            assert page.evaluate("[window.xss, window.blocked]") == [None, []], path
            assert page.locator("img, main script, main svg").count() == 0, path
        page.goto(f"{origin(program)}/tools")
        expect(page.locator("h3", has_text=ATTACK)).to_have_count(1)
        again = program.call("change")
        page.goto(origin(program))
        expect(card(page, "#3")).to_contain_text("no longer what you approved")
        expect(card(page, "#3")).to_contain_text(ATTACK)
        card(page, "#3").get_by_role("button", name="Deny").click()
        again.exception(30)
        assert page.evaluate("window.xss") is None
        assert broken == []
    finally:
        context.close()
        program.close()


def test_a_page_that_a_tool_wants_to_be_opened_is_opened_by_a_click_in_a_tab_of_its_own(
    context: Any, page: Any, program: Program
) -> None:
    context.route("https://example.com/**", lambda route: route.fulfill(body="<title>preview</title>"))
    call = program.call("publish")
    card(page, "wants to run publish").get_by_role("button", name="Allow once").click()
    asked = card(page, "Look at it first")
    expect(asked).to_contain_text("A page of example.com")
    expect(asked).to_contain_text("https://example.com/preview?id=7")
    with context.expect_page() as opened:
        asked.get_by_role("button", name="Open the page").click()
    opened.value.wait_for_url("https://example.com/preview?id=7")
    assert opened.value.evaluate("[window.opener, document.referrer]") == [None, ""]
    assert json.loads(text_of(call.result(30)))["action"] == "accept"
    expect(asked).to_have_count(0)
    declined = program.call("publish")
    card(page, "wants to run publish").get_by_role("button", name="Allow once").click()
    asked.get_by_role("button", name="Decline").click()
    assert json.loads(text_of(declined.result(30)))["action"] == "decline"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_on_any_page(page: Any, program: Program, theme: str) -> None:
    waiting = [program.call("write_file", path="/axe", content="x\n" * 400, timeout=120), program.call("plan_trip")]
    card(page, "wants to run plan_trip").get_by_role("button", name="Allow once").click()
    expect(card(page, "Which train")).to_be_visible()
    page.emulate_media(color_scheme=theme)
    found = {}
    for path in (*PAGES, "/nowhere"):
        page.goto(f"{origin(program)}{path}")
        page.locator("main:not([hidden])").wait_for()
        found[path] = axe(page)
    page.goto(origin(program))
    page.locator(".settings summary").click()
    found["settings"] = axe(page)
    stranger = page.context.browser.new_context(color_scheme=theme).new_page()
    stranger.goto(origin(program))
    stranger.locator("main:not([hidden])").wait_for()
    found["without a session"] = axe(stranger)
    stranger.context.close()
    card(page, "/axe").get_by_role("button", name="Deny").click()
    card(page, "Which train").get_by_role("button", name="Decline").click()
    for each in waiting:
        each.exception(30)
    assert {path: faults for path, faults in found.items() if faults} == {}


def test_everything_fits_on_a_phone(page: Any, program: Program) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    call = program.call("write_file", path="/phone/" + "very-long-name" * 20, content="x", timeout=120)
    expect(card(page, "/phone/")).to_be_visible()
    for path in PAGES:
        page.goto(f"{origin(program)}{path}")
        page.locator("main:not([hidden])").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    page.goto(origin(program))
    card(page, "/phone/").get_by_role("button", name="Allow once").click()
    call.result(30)


@pytest.mark.parametrize("width", [1280, 390])
def test_no_word_of_a_table_is_broken_and_no_part_of_the_frame_is_cut(page: Any, program: Program, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    for path, answer in (("/a", "Deny"), ("/b", "Allow once")):
        call = program.call("write_file", path=path + "/reasonable/name/of/a/folder" * 4, content="x " * 200)
        card(page, f"{path}/reasonable").get_by_role("button", name=answer).click()
        call.exception(30)
    page.goto(f"{origin(program)}/calls")
    row = page.locator("tbody tr", has_text="write_file")
    expect(row.nth(1)).to_contain_text("refused")
    row.nth(0).locator("summary").click()
    lines = "(all) => all.map((each) => [each.textContent, each.getClientRects().length]).filter((each) => each[1] > 1)"
    assert page.locator("tbody strong, tbody .state, tbody time, th").evaluate_all(lines) == []
    agents = page.locator("tbody td:nth-child(2)")
    assert agents.evaluate_all("(all) => all.filter((each) => each.scrollWidth > each.clientWidth).length") == 0
    aligned = "(all) => new Set(all.map((each) => getComputedStyle(each).textAlign.replace('start', 'left'))).size"
    assert page.locator("thead th, tbody td").evaluate_all(aligned) == 1
    settings, main = page.locator(".settings summary").bounding_box(), page.locator("main").bounding_box()
    padding = page.locator("header").evaluate("(header) => parseFloat(getComputedStyle(header).paddingRight)")
    assert settings["x"] + settings["width"] == pytest.approx(main["x"] + main["width"] - padding, abs=1)
    page.locator(".settings summary").click()
    for part in (*page.locator("nav a").all(), page.locator(".settings button").last):
        box = part.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width


def test_a_request_is_answered_with_the_keyboard_alone(page: Any, program: Program) -> None:
    call = program.call("write_file", path="/keys", content="x")
    expect(card(page, "/keys")).to_be_visible()
    expect(page.locator("#announcements")).to_contain_text("planner wants to run write_file")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Allow once":
            break
    page.keyboard.press("Enter")
    assert "characters written" in text_of(call.result(30))


def test_the_pages_are_in_chinese_if_that_is_chosen(page: Any, program: Program) -> None:
    page.locator(".settings summary").click()
    page.get_by_label("Language").select_option("中文")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("html")).to_have_attribute("lang", "zh")
    call = program.call("write_file", path="/中文", content="你好\n第二行")
    asked = card(page, "/中文")
    expect(asked).to_contain_text("planner 请求运行 files 的 write_file")
    asked.get_by_role("button", name="允许一次").click()
    assert "characters written" in text_of(call.result(30))
    page.locator(".settings summary").click()
    page.get_by_label("外观").select_option("dark")
    page.get_by_role("button", name="保存").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert page.evaluate("getComputedStyle(document.body.parentElement).backgroundColor") == "rgb(20, 22, 27)"


def test_a_session_that_is_over_says_so_and_answers_nothing(chromium: Any, tmp_path: Path) -> None:
    program = Program(tmp_path, {"files": of_kind("files")}, "--no-input", "--console-session", "6s")
    try:
        context = chromium.new_context()
        page = open_session(context, program)
        watched(page)
        expect(page.get_by_role("alertdialog")).to_contain_text("This session has ended")
        expect(page.locator("#connection")).to_have_text("This session has ended")
        page.goto(origin(program))
        expect(page.get_by_role("button", name="Show a new link on the terminal")).to_be_visible()
        context.close()
    finally:
        program.close()
    assert until(lambda: "stopped" in (tmp_path / "errors").read_text(), "the end")
