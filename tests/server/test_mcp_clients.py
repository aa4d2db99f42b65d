"""`a2c-smcp server --mcp`: MCP clients that are agents with their own keys, over real sockets with the real program."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
import jwt
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import Implementation

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer import Computer
from a2c_smcp.errors import OfficeHasAgent
from a2c_smcp.registry import AsyncToolContext
from a2c_smcp.server.auth.api_keys import hash_key
from tests.computer.killable_computer import killable_computer, notes_in
from tests.peer import PATIENCE
from tests.ports import free_port
from tests.program import run_program
from tests.server.test_program import ENVIRONMENT, SOON, Program, Starts, certificate
from tests.valkey import running_valkey
from tests.waiting import until, until_it_goes

pytestmark = pytest.mark.covers("mcp-on-server")

KEYS = {
    "alice": {"principal": "alice", "offices": ["desk", "den"]},
    "bob": {"principal": "bob", "offices": ["desk", "den"], "roles": ["agent"], "names": ["planner-*", "robert"]},
    "carol": {"principal": "carol", "offices": ["elsewhere"]},
    "laptop": {"principal": "laptop", "roles": ["computer"]},
    "old": {"principal": "old", "expires": "2020-01-01T00:00:00Z"},
}
SECRET = "a-secret-of-thirty-two-characters-or-more"
ERAS = pytest.mark.parametrize("mode", ["auto", "legacy"])
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "by-hand", "version": "1"},
    },
}

Joins = Callable[..., Awaitable["Laptop"]]


def key_of(name: str) -> str:
    return f"{name}-correct-horse-battery-staple"


def write_keys(path: Path, *names: str) -> Path:
    path.write_text(json.dumps({hash_key(key_of(name)): KEYS[name] for name in names or KEYS}))
    return path


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
            api_key = key_of(key) if key else None
            running = asyncio.create_task(
                laptop.computer.run(
                    url,
                    office=office,
                    api_key=api_key,
                    state_folder=tmp_path / office,
                    on_connection=lambda what: joined.set() if what.startswith("joined") else None,
                    **options,
                )
            )

            async def stop() -> None:
                running.cancel()
                await asyncio.wait([running])

            stack.push_async_callback(stop)
            async with asyncio.timeout(PATIENCE):
                await joined.wait()
            return laptop

        yield join


@pytest.fixture
async def keyed(starts: Starts, tmp_path: Path) -> Program:
    """A Server with the keys above."""
    keys = write_keys(tmp_path / "keys.json")
    return await starts("--mcp", "--mcp-idle", "1", "--keys-file", keys, XDG_STATE_HOME=str(tmp_path / "state"))


def client(
    url: str, key: str | None = "alice", office: str = "desk", mode: Any = "auto", **options: Any
) -> AbstractAsyncContextManager[Client]:
    return client_at(f"{url}/mcp/{office}", key_of(key) if key else None, mode, **options)


@asynccontextmanager
async def client_at(
    url: str, key: str | None, mode: Any = "auto", client_info: Implementation | None = None, **options: Any
) -> AsyncIterator[Client]:
    """An MCP client as people have them."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = httpx2.Timeout(PATIENCE)
    async with (
        httpx2.AsyncClient(headers=headers, timeout=timeout, **options) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode, client_info=client_info) as connected,
    ):
        yield connected


async def ask(url: str, key: str | None, office: str = "desk", **headers: str) -> tuple[int, Mapping[str, str], Any]:
    """One request by hand, which would open a session."""
    sent = {"Accept": "application/json, text/event-stream", **headers}
    if key:
        sent["Authorization"] = f"Bearer {key}"
    async with aiohttp.request("POST", f"{url}/mcp/{office}", json=INITIALIZE, headers=sent) as response:
        text = await response.text()
        told = json.loads(text.rpartition("data: ")[2] if text.startswith(("id:", "event:", "data:")) else text)
        return response.status, response.headers, told


async def tools_of(session: Client) -> list[str]:
    return [tool.name for tool in (await session.list_tools()).tools]


