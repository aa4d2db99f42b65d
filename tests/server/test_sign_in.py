"""`a2c-smcp server --mcp --sign-in`: MCP clients sign in, over real sockets, and what nobody may get by it."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, TypeAlias

import aiohttp
import httpx2
import pytest
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer import Computer
from a2c_smcp.errors import NotAuthenticated
from a2c_smcp.files import replace_file
from tests.peer import PATIENCE
from tests.program import run_program
from tests.stage.keys import write_keys
from tests.stage.mcp_clients import ask, called, client_at, key_of
from tests.stage.program import ENVIRONMENT, SOON, Program, Starts
from tests.stage.signing_in import CALLBACK, Answer, Person, RawClient, facts_of, send

pytestmark = pytest.mark.covers("mcp-sign-in")

KEYS: dict[str, dict[str, Any]] = {
    "alice": {"principal": "alice", "offices": ["desk", "den", "team-*"]},
    "bob": {"principal": "bob", "offices": ["desk"]},
    "carol": {"principal": "carol", "offices": ["elsewhere"]},
    "laptop": {"principal": "laptop", "roles": ["computer"]},
    "old": {"principal": "old", "expires": "2020-01-01T00:00:00Z"},
}
ADMIN = "the-admin-key-of-this-test-server"


@pytest.fixture
async def server(starts: Starts, tmp_path: Path) -> Program:
    return await start(starts, tmp_path)


async def start(starts: Starts, folder: Path, *options: str) -> Program:
    keys = folder / "keys.json"
    if not keys.exists():
        write_keys(folder, {key_of(name): entry for name, entry in KEYS.items()})
    words = ("--mcp", "--sign-in", "--mcp-idle", "1", "--keys-file", keys, "--admin-key", ADMIN, *options)
    return await starts(*words, XDG_STATE_HOME=str(folder / "state"))


Joins: TypeAlias = Callable[..., Awaitable[None]]


@pytest.fixture
async def joins(tmp_path: Path) -> AsyncIterator[Joins]:
    """Has a computer with the tool `add` join an office."""
    async with AsyncExitStack() as stack:

        async def join(url: str, office: str = "desk") -> None:
            computer, joined = Computer("laptop"), asyncio.Event()

            @computer.tool(auto_apply=True)
            def add(a: int, b: int) -> int:
                """Add two numbers."""
                return a + b

            def on_connection(what: str) -> None:
                if what.startswith("joined"):
                    joined.set()

            options: dict[str, Any] = {"api_key": key_of("laptop"), "state_folder": tmp_path / office}
            running = asyncio.create_task(computer.run(url, office=office, on_connection=on_connection, **options))

            async def stop() -> None:
                running.cancel()
                await asyncio.wait([running])

            stack.push_async_callback(stop)
            await asyncio.wait_for(joined.wait(), PATIENCE)

        yield join


class Tokens:
    """Where the SDK's client keeps what it was given."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_client_that_knows_only_the_url_signs_in_and_calls(server: Program, joins: Joins, mode: Any) -> None:
    await joins(server.url)
    led: dict[str, str] = {}

    async def open_page(address: str) -> None:
        led.update(facts_of(await Person(server.url).sign_in(address, key_of("alice"))))

    async def returned() -> AuthorizationCodeResult:
        return AuthorizationCodeResult(code=led["code"], state=led["state"], iss=led["iss"])

    metadata = OAuthClientMetadata(client_name="SDK", redirect_uris=[AnyUrl(CALLBACK)])
    url, kept = f"{server.url}/mcp/desk", Tokens()
    auth = OAuthClientProvider(url, metadata, kept, redirect_handler=open_page, callback_handler=returned)
    async with (
        httpx2.AsyncClient(auth=auth, timeout=httpx2.Timeout(PATIENCE)) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as session,
    ):
        assert await called(session, "add", a=1, b=2) == "3"
    assert kept.tokens
    assert await server.says("joined office='desk' role='agent' name='mcp:alice' principal='alice'")
    assert not any(secret in server.said for secret in (key_of("alice"), kept.tokens.access_token, led["code"]))


# What clients read


async def test_the_metadata_says_all_that_a_client_needs(server: Program) -> None:
    status, headers, _ = await ask(server.url, None)
    resource = f"{server.url}/.well-known/oauth-protected-resource/mcp/desk"
    assert (status, headers["WWW-Authenticate"]) == (401, f'Bearer resource_metadata="{resource}"')
    told = (await send("GET", resource, headers={"Origin": "https://inspector.example"})).json
    assert (told["resource"], told["authorization_servers"]) == (f"{server.url}/mcp/desk", [server.url])
    metadata = await send("GET", f"{server.url}/.well-known/oauth-authorization-server")
    assert metadata.headers["Access-Control-Allow-Origin"] == "*"
    assert "Access-Control-Allow-Credentials" not in metadata.headers
    assert metadata.json["issuer"] == server.url
    assert metadata.json["code_challenge_methods_supported"] == ["S256"]
    for name in ("authorization_response_iss_parameter_supported", "client_id_metadata_document_supported"):
        assert metadata.json[name] is True
    assert (await send("GET", f"{server.url}/.well-known/openid-configuration")).json == metadata.json


