"""A person signs in: by the browser, from another machine; and what may be wrong with the provider."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from a2c_smcp.computer import SignInFailed
from a2c_smcp.computer.computer import Computer
from a2c_smcp.mcp_host.sign_in.addresses import Addresses
from tests.sign_in.authorization_server import AuthorizationServer
from tests.sign_in.conftest import Scene, call, reason_of, sign_in, state_of, text_of
from tests.sign_in.guarded_server import GuardedServer
from tests.sign_in.served import served
from tests.stage.cases import cases
from tests.waiting import until

pytestmark = pytest.mark.covers("9-sign-in")


async def test_the_owner_signs_in_by_the_browser_of_the_computer(scene: Scene) -> None:
    computer = await scene.ready()
    assert text_of(await call(computer, "add", a=1, b=2)) == "3"
    asked = parse_qs(urlsplit(scene.opened[0]).query)
    assert asked["resource"] == [scene.server.mcp_url]
    assert asked["code_challenge_method"] == ["S256"]
    assert asked["scope"] == ["basic"]
    assert len(scene.opened) == 1
    await until(lambda: scene.browser.pages)
    assert "You can close this window" in scene.browser.pages[0]
    assert scene.provider.problems == []


@pytest.mark.covers("9-sign-in-asked")
async def test_no_server_has_a_page_opened_by_itself(scene: Scene) -> None:
    """Neither at its start, nor when it starts again, nor when it refuses a call for a token or a scope."""
    computer = await scene.meet(starts=False)
    await computer.start()
    await computer.restart("files")
    assert state_of(computer) == "auth_required"
    assert scene.opened == []
    assert scene.provider.requests == []
    await sign_in(computer)
    assert (await call(computer, "write", text="x"))["_meta"]["error_code"] == 4007
    scene.provider.revoke_all()
    assert (await call(computer, "add", a=1, b=2))["_meta"]["error_code"] == 4007
    assert state_of(computer) == "auth_required"
    assert len(scene.opened) == 1


async def test_a_server_waits_for_its_owner_and_says_what_to_type(scene: Scene) -> None:
    computer = await scene.meet(open_url=None)
    assert reason_of(computer).endswith("sign in with: a2c-smcp login files")
    assert scene.provider.requests == []


async def test_the_server_need_not_have_been_started(scene: Scene) -> None:
    computer = await scene.signed_in(starts=False)
    assert state_of(computer) == "stopped"
    await computer.start()
    assert state_of(computer) == "ready"


async def test_tokens_are_there_after_a_restart(scene: Scene) -> None:
    await (await scene.meet()).stop()
    await scene.ready(open_url=None)
    assert len(scene.opened) == 1


async def test_the_address_of_the_way_back_can_be_pasted(scene: Scene) -> None:
    async def on_another_machine(url: str) -> str:
        async with httpx2.AsyncClient(trust_env=False) as client:
            page = await client.get(url)
        return f"  {page.headers['location']}\n"

    computer = await scene.meet(open_url=None)
    await computer.sign_in("files", paste_redirect=on_another_machine)
    assert state_of(computer) == "ready"


@pytest.mark.parametrize("pasted", ["", "yes", "http://127.0.0.1:1/callback?code=abc&state=mine"])
async def test_what_is_not_the_way_back_is_refused(scene: Scene, pasted: str) -> None:
    computer = await scene.meet(open_url=None)
    with pytest.raises(SignInFailed, match="what was pasted is not the address"):
        await computer.sign_in("files", paste_redirect=lambda url: pasted)
    assert state_of(computer) == "auth_required"
    assert scene.provider.seen("token") == []


async def test_the_older_transport_signs_in_too(scene: Scene) -> None:
    computer = await scene.ready(scene.server.sse_url)
    assert text_of(await call(computer, "add", a=1, b=2)) == "3"
    assert parse_qs(urlsplit(scene.opened[0]).query)["resource"] == [scene.server.sse_url]


@cases(
    "path, well_known",
    ("", "/.well-known/openid-configuration"),
    ("/tenant", "/.well-known/oauth-authorization-server/tenant"),
    ("/tenant", "/.well-known/openid-configuration/tenant"),
    ("/tenant", "/tenant/.well-known/openid-configuration"),
)
async def test_every_place_of_the_discovery_document_is_found(scene: Scene, path: str, well_known: str) -> None:
    provider = AuthorizationServer(path)
    provider.well_known = (well_known,)
    async with served(provider.app), GuardedServer(provider).running() as guarded:
        await scene.ready(guarded.mcp_url, auth={"issuer": provider.issuer})


@pytest.mark.parametrize("challenges", [True, False])
async def test_a_server_that_says_nothing_of_its_provider_is_looked_up_by_rule(scene: Scene, challenges: bool) -> None:
    scene.server.challenges = challenges
    await scene.ready()


async def test_a_client_is_registered_once_and_comes_back_to_the_same_port(scene: Scene) -> None:
    computer = await scene.meet()
    await computer.sign_in("files")
    assert len(scene.provider.seen("register")) == 1
    assert len({parse_qs(urlsplit(url).query)["redirect_uri"][0] for url in scene.opened}) == 1


async def test_if_its_port_is_taken_another_client_is_registered(scene: Scene) -> None:
    computer = await scene.meet()
    port = urlsplit(parse_qs(urlsplit(scene.opened[0]).query)["redirect_uri"][0]).port
    taken = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", port)
    async with taken:
        await computer.sign_in("files")
    assert len(scene.provider.seen("register")) == 2


# What may go wrong


async def test_a_refusal_in_the_browser_is_told(scene: Scene) -> None:
    scene.provider.person = "refuses"
    computer = await scene.meet()
    assert reason_of(computer) == "it was refused in the browser: access_denied (not today)"
    await until(lambda: scene.browser.pages)
    assert "Not signed in" in scene.browser.pages[0]
    assert len(scene.opened) == 1


async def test_a_browser_that_is_closed_ends_in_time(scene: Scene) -> None:
    scene.provider.person = "leaves"
    computer = await scene.meet(limit=2.0)
    assert reason_of(computer) == "nobody has signed in within 2 s"
    scene.provider.person = "agrees"
    await computer.sign_in("files")
    assert state_of(computer) == "ready"


@pytest.mark.parametrize("failing", [lambda url: False, lambda url: 1 / 0])
async def test_a_browser_that_does_not_open_is_told(scene: Scene, failing: Callable[[str], object]) -> None:
    computer = await scene.meet(open_url=None)
    with pytest.raises(SignInFailed, match="no browser could be opened"):
        await computer.sign_in("files", open_url=failing)


async def test_nobody_is_asked_twice_at_a_time(scene: Scene) -> None:
    """The owner's own sign-in replaces one that waits for a browser that was closed."""
    scene.provider.person = "leaves"
    computer = await scene.meet(open_url=None)
    first = asyncio.create_task(computer.sign_in("files", open_url=scene.browser))
    await until(lambda: scene.browser.pages)
    scene.provider.person = "agrees"
    await computer.sign_in("files", open_url=scene.browser)
    with pytest.raises(SignInFailed, match="another sign-in has begun"):
        await first
    assert state_of(computer) == "ready"