async def called(session: Client, tool: str, **arguments: Any) -> str:
    result = await session.call_tool(tool, arguments)
    return str(getattr(result.content[0], "text", ""))


async def ended(stream: aiohttp.ClientResponse) -> None:
    """Reads a stream until it ends, in whichever way."""
    with suppress(aiohttp.ClientError):
        while await stream.content.readany():
            pass


def error_of(found: BaseException) -> str:
    """The words that a person at the client reads."""
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
    assert await keyed.says("joined office='desk' role='agent' name='bridge' principal='alice'")
    assert not any(key_of(name) in keyed.said for name in KEYS)


@pytest.mark.parametrize("key", [None, "wrong", key_of("old")], ids=["none", "wrong", "expired"])
async def test_a_client_without_a_valid_key_is_told_what_to_do(keyed: Program, key: str | None) -> None:
    status, headers, told = await ask(keyed.url, key)
    metadata = f'resource_metadata="{keyed.url}/.well-known/oauth-protected-resource/mcp/desk"'
    assert (status, told["id"], told["error"]["data"]["code"]) == (401, None, 401)
    fault = 'error="invalid_token", ' if key else ""
    assert headers["WWW-Authenticate"] == f"Bearer {fault}{metadata}"
    assert "a2c-smcp key" in told["error"]["message"]
    with pytest.raises(BaseException) as caught:  # noqa: PT011, of the SDK
        async with client(keyed.url, key=None if key is None else "nobody", mode="legacy"):
            pass
    assert told["error"]["message"] in error_of(caught.value)


async def test_the_metadata_names_the_resource_and_those_who_give_tokens(starts: Starts, joins: Joins) -> None:
    tokens = ("--jwt-secret", SECRET, "--jwt-issuer", "https://id.example")
    program = await starts("--mcp", *tokens)
    for path in ("mcp/desk", "mcp/a%20b"):
        async with aiohttp.request("GET", f"{program.url}/.well-known/oauth-protected-resource/{path}") as response:
            told = await response.json()
            assert (response.status, told["resource"]) == (200, f"{program.url}/{path}")
            assert told["authorization_servers"] == ["https://id.example"]
    claims = {"sub": "ann", "iss": "https://id.example", "offices": ["desk"]}
    for seconds, status in ((-60, 401), (60, 200)):
        token = jwt.encode({**claims, "exp": int(time.time()) + seconds}, SECRET, "HS256")
        assert (await ask(program.url, token))[0] == status


async def test_a_server_with_keys_names_nobody_who_gives_tokens(keyed: Program) -> None:
    async with aiohttp.request("GET", f"{keyed.url}/.well-known/oauth-protected-resource/mcp/desk") as response:
        assert "authorization_servers" not in await response.json()


@pytest.mark.parametrize(("key", "words"), [("carol", "office 'desk'"), ("laptop", "role 'agent'")])
async def test_a_key_for_something_else_is_refused_with_what_to_do(keyed: Program, key: str, words: str) -> None:
    status, _, told = await ask(keyed.url, key_of(key))
    assert (status, told["error"]["data"]["code"]) == (403, 403)
    assert words in told["error"]["message"]
    assert "a2c-smcp key" in told["error"]["message"]
    with pytest.raises(BaseException) as caught:  # noqa: PT011, of the SDK
        async with client(keyed.url, key, mode="legacy"):
            pass
    assert words in error_of(caught.value)


async def test_each_key_that_is_refused_is_counted_and_in_the_audit_once(starts: Starts, tmp_path: Path) -> None:
    keys, audit = write_keys(tmp_path / "keys.json"), tmp_path / "audit.jsonl"
    program = await starts("--mcp", "--metrics", "--keys-file", keys, "--audit", audit)
    for key in (key_of("carol"), key_of("laptop"), "wrong-horse-battery-staple", None):
        assert (await ask(program.url, key))[0] in (401, 403)
    lines = [line for line in map(json.loads, audit.read_text("utf-8").splitlines()) if line["event"] == "refused"]
    assert [(line["code"], line.get("principal")) for line in lines] == [
        (403, "carol"), (403, "laptop"), (401, None), (401, None)
    ]  # fmt: skip
    assert {line["address"] for line in lines} == {"127.0.0.1"}
    async with aiohttp.request("GET", f"{program.url}/metrics") as response:
        assert 'a2c_refused_total{code="403",reason="not_authorised"} 2' in await response.text()