@pytest.mark.parametrize("path", ["token", "register", "revoke"])
async def test_a_web_page_may_ask_for_tokens_of_its_own(server: Program, path: str) -> None:
    asked = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    answer = await send("OPTIONS", f"{server.url}/sign-in/{path}", headers=asked)
    assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (204, "*")


async def test_the_issuer_is_the_public_url_whatever_host_is_asked(starts: Starts, tmp_path: Path) -> None:
    server = await start(starts, tmp_path, "--public-url", "https://hub.example.com")
    forged = {"Host": "evil.example", "X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "https"}
    metadata = await send("GET", f"{server.url}/.well-known/oauth-authorization-server", headers=forged)
    assert metadata.json["token_endpoint"] == "https://hub.example.com/sign-in/token"
    answer = await send("POST", f"{server.url}/mcp/desk", headers=forged)
    assert "evil" not in answer.headers["WWW-Authenticate"]
    assert "https://hub.example.com/" in answer.headers["WWW-Authenticate"]


# Which status a client gets


@pytest.mark.parametrize("key", ["wrong", key_of("old"), "a2c_at_" + "0" * 75], ids=["wrong", "expired", "token"])
async def test_a_wrong_credential_is_an_invalid_token_where_people_sign_in(server: Program, key: str) -> None:
    status, headers, told = await ask(server.url, key)
    assert (status, told["error"]["data"]["code"]) == (401, 401)
    assert headers["WWW-Authenticate"].startswith('Bearer error="invalid_token", resource_metadata="')


async def test_a_key_works_as_before(server: Program) -> None:
    assert (await ask(server.url, key_of("alice")))[0] == 200


# No token without consent; none for another office, client or redirect


async def test_a_token_opens_its_office_as_an_agent_and_nothing_else(server: Program) -> None:
    token = (await RawClient(server.url).signed_in(key_of("alice")))["access_token"]
    assert (await ask(server.url, token))[0] == 200
    assert (await ask(server.url, token, "den"))[0] == 401
    for role in ("agent", "computer"):
        with pytest.raises(NotAuthenticated):
            await dialled(server.url, token, role)
    for header in ("X-Api-Key", "Access_token"):
        assert (await ask(server.url, None, "den", **{header: token}))[0] == 401
    admin = {"Authorization": f"Bearer {token}"}
    assert (await send("GET", f"{server.url}/admin/api/keys", headers=admin)).status == 401
    page = await Person(server.url).sign_in(await address_of_another(server), token)
    assert page.status == 403


async def address_of_another(server: Program) -> str:
    other = RawClient(server.url)
    await other.register()
    return other.address()


async def dialled(url: str, token: str, role: str) -> None:
    """Connects by Socket.IO."""
    if role == "agent":
        async with AsyncSMCPAgentClient("mcp:alice", url=url, office="desk", api_key=token):
            return
    await Computer("laptop").run(url, office="desk", api_key=token)


async def test_a_slash_at_the_end_of_the_url_is_the_same_office(server: Program) -> None:
    client = RawClient(server.url, office="desk/")
    tokens = await client.signed_in(key_of("alice"))
    for path in ("desk", "desk/"):
        assert (await ask(server.url, tokens["access_token"], office=path))[0] == 200


async def test_an_office_with_the_name_of_a_pattern_opens_no_other(server: Program) -> None:
    token = (await RawClient(server.url, "team-*").signed_in(key_of("alice")))["access_token"]
    assert (await ask(server.url, token, "team-1"))[0] == 401
    assert (await ask(server.url, token, "team-*"))[0] == 200


@pytest.mark.parametrize("name", ["carol", "laptop", "old", "nobody"])
async def test_a_key_that_may_not_use_the_office_as_an_agent_signs_nobody_in(server: Program, name: str) -> None:
    client = RawClient(server.url)
    await client.register()
    answer = await Person(server.url).sign_in(client.address(), key_of(name))
    assert answer.status == 403
    assert key_of(name) not in answer.text
    assert key_of(name) not in server.said


async def test_the_page_gives_no_code_before_a_person_allows_it(server: Program) -> None:
    client, person = RawClient(server.url), Person(server.url)
    await client.register()
    page = await send("GET", client.address())
    for fields in ({"decision": "allow"}, {"decision": "allow", "credential": ""}, {"credential": "wrong"}):
        answer = await person.post(page, **fields)
        assert (answer.status, answer.headers.get("Location")) == (403, None)
    consent = await person.post(page, credential=key_of("alice"))
    assert (consent.status, consent.headers.get("Location")) == (200, None)
    assert (await person.post(consent)).status == 409  # no button: nothing is allowed
    denied = facts_of(await person.post(consent, decision="deny"))
    assert denied == {"error": "access_denied", "state": "the state", "iss": server.url}


async def test_a_request_is_decided_once_in_whichever_tab(server: Program) -> None:
    client, person = RawClient(server.url), Person(server.url)
    await client.register()
    tabs = [await person.post(await send("GET", client.address()), credential=key_of("alice")) for _ in range(2)]
    assert (await person.post(tabs[0], decision="deny")).status == 303
    for decision in ("allow", "deny"):
        for tab in tabs:
            assert (await person.post(tab, decision=decision)).status == 409
    assert (await send("GET", client.address())).status == 409


async def test_strangers_who_deny_requests_fill_nothing(server: Program, tmp_path: Path) -> None:
    client, person = RawClient(server.url), Person(server.url)
    await client.register()
    page = await send("GET", client.address())
    before = (tmp_path / "keys.grants.json").read_bytes()
    assert facts_of(await person.post(page, decision="deny"))["error"] == "access_denied"
    assert (tmp_path / "keys.grants.json").read_bytes() == before


@pytest.mark.parametrize(
    ("redirect", "shown"),
    [
        ("https://bank.example@evil.example/", "evil.example"),
        ("evil://bank.example/callback", "evil:"),
        ("http://127.0.0.1/bank.example", "a program on this computer"),
    ],
)
async def test_the_page_shows_where_the_browser_goes(server: Program, redirect: str, shown: str) -> None:
    client = RawClient(server.url, redirect=redirect)
    await client.register()
    page = await send("GET", client.address())
    assert f"<dd>{shown}</dd>" in page.text


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
async def test_no_other_page_may_send_the_form(server: Program, headers: dict[str, str]) -> None:
    client = RawClient(server.url)
    await client.register()
    page = await send("GET", client.address())
    assert (await Person(server.url, **headers).post(page, credential=key_of("alice"))).status == 400


async def test_the_page_is_in_no_frame_and_holds_no_script_and_no_cookie(server: Program) -> None:
    client = RawClient(server.url)
    await client.register(client_name="<script>alert(1)</script>")
    page = await send("GET", client.address())
    assert "frame-ancestors 'none'" in page.headers["Content-Security-Policy"]
    assert page.headers["X-Frame-Options"] == "DENY"
    assert "no-store" in page.headers["Cache-Control"]
    assert "Set-Cookie" not in page.headers
    assert "<script" not in page.text
    assert "unverified name" in page.text
    chinese = await send("GET", client.address(), headers={"Accept-Language": "zh-CN"})
    assert "登录客户端" in chinese.text


async def test_a_form_that_was_changed_is_refused(server: Program) -> None:
    client = RawClient(server.url)
    await client.register()
    page = await send("GET", client.address())
    body, _, mark = shown_in(page).partition(".")
    content = json.loads(base64.urlsafe_b64decode(body))
    content["request"]["office"], content["person"] = "den", {"id": "alice"}
    forged = base64.urlsafe_b64encode(json.dumps(content).encode()).decode()
    for shown in (f"{forged}.{mark}", forged, "", ".", "é.é"):
        form = {"shown": shown, "decision": "allow"}
        answer = await send("POST", f"{server.url}/sign-in/authorize", data=form, headers={"Origin": server.url})
        assert answer.status == 400


def shown_in(page: Answer) -> str:
    return page.text.partition('name="shown" value="')[2].partition('"')[0]


# No open redirect


@pytest.mark.parametrize(
    "redirect",
    [
        "http://127.0.0.1:33418/callback/",
        "http://127.0.0.1:33418/callback?more=1",
        "http://127.0.0.1:33418@evil.example/callback",
        "http://127.0.0.1.evil.example/callback",
        "http://localhost:33418/callback",
        "https://127.0.0.1:33418/callback",
        "https://evil.example/callback",
        "//evil.example/callback",
        "javascript:alert(1)",
        "",
    ],
)
async def test_nobody_is_led_to_another_address_than_that_of_the_client(server: Program, redirect: str) -> None:
    client = RawClient(server.url)
    await client.register()
    for wrong in ({}, {"response_type": "token"}, {"resource": "https://elsewhere.example/mcp/desk"}):
        answer = await send("GET", client.address(redirect_uri=redirect, **wrong))
        assert (answer.status, answer.headers.get("Location")) == (400, None)


@pytest.mark.parametrize("redirect", ["https://evil.example/", "evil:/callback"])
async def test_a_link_to_this_server_leads_nobody_elsewhere_before_they_decide(server: Program, redirect: str) -> None:
    client = RawClient(server.url, redirect=redirect)
    await client.register()
    for wrong in ({"response_type": "token"}, {"resource": "https://elsewhere.example/mcp/desk"}):
        answer = await send("GET", client.address(**wrong))
        assert (answer.status, answer.headers.get("Location")) == (400, None)


async def test_a_loopback_redirect_may_have_any_port(server: Program) -> None:
    client = RawClient(server.url, redirect="http://127.0.0.1/callback")
    await client.register()
    client.redirect = "http://127.0.0.1:50123/callback"
    code = await client.code(key_of("alice"))
    assert (await client.exchange(code, redirect_uri="http://127.0.0.1:50124/callback")).json[
        "error"
    ] == "invalid_grant"
    assert (await client.exchange(await client.code(key_of("alice"), state="again"))).status == 200


@pytest.mark.parametrize(
    "redirect",
    [
        "http://evil.example/callback",
        "javascript:alert(1)",
        "data:text/html,x",
        "https://a.example/#x",
        "https:///x",
        "x",
        "https://a b/",
        1,
    ],
)
async def test_a_redirect_that_could_harm_is_not_registered(server: Program, redirect: object) -> None:
    answer = await RawClient(server.url).register(redirect_uris=[redirect])
    assert (answer.status, answer.json["error"]) == (400, "invalid_redirect_uri")


async def test_the_page_shows_the_scheme_of_an_app_that_is_no_url_otherwise(server: Program) -> None:
    client = RawClient(server.url, redirect="myapp://[x/cb")
    await client.register()
    page = await send("GET", client.address())
    assert (page.status, "myapp:" in page.text) == (200, True)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"response_type": "token"}, "unsupported_response_type"),
        ({"code_challenge": None}, "invalid_request"),
        ({"code_challenge_method": "plain"}, "invalid_request"),
        ({"code_challenge_method": None}, "invalid_request"),
        ({"response_mode": "fragment"}, "invalid_request"),
        ({"resource": None}, "invalid_target"),
        ({"resource": "https://elsewhere.example/mcp/desk"}, "invalid_target"),
    ],
)
async def test_a_wrong_request_is_told_to_the_client_with_state_and_issuer(
    server: Program, changed: dict[str, str | None], error: str
) -> None:
    client = RawClient(server.url)
    await client.register()
    told = facts_of(await send("GET", client.address(**changed)))
    assert (told["error"], told["state"], told["iss"]) == (error, "the state", server.url)
    assert "code" not in told


