"""Other programs of this machine, to which a browser with a session of a console is sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Program, origin
from tests.browser.operator_server import MEMBERS, Member, Server, opened, sign_in
from tests.stage.other_port import OtherPort, other_port

ATTACKS = """<!doctype html><title>attack</title><body><script>
const victim = %(victim)s, path = %(path)s, form = new URLSearchParams(%(form)s)
const tried = [
  fetch(victim + '/', { credentials: 'include' }).then((answer) => answer.text()),
  fetch(victim + path, { method: 'POST', body: form, credentials: 'include', mode: 'no-cors' }),
  fetch(victim + path, { method: 'POST', body: form, credentials: 'include', headers: { 'X-A2C-Session': '' } }),
  new Promise((resolve) => {
    const frame = document.createElement('iframe')
    frame.name = 'sent'
    frame.onload = resolve
    document.body.append(frame)
    const sent = document.createElement('form')
    Object.assign(sent, { method: 'post', action: victim + path, target: 'sent' })
    for (const [name, value] of form) sent.append(Object.assign(document.createElement('input'), { name, value }))
    document.body.append(sent)
    sent.submit()
  }),
]
document.body.dataset.mine = JSON.stringify(localStorage)
Promise.allSettled(tried).then(() => { document.title = 'tried' })
</script>"""
"""What a page of another port can try: to read, to send forms by script and by navigation, to use its own storage."""


LEAVES_A_WORKER = """<!doctype html><title>attack</title><script>
navigator.serviceWorker.register('/script.js').then(() => navigator.serviceWorker.ready).then(() => {
  document.title = 'left'
})
</script>"""
WORKER = """
addEventListener('install', () => skipWaiting())
addEventListener('activate', (event) => event.waitUntil(clients.claim()))
addEventListener('fetch', (event) => event.respondWith(new Response(`stolen: ${event.request.url}`)))
"""
"""A service worker answers whatever the browser asks its address for, before any program there is asked."""


def attack(page: Any, other: OtherPort, victim: str, path: str, form: dict[str, str]) -> None:
    """The browser is sent to the other port as a program sends it: by nobody's link."""
    sent = {"victim": victim, "path": path, "form": form}
    other.page = ATTACKS % {name: json.dumps(value) for name, value in sent.items()}
    page.goto(f"{other.url}{path}")
    expect(page).to_have_title("tried")
    assert page.evaluate("document.body.dataset.mine") == "{}"
    page.goto(f"{victim}{path}?{'&'.join(f'{name}={value}' for name, value in form.items())}")
    page.locator("main:not([hidden])").wait_for()


def assert_none_has_the_secret(page: Any, other: OtherPort) -> None:
    secret = str(page.evaluate("Object.values(localStorage).join()"))
    assert len(secret) > 20
    assert secret not in json.dumps(other.seen)


@pytest.mark.covers("other-ports")
@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
def test_what_another_port_of_this_machine_is_sent_opens_nothing_of_the_owner(
    context: Any, page: Any, program: Program, host: str
) -> None:
    call = program.call("write_file", path=f"/other-port/{host}", content="x", timeout=120)
    card = page.locator(".request", has_text=f"/other-port/{host}")
    expect(card).to_be_visible()
    number = card.locator("input[name=number]").first.get_attribute("value")
    form = {"number": str(number), "decision": "yes"}
    with other_port(host) as other:
        attack(context.new_page(), other, origin(program), "/requests/decide", form)
        assert other.seen
        for path in ("/", "/tools", "/live?page=/"):
            for _, shown in other.replay(origin(program), path):
                assert "write_file" not in shown
        assert {status for status, _ in other.replay(origin(program), "/requests/decide", form)} == {401}
        assert_none_has_the_secret(page, other)
    expect(card).to_be_visible()
    card.get_by_role("button", name="Deny").click()
    call.exception(60)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    MEMBERS.close()
    server.close()


@pytest.mark.covers("other-ports")
def test_what_another_port_of_this_machine_is_sent_opens_nothing_of_the_operator(chromium: Any, server: Server) -> None:
    laptop = Member(server.url, "computer", "laptop", "desk")
    context = chromium.new_context()
    page = context.new_page()
    sign_in(page, server)
    opened(page, server, "/members")
    page.locator("tr", has_text="laptop").wait_for()
    form = {"id": str(page.locator("tr:has-text('laptop') input[name=id]").get_attribute("value"))}
    with other_port() as other:
        attack(context.new_page(), other, server.url, "/console/disconnect", form)
        assert other.seen
        for path in ("/console/members", "/console/keys", "/console/live?page=/members"):
            for _, shown in other.replay(server.url, path):
                assert "laptop" not in shown
                assert "Revoke" not in shown
        assert {status for status, _ in other.replay(server.url, "/console/disconnect", form)} == {401}
        assert_none_has_the_secret(page, other)
    page.reload()
    page.locator("tr", has_text="laptop").wait_for()
    laptop.socket.ping()
    context.close()


def test_a_session_is_one_for_all_tabs_and_windows_and_ends_in_all_of_them(
    context: Any, page: Any, program: Program
) -> None:
    """A link in a new tab, a reload, the address typed into another window, a way back."""
    with context.expect_page() as new:
        page.get_by_role("link", name="Tools", exact=True).click(modifiers=["ControlOrMeta"])
    expect(new.value.locator("#tools")).to_contain_text("write_file")
    new.value.reload()
    expect(new.value.locator("#tools")).to_contain_text("write_file")
    other = context.new_page()
    other.goto(f"{origin(program)}/calls")
    expect(other.get_by_role("heading", level=1)).to_have_text("Calls")
    other.get_by_role("link", name="Servers", exact=True).click()
    expect(other.get_by_role("heading", level=1)).to_have_text("MCP servers")
    other.go_back()
    expect(other.get_by_role("heading", level=1)).to_have_text("Calls")
    other.locator(".settings summary").click()
    other.get_by_role("button", name="Sign out").click()
    expect(other.get_by_role("heading", level=1)).to_have_text("Sign in")
    for tab in (page, new.value):
        expect(tab.get_by_role("alertdialog")).to_contain_text("This session has ended")
    assert other.evaluate("Object.values(localStorage).join()") == ""


@pytest.mark.covers("console-origin")
def test_what_a_former_program_of_the_port_has_left_in_the_browser_reads_no_link(chromium: Any, tmp_path: Path) -> None:
    browser = chromium.new_context()
    page = browser.new_page()
    with other_port() as former:
        former.page, former.script = LEAVES_A_WORKER, WORKER
        page.goto(former.url)
        expect(page).to_have_title("left")
    page.goto(former.url)
    assert "stolen" in page.content()
    program = Program(tmp_path, {}, "--no-input", "--console-port", former.url.rpartition(":")[2])
    try:
        page.goto(program.link())
        page.locator("#connection[data-state=live]").wait_for()
    finally:
        program.close()
        browser.close()
