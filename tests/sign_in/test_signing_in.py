"""A person signs in: by himself, by hand, from another machine; and what may be wrong with the provider."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from a2c_smcp.computer import SignInFailed
from a2c_smcp.computer.computer import Computer
from a2c_smcp.mcp_host.sign_in.addresses import check_address
from tests.sign_in.authorization_server import AuthorizationServer
from tests.sign_in.conftest import Browser, call, text_of
from tests.sign_in.guarded_server import GuardedServer
from tests.sign_in.served import served
from tests.waiting import until

pytestmark = pytest.mark.covers("9-sign-in")

Meet = Callable[..., Any]


def state_of(computer: Computer, name: str = "files") -> tuple[str, str]:
    status = computer.status()[name]
    return status.state, status.reason


async def test_a_server_that_wants_a_sign_in_begins_it_by_itself_where_a_browser_can_be_opened(
    guarded: GuardedServer, browser: Browser, meet: Meet
) -> None:
    computer = await meet(guarded.mcp_url, open_url=browser)
    assert state_of(computer) == ("ready", "")
    assert text_of(await call(computer, "add", a=1, b=2)) == "3"
    asked = parse_qs(urlsplit(browser.opened[0]).query)
    assert asked["resource"] == [guarded.mcp_url]
    assert asked["code_challenge_method"] == ["S256"]
    assert asked["scope"] == ["basic"]
    assert len(browser.opened) == 1
    await until(lambda: browser.pages)
    assert "You can close this window" in browser.pages[0]
    assert guarded.provider.problems == []


async def test_without_a_browser_it_waits_and_says_what_to_type(guarded: GuardedServer, meet: Meet) -> None:
    computer = await meet(guarded.mcp_url)
    state, reason = state_of(computer)
    assert state == "auth_required"
    assert reason.endswith("sign in with: a2c-smcp login files")
    assert guarded.provider.requests == []


async def test_the_owner_signs_in_by_hand_and_the_server_starts(
    guarded: GuardedServer, browser: Browser, meet: Meet
) -> None:
    computer = await meet(guarded.mcp_url)
    await computer.sign_in("files", open_url=browser)
    assert state_of(computer) == ("ready", "")
    assert text_of(await call(computer, "add", a=1, b=2)) == "3"


async def test_the_server_need_not_have_been_started(guarded: GuardedServer, browser: Browser, tmp_path: Path) -> None:
    computer = Computer("mine", state_folder=tmp_path)
    computer.add_server({"name": "files", "url": guarded.mcp_url})
    async with computer:
        await computer.sign_in("files", open_url=browser)
        assert computer.status()["files"].state == "stopped"
        await computer.start()
        assert state_of(computer) == ("ready", "")


async def test_tokens_are_there_after_a_restart(
    guarded: GuardedServer, browser: Browser, meet: Meet, tmp_path: Path
) -> None:
    computer = Computer("mine", state_folder=tmp_path / "state", open_url=browser)
    computer.add_server({"name": "files", "url": guarded.mcp_url})
    async with computer:
        await computer.start()
    later = await meet(guarded.mcp_url)
    assert state_of(later) == ("ready", "")
    assert len(browser.opened) == 1


async def test_the_address_of_the_way_back_can_be_pasted(guarded: GuardedServer, meet: Meet) -> None:
    async def on_another_machine(url: str) -> str:
        async with httpx2.AsyncClient(trust_env=False) as client:
            page = await client.get(url)
        return f"  {page.headers['location']}\n"

    computer = await meet(guarded.mcp_url)
    await computer.sign_in("files", paste_redirect=on_another_machine)
    assert state_of(computer) == ("ready", "")


@pytest.mark.parametrize("pasted", ["", "yes", "http://127.0.0.1:1/callback?code=abc&state=mine"])
async def test_what_is_not_the_way_back_is_refused(guarded: GuardedServer, meet: Meet, pasted: str) -> None:
    computer = await meet(guarded.mcp_url)
    with pytest.raises(SignInFailed, match="what was pasted is not the address"):
        await computer.sign_in("files", paste_redirect=lambda url: pasted)
    assert state_of(computer)[0] == "auth_required"
    assert guarded.provider.seen("token") == []


async def test_the_older_transport_signs_in_too(guarded: GuardedServer, browser: Browser, meet: Meet) -> None:
    computer = await meet(guarded.sse_url, open_url=browser)
    assert state_of(computer) == ("ready", "")
    assert text_of(await call(computer, "add", a=1, b=2)) == "3"
    assert parse_qs(urlsplit(browser.opened[0]).query)["resource"] == [guarded.sse_url]


@pytest.mark.parametrize(
    ("path", "well_known"),
    [
        ("", "/.well-known/openid-configuration"),
        ("/tenant", "/.well-known/oauth-authorization-server/tenant"),
        ("/tenant", "/.well-known/openid-configuration/tenant"),
        ("/tenant", "/tenant/.well-known/openid-configuration"),
    ],
)
async def test_every_place_of_the_discovery_document_is_found(
    browser: Browser, meet: Meet, path: str, well_known: str
) -> None:
    provider = AuthorizationServer(path)
    provider.well_known = (well_known,)
    async with served(provider.app), GuardedServer(provider).running() as guarded:
        computer = await meet(guarded.mcp_url, open_url=browser)
        assert state_of(computer) == ("ready", "")


@pytest.mark.parametrize("challenges", [True, False])
async def test_a_server_that_says_nothing_of_its_provider_is_looked_up_by_rule(
    guarded: GuardedServer, browser: Browser, meet: Meet, challenges: bool
) -> None:
    guarded.challenges = challenges
    computer = await meet(guarded.mcp_url, open_url=browser)
    assert state_of(computer) == ("ready", "")


async def test_a_server_without_a_provider_is_told_apart(guarded: GuardedServer, browser: Browser, meet: Meet) -> None:
    guarded.has_metadata = guarded.challenges = False
    computer = await meet(guarded.mcp_url, open_url=browser)
    state, reason = state_of(computer)
    assert state == "auth_required"
    assert "names no authorization server" in reason
    assert browser.opened == []


async def test_a_client_is_registered_once_and_comes_back_to_the_same_port(
    guarded: GuardedServer, browser: Browser, meet: Meet
) -> None:
    computer = await meet(guarded.mcp_url, open_url=browser)
    await computer.sign_in("files")
    assert len(guarded.provider.seen("register")) == 1
    assert len({parse_qs(urlsplit(url).query)["redirect_uri"][0] for url in browser.opened}) == 1


async def test_if_its_port_is_taken_another_client_is_registered(
    guarded: GuardedServer, browser: Browser, meet: Meet
) -> None:
    computer = await meet(guarded.mcp_url, open_url=browser)
    port = urlsplit(parse_qs(urlsplit(browser.opened[0]).query)["redirect_uri"][0]).port
    taken = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", port)
    async with taken:
        await computer.sign_in("files")
    assert len(guarded.provider.seen("register")) == 2


# What may go wrong


async def test_a_refusal_in_the_browser_is_told(guarded: GuardedServer, browser: Browser, meet: Meet) -> None:
    guarded.provider.person = "refuses"
    computer = await meet(guarded.mcp_url, open_url=browser)
    state, reason = state_of(computer)
    assert (state, reason) == ("auth_required", "it was refused in the browser: access_denied (not today)")
    await until(lambda: browser.pages)
    assert "Not signed in" in browser.pages[0]
    assert len(browser.opened) == 1


async def test_a_browser_that_is_closed_ends_in_time(guarded: GuardedServer, browser: Browser, meet: Meet) -> None:
    guarded.provider.person = "leaves"
    computer = await meet(guarded.mcp_url, open_url=browser, limit=0.5)
    assert state_of(computer) == ("auth_required", "nobody has signed in within 0.5 s")
    guarded.provider.person = "agrees"
    await computer.sign_in("files")
    assert state_of(computer) == ("ready", "")


@pytest.mark.parametrize("failing", [lambda url: False, lambda url: 1 / 0])
async def test_a_browser_that_does_not_open_is_told(
    guarded: GuardedServer, meet: Meet, failing: Callable[[str], object]
) -> None:
    computer = await meet(guarded.mcp_url)
    with pytest.raises(SignInFailed, match="no browser could be opened"):
        await computer.sign_in("files", open_url=failing)


async def test_nobody_is_asked_twice_at_a_time(guarded: GuardedServer, browser: Browser, meet: Meet) -> None:
    """The owner's own sign-in replaces one that waits for a browser that was closed."""
    guarded.provider.person = "leaves"
    computer = await meet(guarded.mcp_url)
    first = asyncio.create_task(computer.sign_in("files", open_url=browser))
    await until(lambda: browser.pages)
    guarded.provider.person = "agrees"
    await computer.sign_in("files", open_url=browser)
    with pytest.raises(SignInFailed, match="another sign-in has begun"):
        await first
    assert state_of(computer) == ("ready", "")