@pytest.mark.parametrize(("end", "states"), [(Computer.stop, ["stopped"]), (Computer.remove_server, [])])
async def test_a_server_that_is_stopped_or_removed_meanwhile_stays_so(
    scene: Scene, end: Callable[..., Any], states: list[str]
) -> None:
    scene.provider.person = "leaves"
    computer = await scene.meet(starts=False)
    await computer.start()
    signing_in = asyncio.create_task(sign_in(computer))
    await until(lambda: scene.browser.pages)
    await end(computer, "files")
    await signing_in
    assert [status.state for status in computer.status().values()] == states


async def test_a_provider_that_has_forgotten_the_client_registers_it_at_the_second_attempt(scene: Scene) -> None:
    """It shows an error to the person, and sends the browser nowhere."""
    computer = await scene.meet(limit=2.0)
    scene.provider.clients.clear()
    with pytest.raises(SignInFailed, match="nobody has signed in within"):
        await computer.sign_in("files")
    await computer.sign_in("files")
    assert state_of(computer) == "ready"


async def test_other_requests_to_the_way_back_are_ignored(scene: Scene) -> None:
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

    computer = await scene.meet(open_url=None)
    await computer.sign_in("files", open_url=browse)
    assert state_of(computer) == "ready"
    assert [answer.status_code for answer in answers] == [400, 400, 404, 400, 404]
    assert not any("script" in answer.text for answer in answers)


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
async def test_a_hostile_address_is_refused_with_words(scene: Scene, address: str, endpoint: str) -> None:
    scene.provider.metadata[endpoint] = address
    computer = await scene.meet()
    assert f"the {endpoint} of its authorization server" in reason_of(computer)
    assert scene.opened == []
    assert scene.provider.seen("register") == []
    assert "\n" not in reason_of(computer)