async def test_a_parameter_that_comes_twice_is_refused(server: Program) -> None:
    client = RawClient(server.url)
    await client.register()
    answer = await send("GET", f"{client.address()}&client_id={client.id}")
    assert (answer.status, answer.headers.get("Location")) == (400, None)


# Codes


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"client_id": "another"}, "invalid_client"),
        ({"redirect_uri": "http://127.0.0.1:1/callback"}, "invalid_grant"),
        ({"code_verifier": "x" * 43}, "invalid_grant"),
        ({"code_verifier": ""}, "invalid_grant"),
        ({"resource": "den"}, "invalid_target"),
        ({"grant_type": "password"}, "unsupported_grant_type"),
    ],
    ids=str,
)
async def test_a_code_is_bound_to_client_redirect_pkce_and_resource(
    server: Program, changed: dict[str, str], error: str
) -> None:
    client = RawClient(server.url)
    await client.register()
    code = await client.code(key_of("alice"))
    if "resource" in changed:
        changed = {"resource": f"{server.url}/mcp/den"}
    answer = await client.exchange(code, **changed)
    assert (answer.status, answer.json["error"]) == (401 if error == "invalid_client" else 400, error)
    assert answer.headers["Cache-Control"] == "no-store"


async def test_a_code_of_one_client_is_worth_nothing_to_another(server: Program) -> None:
    client, thief = RawClient(server.url), RawClient(server.url)
    await client.register()
    await thief.register()
    thief.verifier = client.verifier
    answer = await thief.exchange(await client.code(key_of("alice")))
    assert answer.json["error"] == "invalid_grant"


