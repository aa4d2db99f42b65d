"""MCP clients that sign in at one node of several: every node knows them, and no outage revives what has ended."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import aiohttp
import pytest

from tests.peer import PATIENCE
from tests.stage.crew import Crew, worker_settings
from tests.stage.keys import write_keys
from tests.stage.mcp_clients import ask, key_of
from tests.stage.place import place_in
from tests.stage.program import Program, Starts, starts
from tests.stage.signing_in import Person, RawClient, facts_of, send
from tests.valkey import Valkey, running_valkey
from tests.waiting import until_it_goes

__all__ = ["starts"]

pytestmark = pytest.mark.covers("mcp-sign-in")

PUBLIC = "http://127.0.0.1:1"
"""Where a load balancer would stand."""

Node: TypeAlias = Callable[[str], Awaitable[Program]]


@pytest.fixture
def store() -> Iterator[Valkey]:
    """A store that keeps what it was told, as the guide for operators says."""
    with running_valkey("--appendonly", "yes", "--appendfsync", "always") as valkey:
        yield valkey


@pytest.fixture
def node(starts: Starts, store: Valkey, tmp_path: Path) -> Node:
    keys = write_keys(tmp_path, {key_of("alice"): {"principal": "alice"}})

    async def start(name: str) -> Program:
        options = ("--redis", store.url, "--node", name, "--keys-file", keys, "--public-url", PUBLIC)
        program = await starts("--mcp", "--sign-in", *options, XDG_STATE_HOME=str(tmp_path / name))
        program.url = program.url.partition(" ")[0]
        return program

    return start


async def signed_in(asks: str, decides: str, exchanges: str, public: str = PUBLIC) -> tuple[RawClient, dict[str, str]]:
    """Each step at the node whose URL is named for it."""
    client, resource = RawClient(asks), f"{public}/mcp/desk"
    await client.register()
    address = client.address(resource=resource).replace(asks, decides)
    code = facts_of(await Person(decides).sign_in(address, key_of("alice")))["code"]
    client.url = exchanges
    answer = await client.exchange(code, resource=resource)
    assert answer.status == 200, answer.text
    return client, answer.json


async def revoke(at: str, client: RawClient, tokens: dict[str, str]) -> int:
    form = {"token": tokens["refresh_token"], "client_id": client.id}
    return (await send("POST", f"{at}/sign-in/revoke", data=form)).status


async def test_each_step_may_reach_another_node_and_an_end_is_known_at_once(node: Node) -> None:
    north, south = await node("north"), await node("south")
    client, tokens = await signed_in(north.url, south.url, north.url)
    token = tokens["access_token"]
    assert [(await ask(each.url, token))[0] for each in (north, south)] == [200, 200]
    client.url = south.url
    renewed = (await client.refresh(tokens["refresh_token"])).json
    _, headers, _ = await ask(north.url, renewed["access_token"])
    session = {"Authorization": f"Bearer {renewed['access_token']}", "Accept": "text/event-stream"}
    session["Mcp-Session-Id"] = headers["mcp-session-id"]
    timeout = aiohttp.ClientTimeout(PATIENCE)
    url = f"{north.url}/mcp/desk"
    async with aiohttp.ClientSession(timeout=timeout) as http, http.get(url, headers=session) as stream:
        assert stream.status == 200
        assert await revoke(south.url, client, renewed) == 200
        with suppress(aiohttp.ClientError):
            while await stream.content.readany():
                pass
    assert [(await ask(each.url, renewed["access_token"]))[0] for each in (north, south)] == [401, 401]


async def test_a_killed_node_and_an_outage_lose_no_grant_and_revive_none(node: Node, store: Valkey) -> None:
    north, south = await node("north"), await node("south")
    kept, tokens = await signed_in(north.url, north.url, north.url)
    ended, others = await signed_in(south.url, south.url, south.url)
    assert await revoke(north.url, ended, others) == 200
    await north.kill()
    kept.url = south.url
    tokens = (await kept.refresh(tokens["refresh_token"], resource=f"{PUBLIC}/mcp/desk")).json
    store.kill()
    assert (await kept.refresh(tokens["refresh_token"])).status == 503
    assert (await ask(south.url, others["access_token"]))[0] in (401, 503)
    store.start()

    async def is_back() -> None:
        assert (await send("GET", f"{south.url}/readyz")).status == 200

    await until_it_goes(is_back)
    assert (await kept.refresh(tokens["refresh_token"])).status == 200
    assert (await ended.refresh(others["refresh_token"])).json["error"] == "invalid_grant"


async def test_workers_of_one_port_know_what_was_signed_in_at_another_and_what_has_ended(tmp_path: Path) -> None:
    keys = write_keys(tmp_path, {key_of("alice"): {"principal": "alice"}})
    async with place_in(tmp_path / "place") as place:
        crew = await Crew.start(place, "--mcp", "--sign-in", "--keys-file", keys)
        told = worker_settings(crew.workers()["w-1"])
        assert told
        listed = json.loads((await place.run("nodes", "--redis", told["redis"], "--json")).out)
        first, second = (node["url"] for node in listed)
        client, tokens = await signed_in(first, first, second, crew.url)
        statuses = [(await ask(each, tokens["access_token"]))[0] for each in (second, first, crew.url)]
        assert statuses == [200, 200, 200]
        client.url = first
        renewed = (await client.refresh(tokens["refresh_token"])).json
        assert [(await ask(each, renewed["access_token"]))[0] for each in (second, first)] == [200, 200]
        assert await revoke(second, client, renewed) == 200
        statuses = [(await ask(each, renewed["access_token"]))[0] for each in (first, second, crew.url)]
        assert statuses == [401, 401, 401]
