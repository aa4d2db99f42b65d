"""Attacks by what a peer names: addresses of this machine and its network, sites of others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from a2c_smcp.computer import SignInFailed
from a2c_smcp.mcp_host.sign_in.addresses import Addresses, ProviderUnreachable, certificates
from a2c_smcp.mcp_host.sign_in.flow import Flow
from tests.sign_in.authorization_server import AuthorizationServer
from tests.sign_in.conftest import Browser, call, reason_of, state_of, text_of
from tests.sign_in.guarded_server import GuardedServer
from tests.sign_in.served import served
from tests.stage.internet import ForwardProxy, Names
from tests.stage.tls import encrypted

pytestmark = pytest.mark.covers("9-sign-in-addresses")

PUBLIC, OTHER = "93.184.215.14", "93.184.215.15"
INNER = "the-secret-of-an-inner-service"


@dataclass
class Inner:
    """A service of this machine that is no business of an MCP server."""

    url: str = ""
    asked: list[str] = field(default_factory=list)

    async def answer(self, request: Request) -> Response:
        self.asked.append(f"{request.method} {request.url.path}")
        return PlainTextResponse(INNER, 403)

    def app(self, url: str) -> Starlette:
        self.url = url
        return Starlette(routes=[Route("/{path:path}", self.answer, methods=["GET", "POST"])])


@pytest.fixture
async def inner() -> AsyncIterator[Inner]:
    service = Inner()
    async with served(service.app):
        yield service


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)


NOT_PUBLIC = [
    *("127.0.0.1", "127.1.2.3", "localhost", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::127.0.0.1]"),
    *("10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "198.18.0.1", "224.0.1.1"),
    *("[fe80::1]", "[fc00::1]", "[fec0::1]", "[ff0e::1]", "[100::1]", "[2001:db8::1]"),
    *("[64:ff9b::7f00:1]", "[64:ff9b::a9fe:a9fe]", "[2002:7f00:1::]", "[2001:0:7f00:1::]", "[::ffff:10.0.0.1]"),
]


@pytest.mark.parametrize("host", NOT_PUBLIC)
async def test_an_address_that_is_not_public_is_not_used(host: str) -> None:
    addresses = Addresses("http://files.example/mcp", None)
    with pytest.raises(SignInFailed, match="is used only if its configuration names it"):
        await addresses.resolve(f"http://{host}/token", "it")
    with pytest.raises(SignInFailed, match="is used only if its configuration names it"):
        await addresses.check_page(f"http://{host}/authorize", "it")


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f.0.0.1", "0177.0.0.1", "127.0.0.1.", "%6cocalhost"])
async def test_a_number_that_is_read_as_this_machine_is_no_web_address(host: str) -> None:
    with pytest.raises(SignInFailed, match="is not a web address"):
        await Addresses("http://files.example/mcp", None).resolve(f"http://{host}/token", "it")


@pytest.mark.parametrize("answers", [["127.0.0.1"], [PUBLIC, "10.0.0.1"], ["::1"], ["fe80::1%lo"]])
async def test_a_name_that_stands_for_such_an_address_is_not_used(names: Names, answers: list[str]) -> None:
    names.answers["inner.example"] = [answers]
    addresses = Addresses("https://files.example/mcp", None)
    for attempt in (addresses.resolve, addresses.check_page):
        with pytest.raises(SignInFailed, match="is used only if its configuration names it"):
            await attempt("https://inner.example/x", "it")


async def test_what_the_owner_has_configured_is_used_at_its_own_port_only() -> None:
    addresses = Addresses("http://10.0.0.5:8000/mcp", "http://127.0.0.1:9000/tenant")
    assert await addresses.resolve("http://10.0.0.5:8000/token", "it") == []
    assert await addresses.resolve("http://127.0.0.1:9000/token", "it") == []
    await addresses.check_page("http://10.0.0.5:8000/authorize", "it")
    await addresses.check_page("http://127.0.0.1:9000/authorize", "it")
    for other in ("http://10.0.0.5/token", "http://127.0.0.1:9001/token", "http://localhost:9000/token"):
        with pytest.raises(SignInFailed, match="names it"):
            await addresses.resolve(other, "it")


# With a computer


async def test_a_provider_of_this_machine_that_the_configuration_does_not_name_is_asked_nothing(
    guarded: GuardedServer, browser: Browser, meet: Callable[..., Any]
) -> None:
    computer = await meet(guarded.mcp_url, open_url=browser, auth=None)
    assert f'names it: "auth": {{"issuer": "{guarded.provider.issuer}"}}' in reason_of(computer)
    assert guarded.provider.requests == []
    assert browser.opened == []


@pytest.mark.covers("9-sign-in-asked")
async def test_a_server_of_this_machine_does_not_have_a_page_of_its_own_opened(
    guarded: GuardedServer, browser: Browser, meet: Callable[..., Any]
) -> None:
    """Browsers send the cookies of a host to all of its ports."""
    guarded.authorization_servers = [guarded.url]
    guarded.documents["/.well-known/oauth-authorization-server"] = {
        "issuer": guarded.url,
        "authorization_endpoint": f"{guarded.url}/authorize",
        "token_endpoint": f"{guarded.url}/token",
        "registration_endpoint": f"{guarded.url}/register",
        "response_types_supported": ["code"],
        "code_challenge_methods_supported": ["S256"],
    }
    computer = await meet(guarded.mcp_url, open_url=browser, auth=None)
    assert f'"auth": {{"issuer": "{guarded.url}"}}' in reason_of(computer)
    guarded.has_metadata = guarded.challenges = False
    guarded.documents.clear()
    computer = await meet(guarded.mcp_url, open_url=browser, auth=None)
    assert state_of(computer) == "auth_required"
    assert browser.opened == []


async def test_metadata_of_a_server_that_is_elsewhere_on_this_machine_is_not_read(
    guarded: GuardedServer, inner: Inner, browser: Browser, meet: Callable[..., Any]
) -> None:
    guarded.metadata_url = f"{inner.url}/latest/meta-data"
    computer = await meet(guarded.mcp_url, open_url=browser)
    assert "is on this machine or its own network" in reason_of(computer)
    assert inner.asked == []


@pytest.mark.parametrize("endpoint", ["registration_endpoint", "token_endpoint", "revocation_endpoint"])
async def test_no_request_of_a_sign_in_goes_to_another_port_of_this_machine(
    guarded: GuardedServer, inner: Inner, browser: Browser, meet: Callable[..., Any], endpoint: str
) -> None:
    guarded.provider.metadata[endpoint] = f"{inner.url}/inner"
    computer = await meet(guarded.mcp_url, open_url=browser)
    if endpoint == "revocation_endpoint":
        assert state_of(computer) == "ready"
        assert await computer.sign_out("files") is False
    else:
        assert "is on this machine or its own network" in reason_of(computer)
    assert inner.asked == []


@pytest.mark.parametrize("status", [302, 307])
async def test_a_redirect_leads_to_no_other_port_of_this_machine(
    guarded: GuardedServer, inner: Inner, browser: Browser, meet: Callable[..., Any], status: int
) -> None:
    async def away(request: Request) -> Response:
        return RedirectResponse(f"{inner.url}/inner", status)

    thief = AuthorizationServer()
    async with served(lambda url: Starlette(routes=[Route("/{path:path}", away, methods=["GET", "POST"])])) as url:
        thief.url = url
        guarded.authorization_servers = [url]
        computer = await meet(guarded.mcp_url, open_url=browser, auth={"issuer": url})
        assert state_of(computer) == "auth_required"
    assert inner.asked == []
    assert browser.opened == []


@pytest.mark.parametrize("status", [200, 400, 403, 500])
async def test_the_body_of_an_answer_that_is_no_token_is_quoted_nowhere(
    guarded: GuardedServer, browser: Browser, meet: Callable[..., Any], caplog: pytest.LogCaptureFixture, status: int
) -> None:
    caplog.set_level(logging.DEBUG)
    guarded.provider.token_status = status
    computer = await meet(guarded.mcp_url, open_url=browser)
    said = reason_of(computer) + str(computer.status()) + caplog.text
    assert guarded.provider.seen("token")
    assert "out of order" not in said


# By public names, with all public addresses behind a proxy


@asynccontextmanager
async def at_public_names(
    guarded: GuardedServer, names: Names, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ForwardProxy]:
    """The authorization server of the test is `provider.example`."""
    port = urlsplit(guarded.provider.url).port
    assert port
    guarded.provider.url = "http://provider.example"
    names.answers["provider.example"] = [[PUBLIC]]
    async with ForwardProxy(monkeypatch) as proxy:
        proxy.stand_before(port)
        yield proxy


async def test_a_name_is_looked_up_once_for_a_request_which_goes_to_that_address(
    guarded: GuardedServer, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is public when it is checked, and this machine a moment later."""
    async with at_public_names(guarded, names, monkeypatch) as proxy:
        names.answers["provider.example"] = [[PUBLIC], ["127.0.0.1"]]
        flow = Flow("http://files.example/mcp", [], lambda secrets: None, None)
        assert (await flow.post("http://provider.example/token", {}, {})).status_code == 401
        assert proxy.targets == [f"http://{PUBLIC}/token"]
        assert proxy.hosts == ["provider.example"]
        assert names.asked == ["provider.example"]
        with pytest.raises(SignInFailed, match="is on this machine or its own network"):
            await flow.post("http://provider.example/token", {}, {})
        assert len(proxy.targets) == 1