async def test_a_server_that_is_stopped_meanwhile_stays_stopped(
    guarded: GuardedServer, browser: Browser, tmp_path: Path
) -> None:
    guarded.provider.person = "leaves"
    computer = Computer("mine", state_folder=tmp_path, open_url=browser)
    computer.add_server({"name": "files", "url": guarded.mcp_url})
    async with computer:
        starting = asyncio.create_task(computer.start())
        await until(lambda: browser.pages)
        await computer.stop("files")
        await starting
        assert computer.status()["files"].state == "stopped"


async def test_a_server_that_is_removed_meanwhile_is_gone(
    guarded: GuardedServer, browser: Browser, tmp_path: Path
) -> None:
    guarded.provider.person = "leaves"
    computer = Computer("mine", state_folder=tmp_path, open_url=browser)
    computer.add_server({"name": "files", "url": guarded.mcp_url})
    async with computer:
        starting = asyncio.create_task(computer.start())
        await until(lambda: browser.pages)
        await computer.remove_server("files")
        await starting
        assert computer.status() == {}


async def test_a_provider_that_has_forgotten_the_client_registers_it_at_the_second_attempt(
    guarded: GuardedServer, browser: Browser, meet: Meet
) -> None:
    """It shows an error to the person, and sends the browser nowhere."""
    computer = await meet(guarded.mcp_url, open_url=browser, limit=0.5)
    guarded.provider.clients.clear()
    with pytest.raises(SignInFailed, match="nobody has signed in within"):
        await computer.sign_in("files")
    await computer.sign_in("files")
    assert state_of(computer) == ("ready", "")