async def test_a_code_is_good_once_and_its_second_use_ends_the_grant(server: Program) -> None:
    client = RawClient(server.url)
    await client.register()
    code = await client.code(key_of("alice"))
    both = await asyncio.gather(client.exchange(code), client.exchange(code))
    tokens = [answer.json["access_token"] for answer in both if answer.status == 200]
    assert len(tokens) < 2
    await client.exchange(code)
    for token in tokens:
        assert (await ask(server.url, token))[0] == 401


def pass_time(folder: Path, beginning: str, seconds: float) -> None:
    """What the file of grants says is older by so many seconds."""
    file = folder / "keys.grants.json"
    texts = {
        name: (text, until - seconds if name.startswith(beginning) else until)
        for name, (text, until) in json.loads(file.read_bytes()).items()
    }
    replace_file(file, json.dumps(texts).encode())


async def test_a_code_lasts_a_minute(server: Program, tmp_path: Path) -> None:
    client = RawClient(server.url)
    await client.register()
    for seconds, status in ((55, 200), (61, 400)):
        code = await client.code(key_of("alice"), state=str(seconds))
        pass_time(tmp_path, "code:", seconds)
        assert (await client.exchange(code)).status == status


async def test_a_link_lasts_ten_minutes_and_a_grant_ninety_days(server: Program, tmp_path: Path) -> None:
    client = RawClient(server.url)
    tokens = await client.signed_in(await link_for(server))
    link = await link_for(server)
    pass_time(tmp_path, "link:", 601)
    assert (await Person(server.url).sign_in(client.address(state="again"), link)).status == 403
    pass_time(tmp_path, "grant:", 89 * 86400)
    tokens = (await client.refresh(tokens["refresh_token"])).json
    pass_time(tmp_path, "grant:", 91 * 86400)
    assert (await client.refresh(tokens["refresh_token"])).json["error"] == "invalid_grant"