async def test_the_next_address_of_a_name_is_tried_if_the_first_one_cannot_be_reached(
    names: Names, monkeypatch: pytest.MonkeyPatch, guarded: GuardedServer
) -> None:
    """No public address can be reached from a test: those of this machine stand for them."""
    port = urlsplit(guarded.provider.url).port
    names.answers["two.example"] = [["127.9.9.9", "127.0.0.1"]]
    monkeypatch.setattr("a2c_smcp.mcp_host.sign_in.addresses.is_public", lambda address: True)
    flow = Flow("http://files.example/mcp", [], lambda secrets: None, None)
    assert (await flow.post(f"http://two.example:{port}/token", {}, {})).status_code == 401


@pytest.mark.parametrize(("host", "is_right"), [("provider.example", True), ("other.example", False)])
async def test_tls_is_for_the_name_and_not_for_the_address(
    guarded: GuardedServer, names: Names, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host: str, is_right: bool
) -> None:
    port = urlsplit(guarded.provider.url).port
    assert port
    names.answers["provider.example"] = [[PUBLIC]]
    async with encrypted(port, tmp_path, host) as encrypted_port, ForwardProxy(monkeypatch) as proxy:
        proxy.stand_before(encrypted_port)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        certificates.cache_clear()
        try:
            flow = Flow("https://files.example/mcp", [], lambda secrets: None, None)
            posting = flow.post("https://provider.example/token", {}, {})
            if is_right:
                assert (await posting).status_code == 401
            else:
                with pytest.raises(ProviderUnreachable, match=r"provider\.example"):
                    await posting
        finally:
            certificates.cache_clear()
        assert proxy.targets == [f"{PUBLIC}:443"]


