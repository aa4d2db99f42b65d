"""`a2c-smcp server --mcp --sign-in`: MCP clients sign in, over real sockets, and what nobody may get by it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeAlias

import httpx2
import pytest
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from a2c_smcp.computer import Computer
from tests.peer import PATIENCE
from tests.stage.keys import write_keys
from tests.stage.mcp_clients import called, key_of
from tests.stage.program import Program, Starts
from tests.stage.signing_in import CALLBACK, Person, facts_of

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
