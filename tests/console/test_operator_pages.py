"""The operator's pages, without a browser: offices, members, calls, refusals and keys of a real Server."""

from __future__ import annotations

import asyncio
import json
import re
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from a2c_smcp.console.operator.console import OperatorConsole
from a2c_smcp.server import DefaultAuthenticationProvider, SignIn
from a2c_smcp.server.auth.authorization import Client, CodeRequest
from a2c_smcp.server.http_requests import CONSOLE_PATH
from tests.console.browserless import Visitor
from tests.waiting import until_it_goes

ADMIN, CLIENT = "operator-0123456789", "client-key-0123456789"
HOSTILE = "<img src=x>"


@pytest.fixture
async def visitor(serve: Callable[..., Any], connect: Callable[..., Any], tmp_path: Path) -> AsyncIterator[Visitor]:
    """An operator who has signed in. In the office `desk`, a call has ended, one runs, and one was refused."""
    keys = tmp_path / "keys.json"
    keys.write_text("{}")
    keys.chmod(0o600)
    hub = await serve(admin_key=ADMIN, auth=DefaultAuthenticationProvider([CLIENT], keys))
    computer, agent = [await connect(hub, auth={"token": CLIENT}) for _ in range(2)]
    await computer.join("computer", HOSTILE, "desk")
    await agent.join("agent", "planner", "desk")
    computer.answers("client:tool_call", lambda call: {"content": [], "isError": False})
    await agent.call_tool(HOSTILE, "ended")
    await agent.call_tool("absent", "refused")
    never = asyncio.Event()
    computer.answers("client:tool_call", lambda call: never.wait())
    running = asyncio.create_task(agent.call_tool(HOSTILE, "running", timeout=60))
    await computer.was_asked("client:tool_call", times=2)
    visitor = Visitor(OperatorConsole(hub.app.operations, hub.app.admin_access))
    await visitor.act(f"{CONSOLE_PATH}/sign-in", key=ADMIN)
    yield visitor
    running.cancel()


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/", ["Calls in flight", "this Server", "15 minutes", 'class="key failed">failed<']),
        ("/offices", ["desk", "planner"]),
        ("/office?id=desk", ["planner", 'name="id" value="desk"', "Disconnect"]),
        ("/office?id=other", ["There is no such member."]),
        ("/members", ["planner", "Disconnect"]),
        ("/office?id=desk", ["<h1>Office: desk</h1>", "<title>Office: desk"]),
        (f"/office?id={quote(HOSTILE)}", ["Office: &lt;img src=x&gt;"]),
        ("/offices?search=nothing", ["Nothing matches."]),
        ("/members?search=nothing", ["Nothing matches."]),
        ("/calls", ["running", "ended"]),
        ("/calls?search=nothing", ["Nothing matches."]),
        ("/refusals?search=nothing", ["Nothing matches."]),
        ("/calls?search=", ["running", "ended"]),
        ("/keys", ["given with --api-key", "Make a key"]),
    ],
)
async def test_every_page_shows_the_server_and_no_markup_of_a_peer(
    visitor: Visitor, path: str, shown: list[str]
) -> None:
    page = await visitor.get(f"{CONSOLE_PATH}{path}")
    assert page.status == 200
    assert [text for text in shown if text not in page.body] == []
    assert HOSTILE not in page.body
    assert "search=nothing" not in path or "No call" not in page.body


async def test_a_key_is_made_replaced_and_revoked(visitor: Visitor) -> None:
    keys = f"{CONSOLE_PATH}/keys"

    async def ids() -> list[str]:
        page = (await visitor.get(keys)).body
        return re.findall(r'data-key="key-([^"]+)".{0,200}?<strong>carol<', page)

    form = {"principal": " carol ", "offices": "desk, lab*", "days": "1"}
    made = await visitor.act(f"{keys}/create", **form)
    assert "new-key-value" in (await visitor.get(json.loads(made.body)["goes_to"])).body
    [key] = await ids()
    assert "desk, lab*" in (await visitor.get(keys)).body
    assert (await visitor.act(f"{keys}/rotate", id=key)).status == 200
    new = {*await ids()} - {key}
    assert len(new) == 1
    for number, action in enumerate(("expire", "revoke")):
        assert (await visitor.act(f"{keys}/{action}", id=[key, *new][number])).status == 204
    assert await ids() == [key]


