"""The operator's interface: who may use it, what it lists, what it changes, and what it streams."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from socketio.exceptions import ConnectionError as ConnectionRefused

from a2c_smcp.errors import BadRequest, NotAuthenticated
from a2c_smcp.server import DefaultAuthenticationProvider
from a2c_smcp.server.admin import events as admin_events
from a2c_smcp.server.admin.events import EventFilter, EventSource
from a2c_smcp.server.auth.api_keys import hash_key, key_id
from a2c_smcp.server.observation import HandshakeRefused, Observation
from tests.cluster import serving_node
from tests.conftest import Hub
from tests.peer import PATIENCE, Peer
from tests.valkey import running_valkey
from tests.waiting import until

pytestmark = [pytest.mark.covers("operators"), pytest.mark.one_process]

ADMIN, FREE, ALICE = "operator-0123456789", "free-key-0123456789", "alice-key-0123456789"


class Operator:
    """Asks a Server, by default with its admin key."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self.url = session, url

    async def ask(self, method: str, path: str, *, key: str | None = ADMIN, **options: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with self._session.request(method, f"{self.url}/admin/api/{path}", headers=headers, **options) as answer:
            return answer.status, json.loads(await answer.text())

    async def get(self, path: str, **query: Any) -> Any:
        status, answer = await self.ask("GET", path, params=query)
        assert status == 200, answer
        return answer

    @asynccontextmanager
    async def following(self, **query: str) -> AsyncIterator[Callable[[], Any]]:
        """Yields a function that waits for the next event."""
        headers = {"Authorization": f"Bearer {ADMIN}"}
        async with self._session.get(f"{self.url}/admin/api/events", params=query, headers=headers) as stream:
            assert stream.headers["Content-Type"] == "text/event-stream"
            assert await stream.content.readline() == b"\n"  # it has begun

            async def following_event() -> Any:
                async with asyncio.timeout(PATIENCE):
                    while not (line := await stream.content.readline()).startswith(b"data:"):
                        assert line, "the stream has ended"
                return json.loads(line.removeprefix(b"data:"))

            yield following_event


def written(path: Path) -> str:
    return path.read_text("utf-8")


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({hash_key(ALICE): {"principal": "alice"}}), "utf-8")
    return path


@pytest.fixture
async def hub(serve: Callable[..., Any], keys_file: Path) -> Hub:
    hub: Hub = await serve(auth=DefaultAuthenticationProvider(FREE, keys_file), admin_key=ADMIN)
    return hub


@pytest.fixture
def operator(hub: Hub, session: aiohttp.ClientSession) -> Operator:
    return Operator(session, hub.url)


@pytest.fixture
async def desk(hub: Hub, connect: Callable[..., Any]) -> tuple[Peer, Peer]:
    """An agent and a computer in the office `desk`."""
    planner, laptop = [await connect(hub, auth={"token": ALICE}) for _ in range(2)]
    await planner.join("agent", "planner", "desk")
    await laptop.join("computer", "laptop", "desk")
    return planner, laptop


async def test_only_the_admin_key_opens_it_and_it_opens_nothing_else(
    hub: Hub, operator: Operator, connect: Callable[..., Any]
) -> None:
    for key in (None, FREE, ALICE, ADMIN + "x", ADMIN[:-1], ""):
        status, refusal = await operator.ask("GET", "offices", key=key)
        assert (status, refusal["code"]) == (401, 401)
        assert "admin key" in refusal["message"]
        assert ADMIN not in json.dumps(refusal)
    with pytest.raises(ConnectionRefused, match="failed to connect"):
        await connect(hub, auth={"token": ADMIN})
    assert (await operator.ask("GET", "offices"))[0] == 200


async def test_guessing_is_slowed_down_and_the_right_key_is_not(operator: Operator) -> None:
    clock = asyncio.get_running_loop().time
    for _ in range(10):
        await operator.ask("GET", "offices", key="wrong-0123456789abc")
    before = clock()
    await operator.ask("GET", "offices", key="wrong-0123456789abc")
    assert clock() - before >= 0.9
    assert len((await operator.get("refusals"))["refusals"]) == 11


async def test_without_an_admin_key_there_is_no_such_interface(
    serve: Callable[..., Any], session: aiohttp.ClientSession
) -> None:
    operator = Operator(session, (await serve()).url)
    for path in ("offices", "../node/members"):
        assert (await operator.ask("GET", path))[0] == 404


async def test_nodes_only_take_the_secret_of_nodes(operator: Operator) -> None:
    assert (await operator.ask("GET", "../node/members"))[0] == 404