@pytest.mark.parametrize(("seconds", "status"), [(-120, 200), (120, 200), (3601, 401)])
async def test_an_access_token_lasts_an_hour_also_with_clocks_that_differ(
    starts: Starts, tmp_path: Path, seconds: int, status: int
) -> None:
    server = await start(starts, tmp_path)
    token = (await RawClient(server.url).signed_in(key_of("alice")))["access_token"]
    file = tmp_path / "keys.grants.json"
    await server.stops()
    texts = json.loads(file.read_bytes())
    name = next(name for name in texts if name.startswith("grant:"))
    grant = json.loads(texts[name][0])
    grant["accesses"] = [(known, until - seconds) for known, until in grant["accesses"]]
    texts[name] = (json.dumps(grant), texts[name][1])
    file.write_text(json.dumps(texts))
    again = await start(starts, tmp_path)
    assert (await ask(again.url, token))[0] == status


# Refresh tokens


async def test_a_refresh_token_is_replaced_and_its_second_use_ends_the_grant(server: Program) -> None:
    client = RawClient(server.url)
    first = await client.signed_in(key_of("alice"))
    second = (await client.refresh(first["refresh_token"])).json
    third = (await client.refresh(second["refresh_token"])).json
    assert len({tokens["refresh_token"] for tokens in (first, second, third)}) == 3
    assert (await ask(server.url, third["access_token"]))[0] == 200
    stolen = await client.refresh(first["refresh_token"])
    assert (stolen.status, stolen.json["error"]) == (400, "invalid_grant")
    assert (await client.refresh(third["refresh_token"])).json["error"] == "invalid_grant"
    assert (await ask(server.url, third["access_token"]))[0] == 401


async def test_a_guessed_refresh_token_ends_nothing(server: Program) -> None:
    client, other = RawClient(server.url), RawClient(server.url)
    tokens, _ = await client.signed_in(key_of("alice")), await other.signed_in(key_of("bob"))
    real = tokens["refresh_token"]
    for guess in (real[:40] + "0" * 75, real[:39], "", "a2c_rt_"):
        assert (await client.refresh(guess)).json["error"] == "invalid_grant"
    assert (await other.refresh(real)).json["error"] == "invalid_grant"
    assert (await client.refresh(real, resource=f"{server.url}/mcp/den")).json["error"] == "invalid_target"
    assert (await client.refresh(real)).status == 200


# Ends


async def test_a_grant_is_listed_and_its_end_cuts_its_stream_at_once(server: Program) -> None:
    client, admin = RawClient(server.url), {"Authorization": f"Bearer {ADMIN}"}
    tokens = await client.signed_in(key_of("alice"))
    listed = (await send("GET", f"{server.url}/admin/api/grants", headers=admin)).json["grants"]
    (grant,) = listed
    assert (grant["principal"], grant["office"], grant["client"], grant["domain"]) == ("alice", "desk", "Raw", "")
    assert tokens["access_token"] not in json.dumps(listed)
    _, headers, _ = await ask(server.url, tokens["access_token"])
    session = {"Authorization": f"Bearer {tokens['access_token']}", "Accept": "text/event-stream"}
    session["Mcp-Session-Id"] = headers["mcp-session-id"]
    timeout = aiohttp.ClientTimeout(PATIENCE)
    async with (
        aiohttp.ClientSession(timeout=timeout) as http,
        http.get(f"{server.url}/mcp/desk", headers=session) as stream,
    ):
        assert stream.status == 200
        gone = await send("DELETE", f"{server.url}/admin/api/keys/{grant['id']}", headers=admin)
        assert gone.status == 200
        with suppress(aiohttp.ClientError):
            while await stream.content.readany():
                pass
    assert (await ask(server.url, tokens["access_token"]))[0] == 401
    assert (await client.refresh(tokens["refresh_token"])).json["error"] == "invalid_grant"
    assert (await send("GET", f"{server.url}/admin/api/grants", headers=admin)).json["grants"] == []
    assert await server.says("left office='desk' role='agent'", SOON)


@pytest.mark.parametrize("kind", ["access_token", "refresh_token"])
async def test_a_client_ends_its_own_grant_and_no_other(server: Program, kind: str) -> None:
    client, other = RawClient(server.url), RawClient(server.url)
    tokens = await client.signed_in(key_of("alice"))
    await other.register()
    for who, status in ((other, 200), (client, 401)):
        form = {"token": tokens[kind], "client_id": who.id}
        assert (await send("POST", f"{server.url}/sign-in/revoke", data=form)).status == 200
        assert (await ask(server.url, tokens["access_token"]))[0] == status