@cases(
    "url, server, is_used",
    ("https://provider.example/token", "https://files.example/mcp", True),
    ("http://127.0.0.1:8000/token", "https://files.example/mcp", True),
    ("http://[::1]:8000/token", "https://files.example/mcp", True),
    ("http://provider.example/token", "http://files.example/mcp", True),
    ("http://provider.example/token", "https://files.example/mcp", False),
    ("http://127.0.0.1.example/token", "https://files.example/mcp", False),
    ("http://localhost.example/token", "https://files.example/mcp", False),
)
def test_what_is_secret_is_sent_encrypted_or_stays_on_this_machine(url: str, server: str, is_used: bool) -> None:
    with nullcontext() if is_used else pytest.raises(SignInFailed, match="not encrypted"):
        Addresses(server, None).check(url, "it")


ODD = "has characters that are not usual"


@cases(
    "document, server, reason",
    ({"authorization_endpoint": "https://provider.example/$(reboot)"}, {}, ODD),
    ({"authorization_endpoint": "https://provider.example/;reboot"}, {}, ODD),
    ({"authorization_endpoint": "https://provider.example/!1"}, {}, ODD),
    ({"code_challenge_methods_supported": ["plain"]}, {}, "does not support PKCE"),
    ({"issuer": "https://elsewhere.example"}, {}, "is on another site, 127.0.0.1, than elsewhere.example"),
    ({"service_documentation": "x" * 1_000_000}, {}, "has more than 262144 bytes"),
    ({}, {"has_metadata": False, "challenges": False}, "names no authorization server"),
    ({}, {"resource": "https://bank.example/mcp"}, "does not match expected"),
    ids=["shell", "command", "history", "PKCE", "issuer", "huge", "no provider", "another resource"],
)
async def test_what_a_provider_or_a_server_says_wrongly_of_itself_is_refused_before_a_browser_is_opened(
    scene: Scene, document: dict[str, Any], server: dict[str, Any], reason: str
) -> None:
    scene.provider.metadata |= document
    vars(scene.server).update(server)
    issuer = scene.provider.issuer if scene.server.has_metadata else scene.server.url
    assert reason in reason_of(await scene.meet(auth={"issuer": issuer}))
    assert scene.opened == []


@cases(
    "wrong, reason",
    ({"says_iss": "https://elsewhere.example"}, "iss"),
    ({"says_iss": ""}, "iss"),
    ({"token_status": 500}, "500"),
    ({"lifetime": 0}, ""),
    ids=["another issuer", "no issuer", "out of order", "over at once"],
)
async def test_what_goes_wrong_behind_the_browser_is_told_and_opens_no_second_one(
    scene: Scene, wrong: dict[str, Any], reason: str
) -> None:
    vars(scene.provider).update(wrong)
    assert reason in reason_of(await scene.meet())
    assert len(scene.opened) == 1
    assert bool(scene.provider.seen("token")) == (not reason.startswith("iss"))


async def test_an_endpoint_with_a_query_of_its_own_keeps_it(scene: Scene) -> None:
    scene.provider.metadata["authorization_endpoint"] = f"{scene.provider.issuer}/authorize?p=policy"
    await scene.ready()
    assert scene.provider.seen("authorize")[0]["p"] == "policy"


async def test_a_failure_leaves_no_traceback_in_the_log(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.provider.says_iss = "https://elsewhere.example"
    with caplog.at_level(logging.INFO):
        assert "iss mismatch" in reason_of(await scene.meet())
    assert not any(record.exc_info for record in caplog.records)
