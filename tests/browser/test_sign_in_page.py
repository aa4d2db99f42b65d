"""The page on which people sign in MCP clients, in a real browser."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

from a2c_smcp.loops import BackgroundLoop
from tests.browser.conftest import PATIENCE, axe, watched
from tests.browser.operator_server import CLIENT, MEMBERS, Member, Server
from tests.stage.mcp_clients import ask
from tests.stage.other_port import OtherPort, other_port
from tests.stage.signing_in import RawClient

pytestmark = pytest.mark.covers("mcp-sign-in")

_CLIENT = BackgroundLoop("client")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path, "--mcp", "--sign-in")
    Member(server.url, "computer", "laptop", "desk")
    yield server
    MEMBERS.close()
    server.close()


@pytest.fixture
def other() -> Iterator[OtherPort]:
    with other_port() as other:
        yield other


def done(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of what a client does meanwhile: the browser has this thread's event loop."""
    return _CLIENT.submit(work).result(PATIENCE)


def registered(server: Server, other: OtherPort) -> RawClient:
    client = RawClient(server.url, redirect=f"{other.url}/callback")
    done(client.register(client_name="An assistant"))
    return client


@pytest.mark.parametrize(
    ("locale", "go_on", "allow", "shown"),
    [("en-GB", "Go on", "Allow", "a program on this computer"), ("zh-CN", "继续", "允许", "这台计算机上的程序")],
)
def test_a_person_signs_a_client_in(
    chromium: Any, server: Server, other: OtherPort, locale: str, go_on: str, allow: str, shown: str
) -> None:
    client = registered(server, other)
    context = chromium.new_context(locale=locale, viewport={"width": 390, "height": 800})
    page = context.new_page()
    broken = watched(page)
    page.goto(client.address())
    for text in ("An assistant", "desk", shown):
        expect(page.locator("main")).to_contain_text(text)
    assert axe(page) == []
    page.fill("input[name=credential]", "not-a-key-of-this-server")
    page.get_by_role("button", name=go_on).click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.fill("input[name=credential]", CLIENT)
    page.get_by_role("button", name=go_on).click()
    expect(page.locator("main")).to_contain_text("laptop")
    assert axe(page) == []
    assert page.evaluate("document.cookie") == ""
    page.get_by_role("button", name=allow).click()
    page.wait_for_url(f"{client.redirect}?**")
    assert broken == []
    code = parse_qs(urlsplit(page.url).query)["code"][0]
    tokens = done(client.exchange(code)).json
    assert done(ask(server.url, tokens["access_token"]))[0] == 200
    page.goto(client.address())
    expect(page.get_by_role("button")).to_have_count(0)
    context.close()


def test_no_page_shows_it_in_a_frame_and_no_page_sends_its_form(
    chromium: Any, server: Server, other: OtherPort
) -> None:
    client = registered(server, other)
    other.page = f"<!doctype html><title>attack</title><iframe src='{client.address()}'></iframe>"
    page = chromium.new_page()
    page.goto(f"{other.url}/attack")
    assert all("credential" not in frame.content() for frame in page.frames)
    own = chromium.new_page()
    own.goto(client.address())
    sealed = own.input_value("input[name=shown]")
    other.page = f"""<!doctype html><title>attack</title>
<form method="post" action="{server.url}/sign-in/authorize"><input name="shown" value="{sealed}">
<input name="credential" value="{CLIENT}"><button>x</button></form>"""
    page.goto(f"{other.url}/attack")
    with page.expect_response("**/sign-in/authorize") as answered:
        page.get_by_role("button").click()
    assert answered.value.status == 400
    page.close()
    own.close()