async def test_other_requests_to_the_way_back_are_ignored(guarded: GuardedServer, meet: Meet) -> None:
    """Any page may send requests to this machine: they neither end the sign-in nor are they repeated."""
    answers = []

    async def browse(url: str) -> None:
        asked = parse_qs(urlsplit(url).query)
        back = asked["redirect_uri"][0]
        async with httpx2.AsyncClient(trust_env=False, follow_redirects=True) as client:
            for other in (f"{back}?code=x&state=<script>", f"{back}?error=access_denied", back + "/x", f"{back}?a=b"):
                answers.append(await client.get(other))
            answers.append(await client.post(back))
            await client.get(url)

    computer = await meet(guarded.mcp_url)
    await computer.sign_in("files", open_url=browse)
    assert state_of(computer) == ("ready", "")
    assert [answer.status_code for answer in answers] == [400, 400, 404, 400, 404]
    assert not any("script" in answer.text for answer in answers)


PAGES = [
    "https://provider.example/$(reboot)",
    "https://provider.example/;reboot",
    "https://provider.example/!1",
]
HOSTILE = [
    "javascript:alert(document.cookie)",
    "file:///etc/passwd",
    "ms-settings:privacy",
    "https://provider.example/authorize\n--new-window",
    "https://provider.example/a b",
    'https://provider.example/"|calc',
    "https://provider.example/$(reboot)`id`",
    "https://me:secret@provider.example/authorize",
    "//provider.example/authorize",
    "https:///authorize",
]


@pytest.mark.parametrize("address", HOSTILE)
@pytest.mark.parametrize("endpoint", ["authorization_endpoint", "token_endpoint"])
async def test_a_hostile_address_is_refused_with_words(
    guarded: GuardedServer, browser: Browser, meet: Meet, address: str, endpoint: str
) -> None:
    guarded.provider.metadata[endpoint] = address
    computer = await meet(guarded.mcp_url, open_url=browser)
    state, reason = state_of(computer)
    assert state == "auth_required"
    assert f"the {endpoint} of its authorization server" in reason
    assert browser.opened == []
    assert guarded.provider.seen("register") == []
    assert "\n" not in reason


@pytest.mark.parametrize("page", PAGES)
async def test_a_page_with_characters_of_shells_is_not_opened(
    guarded: GuardedServer, browser: Browser, meet: Meet, page: str
) -> None:
    guarded.provider.metadata["authorization_endpoint"] = page
    computer = await meet(guarded.mcp_url, open_url=browser)
    assert "has characters that are not usual" in state_of(computer)[1]
    assert browser.opened == []