@ERAS
async def test_a_call_of_a_tool_that_the_office_does_not_have_leaves_one_entry(
    starts: Starts, joins: Joins, tmp_path: Path, mode: str
) -> None:
    keys, audit = write_keys(tmp_path / "keys.json"), tmp_path / "audit.jsonl"
    admin = "operator-correct-horse-battery-staple"
    program = await starts("--mcp", "--metrics", "--keys-file", keys, "--audit", audit, "--admin-key", admin)
    await joins(program.url)
    async with client(program.url, mode=mode) as session:
        assert await called(session, "add", a=1, b=2) == "3"
        for tool in ("nix", "add\n", "x" * 300):
            with pytest.raises(MCPError, match="Unknown tool"):
                await session.call_tool(tool, {})
    lines = [json.loads(line) for line in audit.read_text("utf-8").splitlines() if '"event":"call"' in line]
    whole = {name: lines[1][name] for name in lines[1].keys() - {"n", "time", "hash"}}
    assert whole == {
        "event": "call",
        "office": "desk",
        "agent": "bridge",
        "principal": "alice",
        "address": "127.0.0.1",
        "tool": "nix",
        "outcome": "not_found",
        "code": 404,
        "ran": "not_run",
        "reason": "'nix'",
    }
    told = [(line["tool"], line["outcome"]) for line in lines]
    assert told == [("add", "ok"), ("nix", "not_found"), (None, "not_found"), (None, "not_found")]
    async with aiohttp.request("GET", f"{program.url}/metrics") as response:
        counted = 'a2c_calls_total{event="client:tool_call",outcome="not_found"} 3'
        assert counted in await response.text()
    keyed_by = {"Authorization": f"Bearer {admin}"}
    async with aiohttp.request("GET", f"{program.url}/admin/api/calls/ended", headers=keyed_by) as response:
        ended_calls = (await response.json())["calls"]
    assert [(row["tool"], row["outcome"], row["agent"]) for row in ended_calls if row["outcome"] != "ok"] == [
        (None, "not_found", "bridge"), (None, "not_found", "bridge"), ("nix", "not_found", "bridge")
    ]  # fmt: skip


@pytest.mark.parametrize(("path", "status"), [("", 404), ("/", 404), ("/%E2%80%AEdesk", 400), (f"/{'x' * 200}", 400)])
async def test_a_path_without_a_valid_office_is_refused(keyed: Program, path: str, status: int) -> None:
    for method in ("GET", "POST"):
        async with aiohttp.request(method, f"{keyed.url}/mcp{path}") as response:
            assert response.status == status


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
    async with aiohttp.request("POST", f"{program.url}/mcp/desk", headers={"Host": "evil.example"}) as response:
        assert response.status == 400


@pytest.mark.covers("cors")
async def test_a_web_page_may_read_the_headers_of_mcp_if_its_origin_is_allowed(starts: Starts) -> None:
    program = await starts("--mcp", "--cors-origin", "https://page.example")
    status, headers, _ = await ask(program.url, None, Origin="https://page.example")
    assert (status, headers["access-control-allow-origin"]) == (200, "https://page.example")
    assert "mcp-session-id" in headers["access-control-expose-headers"]
    assert (await ask(program.url, None, Origin="https://evil.example"))[0] == 400


async def test_clients_come_over_tls(starts: Starts, joins: Joins, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "cert")
    keys = write_keys(tmp_path / "keys.json")
    program = await starts("--mcp", "--keys-file", keys, "--tls-cert", cert, "--tls-key", key)
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
        assert "office 'desk' has an agent already, 'planner'" in told["error"]["message"]
    async with client(keyed.url) as session:
        assert await called(session, "add", a=1, b=2) == "3"