@pytest.mark.covers("mcp-sign-in")
async def test_a_link_is_made_and_a_grant_is_listed_and_revoked(serve: Callable[..., Any]) -> None:
    settings = {"admin_key": ADMIN, "auth": DefaultAuthenticationProvider(CLIENT)}
    hub = await serve(**settings, sign_in=SignIn(public_url="https://hub.example"))
    visitor, keys = Visitor(OperatorConsole(hub.app.operations, hub.app.admin_access)), f"{CONSOLE_PATH}/keys"
    await visitor.act(f"{CONSOLE_PATH}/sign-in", key=ADMIN)
    assert "No MCP client is signed in." in (await visitor.get(keys)).body
    made = await visitor.act(f"{keys}/link", principal="guest", office="desk")
    page = (await visitor.get(json.loads(made.body)["goes_to"])).body
    link = re.search(r"https://hub.example/sign-in#(\S+?)<", page)
    assert link
    grants, verifier, redirect = hub.app.grants, "v" * 43, "https://client.example/back"
    client = Client("client-1", HOSTILE, (redirect,))
    challenge = urlsafe_b64encode(sha256(verifier.encode()).digest()).decode().rstrip("=")
    holder = (await grants.link(link[1])).person
    code = await grants.new_code(CodeRequest(client.id, redirect, challenge, "desk"), client, holder)
    form = {"code": code, "client_id": client.id, "redirect_uri": redirect, "code_verifier": verifier}
    await grants.exchange(form, "desk")
    page = (await visitor.get(keys)).body
    assert HOSTILE not in page
    found = re.search(r'data-key="(grant-[0-9a-f]+)".{0,200}?<strong>guest<', page)
    assert found
    assert (await visitor.act(f"{keys}/revoke", id=found[1])).status == 204
    assert "No MCP client is signed in." in (await visitor.get(keys)).body


async def test_a_member_is_disconnected(visitor: Visitor) -> None:
    members = f"{CONSOLE_PATH}/members"
    [member] = re.findall(r'data-key="member-(\w+)-desk"[^/]*<strong>planner<', (await visitor.get(members)).body)
    assert (await visitor.act(f"{CONSOLE_PATH}/disconnect", id=member)).status == 204

    async def gone() -> None:
        assert "planner" not in (await visitor.get(members)).body

    await until_it_goes(gone)


@pytest.mark.covers("freeze")
async def test_the_red_button_freezes_and_every_page_says_so_until_it_is_thawed(visitor: Visitor) -> None:
    office = f"{CONSOLE_PATH}/office?id=desk"
    assert "Freeze this office" in (await visitor.get(office)).body
    assert "Freeze the whole Server" in (await visitor.get(f"{CONSOLE_PATH}/")).body
    done = await visitor.act(f"{CONSOLE_PATH}/freeze", office="desk", reason=HOSTILE)
    assert "a restart of the Server ends" in done.body, "this one has no folder for its state"
    await visitor.act(f"{CONSOLE_PATH}/freeze", office="desk", computer=HOSTILE)
    for path in ("/", "/offices", "/members", "/calls", "/refusals", "/keys", "/office?id=other"):
        page = (await visitor.get(f"{CONSOLE_PATH}{path}")).body
        assert "Office desk is frozen." in page
        assert "of office desk is frozen." in page
        assert HOSTILE not in page
    assert 'class="state bad">frozen<' in (await visitor.get(office)).body
    for form in ({"office": "desk"}, {"office": "desk", "computer": HOSTILE}):
        await visitor.act(f"{CONSOLE_PATH}/thaw", **form)
    assert "is frozen." not in (await visitor.get(office)).body


@pytest.mark.covers("freeze")
async def test_a_form_that_names_nothing_freezes_nothing(visitor: Visitor) -> None:
    assert (await visitor.act(f"{CONSOLE_PATH}/freeze", reason="x")).status == 400
    await visitor.act(f"{CONSOLE_PATH}/freeze", all="1")
    assert "The whole Server is frozen." in (await visitor.get(f"{CONSOLE_PATH}/keys")).body
