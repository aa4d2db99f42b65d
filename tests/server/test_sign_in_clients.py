"""Metadata documents of MCP clients that sign in: fetched with limits, and never from a private network."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.server.auth.authorization import OAuthError
from a2c_smcp.server.auth.clients import Clients
from a2c_smcp.server.auth.grants import AccessGrants, KeptInFile, SignIn
from tests.stage.internet import Names
from tests.stage.keys import write_keys
from tests.stage.mcp_clients import ask, key_of
from tests.stage.program import Program, Starts
from tests.stage.signing_in import CALLBACK, RawClient, send
from tests.stage.tls import encrypted
from tests.web_server import hosting

pytestmark = pytest.mark.covers("mcp-sign-in")


class Site:
    """A web site with the document of a client. `answer` may change what it says."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.url = folder, ""
        self.asked: list[str] = []
        self.document: dict[str, Any] = {"client_name": "Tester", "redirect_uris": [CALLBACK]}
        self.status, self.headers, self.body = 200, list[tuple[bytes, bytes]](), None
        self.body: Callable[[], bytes] = lambda: json.dumps({"client_id": self.url, **self.document}).encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        self.asked.append(scope["path"])
        kinds = [(b"content-type", b"application/json"), *self.headers]
        await send({"type": "http.response.start", "status": self.status, "headers": kinds})
        await send({"type": "http.response.body", "body": self.body()})


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(hosting(site))
        port = await stack.enter_async_context(encrypted(int(plain.rpartition(":")[2]), tmp_path))
        site.url = f"https://localhost:{port}/client.json"
        yield site


async def start(starts: Starts, site: Site, *options: str) -> Program:
    keys = write_keys(site.folder, {key_of("alice"): {"principal": "alice"}})
    trust = {"SSL_CERT_FILE": str(site.folder / "cert.pem"), "XDG_STATE_HOME": str(site.folder / "state")}
    return await starts("--mcp", "--sign-in", "--keys-file", keys, *options, **trust)


async def test_a_client_is_known_by_its_document_and_shown_with_its_domain(starts: Starts, site: Site) -> None:
    server = await start(starts, site, "--client-host", "localhost")
    client = RawClient(server.url, id=site.url)
    page = await send("GET", client.address())
    assert "<strong>localhost</strong> Tester" in page.text
    assert "unverified name" not in page.text
    tokens = await client.signed_in(key_of("alice"))
    assert (await ask(server.url, tokens["access_token"]))[0] == 200
    assert site.asked == ["/client.json"]  # and kept for a while


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("document", {"client_id": "https://localhost/other.json", "redirect_uris": [CALLBACK]}),
        ("document", {"redirect_uris": ["javascript:alert(1)"]}),
        ("document", {"redirect_uris": [CALLBACK], "client_secret": "x"}),
        ("document", {}),
        ("body", lambda: b"[]"),
        ("body", lambda: b"<html>"),
        ("body", lambda: b" " * 70_000),
        ("status", 404),
        ("status", 302),
    ],
)
async def test_a_document_that_does_not_describe_the_client_is_refused(
    starts: Starts, site: Site, change: str, value: Any
) -> None:
    server = await start(starts, site, "--client-host", "localhost")
    setattr(site, change, value)
    site.headers = [(b"location", b"/client2.json")]
    answer = await send("GET", RawClient(server.url, id=site.url).address())
    assert (answer.status, answer.headers.get("Location")) == (400, None)
    assert site.asked == ["/client.json"]  # redirects are not followed


async def test_nothing_is_fetched_from_this_machine_unless_the_operator_lists_it(starts: Starts, site: Site) -> None:
    server = await start(starts, site)
    port = site.url.split(":")[2].partition("/")[0]
    for host in ("localhost", "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "127.1", "0x7f000001", "2130706433"):
        answer = await send("GET", RawClient(server.url, id=f"https://{host}:{port}/client.json").address())
        assert (answer.status, answer.headers.get("Location")) == (400, None)
    assert site.asked == []


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.1.2.3", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "::1", "fe80::1"]
)
async def test_a_name_with_one_private_address_is_not_connected_to(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    names = Names(monkeypatch)
    names.answers["client.example"] = [["93.184.215.14", address], ["93.184.215.14"]]
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("it connects"))
    with pytest.raises(OAuthError):
        await clients().find("https://client.example/client.json")
    assert names.asked == ["client.example"]


def clients() -> Clients:
    async def end(name: str) -> None:
        """Nothing has begun."""

    return Clients(AccessGrants(SignIn(public_url="https://hub.example"), KeptInFile(None), end))


@pytest.mark.parametrize(
    "url",
    [
        "https://client.example",
        "https://client.example/",
        "https://user@client.example/client.json",
        "https://client.example/../client.json",
        "https://client.example/client.json#x",
        "https://client.example:0/client.json",
        "https://client.example\\@evil.example/client.json",
        "https:///client.json",
        "https://client.example/" + "x" * 2000,
    ],
)
async def test_an_address_that_could_be_read_in_two_ways_is_no_client(url: str) -> None:
    with pytest.raises(OAuthError) as caught:
        await clients().find(url)
    assert caught.value.error == "invalid_client"


async def test_registered_clients_are_bounded_and_unused_ones_are_forgotten(tmp_path: Path) -> None:
    async def end(name: str) -> None:
        """Nothing has begun."""

    file, metadata = tmp_path / "grants.json", {"redirect_uris": [CALLBACK]}
    grants = AccessGrants(SignIn(public_url="https://hub.example"), KeptInFile(file), end)
    known = Clients(grants)
    first, used = await known.register(metadata), await known.register(metadata)
    await known.keep(used.id)
    texts = json.loads(file.read_bytes())
    aged = {name: (text, until - 86400) for name, (text, until) in texts.items()}
    file.write_text(json.dumps(aged))  # a day later
    assert await known.find(used.id) == used
    with pytest.raises(OAuthError):
        await known.find(first.id)
    many = {f"client:{number}": ("{}", until) for number in range(1000) for _, until in [texts[f"client:{used.id}"]]}
    file.write_text(json.dumps(many))
    with pytest.raises(OAuthError) as caught:
        await known.register(metadata)
    assert caught.value.error == "temporarily_unavailable"


async def test_a_server_without_the_web_reads_no_document_and_says_so(starts: Starts, site: Site) -> None:
    server = await start(starts, site, "--no-client-documents", "--client-host", "localhost")
    metadata = (await send("GET", f"{server.url}/.well-known/oauth-authorization-server")).json
    assert metadata["client_id_metadata_document_supported"] is False
    page = await send("GET", RawClient(server.url, id=site.url).address())
    assert (page.status, site.asked) == (400, [])
    assert (await RawClient(server.url).signed_in(key_of("alice")))["access_token"]


async def test_a_documented_client_of_the_cloud_signs_in_by_its_document(starts: Starts, site: Site) -> None:
    """As ChatGPT's documentation describes it: with a key of its own for servers that can use it."""
    server = await start(starts, site, "--client-host", "localhost")
    redirect = "https://chatgpt.com/connector/oauth/Xq3"
    site.document = {
        "client_name": "ChatGPT",
        "client_uri": "https://chatgpt.com",
        "redirect_uris": [redirect],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "private_key_jwt",
        "jwks_uri": "https://chatgpt.com/jwks.json",
    }
    client = RawClient(server.url, id=site.url, redirect=redirect)
    tokens = await client.signed_in(key_of("alice"))
    tokens = (await client.refresh(tokens["refresh_token"], resource=f"{server.url}/mcp/desk")).json
    assert (await ask(server.url, tokens["access_token"]))[0] == 200