async def test_a_sign_in_at_a_public_provider_needs_no_configuration_also_if_it_redirects(
    guarded: GuardedServer, names: Names, monkeypatch: pytest.MonkeyPatch, meet: Callable[..., Any]
) -> None:
    opened: list[str] = []
    guarded.provider.moves = True
    async with at_public_names(guarded, names, monkeypatch) as proxy:
        browser = Browser()

        async def browse(url: str) -> None:
            opened.append(url)
            await browser(url.replace("provider.example", f"127.0.0.1:{proxy.port}"))

        computer = await meet(guarded.mcp_url, open_url=browse, auth=None)
        assert state_of(computer) == "ready"
        assert text_of(await call(computer, "add", a=1, b=2)) == "3"
        assert {urlsplit(target).hostname for target in proxy.targets} == {PUBLIC}
        assert set(proxy.hosts) == {"provider.example"}
        assert f"http://{PUBLIC}/moved" in proxy.targets
        assert urlsplit(opened[0]).hostname == "provider.example"


@pytest.mark.parametrize("endpoint", ["authorization_endpoint", "token_endpoint", "registration_endpoint"])
async def test_an_endpoint_on_another_site_than_its_issuer_is_refused_unless_the_owner_names_that(
    guarded: GuardedServer, names: Names, monkeypatch: pytest.MonkeyPatch, meet: Callable[..., Any], endpoint: str
) -> None:
    """Mix-up: the page is honest, and the code goes to a thief."""
    async with at_public_names(guarded, names, monkeypatch) as proxy:
        browser, opened = Browser(), []

        async def browse(url: str) -> None:
            opened.append(url)
            for host in ("provider.example", "honest.example"):
                url = url.replace(f"http://{host}/", f"http://127.0.0.1:{proxy.port}/")
            await browser(url)

        names.answers["honest.example"] = [[OTHER]]
        path = {"authorization_endpoint": "authorize", "token_endpoint": "token", "registration_endpoint": "register"}
        guarded.provider.metadata[endpoint] = f"http://honest.example/{path[endpoint]}"
        computer = await meet(guarded.mcp_url, open_url=browse, auth=None)
        said = reason_of(computer)
        assert "is on another site, honest.example, than provider.example" in said
        assert '"auth": {"issuer": "http://provider.example"}' in said
        assert opened == []
        assert [kind for kind, _ in guarded.provider.requests] == ["metadata"]
        trusting = await meet(guarded.mcp_url, open_url=browse, auth={"issuer": "http://provider.example"})
        assert state_of(trusting) == "ready"


async def test_a_provider_whose_name_is_not_known_for_a_while_may_be_tried_again(names: Names) -> None:
    flow = Flow("https://files.example/mcp", [], lambda secrets: None, None)
    async with asyncio.timeout(60):
        with pytest.raises(ProviderUnreachable, match="its address cannot be looked up"):
            await flow.post("https://nowhere.invalid/token", {}, {})