async def test_a_grant_ends_with_the_key_that_was_typed(server: Program, tmp_path: Path) -> None:
    tokens = await (client := RawClient(server.url)).signed_in(key_of("alice"))
    others = await RawClient(server.url).signed_in(key_of("bob"))
    admin = {"Authorization": f"Bearer {ADMIN}"}
    keys = (await send("GET", f"{server.url}/admin/api/keys", headers=admin)).json["keys"]
    key = next(row["id"] for row in keys if row["principal"] == "alice")
    await send("DELETE", f"{server.url}/admin/api/keys/{key}", headers=admin)
    assert (await ask(server.url, tokens["access_token"]))[0] == 401
    assert (await client.refresh(tokens["refresh_token"])).json["error"] == "invalid_grant"
    assert (await ask(server.url, others["access_token"]))[0] == 200


async def test_two_clients_of_a_person_share_a_seat_and_end_apart(server: Program, joins: Joins) -> None:
    await joins(server.url)
    one, two = [await RawClient(server.url).signed_in(key_of("alice")) for _ in range(2)]
    url, admin = f"{server.url}/mcp/desk", {"Authorization": f"Bearer {ADMIN}"}
    async with client_at(url, one["access_token"]) as first, client_at(url, two["access_token"]) as second:
        assert await called(first, "add", a=1, b=1) == await called(second, "add", a=0, b=2) == "2"
        grants = (await send("GET", f"{server.url}/admin/api/grants", headers=admin)).json["grants"]
        await send("DELETE", f"{server.url}/admin/api/keys/{grants[0]['id']}", headers=admin)
        assert await called(second, "add", a=1, b=2) == "3"
        with pytest.raises(BaseException):  # noqa: B017, PT011, of the SDK
            await called(first, "add", a=1, b=2)


async def test_an_owner_is_asked_no_more_for_a_client_that_may_do_nothing_any_more(
    starts: Starts, tmp_path: Path
) -> None:
    server = await start(starts, tmp_path, "--mcp-withdraw-after", "600")
    is_asked, is_withdrawn, joined = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def approve(request: object) -> bool:
        is_asked.set()
        try:
            return await asyncio.Future[bool]()
        finally:
            is_withdrawn.set()

    def on_connection(what: str) -> None:
        if what.startswith("joined"):
            joined.set()

    async with Computer("laptop", approve=approve) as computer, AsyncExitStack() as stack:

        @computer.tool()
        def erase() -> str:
            """Erase all."""
            return "erased"

        options: dict[str, Any] = {"api_key": key_of("laptop"), "state_folder": tmp_path / "desk"}
        running = asyncio.create_task(computer.run(server.url, office="desk", on_connection=on_connection, **options))
        stack.callback(running.cancel)
        await asyncio.wait_for(joined.wait(), PATIENCE)
        first, url = RawClient(server.url), f"{server.url}/mcp/desk"
        one, two = await first.signed_in(key_of("alice")), await RawClient(server.url).signed_in(key_of("alice"))
        stays = await stack.enter_async_context(client_at(url, two["access_token"], "legacy"))
        with suppress(BaseExceptionGroup):  # of the SDK
            async with client_at(url, one["access_token"], "legacy") as ends, asyncio.timeout(PATIENCE):
                call = asyncio.create_task(ends.call_tool("erase", {}))
                await is_asked.wait()
                form = {"token": one["access_token"], "client_id": first.id}
                await send("POST", f"{server.url}/sign-in/revoke", data=form)
                await is_withdrawn.wait()
                call.cancel()
        assert is_withdrawn.is_set()
        assert "erase" in {tool.name for tool in (await stays.list_tools()).tools}


async def test_a_restart_keeps_grants_and_clients_and_ends_and_nothing_readable(starts: Starts, tmp_path: Path) -> None:
    server = await start(starts, tmp_path, "--public-url", "http://127.0.0.1:1")
    kept, ended = RawClient(server.url), RawClient(server.url)
    for client in (kept, ended):
        await client.register()
    tokens = [await signed_in_at(client, "http://127.0.0.1:1") for client in (kept, ended)]
    await send("POST", f"{server.url}/sign-in/revoke", data={"token": tokens[1]["access_token"], "client_id": ended.id})
    await server.stops()
    file = tmp_path / "keys.grants.json"
    assert file.stat().st_mode & 0o777 == 0o600
    secrets = (tokens[0]["access_token"], tokens[0]["refresh_token"], key_of("alice"))
    assert not any(secret in file.read_text("utf-8") for secret in secrets)
    again = await start(starts, tmp_path, "--public-url", "http://127.0.0.1:1")
    kept.url = ended.url = again.url
    assert (await ask(again.url, tokens[0]["access_token"]))[0] == 200
    assert (await kept.refresh(tokens[0]["refresh_token"])).status == 200
    assert (await ask(again.url, tokens[1]["access_token"]))[0] == 401
    assert (await ended.refresh(tokens[1]["refresh_token"])).json["error"] == "invalid_grant"