async def test_offices_and_members_are_listed_and_nobody_loses_a_seat(
    operator: Operator, desk: tuple[Peer, Peer]
) -> None:
    (office,) = (await operator.get("offices"))["offices"]
    assert office == {"office": "desk", "agent": "planner", "computers": 1, "away": 0, "calls": 0, "nodes": []}
    found = await operator.get("offices/desk")
    agent, computer = found["members"]
    assert found["office"] == office
    assert (agent["role"], agent["name"], computer["role"], computer["name"]) == (
        "agent",
        "planner",
        "computer",
        "laptop",
    )
    assert computer["principal"] == "alice"
    assert computer["address"] == "127.0.0.1"
    assert computer["connected"]
    assert not computer["dedup"]
    assert computer["unread"] == 0
    assert computer["since"] > 1_700_000_000
    for peer in desk:
        assert peer.sid not in json.dumps(found)
    assert (await operator.get("members", role="computer", search="LAP"))["total"] == 1
    assert (await operator.get("members", role="computer", search="nobody"))["total"] == 0


async def test_pages_hold_while_members_come_and_go(hub: Hub, operator: Operator, connect: Callable[..., Any]) -> None:
    for number in range(6):
        peer = await connect(hub, auth={"token": ALICE})
        await peer.join("computer", f"c{number}", "crowd")
    first = await operator.get("members", limit=2)
    assert [row["name"] for row in first["members"]] == ["c0", "c1"]
    assert first["total"] == 6
    await operator.ask("POST", f"members/{first['members'][0]['id']}/disconnect")
    second = await operator.get("members", limit=2, after=first["next"])
    assert [row["name"] for row in second["members"]] == ["c2", "c3"]
    third = await operator.get("members", limit=2, after=second["next"])
    assert ([row["name"] for row in third["members"]], third["next"]) == (["c4", "c5"], None)


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "x"}, {"colour": "red"}, {"after": "!"}])
async def test_a_wrong_filter_is_an_error_and_not_ignored(operator: Operator, query: dict[str, str]) -> None:
    status, refusal = await operator.ask("GET", "members", params=query)
    assert status == 400
    assert next(iter(query)) in refusal["message"]


async def test_a_call_is_shown_while_it_runs_and_after_it_ended(operator: Operator, desk: tuple[Peer, Peer]) -> None:
    planner, laptop = desk
    release = asyncio.Event()

    async def answer(_: Any) -> dict[str, Any]:
        await release.wait()
        return {"content": [], "isError": True}

    laptop.answers("client:tool_call", answer)
    calling = asyncio.create_task(planner.call_tool("laptop", "add", timeout=9, req_id="r1"))
    await laptop.was_asked("client:tool_call")
    (call,) = (await operator.get("calls", office="desk"))["calls"]
    assert (call["agent"], call["computer"], call["tool"], call["req_id"]) == ("planner", "laptop", "add", "r1")
    assert call["event"] == "client:tool_call"
    assert call["bytes"] > 0
    assert call["deadline"] - call["since"] == pytest.approx(10, abs=0.1)
    (office,) = (await operator.get("offices"))["offices"]
    assert office["calls"] == 1
    release.set()
    await calling
    assert (await operator.get("calls"))["calls"] == []
    (ended,) = (await operator.get("calls/ended"))["calls"]
    assert (ended["tool"], ended["outcome"], ended["req_id"]) == ("add", "tool_error", "r1")
    assert ended["seconds"] > 0


async def test_a_member_is_disconnected_and_that_is_reported(operator: Operator, desk: tuple[Peer, Peer]) -> None:
    planner, _ = desk
    (row,) = (await operator.get("members", role="computer"))["members"]
    async with operator.following(event="operator") as event:
        status, done = await operator.ask("DELETE", f"members/{row['id']}")
        assert (status, done["disconnected"][0]["name"]) == (200, "laptop")
        told = await event()
    assert (told["action"], told["name"], told["target"], told["via"]) == ("disconnect", "laptop", "alice", "api")
    await planner.hears("notify:leave_office", computer="laptop")
    assert (await operator.ask("DELETE", f"members/{row['id']}"))[0] == 404


async def test_events_are_filtered(operator: Operator, desk: tuple[Peer, Peer]) -> None:
    planner, laptop = desk
    async with operator.following(office="desk", event="left,joined") as event:
        await laptop.ask("server:leave_office", {"office_id": "desk"})
        await laptop.join("computer", "tablet", "elsewhere")
        await planner.ask("server:leave_office", {"office_id": "desk"})
        assert [(await event())["name"] for _ in range(2)] == ["laptop", "planner"]
    assert (await operator.ask("GET", "events", params={"colour": "red"}))[0] == 400
    status, refused = await operator.ask("GET", "events", params={"event": "left, joind"})
    assert (status, "there is no 'joind', did you mean 'joined'? There are call, " in refused["message"]) == (400, True)
    assert "taken over" in refused["message"]


