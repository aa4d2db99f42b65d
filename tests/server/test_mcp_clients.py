"""`a2c-smcp server --mcp`: MCP clients that are agents with their own keys, over real sockets with the real program."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
import jwt
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import Implementation

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer import Computer
from a2c_smcp.errors import NotAuthorised, OfficeHasAgent
from a2c_smcp.registry import AsyncToolContext
from tests.computer.hosted import hosted
from tests.computer.killable_computer import killable_computer, notes_in
from tests.peer import PATIENCE
from tests.ports import free_port
from tests.stage.keys import write_keys
from tests.stage.mcp_clients import SECRET, ask, called, client, key_of, session_of
from tests.stage.metrics import scrape
from tests.stage.owners import SteadyOwner
from tests.stage.program import SOON, Program, Starts
from tests.stage.tls import certificate
from tests.stage.web import fetch
from tests.valkey import running_valkey
from tests.waiting import until, until_it_goes

pytestmark = pytest.mark.covers("mcp-on-server")

KEYS = {
    "alice": {"principal": "alice", "offices": ["desk", "den"]},
    "alice-too": {"principal": "alice", "offices": ["desk", "den"]},
    "dave": {"principal": "dave", "offices": ["desk"]},
    "bob": {"principal": "bob", "offices": ["desk", "den"], "roles": ["agent"], "names": ["planner-*", "robert"]},
    "carol": {"principal": "carol", "offices": ["elsewhere"]},
    "laptop": {"principal": "laptop", "roles": ["computer"]},
    "old": {"principal": "old", "expires": "2020-01-01T00:00:00Z"},
}
ERAS = pytest.mark.parametrize("mode", ["auto", "legacy"])

Joins = Callable[..., Awaitable["Laptop"]]


def keys_of(folder: Path, *names: str) -> Path:
    return write_keys(folder, {key_of(name): KEYS[name] for name in names or KEYS})


class Laptop:
    """A computer whose tool `wait` tells its progress, and ends when the test says so."""

    def __init__(self) -> None:
        self.computer = Computer("laptop")
        self.began = asyncio.Event()
        self.release = asyncio.Event()

        @self.computer.tool(auto_apply=True)
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        @self.computer.tool(auto_apply=True)
        async def wait(text: str, context: AsyncToolContext) -> str:
            """Wait."""
            await context.progress(1, 2, text)
            self.began.set()
            await self.release.wait()
            return text


@pytest.fixture
async def joins(tmp_path: Path) -> AsyncIterator[Joins]:
    """Has a computer join an office."""
    async with AsyncExitStack() as stack:

        async def join(url: str, office: str = "desk", key: str | None = "laptop", **options: Any) -> Laptop:
            laptop, joined = Laptop(), asyncio.Event()
            options |= {"api_key": key_of(key) if key else None, "state_folder": tmp_path / office}
            options["on_connection"] = lambda what: joined.set() if what.startswith("joined") else None
            running = asyncio.create_task(laptop.computer.run(url, office=office, **options))

            async def stop() -> None:
                running.cancel()
                await asyncio.wait([running])

            stack.push_async_callback(stop)
            await asyncio.wait_for(joined.wait(), PATIENCE)
            return laptop

        yield join


@pytest.fixture
async def keyed(starts: Starts, tmp_path: Path) -> Program:
    """A Server with the keys above."""
    keys = keys_of(tmp_path)
    return await starts("--mcp", "--mcp-idle", "1", "--keys-file", keys, XDG_STATE_HOME=str(tmp_path / "state"))


async def tools_of(session: Client) -> list[str]:
    return [tool.name for tool in (await session.list_tools()).tools]


async def ended(stream: aiohttp.ClientResponse) -> None:
    """Reads a stream until it ends, in whichever way."""
    with suppress(aiohttp.ClientError):
        while await stream.content.readany():
            pass


async def failure(program: Program, key: str | None) -> str:
    """The words that a person at the client reads."""
    with pytest.raises(BaseException) as caught:  # noqa: PT011, of the SDK
        async with client(program.url, key, mode="legacy"):
            pass
    found = caught.value
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return str(found)


# Who may come in


@ERAS
async def test_a_client_with_a_key_uses_the_tools_of_an_office(keyed: Program, joins: Joins, mode: str) -> None:
    await joins(keyed.url)
    async with client(keyed.url, mode=mode) as session:
        assert {"add", "wait"} <= {*await tools_of(session)}
        assert await called(session, "add", a=1, b=2) == "3"
    assert await keyed.says("mcp at ") == f"mcp at {keyed.url}/mcp/<office>"
    assert await keyed.says("joined office='desk' role='agent' name='mcp:alice' principal='alice'")
    assert not any(key_of(name) in keyed.said for name in KEYS)


@pytest.mark.parametrize("key", [None, "wrong", key_of("old")], ids=["none", "wrong", "expired"])
async def test_a_client_without_a_valid_key_is_told_what_to_do(keyed: Program, key: str | None) -> None:
    status, headers, told = await ask(keyed.url, key)
    assert (status, told["id"], told["error"]["data"]["code"]) == (403 if key else 401, None, 401)
    assert headers.get("WWW-Authenticate") == (None if key else "Bearer")
    assert "a2c-smcp key" in told["error"]["message"]
    assert told["error"]["message"] in await failure(keyed, None if key is None else "nobody")


async def test_the_metadata_names_the_resource_and_those_who_give_tokens(starts: Starts, joins: Joins) -> None:
    tokens = ("--jwt-secret", SECRET, "--jwt-issuer", "https://id.example")
    program = await starts("--mcp", *tokens)
    for path in ("mcp/desk", "mcp/a%20b"):
        told = (await fetch(f"{program.url}/.well-known/oauth-protected-resource/{path}")).json
        assert (told["resource"], told["authorization_servers"]) == (f"{program.url}/{path}", ["https://id.example"])
    claims = {"sub": "ann", "iss": "https://id.example", "offices": ["desk"]}
    for seconds, status in ((-60, 401), (60, 200)):
        token = jwt.encode({**claims, "exp": int(time.time()) + seconds}, SECRET, "HS256")
        answered, headers, _ = await ask(program.url, token)
        assert answered == status
        assert ("resource_metadata=" in headers.get("WWW-Authenticate", "")) is (status == 401)


async def test_a_server_with_keys_names_nobody_who_gives_tokens(keyed: Program) -> None:
    told = await fetch(f"{keyed.url}/.well-known/oauth-protected-resource/mcp/desk")
    assert "authorization_servers" not in told.json


@pytest.mark.parametrize(("key", "words"), [("carol", "office 'desk'"), ("laptop", "role 'agent'")])
async def test_a_key_for_something_else_is_refused_with_what_to_do(keyed: Program, key: str, words: str) -> None:
    status, _, told = await ask(keyed.url, key_of(key))
    assert (status, told["error"]["data"]["code"]) == (403, 403)
    assert words in told["error"]["message"]
    assert "a2c-smcp key" in told["error"]["message"]
    assert words in await failure(keyed, key)


async def test_each_key_that_is_refused_is_counted_and_in_the_audit_once(starts: Starts, tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    program = await starts("--mcp", "--metrics", "--keys-file", keys_of(tmp_path), "--audit", audit)
    for key in (key_of("carol"), key_of("laptop"), "wrong-horse-battery-staple", None):
        assert (await ask(program.url, key))[0] in (401, 403)
    lines = [line for line in map(json.loads, audit.read_text("utf-8").splitlines()) if line["event"] == "refused"]
    refused = [(line["code"], line.get("principal")) for line in lines]
    assert refused == [(403, "carol"), (403, "laptop"), (401, None), (401, None)]
    assert {line["address"] for line in lines} == {"127.0.0.1"}
    assert (await scrape(program.url))['a2c_refused_total{code="403",reason="not_authorised"}'] == 2


@ERAS
async def test_a_call_of_a_tool_that_the_office_does_not_have_leaves_one_entry(
    starts: Starts, joins: Joins, tmp_path: Path, mode: str
) -> None:
    audit, admin = tmp_path / "audit.jsonl", "operator-correct-horse-battery-staple"
    told_to = ("--metrics", "--audit", audit, "--admin-key", admin)
    program = await starts("--mcp", "--keys-file", keys_of(tmp_path), *told_to)
    await joins(program.url)
    async with client(program.url, mode=mode) as session:
        assert await called(session, "add", a=1, b=2) == "3"
        for tool in ("nix", "add\n", "x" * 300):
            with pytest.raises(MCPError, match="Unknown tool"):
                await session.call_tool(tool, {})
    lines = [json.loads(line) for line in audit.read_text("utf-8").splitlines() if '"event":"call"' in line]
    whole = {name: lines[1][name] for name in lines[1].keys() - {"n", "time", "hash"}}
    assert whole == {
        "event": "call", "office": "desk", "agent": "mcp:alice", "principal": "alice", "address": "127.0.0.1",
        "tool": "nix", "outcome": "not_found", "code": 404, "ran": "not_run", "reason": "'nix'",
    }  # fmt: skip
    told = [(line["tool"], line["outcome"]) for line in lines]
    assert told == [("add", "ok"), ("nix", "not_found"), (None, "not_found"), (None, "not_found")]
    assert (await scrape(program.url))['a2c_calls_total{event="client:tool_call",outcome="not_found"}'] == 3
    rows = await fetch(f"{program.url}/admin/api/calls/ended", headers={"Authorization": f"Bearer {admin}"})
    missed = [(row["tool"], row["outcome"], row["agent"]) for row in rows.json["calls"] if row["outcome"] != "ok"]
    assert missed == [(tool, "not_found", "mcp:alice") for tool in (None, None, "nix")]


@pytest.mark.parametrize(("path", "status"), [("", 404), ("/", 404), ("/%E2%80%AEdesk", 400), (f"/{'x' * 200}", 400)])
async def test_a_path_without_a_valid_office_is_refused(keyed: Program, path: str, status: int) -> None:
    for method in ("GET", "POST"):
        assert (await fetch(f"{keyed.url}/mcp{path}", method)).status == status


async def test_a_path_that_is_not_there_names_that_of_mcp_clients(keyed: Program) -> None:
    for path in ("/", "/sse", "/mcpp/desk"):
        told = await fetch(f"{keyed.url}{path}", "POST")
        assert (told.status, told.json["code"]) == (404, 404)
        assert "for MCP clients /mcp/<office>" in told.json["message"]
    assert "/mcp/OFFICE" in (await fetch(f"{keyed.url}/mcp", "POST")).json["error"]["message"]


async def test_the_agent_has_a_name_that_the_key_allows(keyed: Program, joins: Joins) -> None:
    await joins(keyed.url)
    async with client(keyed.url, "bob") as session:
        assert await called(session, "add", a=1, b=2) == "3"
    assert await keyed.says("joined office='desk' role='agent' name='robert' principal='bob'")


async def test_a_server_without_keys_serves_local_clients(starts: Starts, joins: Joins) -> None:
    program = await starts("--mcp")
    await joins(program.url, key=None)
    async with client(program.url, None) as session:
        assert await called(session, "add", a=1, b=2) == "3"
    assert (await fetch(f"{program.url}/mcp/desk", "POST", headers={"Host": "evil.example"})).status == 400


@pytest.mark.covers("cors")
async def test_a_web_page_may_read_the_headers_of_mcp_if_its_origin_is_allowed(starts: Starts) -> None:
    program = await starts("--mcp", "--cors-origin", "https://page.example")
    status, headers, _ = await ask(program.url, None, Origin="https://page.example")
    assert (status, headers["access-control-allow-origin"]) == (200, "https://page.example")
    assert "mcp-session-id" in headers["access-control-expose-headers"]
    assert (await ask(program.url, None, Origin="https://evil.example"))[0] == 400


async def test_clients_come_over_tls(starts: Starts, joins: Joins, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "cert")
    program = await starts("--mcp", "--keys-file", keys_of(tmp_path), "--tls-cert", cert, "--tls-key", key)
    trust = ssl.create_default_context(cafile=cert)
    await joins(program.url, ssl=trust)
    async with client(program.url, verify=trust) as session:
        assert await called(session, "add", a=1, b=2) == "3"


# Seats


async def test_an_office_that_another_agent_holds_says_who_does(keyed: Program, joins: Joins) -> None:
    await joins(keyed.url)
    async with AsyncSMCPAgentClient("planner", url=keyed.url, office="desk", api_key=key_of("alice")):
        status, _, told = await ask(keyed.url, key_of("alice"))
        assert (status, told["error"]["data"]["code"]) == (403, 403)
        assert told["error"]["message"].startswith("office 'desk' has an agent already, 'planner'")
        assert "wait until it has left, or use another office" in told["error"]["message"]
    async with client(keyed.url) as session:
        assert await called(session, "add", a=1, b=2) == "3"


async def test_a_seat_is_released_after_the_last_request_and_taken_by_the_next(keyed: Program, joins: Joins) -> None:
    await joins(keyed.url)
    sent = await session_of(keyed.url)
    await keyed.says("left office='desk' role='agent' name='mcp:alice'")
    async with client(keyed.url, "bob") as session:
        assert await called(session, "add", a=1, b=2) == "3"
    await keyed.says("left office='desk' role='agent' name='robert'")
    asked = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    listed = await fetch(f"{keyed.url}/mcp/desk", "POST", json=asked, headers=sent)
    assert (listed.status, '"add"' in listed.text) == (200, True)


async def test_a_stream_or_a_call_keeps_the_seat(keyed: Program, joins: Joins) -> None:
    laptop = await joins(keyed.url)
    async with client(keyed.url) as session:
        calling = asyncio.create_task(called(session, "wait", text="done"))
        await asyncio.wait_for(laptop.began.wait(), PATIENCE)
        await asyncio.sleep(2.0)  # longer than an idle seat is kept
        laptop.release.set()
        assert await calling == "done"
        assert keyed.said.count("joined office='desk' role='agent'") == 1
    async with client(keyed.url, mode="legacy"):  # it has a stream for what the server may want to say
        # On a busy machine it may come when the seat of the first one has been given up.
        seated = keyed.said.count("joined office='desk' role='agent'")
        await asyncio.sleep(2.0)
        assert (await ask(keyed.url, key_of("bob")))[0] == 403
        assert keyed.said.count("joined office='desk' role='agent'") == seated


async def test_a_call_whose_client_is_away_keeps_the_seat(keyed: Program, joins: Joins) -> None:
    """An older client may come back for the answer."""
    laptop = await joins(keyed.url)
    sent = await session_of(keyed.url)
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "wait", "arguments": {"text": "x"}}}
    async with aiohttp.request("POST", f"{keyed.url}/mcp/desk", json=call, headers=sent):
        await asyncio.wait_for(laptop.began.wait(), PATIENCE)
    await asyncio.sleep(2.5)  # longer than an idle seat is kept
    assert "left office" not in keyed.said
    laptop.release.set()
    await keyed.says("left office='desk' role='agent' name='mcp:alice'")


@ERAS
async def test_clients_of_one_principal_share_a_seat_and_nothing_else(keyed: Program, joins: Joins, mode: str) -> None:
    laptop = await joins(keyed.url)
    async with client(keyed.url, mode=mode) as one, client(keyed.url, mode=mode) as two:
        heard: dict[str, list[str | None]] = {"one": [], "two": []}

        def call(session: Client, text: str) -> asyncio.Task[Any]:
            async def hear(progress: float, total: float | None, message: str | None) -> None:
                heard[text].append(message)

            return asyncio.create_task(session.call_tool("wait", {"text": text}, progress_callback=hear))

        waiting = [call(one, "one"), call(two, "two")]
        await until(lambda: heard == {"one": ["one"], "two": ["two"]})
        seats = [keyed.said.count(f"{change} office='desk' role='agent'") for change in ("joined", "left")]
        assert seats[0] - seats[1] == 1
        waiting[0].cancel()
        assert await called(one, "add", a=1, b=2) == "3"
        laptop.release.set()
        assert (await waiting[1]).content[0].text == "two"
        assert heard == {"one": ["one"], "two": ["two"]}


@ERAS
async def test_the_audit_log_names_each_client_once(keyed: Program, joins: Joins, mode: str) -> None:
    """Its agent is the same for all clients of a key."""
    await joins(keyed.url)
    for name in ("claude-desktop", "cursor\u202e\n", "claude-desktop"):
        about = Implementation(name=name, version="1.2")
        async with client(keyed.url, mode=mode, client_info=about) as session:
            assert await called(session, "add", a=1, b=2) == "3"
    await keyed.says("left office='desk' role='agent'")
    lines = [line.rpartition("mcp client ")[2] for line in keyed.said.splitlines() if "mcp client " in line]
    seat = "office='desk' agent='mcp:alice'"
    assert lines == [f"{seat} client={name!r} principal='alice'" for name in ("claude-desktop", "cursor")]


async def test_a_session_belongs_to_its_principal(keyed: Program, joins: Joins) -> None:
    stolen = {"Mcp-Session-Id": (await session_of(keyed.url))["Mcp-Session-Id"]}
    assert (await ask(keyed.url, key_of("bob"), **stolen))[0] == 404
    assert (await ask(keyed.url, key_of("bob"), "den"))[0] == 200  # a seat of his own
    assert (await ask(keyed.url, key_of("bob"), "den", **stolen))[0] == 404
    for method in ("GET", "DELETE"):
        sent = {"Authorization": f"Bearer {key_of('bob')}", "Accept": "text/event-stream", **stolen}
        assert (await fetch(f"{keyed.url}/mcp/desk", method, headers=sent)).status == 404


async def test_an_office_without_a_computer_says_so(keyed: Program) -> None:
    async with client(keyed.url) as session:
        assert "no computer in the office 'desk'" in str(await session.list_tools())


# Endings


@ERAS
async def test_a_computer_that_is_killed_answers_its_calls(starts: Starts, tmp_path: Path, mode: str) -> None:
    program = await starts("--mcp")
    async with (
        killable_computer(program.url, "desk", tmp_path) as laptop,
        client(program.url, None, mode=mode) as session,
    ):
        calling = asyncio.create_task(session.call_tool("note", {"text": "one", "ends": False}))
        await until(lambda: notes_in(tmp_path))
        laptop.kill()
        result = await asyncio.wait_for(calling, PATIENCE)
        assert result.is_error
        assert "left" in str(result.content)
        assert await tools_of(session)


async def test_an_older_client_begins_anew_after_a_killed_server(starts: Starts, joins: Joins, tmp_path: Path) -> None:
    keys, port = keys_of(tmp_path), free_port()

    async def start() -> Program:
        return await starts("--mcp", "--keys-file", keys, port=port, XDG_STATE_HOME=str(tmp_path / "state"))

    program = await start()
    await joins(program.url)
    add = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "add", "arguments": {"a": 1, "b": 2}}}
    url = f"{program.url}/mcp/desk"

    async def begun() -> dict[str, str]:
        return {**await session_of(program.url), "MCP-Protocol-Version": "2025-11-25"}

    before = await begun()
    await program.kill()
    await start()
    assert (await fetch(url, "POST", json=add, headers=before)).status == 404
    assert (await fetch(url, headers=before)).status == 404
    after = await begun()
    assert (await fetch(url, "POST", json=add, headers=before)).status == 404

    async def added() -> None:
        assert '"structuredContent":{"result":3}' in (await fetch(url, "POST", json=add, headers=after)).text

    await until_it_goes(added)


@ERAS
async def test_a_server_that_stops_lets_calls_finish_and_ends_streams(keyed: Program, joins: Joins, mode: str) -> None:
    laptop = await joins(keyed.url)
    async with aiohttp.ClientSession() as http:
        sent = await session_of(keyed.url)
        stream = await http.get(f"{keyed.url}/mcp/desk", headers=sent)
        assert stream.status == 200
        async with client(keyed.url, mode=mode) as session:
            assert await tools_of(session)  # else the client asks for them after the call
            calling = asyncio.create_task(called(session, "wait", text="done"))
            await asyncio.wait_for(laptop.began.wait(), PATIENCE)
            keyed.signal(signal.SIGTERM)
            await keyed.says("stopping")
            laptop.release.set()
            assert await calling == "done"
            assert await keyed.ends(SOON + 5) == 0
        stream.close()
    assert "Traceback" not in keyed.said


async def test_a_revoked_key_ends_its_streams_and_sessions(starts: Starts, joins: Joins, tmp_path: Path) -> None:
    program = await starts("--mcp", "--keys-file", keys_of(tmp_path))
    await joins(program.url)
    sent = await session_of(program.url)
    async with aiohttp.ClientSession() as http, http.get(f"{program.url}/mcp/desk", headers=sent) as stream:
        assert stream.status == 200
        keys_of(tmp_path, "bob", "laptop")
        program.signal(signal.SIGHUP)
        await asyncio.wait_for(ended(stream), PATIENCE)
    assert (await ask(program.url, key_of("alice")))[0] == 403
    async with client(program.url, "bob") as session:
        assert await called(session, "add", a=1, b=2) == "3"


async def test_a_stream_ends_with_the_key_that_opened_it_and_the_session_goes_on_with_another_key_of_its_principal(
    starts: Starts, joins: Joins, tmp_path: Path
) -> None:
    program = await starts("--mcp", "--keys-file", keys_of(tmp_path))
    await joins(program.url)
    sent = await session_of(program.url)
    others = {**sent, "Authorization": f"Bearer {key_of('alice-too')}"}
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
    async with aiohttp.ClientSession() as http, http.get(f"{program.url}/mcp/desk", headers=sent) as stream:
        assert stream.status == 200
        async with http.post(f"{program.url}/mcp/desk", headers=others, json=ping) as response:
            assert response.status == 200
        keys_of(tmp_path, "alice-too", "laptop")
        program.signal(signal.SIGHUP)
        await asyncio.wait_for(ended(stream), PATIENCE)
        async with http.get(f"{program.url}/mcp/desk", headers=sent) as refused:
            assert refused.status == 403
        async with http.post(f"{program.url}/mcp/desk", headers=others, json=ping) as response:
            assert response.status == 200


@pytest.mark.covers("mcp-names")
async def test_a_grant_to_the_mcp_clients_of_one_key_is_none_for_those_of_another(
    keyed: Program, tmp_path: Path
) -> None:
    owner = SteadyOwner("always")
    computer = Computer("laptop", approve=owner)
    computer.tool(lambda: "paid", name="pay")
    async with hosted(computer, keyed.url, "desk", tmp_path / "pays", api_key=key_of("laptop")):
        for key in ("alice", "alice-too", "dave"):
            async with client(keyed.url, key) as session:
                assert await called(session, "pay") == "paid"
            await keyed.says(f"left office='desk' role='agent' name='mcp:{key.partition('-')[0]}'")
    assert [who.partition(" ")[0] for who in owner.callers] == ["mcp:alice", "mcp:dave"]


@pytest.mark.covers("mcp-names")
async def test_nobody_else_joins_under_the_name_of_a_principals_mcp_clients(keyed: Program) -> None:
    async with AsyncSMCPAgentClient("mcp:alice", url=keyed.url, office="desk", api_key=key_of("alice-too")):
        pass
    with pytest.raises(NotAuthorised, match="for MCP clients of another principal"):
        async with AsyncSMCPAgentClient("mcp:alice", url=keyed.url, office="desk", api_key=key_of("dave")):
            pass


async def test_one_of_several_nodes_serves_the_computers_of_all(starts: Starts, joins: Joins) -> None:
    with running_valkey() as valkey:
        north = await starts("--mcp", "--redis", valkey.url, "--node", "north")
        south = await starts("--redis", valkey.url, "--node", "south")
        await joins(south.url.split()[0], key=None)
        async with client(north.url.split()[0], None) as session:
            assert await called(session, "add", a=1, b=2) == "3"
        north.signal(signal.SIGTERM)
        assert await north.ends(SOON + 5) == 0
        assert "Traceback" not in north.said


# Options


@ERAS
async def test_any_worker_answers_for_all(starts: Starts, joins: Joins, tmp_path: Path, mode: Any) -> None:
    """Each request comes on a connection of its own, and so to any of them."""
    server = await starts("--mcp", "--workers", "3", "--keys-file", keys_of(tmp_path))
    assert await server.says("mcp at ") == f"mcp at {server.url.split()[0]}/mcp/<office>"
    await joins(server.url.split()[0])
    async with AsyncExitStack() as stack:
        alone = {"limits": httpx2.Limits(max_keepalive_connections=0)}
        sessions = [
            await stack.enter_async_context(client(server.url.split()[0], mode=mode, **alone)) for _ in range(3)
        ]
        for number in range(4):
            answers = await asyncio.gather(*(called(session, "add", a=number, b=1) for session in sessions))
            assert answers == [str(number + 1)] * 3


async def test_an_agent_beside_an_mcp_client_is_told_who_holds_the_office(keyed: Program, joins: Joins) -> None:
    await joins(keyed.url)
    async with client(keyed.url) as session:
        assert await tools_of(session)
        with pytest.raises(OfficeHasAgent, match="'mcp:alice'"):
            async with AsyncSMCPAgentClient("planner", url=keyed.url, office="desk", api_key=key_of("alice")):
                pass