async def signed_in_at(client: RawClient, public_url: str) -> dict[str, Any]:
    resource = f"{public_url}/mcp/desk"
    code = await client.code(key_of("alice"), resource=resource)
    return dict((await client.exchange(code, resource=resource)).json)


# Links


async def link_for(server: Program, principal: str = "guest", office: str = "desk") -> str:
    admin, body = {"Authorization": f"Bearer {ADMIN}"}, {"office": office, "principal": principal}
    return str((await send("POST", f"{server.url}/admin/api/links", headers=admin, json=body)).json["link"])


async def test_a_link_is_good_once_for_one_office_and_principal(server: Program) -> None:
    link, client, den = await link_for(server), RawClient(server.url), RawClient(server.url, "den")
    assert link.startswith(f"{server.url}/sign-in#")
    await client.register()
    await den.register()
    assert (await Person(server.url).sign_in(den.address(), link)).status == 403
    token = (await client.exchange(await client.code(link))).json["access_token"]
    assert (await ask(server.url, token))[0] == 200
    assert (await ask(server.url, token, "den"))[0] == 401
    assert (await Person(server.url).sign_in(client.address(state="again"), link)).status == 403
    assert await server.says("name='mcp:guest' principal='guest'")
    code = link.partition("#")[2]
    assert code not in server.said


async def test_a_link_in_two_tabs_is_used_once(server: Program) -> None:
    link, person, pages = await link_for(server), Person(server.url), []
    for _ in range(2):
        client = RawClient(server.url)
        await client.register()
        pages.append(await person.post(await send("GET", client.address()), credential=link))
    answers = await asyncio.gather(*(person.post(page, decision="allow") for page in pages))
    assert sorted(answer.status for answer in answers) == [303, 409]


async def test_the_holder_of_a_key_makes_a_link_that_opens_no_more_than_the_key(server: Program) -> None:
    async def asks(name: str, office: str = "desk") -> Answer:
        key = {"Authorization": f"Bearer {key_of(name)}"}
        return await send("POST", f"{server.url}/sign-in/links", headers=key, json={"office": office})

    tokens = await RawClient(server.url).signed_in((await asks("alice")).json["link"])
    assert (await ask(server.url, tokens["access_token"]))[0] == 200
    for name, office in (("alice", "elsewhere"), ("laptop", "desk")):
        assert (await asks(name, office)).status == 403
    assert (await asks("nobody")).status == 401


# Limits


async def test_wrong_keys_on_the_page_are_answered_late_like_those_of_a_connect(server: Program) -> None:
    client, person = RawClient(server.url), Person(server.url)
    await client.register()
    page = await send("GET", client.address())
    for _ in range(10):
        assert (await person.post(page, credential="wrong")).status == 403
    began = time.monotonic()
    assert (await person.post(page, credential="wrong")).status == 403
    assert time.monotonic() - began >= 1
    assert (await person.post(page, credential=key_of("alice"))).status == 200


async def test_registrations_of_an_address_are_rated(server: Program) -> None:
    answers = [await RawClient(server.url).register() for _ in range(11)]
    assert [answer.status for answer in answers] == [201] * 10 + [429]


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"{}", b'{"redirect_uris": []}', b"{" * 60_000, b'{"redirect_uris": 1}'),
        b'{"redirect_uris": ["http://127.0.0.1/cb"], "grant_types": 5}',
        b'{"redirect_uris": ["http://127.0.0.1/cb"], "response_types": "code token"}',
    ],
    ids=len,
)
async def test_a_registration_that_is_none_is_refused_with_a_code(server: Program, body: bytes) -> None:
    answer = await send("POST", f"{server.url}/sign-in/register", data=body)
    assert (answer.status, answer.json["error"][:8]) == (400, "invalid_")


@pytest.mark.parametrize(
    "words",
    [
        ("--sign-in", "--api-key", "a-key-of-twenty-characters"),
        ("--mcp", "--sign-in"),
        ("--mcp", "--sign-in", "--api-key", "a-key-of-twenty-characters", "--public-url", "http://hub.example.com"),
        ("--mcp", "--sign-in", "--api-key", "a-key-of-twenty-characters", "--public-url", "https://hub.example.com/x"),
        ("--mcp", "--public-url", "https://hub.example.com"),
        ("--mcp", "--sign-in", "--api-key", "a-key-of-twenty-characters", "--host", "0.0.0.0"),
    ],
    ids=" ".join,
)
async def test_options_that_do_not_go_together_are_wrong_use(words: tuple[str, ...]) -> None:
    done = await asyncio.to_thread(run_program, "server", *words)
    assert done.returncode == 2


async def test_an_api_key_that_begins_like_a_token_is_an_api_key(starts: Starts, tmp_path: Path) -> None:
    keys = ["a2c_at_of-alice-0123456789", "a2c_rt_of-alice-0123456789", "a2c_seat_of-alice-0123456789"]
    write_keys(tmp_path, dict.fromkeys(keys, "alice"))
    server = await start(starts, tmp_path)
    assert [(await ask(server.url, key))[0] for key in keys] == [200] * 3