async def test_a_reader_that_is_too_slow_is_dropped_and_told() -> None:
    source = EventSource(Observation(), None)
    slow, quick = source.open(EventFilter({})), source.open(EventFilter({"event": "joined"}))
    for _ in range(admin_events.MOST_HELD + 1):
        source.observe(HandshakeRefused("127.0.0.1", NotAuthenticated()))
    batches = [batch async for batch in slow.batches(PATIENCE)]
    assert [facts["event"] for batch in batches for facts in batch] == ["dropped"]
    assert batches[0][0]["missed"] == admin_events.MOST_HELD + 1
    quick.end()
    assert [batch async for batch in quick.batches(PATIENCE)] == []
    with pytest.raises(BadRequest):
        EventFilter({"colour": "red"})


def test_no_filter_hides_that_events_of_another_node_were_missed() -> None:
    reader = EventSource(Observation(), "north").open(EventFilter({"event": "joined", "office": "desk"}))
    reader.put({"event": "left", "office": "desk", "node": "south"})
    reader.put({"event": "dropped", "node": "south", "missed": 7})
    assert [facts["missed"] for facts in reader._queue] == [7]


async def test_a_new_key_works_at_once_and_a_revoked_one_no_longer(
    hub: Hub, operator: Operator, keys_file: Path, connect: Callable[..., Any], desk: tuple[Peer, Peer]
) -> None:
    status, made = await operator.ask("POST", "keys", json={"principal": "bob", "roles": ["agent"]})
    assert status == 201
    bob = await connect(hub, auth={"token": made["key"]})
    await bob.join("agent", "bob", "other")
    rows = {row["id"]: row for row in (await operator.get("keys"))["keys"]}
    assert (rows[made["id"]]["principal"], rows[made["id"]]["connections"]) == ("bob", 1)
    assert rows[key_id(hash_key(ALICE))]["connections"] == 2
    assert made["key"] not in json.dumps(rows) + written(keys_file)
    assert (await operator.ask("DELETE", f"keys/{made['id']}"))[0] == 200
    await until(lambda: not bob.client.connected)
    with pytest.raises(ConnectionRefused, match="failed to connect"):
        await connect(hub, auth={"token": made["key"]})
    assert (await operator.get("members", office="desk"))["total"] == 2, "the clients of other keys stay"


async def test_a_key_that_expires_later_disconnects_nobody_and_one_that_expires_now_does(
    operator: Operator, desk: tuple[Peer, Peer]
) -> None:
    alice = key_id(hash_key(ALICE))
    _, changed = await operator.ask("POST", f"keys/{alice}/expire", json={"expires": "2097-01-01T00:00:00Z"})
    assert changed["row"]["expires"] == 4007836800
    assert (await operator.get("members"))["total"] == 2
    assert (await operator.ask("POST", f"keys/{alice}/expire"))[0] == 200
    await until(lambda: not any(peer.client.connected for peer in desk))


async def test_a_rotated_key_may_do_the_same_and_the_old_one_ends_after_its_grace(
    hub: Hub, operator: Operator, connect: Callable[..., Any], desk: tuple[Peer, Peer]
) -> None:
    alice = key_id(hash_key(ALICE))
    status, made = await operator.ask("POST", f"keys/{alice}/rotate", json={"grace": 60})
    assert (status, made["row"]["principal"]) == (201, "alice")
    await connect(hub, auth={"token": made["key"]})
    assert (await operator.get("members"))["total"] == 2, "the old key is still valid"
    assert (await operator.ask("POST", f"keys/{alice}/rotate"))[0] == 201
    rows = {row["id"]: row for row in (await operator.get("keys"))["keys"]}
    assert 0 < rows[alice]["expires"] - time.time() <= 60, "without a grace, it is an hour: nothing is made longer"
    assert (await operator.get("members"))["total"] == 2
    await operator.ask("POST", f"keys/{alice}/rotate", json={"grace": 0})
    await until(lambda: not any(peer.client.connected for peer in desk))