@pytest.mark.parametrize(
    ("url", "server", "is_used"),
    [
        ("https://provider.example/token", "https://files.example/mcp", True),
        ("http://127.0.0.1:8000/token", "https://files.example/mcp", True),
        ("http://[::1]:8000/token", "https://files.example/mcp", True),
        ("http://provider.example/token", "http://files.example/mcp", True),
        ("http://provider.example/token", "https://files.example/mcp", False),
        ("http://127.0.0.1.example/token", "https://files.example/mcp", False),
        ("http://localhost.example/token", "https://files.example/mcp", False),
    ],
)
def test_what_is_secret_is_sent_encrypted_or_stays_on_this_machine(url: str, server: str, is_used: bool) -> None:
    with nullcontext() if is_used else pytest.raises(SignInFailed, match="not encrypted"):
        check_address(url, "it", server)


async def test_a_provider_without_pkce_is_refused(guarded: GuardedServer, browser: Browser, meet: Meet) -> None:
    guarded.provider.metadata["code_challenge_methods_supported"] = ["plain"]
    computer = await meet(guarded.mcp_url, open_url=browser)
    assert "does not support PKCE" in state_of(computer)[1]
    assert browser.opened == []


async def test_an_endpoint_with_a_query_of_its_own_keeps_it(
    guarded: GuardedServer, browser: Browser, meet: Meet
) -> None:
    guarded.provider.metadata["authorization_endpoint"] = f"{guarded.provider.issuer}/authorize?p=policy"
    computer = await meet(guarded.mcp_url, open_url=browser)
    assert state_of(computer) == ("ready", "")
    assert guarded.provider.seen("authorize")[0]["p"] == "policy"


async def test_a_document_of_another_issuer_is_refused(guarded: GuardedServer, browser: Browser, meet: Meet) -> None:
    guarded.provider.metadata["issuer"] = "https://elsewhere.example"
    computer = await meet(guarded.mcp_url, open_url=browser)
    assert "issuer mismatch" in state_of(computer)[1]
    assert browser.opened == []


@pytest.mark.parametrize("says", ["https://elsewhere.example", ""])
async def test_an_answer_of_another_issuer_is_refused(
    guarded: GuardedServer, browser: Browser, meet: Meet, says: str
) -> None:
    guarded.provider.says_iss = says
    computer = await meet(guarded.mcp_url, open_url=browser)
    assert "iss" in state_of(computer)[1]
    assert guarded.provider.seen("token") == []


async def test_a_server_that_claims_to_be_another_resource_is_refused(
    guarded: GuardedServer, browser: Browser, meet: Meet
) -> None:
    guarded.resource = "https://bank.example/mcp"
    computer = await meet(guarded.mcp_url, open_url=browser)
    assert "does not match expected" in state_of(computer)[1]
    assert browser.opened == []


async def test_a_provider_that_is_out_of_order_is_told(guarded: GuardedServer, browser: Browser, meet: Meet) -> None:
    guarded.provider.token_status = 500
    computer = await meet(guarded.mcp_url, open_url=browser)
    assert "500" in state_of(computer)[1]
    assert len(browser.opened) == 1


async def test_a_huge_document_is_not_read(guarded: GuardedServer, browser: Browser, meet: Meet) -> None:
    guarded.provider.metadata["service_documentation"] = "x" * 1_000_000
    computer = await meet(guarded.mcp_url, open_url=browser)
    assert "has more than 262144 bytes" in state_of(computer)[1]


async def test_a_token_that_is_refused_at_once_opens_no_second_browser(
    guarded: GuardedServer, browser: Browser, meet: Meet
) -> None:
    guarded.provider.lifetime = 0
    computer = await meet(guarded.mcp_url, open_url=browser)
    assert state_of(computer)[0] == "auth_required"
    assert len(browser.opened) == 1


async def test_a_failure_leaves_no_traceback_in_the_log(
    guarded: GuardedServer, browser: Browser, meet: Meet, caplog: pytest.LogCaptureFixture
) -> None:
    guarded.provider.says_iss = "https://elsewhere.example"
    with caplog.at_level(logging.INFO):
        await meet(guarded.mcp_url, open_url=browser)
    assert not any(record.exc_info for record in caplog.records)
    assert any("nobody is signed in" in record.getMessage() for record in caplog.records)