async def test_owners_and_operators_make_links_and_list_and_end_grants_in_the_terminal(server: Program) -> None:
    async def run(*words: str, **keys: str) -> str:
        done = await asyncio.to_thread(run_program, "key", *words, "--url", server.url, env={**ENVIRONMENT, **keys})
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    operator = {"A2C_ADMIN_KEY": ADMIN}
    links = [
        await run("link", "--office", "desk", A2C_API_KEY=key_of("alice")),
        await run("link", "--office", "desk", "--principal", "guest", **operator),
    ]
    for words, remedy in (
        (("--office", "lab"), "--office"),
        (("--office", "desk", "--api-key", "a wrong key"), "--api-key"),
    ):
        refused = await asyncio.to_thread(
            run_program, "key", "link", "--url", server.url, *words, env={"A2C_API_KEY": key_of("alice"), **ENVIRONMENT}
        )
        assert (refused.returncode, refused.stdout, remedy in refused.stderr) == (1, "", True), refused.stderr
    tokens = [await RawClient(server.url).signed_in(link) for link in links]
    grants = json.loads(await run("ls", "--json", **operator))["grants"]
    assert [grant["principal"] for grant in grants] == ["alice", "guest"]
    assert "unverified" in await run("ls", **operator)
    await run("revoke", grants[1]["id"], **operator)
    assert [(await ask(server.url, each["access_token"]))[0] for each in tokens] == [200, 401]


async def test_a_link_that_is_refused_says_what_to_give(server: Program, starts: Starts) -> None:
    async def refused(url: str, office: str, name: str) -> str:
        words = ("key", "link", "--url", url, "--office", office)
        done = await asyncio.to_thread(run_program, *words, env={**ENVIRONMENT, "A2C_API_KEY": key_of(name)})
        assert done.returncode == 1
        assert "admin" not in done.stderr
        return done.stderr

    assert "--api-key" in await refused(server.url, "desk", "unknown")
    assert "--office" in await refused(server.url, "lab", "alice")
    assert "--sign-in" in await refused((await starts("--api-key", key_of("alice"))).url, "desk", "alice")


# What two large clients send, as their documentation describes it

_REGISTERED: dict[str, dict[str, Any]] = {
    "claude": {
        "client_name": "Claude",
        "redirect_uris": ["https://claude.ai/api/mcp/auth_callback"],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
        "scope": "mcp",
    },
    "chatgpt": {
        "client_name": "ChatGPT",
        "redirect_uris": [
            "https://chatgpt.com/connector/oauth/Xq3",
            "https://chatgpt.com/connector_platform_oauth_redirect",
        ],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "client_secret_post",
    },
}


@pytest.mark.parametrize("name", _REGISTERED)
async def test_documented_requests_of_a_client_in_the_cloud_are_answered(server: Program, name: str) -> None:
    client = RawClient(server.url, redirect=_REGISTERED[name]["redirect_uris"][0])
    registered = await client.register(**_REGISTERED[name])
    assert (registered.status, registered.json["token_endpoint_auth_method"]) == (201, "none")
    assert "client_secret" not in registered.json
    answer = await Person(server.url).sign_in(client.address(scope="mcp"), key_of("alice"))
    assert answer.headers["Location"].startswith(f"{client.redirect}?code=")
    tokens = (await client.exchange(facts_of(answer)["code"])).json
    assert (tokens["token_type"], tokens["expires_in"], tokens["scope"]) == ("Bearer", 3600, "mcp")
    again = (await client.refresh(tokens["refresh_token"], resource=f"{server.url}/mcp/desk", scope="mcp")).json
    assert (await ask(server.url, again["access_token"]))[0] == 200
    lost = await RawClient(server.url, id="client-forgotten").refresh(again["refresh_token"])
    assert (lost.status, lost.json["error"]) == (401, "invalid_client")  # such a client registers again


async def test_a_sign_in_and_its_end_are_in_the_audit_with_no_secret(starts: Starts, tmp_path: Path) -> None:
    audit, admin = tmp_path / "audit.jsonl", {"Authorization": f"Bearer {ADMIN}"}
    server = await start(starts, tmp_path, "--audit", str(audit))
    link = await link_for(server)
    tokens = await RawClient(server.url).signed_in(link)
    (grant,) = (await send("GET", f"{server.url}/admin/api/grants", headers=admin)).json["grants"]
    await send("DELETE", f"{server.url}/admin/api/keys/{grant['id']}", headers=admin)
    text = audit.read_text("utf-8")
    lines = {line["event"]: line for line in map(json.loads, text.splitlines())}
    signed_in, ended = lines["signed in"], lines["operator"]
    assert (signed_in["office"], signed_in["principal"], signed_in["client"]) == ("desk", "guest", "Raw")
    assert (ended["action"], ended["key"]) == ("revoke grant", grant["id"])
    secrets = (link.partition("#")[2], tokens["access_token"], tokens["refresh_token"])
    assert not any(secret in text for secret in secrets)
