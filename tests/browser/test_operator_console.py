"""The operator's console in a real Chromium: sign-in, live updates, steering, hostile names, both themes, a phone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.browser.conftest import watched

ROOT = Path(__file__).parents[2]
AXE = ROOT / ".cache/browser/node_modules/axe-core/axe.min.js"
PROGRAM = Path(sys.executable).with_name("a2c-smcp")
ADMIN, CLIENT = "operator-0123456789", "client-key-0123456789"
SECONDS = 60_000
"""A bound against hanging in milliseconds, nothing that is measured."""

PAGES = ("/", "/offices", "/members", "/calls", "/refusals", "/keys", "/office?id=desk")
HOSTILE = "<img src=x onerror=window.hit=1>"
"""What is tried in every field that a peer can set."""


MEMBERS = ExitStack()
"""Their connections, which are closed before the Server ends."""


class Member:
    """A client that speaks Socket.IO by hand."""

    def __init__(self, url: str, role: str, name: str, office: str) -> None:
        self.name = name
        address = f"{url.replace('http', 'ws')}/socket.io/?EIO=4&transport=websocket&a2c_version=0.4"
        self.socket: ClientConnection = MEMBERS.enter_context(connect(address))
        self.socket.recv()
        self.socket.send("40/smcp," + json.dumps({"token": CLIENT}))
        self.socket.recv()
        self.emit("server:join_office", role=role, name=name, office_id=office)
        self.socket.recv()

    def emit(self, event: str, number: int = 1, **payload: Any) -> None:
        self.socket.send(f"42/smcp,{number}" + json.dumps([event, payload]))

    def hears(self, words: str) -> str:
        while words not in (message := str(self.socket.recv())):
            if message == "2":
                self.socket.send("3")
        return message


class Server:
    """`a2c-smcp server --console`."""

    def __init__(self, folder: Path) -> None:
        self.keys = folder / "keys.json"
        self.keys.write_text("{}")
        env = {name: value for name, value in os.environ.items() if not name.startswith("A2C_")}
        env |= {"A2C_SERVER_ADMIN_KEY": ADMIN, "A2C_SERVER_API_KEY": CLIENT, "PYTHONUNBUFFERED": "1"}
        options = ["--port", "0", "--keys-file", str(self.keys), "--console", "--log-level", "error"]
        self.process = subprocess.Popen([PROGRAM, "server", *options], env=env, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        self.url = self.process.stdout.readline().split()[-1]
        self.console = self.process.stdout.readline().split()[-1].rstrip("/")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        assert self.process.stdout
        self.process.stdout.close()


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


def sign_in(page: Any, server: Server, key: str = ADMIN) -> None:
    page.goto(f"{server.console}/")
    page.fill("input[name=key]", key)
    page.click("button.main")


def opened(page: Any, server: Server, path: str) -> None:
    page.goto(f"{server.console}{path}")
    page.wait_for_selector("#connection[data-state=live]")


def test_only_the_admin_key_signs_in_and_the_session_ends_with_sign_out(chromium: Any, server: Server) -> None:
    context = chromium.new_context()
    page = context.new_page()
    sign_in(page, server, CLIENT)
    page.wait_for_selector("[role=alert]:visible")
    sign_in(page, server)
    page.wait_for_selector(".tiles")
    (cookie,) = [each for each in context.cookies() if each["name"] == "a2c_operator"]
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/console")
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
    page.wait_for_selector("text=There is no such member.")


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
    page.wait_for_selector("#ended tr:has-text('read_file') >> text=tool_error")
    opened(page, server, "/")
    page.wait_for_selector("#troubled tr:has-text('tablet') >> text=tool_error")
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
    faults = {"sign-in": _faults(page)}
    sign_in(page, server)
    for path in PAGES:
        opened(page, server, path)
        faults[path] = _faults(page)
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


def test_nothing_but_our_own_files_may_run(page: Any, server: Server) -> None:
    answer = page.goto(f"{server.console}/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert page.evaluate("document.querySelectorAll('script:not([src]), [style], [onclick]').length") == 0


def test_a_session_that_is_over_says_so(page: Any, server: Server) -> None:
    opened(page, server, "/")
    page.context.clear_cookies()
    page.evaluate("fetch(document.body.dataset.sessionUrl).then(answer => { window.status_ = answer.status })")
    page.wait_for_function("window.status_ === 401")
    page.goto(f"{server.console}/keys")
    page.wait_for_selector("input[name=key]")


def _faults(page: Any) -> list[str]:
    page.add_script_tag(path=str(AXE))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in found]
