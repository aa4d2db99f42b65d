"""Seats of MCP clients on a Server: renewed tokens, limits, long silence, and a Server inside another web server."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import jwt
import pytest

from a2c_smcp.bridge.on_server import PREFIXES, OfficesAsMCPServers, SeatOptions, agent_name
from a2c_smcp.errors import NotAuthorised
from a2c_smcp.protocol.names import fault_in
from a2c_smcp.server import Principal, Settings, create_app
from a2c_smcp.server.auth.authentication import mcp_name
from a2c_smcp.server.auth.jwt import JWTAuthenticationProvider
from a2c_smcp.server.run import address_of, listen, serving
from tests.peer import Peer
from tests.stage.mcp_clients import INITIALIZE, SECRET, ask
from tests.stage.web import fetch
from tests.waiting import until
from tests.web_server import by_uvicorn

pytestmark = pytest.mark.covers("mcp-on-server")

LIST = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}


@asynccontextmanager
async def served(by: Any = serving, auth: Any = None, **options: Any) -> AsyncIterator[tuple[str, Any]]:
    """A Server with offices as MCP servers, whose agents dial its only listener."""
    app, listener = create_app(Settings(auth=auth)), listen("127.0.0.1", 0)
    url = f"http://{address_of(listener)}"
    offices = OfficesAsMCPServers(app, url, options=SeatOptions(**options))
    app.mount(offices, *PREFIXES)
    async with by(app, listener):
        yield url, app


async def post(url: str, message: Any, token: str = "", session: str = "") -> tuple[int, str, str]:
    headers = {"Accept": "application/json, text/event-stream"}
    headers |= {"Authorization": f"Bearer {token}"} if token else {}
    headers |= {"Mcp-Session-Id": session} if session else {}
    status, told, text = await fetch(f"{url}/mcp/desk", "POST", json=message, headers=headers)
    return status, told.get("Mcp-Session-Id", ""), text


async def begun(url: str, token: str = "") -> str:
    """A new session."""
    status, session, _ = await post(url, INITIALIZE, token)
    assert status == 200
    return session


def token_for(seconds: float) -> str:
    return jwt.encode({"sub": "ann", "exp": int(time.time() + seconds)}, SECRET, "HS256")


def members(app: Any) -> list[str]:
    return [connection.principal.id for connection in app.hub.connections if connection.offices]


async def test_a_renewed_token_keeps_the_session_and_the_seat() -> None:
    auth = JWTAuthenticationProvider(algorithms="HS256", secret=SECRET, leeway=0)
    async with served(auth=auth) as (url, app):
        short, long = token_for(6), token_for(600)
        session = await begun(url, short)
        (first,) = app.hub.connections
        assert (await post(url, LIST, long, session))[0] == 200
        await until(lambda: first.is_gone)
        assert (await post(url, LIST, short, session))[0] == 403
        await until(lambda: members(app) == ["ann"])
        assert (await post(url, LIST, long, session))[0] == 200


async def test_an_expired_token_that_is_not_renewed_ends_its_session(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    auth = JWTAuthenticationProvider(algorithms="HS256", secret=SECRET, leeway=0)
    async with served(auth=auth) as (url, _):
        session = await begun(url, token_for(6))
        await until(lambda: "the seat of 'ann' in office 'desk' ends" in caplog.text)
        assert (await post(url, LIST, token_for(600), session))[0] == 404


async def test_a_stream_ends_with_its_token_also_where_the_session_was_renewed() -> None:
    auth = JWTAuthenticationProvider(algorithms="HS256", secret=SECRET, leeway=0)
    async with served(auth=auth) as (url, _), aiohttp.ClientSession() as http:
        short, long = token_for(6), token_for(600)
        status, session, _ = await post(url, INITIALIZE, short)
        assert status == 200
        sent = {"Accept": "text/event-stream", "Authorization": f"Bearer {short}", "Mcp-Session-Id": session}
        async with http.get(f"{url}/mcp/desk", headers=sent) as stream:
            assert stream.status == 200
            assert (await post(url, LIST, long, session))[0] == 200
            async with asyncio.timeout(60):
                with suppress(aiohttp.ClientError):
                    while await stream.content.readany():
                        pass
        assert (await post(url, LIST, long, session))[0] == 200


async def test_a_principal_has_so_many_offices_at_once_and_no_more() -> None:
    async with served(most_per_principal=2) as (url, _):
        for office, status in (("one", 200), ("two", 200), ("three", 429), ("one", 200)):
            assert (office, (await ask(url, None, office))[0]) == (office, status)


async def test_a_seat_that_is_not_used_for_long_is_closed_with_its_sessions() -> None:
    async with served(idle=0.1, keep=0.2) as (url, app):
        session = await begun(url)
        await until(lambda: not len(app.hub.connections))
        status, _, text = await post(url, LIST, session=session)
        assert (status, json.loads(text)["error"]["data"]["code"]) == (404, 404)


async def test_an_office_that_refuses_leaves_nothing_behind() -> None:
    async with served(idle=60) as (url, app):
        planner = await Peer.connect(url)
        await planner.join("agent", "planner", "desk")
        outcomes = await asyncio.gather(*(ask(url, None) for _ in range(5)))
        assert [status for status, *_ in outcomes] == [403] * 5
        await until(lambda: len(app.hub.connections) == 1)
        await planner.close()
        assert (await ask(url, None))[0] == 200


async def test_the_server_may_be_inside_another_web_server() -> None:
    async with served(by_uvicorn, idle=0.1, keep=0.1) as (url, app):
        status, session, text = await post(url, INITIALIZE)
        assert (status, '"serverInfo"' in text) == (200, True)
        assert (await post(url, LIST, session=session))[0] == 200
        await until(lambda: not len(app.hub.connections))


@pytest.mark.parametrize(
    ("names", "name"), [(None, "mcp:alice"), ({"mcp:*"}, "mcp:alice"), ({"zoe", "ann", "*-x"}, "ann")]
)
def test_the_agent_is_called_by_its_principal_or_by_the_first_name_of_the_key(
    names: set[str] | None, name: str
) -> None:
    assert agent_name(Principal("alice", names=frozenset(names) if names else None)) == name


@pytest.mark.covers("mcp-names")
def test_every_principal_has_a_name_of_its_own() -> None:
    long = "x" * 200
    digest = mcp_name(long)
    odd = ["alice", "Alice", "mcp:alice", long, f"{long}y", digest.removeprefix("mcp:"), "a\u202eb", "ab", " a", "a"]
    names = [mcp_name(principal) for principal in odd]
    assert len(set(names)) == len(odd)
    assert [fault_in(name) for name in names] == [None] * len(odd)
    for principal in odd:
        allowed = [name for name in names if Principal(principal).allows("agent", name, "desk")]
        assert allowed == [mcp_name(principal)]


def test_a_key_with_patterns_only_gives_no_name() -> None:
    with pytest.raises(NotAuthorised, match="by pattern only"):
        agent_name(Principal("alice", names=frozenset({"planner-*"})))
