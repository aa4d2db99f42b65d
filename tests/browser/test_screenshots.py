"""The pictures of the consoles in the documentation: `make screenshots` renews them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from a2c_smcp.loops import BackgroundLoop
from tests.browser.conftest import Program, of_kind, open_session, origin, until
from tests.browser.operator_server import CLIENT, MEMBERS, Member, Server, opened, sign_in
from tests.stage.signing_in import RawClient

IMAGES = Path(__file__).parents[2] / "docs/images"
WIDE, PHONE = {"width": 1100, "height": 820}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def images(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pictures go: into the documentation if that was asked for."""
    folder = tmp_path_factory.mktemp("images")
    if request.config.getoption("--screenshots"):
        fonts = subprocess.run(["fc-list", ":lang=zh"], capture_output=True, check=True, timeout=60).stdout
        assert fonts, "no font has Chinese characters: `apt install fonts-wqy-microhei`"
        folder = IMAGES
    (folder / "console").mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A computer with some calls behind it, and with a request and a question that wait."""
    servers = {
        "files": of_kind("files", tool_meta={"read_file": {"auto_apply": True}, "plan_trip": {"auto_apply": True}}),
        "mail": {"type": "stdio", "server_parameters": {"command": "mail-server", "args": []}},
    }
    program = Program(tmp_path_factory.mktemp("busy"), servers, "--no-input")
    try:
        until(lambda: program.said("files: ready"), "the tools")
        for path in ("/notes/trips.txt", "/notes/today.txt"):
            program.call("read_file", path=path).result(60)
        program.call("write_file", path="/notes/kyoto.txt", content="Kyoto, Friday\n2 seats, quiet zone", timeout=300)
        program.call("plan_trip", timeout=300)
        yield program
    finally:
        program.close()


def picture(page: Any, file: Path, *, tall: bool = False) -> None:
    """The page as it is. For all of a `tall` one the window is as high as the page: its header stays at the top."""
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    if tall:
        height = page.evaluate("document.documentElement.scrollHeight")
        page.set_viewport_size({"width": page.viewport_size["width"], "height": height})
    page.mouse.move(0, 0)
    page.screenshot(path=file)
    assert file.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("name", "path", "look"),
    [
        ("requests", "/", {}),
        ("servers", "/servers", {}),
        ("tools", "/tools", {}),
        ("calls", "/calls", {}),
        ("requests-dark", "/", {"color_scheme": "dark"}),
        ("requests-phone-zh", "/", {"viewport": PHONE, "locale": "zh-CN"}),
    ],
)
def test_pages_of_an_owner(
    chromium: Any, busy: Program, images: Path, name: str, path: str, look: dict[str, Any]
) -> None:
    context = chromium.new_context(**{"viewport": WIDE, "locale": "en-GB", **look})
    page = open_session(context, busy)
    page.goto(f"{origin(busy)}{path}")
    if path == "/":
        expect(page.locator(".request")).to_have_count(2)
    picture(page, images / "console" / f"{name}.png", tall=name == "requests")
    context.close()


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Server with some offices, in which calls have ended well and badly, and some run."""
    server = Server(tmp_path_factory.mktemp("office"))
    for number, office in enumerate(("design", "finance", "support"), 1):
        planner = Member(server.url, "agent", f"planner-{number}", office)
        computers = [Member(server.url, "computer", f"{kind}-{number}", office) for kind in ("laptop", "desktop")]
        for call in range(30):
            computer = computers[call % 2]
            call_tool(planner, computer, f"r{call}", is_error=call % (3 * number + 1) == 0)
        call_tool(planner, computers[0], "running", answer=False)
    yield server
    server.close()


def call_tool(planner: Member, computer: Member, req_id: str, *, is_error: bool = False, answer: bool = True) -> None:
    call = {"agent": planner.name, "req_id": req_id, "computer": computer.name, "tool_name": "read_file"}
    planner.emit("client:tool_call", 2, **call, params={"path": "/notes"}, timeout=60)
    number = re.match(r"42/smcp,(\d+)", computer.hears(f'"{req_id}"'))
    assert number
    if answer:
        content = [{"type": "text", "text": f"{req_id} is done"}]
        computer.socket.send(f"43/smcp,{number[1]}" + json.dumps([{"content": content, "isError": is_error}]))
        planner.hears(f"{req_id} is done")


@pytest.mark.parametrize(
    ("name", "path", "shown"), [("overview", "/", "#troubled tr"), ("calls", "/calls", "#ended tr")]
)
def test_pages_of_an_operator(chromium: Any, office: Server, images: Path, name: str, path: str, shown: str) -> None:
    context = chromium.new_context(viewport={"width": 1280, "height": 860}, locale="en-GB")
    page = context.new_page()
    sign_in(page, office)
    opened(page, office, path)
    page.locator(shown).first.wait_for()
    picture(page, images / f"console-{name}.png")
    context.close()


def test_pages_on_which_a_client_signs_in(chromium: Any, images: Path, tmp_path: Path) -> None:
    server = Server(tmp_path, "--mcp", "--sign-in")
    Member(server.url, "computer", "laptop", "desk")
    client, loop = RawClient(server.url), BackgroundLoop("client")
    loop.submit(client.register(client_name="An assistant")).result(60)
    context = chromium.new_context(viewport={"width": 1280, "height": 720}, locale="en-GB")
    page = context.new_page()
    page.goto(client.address())
    page.screenshot(path=images / "sign-in.png")
    page.fill("input[name=credential]", CLIENT)
    page.get_by_role("button", name="Go on").click()
    page.get_by_role("button", name="Allow").wait_for()
    expect(page.locator("main")).to_contain_text("laptop")
    page.screenshot(path=images / "sign-in-consent.png")
    context.close()
    MEMBERS.close()
    server.close()