async def test_a_seat_is_released_after_the_last_request_and_taken_again_with_the_next(
    keyed: Program, joins: Joins
) -> None:
    await joins(keyed.url)
    status, headers, _ = await ask(keyed.url, key_of("alice"))
    assert status == 200
    await keyed.says("left office='desk' role='agent' name='bridge'")
    async with client(keyed.url, "bob") as session:
        assert await called(session, "add", a=1, b=2) == "3"
    await keyed.says("left office='desk' role='agent' name='robert'")
    asked = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    sent = {
        "Authorization": f"Bearer {key_of('alice')}",
        "Accept": "application/json, text/event-stream",
        "Mcp-Session-Id": headers["mcp-session-id"],
    }
    async with aiohttp.request("POST", f"{keyed.url}/mcp/desk", json=asked, headers=sent) as response:
        assert response.status == 200
        assert '"add"' in await response.text()


async def test_a_stream_or_a_call_keeps_the_seat(keyed: Program, joins: Joins) -> None:
    laptop = await joins(keyed.url)
    async with client(keyed.url) as session:
        calling = asyncio.create_task(called(session, "wait", text="done"))
        async with asyncio.timeout(PATIENCE):
            await laptop.began.wait()
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
    _, headers, _ = await ask(keyed.url, key_of("alice"))
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "wait", "arguments": {"text": "x"}}}
    sent = {
        "Authorization": f"Bearer {key_of('alice')}",
        "Accept": "application/json, text/event-stream",
        "Mcp-Session-Id": headers["mcp-session-id"],
    }
    async with aiohttp.request("POST", f"{keyed.url}/mcp/desk", json=call, headers=sent):
        async with asyncio.timeout(PATIENCE):
            await laptop.began.wait()
    await asyncio.sleep(2.5)  # longer than an idle seat is kept
    assert "left office" not in keyed.said
    laptop.release.set()
    await keyed.says("left office='desk' role='agent' name='bridge'")


@ERAS
async def test_clients_of_one_principal_share_a_seat_and_see_nothing_of_each_other(
    keyed: Program, joins: Joins, mode: str
) -> None:
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
    seat = "office='desk' agent='bridge'"
    assert lines == [f"{seat} client={name!r} principal='alice'" for name in ("claude-desktop", "cursor")]


async def test_a_session_belongs_to_its_principal(keyed: Program, joins: Joins) -> None:
    status, headers, _ = await ask(keyed.url, key_of("alice"))
    assert status == 200
    stolen = {"Mcp-Session-Id": headers["mcp-session-id"]}
    assert (await ask(keyed.url, key_of("bob"), **stolen))[0] == 404
    assert (await ask(keyed.url, key_of("bob"), "den"))[0] == 200  # a seat of his own
    assert (await ask(keyed.url, key_of("bob"), "den", **stolen))[0] == 404
    for method in ("GET", "DELETE"):
        sent = {"Authorization": f"Bearer {key_of('bob')}", "Accept": "text/event-stream", **stolen}
        async with aiohttp.request(method, f"{keyed.url}/mcp/desk", headers=sent) as response:
            assert response.status == 404


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


async def test_an_older_client_goes_on_in_its_session_after_the_server_was_killed(
    starts: Starts, joins: Joins, tmp_path: Path
) -> None:
    keys, port = write_keys(tmp_path / "keys.json"), free_port()

    async def start() -> Program:
        return await starts("--mcp", "--keys-file", keys, port=port, XDG_STATE_HOME=str(tmp_path / "state"))

    program = await start()
    laptop = await joins(program.url)
    _, headers, _ = await ask(program.url, key_of("alice"))
    sent = {
        "Accept": "application/json, text/event-stream",
        "Mcp-Session-Id": headers["mcp-session-id"],
        "MCP-Protocol-Version": "2025-11-25",
    }
    alice, bob = ({**sent, "Authorization": f"Bearer {key_of(name)}"} for name in ("alice", "bob"))
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "wait", "arguments": {"text": "x"}}}
    add = {**call, "id": 3, "params": {"name": "add", "arguments": {"a": 1, "b": 2}}}
    url = f"{program.url}/mcp/desk"
    async with aiohttp.request("POST", url, json=call, headers=alice) as stream:
        line = await stream.content.readline()
        async with asyncio.timeout(PATIENCE):
            await laptop.began.wait()
        await program.kill()
    await start()
    async with aiohttp.request("POST", url, json=add, headers=bob) as response:
        assert response.status == 404
    resuming = {**alice, "Last-Event-ID": line.decode().removeprefix("id:").strip()}
    async with aiohttp.request("GET", url, headers=resuming) as response:
        (told,) = [line for line in (await response.text()).splitlines() if line.startswith("data:")]
        answer = json.loads(told.removeprefix("data:"))
        assert (answer["id"], answer["error"]["data"]) == (2, {"outcome": "unknown"})

    async def added() -> None:
        async with aiohttp.request("POST", url, json=add, headers=alice) as response:
            assert '"structuredContent":{"result":3}' in await response.text()

    await until_it_goes(added)