@pytest.mark.parametrize(
    ("method", "path", "body", "says"),
    [
        ("POST", "keys", {"principal": ""}, "principal"),
        ("POST", "keys", {"principal": "x", "expires": "2020-01-01T00:00:00Z"}, "is over"),
        ("POST", "keys", {"name": "x"}, "no such field"),
        ("DELETE", "keys/key-00000000", None, "there is no key"),
        ("DELETE", f"keys/{key_id(hash_key(FREE))}", None, "--api-key"),
        ("POST", f"keys/{key_id(hash_key(ALICE))}/expire", {"expires": "soon"}, "2027-01-01"),
        ("POST", f"keys/{key_id(hash_key(ALICE))}/expire", {"expires": 1e300}, "2027-01-01"),
        ("POST", f"keys/{key_id(hash_key(ALICE))}/expire", {"expires": -1}, "2027-01-01"),
        ("POST", f"keys/{key_id(hash_key(ALICE))}/expire", {"expires": 10**400}, "2027-01-01"),
        ("POST", f"keys/{key_id(hash_key(ALICE))}/expire", {"expires": "0001-01-01T00:00:00+14:00"}, "2027-01-01"),
        ("POST", f"keys/{key_id(hash_key(ALICE))}/rotate", {"grace": -1}, "grace"),
        ("PUT", "keys", None, "there are"),
    ],
)
async def test_what_cannot_be_done_says_why(
    operator: Operator, keys_file: Path, method: str, path: str, body: Any, says: str
) -> None:
    before = written(keys_file)
    status, refusal = await operator.ask(method, path, json=body)
    assert status in (400, 404)
    assert says in refusal["message"]
    assert written(keys_file) == before


async def test_a_server_without_a_keys_file_says_how_to_have_one(
    serve: Callable[..., Any], session: aiohttp.ClientSession
) -> None:
    hub = await serve(auth=DefaultAuthenticationProvider(FREE), admin_key=ADMIN)
    operator = Operator(session, hub.url)
    status, refusal = await operator.ask("POST", "keys", json={"principal": "bob"})
    assert status == 400
    assert "--keys-file" in refusal["message"]
    hub = await serve(admin_key=ADMIN)
    status, refusal = await Operator(session, hub.url).ask("GET", "keys")
    assert status == 400
    assert "--keys-file" in refusal["message"]


async def test_two_nodes_are_shown_and_steered_as_one(session: aiohttp.ClientSession, keys_file: Path) -> None:
    with running_valkey() as valkey:
        shared = {"admin_key": ADMIN}
        auths = [DefaultAuthenticationProvider(FREE, keys_file) for _ in range(2)]
        async with (
            serving_node(valkey.url, "t:", "north", auth=auths[0], **shared) as north,
            serving_node(valkey.url, "t:", "south", auth=auths[1], **shared) as south,
        ):
            operator = Operator(session, north.url)
            async with operator.following(event="joined,call") as event:
                await until(lambda: south.app.operations.source.readers)
                planner = await Peer.connect(north.url, auth={"token": ALICE}, transports=["websocket"])
                await planner.join("agent", "planner", "desk")
                laptop = await Peer.connect(south.url, auth={"token": ALICE}, transports=["websocket"])
                release = asyncio.Event()

                async def answer(_: Any) -> dict[str, Any]:
                    await release.wait()
                    return {"content": []}

                laptop.answers("client:tool_call", answer)
                await laptop.join("computer", "laptop", "desk")
                found = await operator.get("offices/desk")
                assert {(row["name"], row["node"]) for row in found["members"]} == {
                    ("planner", "north"),
                    ("laptop", "south"),
                }
                assert (found["office"]["computers"], sorted(found["office"]["nodes"])) == (1, ["north", "south"])
                calling = asyncio.create_task(planner.call_tool("laptop", "add"))
                await laptop.was_asked("client:tool_call")
                for each in (operator, Operator(session, south.url)):
                    calls = (await each.get("calls"))["calls"]
                    assert [(row["tool"], row["node"]) for row in calls] == [("add", "south")], (
                        "each call is shown once"
                    )
                release.set()
                await calling
                assert (await event())["name"] == "planner"
                assert {(await event())["event"] for _ in range(2)} == {"joined", "call"}
            (row,) = (await operator.get("members", role="computer"))["members"]
            assert (await operator.ask("POST", f"members/{row['id']}/disconnect"))[0] == 200
            await until(lambda: not laptop.client.connected)
            rows = (await operator.get("nodes"))["nodes"]
            assert [(row["node"], row["ready"]) for row in rows] == [("north", True), ("south", True)]
            _, made = await operator.ask("POST", "keys", json={"principal": "bob"})
            assert (made["differing"], made["missing"]) == ([], [])
            bob = await Peer.connect(south.url, auth={"token": made["key"]}, transports=["websocket"])
            await operator.ask("DELETE", f"keys/{made['id']}")
            await until(lambda: not bob.client.connected)
            await planner.close()