@ERAS
async def test_a_server_that_stops_lets_calls_finish_and_ends_streams(keyed: Program, joins: Joins, mode: str) -> None:
    laptop = await joins(keyed.url)
    async with aiohttp.ClientSession() as http:
        status, headers, _ = await ask(keyed.url, key_of("alice"))
        assert status == 200
        sent = {"Authorization": f"Bearer {key_of('alice')}", "Accept": "text/event-stream"}
        sent["Mcp-Session-Id"] = headers["mcp-session-id"]
        stream = await http.get(f"{keyed.url}/mcp/desk", headers=sent)
        assert stream.status == 200
        async with client(keyed.url, mode=mode) as session:
            assert await tools_of(session)  # else the client asks for them after the call
            calling = asyncio.create_task(called(session, "wait", text="done"))
            async with asyncio.timeout(PATIENCE):
                await laptop.began.wait()
            keyed.signal(signal.SIGTERM)
            await keyed.says("stopping")
            laptop.release.set()
            assert await calling == "done"
            assert await keyed.ends(SOON + 5) == 0
        stream.close()
    assert "Traceback" not in keyed.said


async def test_a_key_that_is_revoked_ends_its_streams_and_sessions(
    starts: Starts, joins: Joins, tmp_path: Path
) -> None:
    keys = write_keys(tmp_path / "keys.json")
    program = await starts("--mcp", "--keys-file", keys)
    await joins(program.url)
    status, headers, _ = await ask(program.url, key_of("alice"))
    assert status == 200
    sent = {"Authorization": f"Bearer {key_of('alice')}", "Accept": "text/event-stream"}
    sent["Mcp-Session-Id"] = headers["mcp-session-id"]
    async with aiohttp.ClientSession() as http, http.get(f"{program.url}/mcp/desk", headers=sent) as stream:
        assert stream.status == 200
        write_keys(keys, "bob", "laptop")
        program.signal(signal.SIGHUP)
        await asyncio.wait_for(ended(stream), PATIENCE)
    assert (await ask(program.url, key_of("alice")))[0] == 401
    async with client(program.url, "bob") as session:
        assert await called(session, "add", a=1, b=2) == "3"


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


def test_several_processes_are_refused_with_the_alternative() -> None:
    ended = run_program("server", "--mcp", "--workers", "2", env=ENVIRONMENT)
    assert ended.returncode == 2
    assert "a2c-smcp bridge" in ended.stderr


async def test_an_agent_beside_an_mcp_client_is_told_who_holds_the_office(keyed: Program, joins: Joins) -> None:
    await joins(keyed.url)
    async with client(keyed.url) as session:
        assert await tools_of(session)
        with pytest.raises(OfficeHasAgent, match="'bridge'"):
            async with AsyncSMCPAgentClient("planner", url=keyed.url, office="desk", api_key=key_of("alice")):
                pass


async def test_errors_of_the_sdk_are_those_of_mcp(keyed: Program, joins: Joins) -> None:
    await joins(keyed.url)
    async with client(keyed.url) as session:
        with pytest.raises(MCPError):
            await session.call_tool("no-such-tool", {})
