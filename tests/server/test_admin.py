"""The operator's interface: who may use it, what it lists, what it changes, and what it streams."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from socketio.exceptions import ConnectionError as ConnectionRefused

from a2c_smcp.errors import BadRequest, NotAuthenticated
from a2c_smcp.server import DefaultAuthenticationProvider
from a2c_smcp.server.admin import events
from a2c_smcp.server.admin.events import EventFilter, EventSource
from a2c_smcp.server.auth.api_keys import hash_key, key_id
from a2c_smcp.server.observation.happened import HandshakeRefused, Observation
from tests.cluster import serving_node
from tests.conftest import Hub
from tests.peer import PATIENCE, Peer
from tests.stage.calls import Gate, running_call
from tests.stage.keys import write_keys
from tests.stage.web import Http
from tests.valkey import Valkey
from tests.waiting import until

pytestmark = [pytest.mark.covers("operators"), pytest.mark.one_process]

ADMIN, FREE, ALICE = "operator-0123456789", "free-key-0123456789", "alice-key-0123456789"
ALICES = key_id(hash_key(ALICE))


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
def keys_file(tmp_path: Path) -> Path:
    return write_keys(tmp_path, {ALICE: "alice"})


@pytest.fixture
async def hub(serve: Callable[..., Any], keys_file: Path) -> Hub:
    hub: Hub = await serve(auth=DefaultAuthenticationProvider(FREE, keys_file), admin_key=ADMIN)
    return hub


@pytest.fixture
def operator(hub: Hub, http: Http) -> Operator:
    return Operator(http, hub.url)


@pytest.fixture
async def desk(hub: Hub, connect: Callable[..., Any]) -> tuple[Peer, Peer]:
    """An agent and a computer in the office `desk`."""
    planner, laptop = [await connect(hub, auth={"token": ALICE}) for _ in range(2)]
    await planner.join("agent", "planner", "desk")
    await laptop.join("computer", "laptop", "desk")
    return planner, laptop


@pytest.mark.parametrize("key", [None, FREE, ALICE, ADMIN + "x", ADMIN[:-1], ""])
async def test_another_key_than_that_of_operators_does_not_open_it(operator: Operator, key: str | None) -> None:
    status, refusal = await operator.ask("GET", "offices", key=key)
    assert (status, refusal["code"]) == (401, 401)
    assert "admin key" in refusal["message"]
    assert ADMIN not in json.dumps(refusal)


async def test_the_admin_key_opens_nothing_else(hub: Hub, operator: Operator, connect: Callable[..., Any]) -> None:
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


async def test_without_an_admin_key_there_is_no_such_interface(serve: Any, http: Http) -> None:
    operator = Operator(http, (await serve()).url)
    for path in ("offices", "../node/members"):
        assert (await operator.ask("GET", path))[0] == 404


async def test_nodes_only_take_the_secret_of_nodes(operator: Operator) -> None:
    assert (await operator.ask("GET", "../node/members"))[0] == 404


async def test_offices_and_members_are_listed(operator: Operator, desk: tuple[Peer, Peer]) -> None:
    (office,) = (await operator.get("offices"))["offices"]
    assert office == {
        "office": "desk",
        "agent": "planner",
        "computers": 1,
        "away": 0,
        "calls": 0,
        "nodes": [],
        "frozen": 0,
    }
    found = await operator.get("offices/desk")
    assert found["office"] == office
    assert [(row["role"], row["name"]) for row in found["members"]] == [("agent", "planner"), ("computer", "laptop")]
    computer = found["members"][1]
    facts = {"principal": "alice", "address": "127.0.0.1", "connected": True, "dedup": False, "unread": 0}
    assert computer.items() >= facts.items()
    assert computer["since"] > 1_700_000_000
    for peer in desk:
        assert peer.sid not in json.dumps(found)
    assert (await operator.get("members", role="computer", search="LAP"))["total"] == 1
    assert (await operator.get("members", role="computer", search="nobody"))["total"] == 0


async def test_pages_hold_while_members_come_and_go(hub: Hub, operator: Operator, connect: Callable[..., Any]) -> None:
    for number in range(6):
        peer = await connect(hub, auth={"token": ALICE})
        await peer.join("computer", f"c{number}", "crowd")
    pages = [await operator.get("members", limit=2)]
    await operator.ask("POST", f"members/{pages[0]['members'][0]['id']}/disconnect")
    while after := pages[-1]["next"]:
        pages.append(await operator.get("members", limit=2, after=after))
    assert pages[0]["total"] == 6
    assert [[row["name"] for row in page["members"]] for page in pages] == [["c0", "c1"], ["c2", "c3"], ["c4", "c5"]]


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "x"}, {"colour": "red"}, {"after": "!"}])
async def test_a_wrong_filter_is_an_error_and_not_ignored(operator: Operator, query: dict[str, str]) -> None:
    status, refusal = await operator.ask("GET", "members", params=query)
    assert status == 400
    assert next(iter(query)) in refusal["message"]


async def test_a_call_is_shown_while_it_runs_and_after_it_ended(operator: Operator, desk: tuple[Peer, Peer]) -> None:
    planner, laptop = desk
    gate = Gate({"content": [], "isError": True})
    calling = await running_call(planner, laptop, gate, tool="add", timeout=9, req_id="r1")
    (call,) = (await operator.get("calls", office="desk"))["calls"]
    facts = {"agent": "planner", "computer": "laptop", "tool": "add", "req_id": "r1", "event": "client:tool_call"}
    assert call.items() >= facts.items()
    assert call["bytes"] > 0
    assert call["deadline"] - call["since"] == pytest.approx(10, abs=0.1)
    (office,) = (await operator.get("offices"))["offices"]
    assert office["calls"] == 1
    gate.open()
    await calling
    assert (await operator.get("calls"))["calls"] == []
    (ended,) = (await operator.get("calls/ended"))["calls"]
    assert (ended["tool"], ended["outcome"], ended["req_id"]) == ("add", "tool_error", "r1")
    assert ended["end"] == "tool error"
    assert ended["seconds"] > 0


@pytest.mark.covers("9-tell_state", "call-states")
async def test_the_state_of_a_call_is_the_word_of_its_own_computer(
    hub: Hub, operator: Operator, desk: tuple[Peer, Peer], connect: Any
) -> None:
    planner, laptop = desk
    tower = await connect(hub, auth={"token": ALICE})
    await tower.join("computer", "tower", "desk")
    gate = Gate({"content": []})
    calling = await running_call(planner, laptop, gate, tool="add", req_id="r1")

    async def state_after(teller: Peer, **told: Any) -> Any:
        told = {"agent": "planner", "req_id": "r1", "state": "waiting", "since": -1e308, **told}
        await teller.ask("server:tell_state", told)
        (call,) = (await operator.get("calls"))["calls"]
        return call["state"]

    assert await state_after(tower) is None
    assert await state_after(laptop, req_id="r2") is None
    assert await state_after(laptop, state="<b>mine</b>") is None
    assert await state_after(laptop, state=["waiting"]) is None
    assert await state_after(laptop) == "waiting"
    (call,) = (await operator.get("calls"))["calls"]
    assert abs(call["state_since"] - time.time()) < 60, "by the clock of the Server"
    assert await state_after(tower, state="running") == "waiting"
    assert await state_after(laptop, state="running") == "running"
    gate.open()
    await calling


async def test_a_member_is_disconnected_and_that_is_reported(operator: Operator, desk: tuple[Peer, Peer]) -> None:
    planner, _ = desk
    (row,) = (await operator.get("members", role="computer"))["members"]
    async with operator.following(event="operator") as event:
        status, done = await operator.ask("DELETE", f"members/{row['id']}")
        assert (status, done["disconnected"][0]["name"]) == (200, "laptop")
        facts = {"action": "disconnect", "name": "laptop", "target": "alice", "via": "api"}
        assert (await event()).items() >= facts.items()
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
    for _ in range(events.MOST_HELD + 1):
        source.observe(HandshakeRefused("127.0.0.1", NotAuthenticated()))
    batches = [batch async for batch in slow.batches(PATIENCE)]
    assert [facts["event"] for batch in batches for facts in batch] == ["dropped"]
    assert batches[0][0]["missed"] == events.MOST_HELD + 1
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
    assert rows[ALICES]["connections"] == 2
    assert made["key"] not in json.dumps(rows) + written(keys_file)
    assert (await operator.ask("DELETE", f"keys/{made['id']}"))[0] == 200
    await until(lambda: not bob.client.connected)
    with pytest.raises(ConnectionRefused, match="failed to connect"):
        await connect(hub, auth={"token": made["key"]})
    assert (await operator.get("members", office="desk"))["total"] == 2, "the clients of other keys stay"


async def test_clients_are_disconnected_when_their_key_expires(operator: Operator, desk: tuple[Peer, Peer]) -> None:
    _, changed = await operator.ask("POST", f"keys/{ALICES}/expire", json={"expires": "2097-01-01T00:00:00Z"})
    assert changed["row"]["expires"] == 4007836800
    assert (await operator.get("members"))["total"] == 2
    assert (await operator.ask("POST", f"keys/{ALICES}/expire"))[0] == 200
    await until(lambda: not any(peer.client.connected for peer in desk))


async def test_a_rotated_key_may_do_the_same_and_the_old_one_ends_after_its_grace(
    hub: Hub, operator: Operator, connect: Callable[..., Any], desk: tuple[Peer, Peer]
) -> None:
    status, made = await operator.ask("POST", f"keys/{ALICES}/rotate", json={"grace": 60})
    assert (status, made["row"]["principal"]) == (201, "alice")
    await connect(hub, auth={"token": made["key"]})
    assert (await operator.get("members"))["total"] == 2, "the old key is still valid"
    assert (await operator.ask("POST", f"keys/{ALICES}/rotate"))[0] == 201
    rows = {row["id"]: row for row in (await operator.get("keys"))["keys"]}
    assert 0 < rows[ALICES]["expires"] - time.time() <= 60, "without a grace, it is an hour: nothing is made longer"
    assert (await operator.get("members"))["total"] == 2
    await operator.ask("POST", f"keys/{ALICES}/rotate", json={"grace": 0})
    await until(lambda: not any(peer.client.connected for peer in desk))


NO_TIMES: list[Any] = ["soon", 1e300, -1, 10**400, "0001-01-01T00:00:00+14:00"]


@pytest.mark.parametrize(
    ("method", "path", "body", "says"),
    [
        ("POST", "keys", {"principal": ""}, "principal"),
        ("POST", "keys", {"principal": "x", "expires": "2020-01-01T00:00:00Z"}, "is over"),
        ("POST", "keys", {"name": "x"}, "no such field"),
        ("DELETE", "keys/key-00000000", None, "there is no key"),
        ("DELETE", f"keys/{key_id(hash_key(FREE))}", None, "--api-key"),
        *[("POST", f"keys/{ALICES}/expire", {"expires": odd}, "2027-01-01") for odd in NO_TIMES],
        ("POST", f"keys/{ALICES}/rotate", {"grace": -1}, "grace"),
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


@pytest.mark.parametrize(("keys", "method"), [(FREE, "POST"), ((), "GET")], ids=["a plain key", "no key"])
async def test_a_server_without_a_keys_file_says_what_to_do(serve: Any, http: Http, keys: Any, method: str) -> None:
    hub = await serve(auth=DefaultAuthenticationProvider(keys) if keys else None, admin_key=ADMIN)
    status, refusal = await Operator(http, hub.url).ask(method, "keys", json={"principal": "bob"})
    assert (status, "--keys-file" in refusal["message"]) == (400, True)


async def test_two_nodes_are_shown_and_steered_as_one(
    http: Http, keys_file: Path, valkey: Valkey, prefix: str, connect: Any
) -> None:
    async with AsyncExitStack() as stack:

        async def node(name: str) -> Hub:
            auth = DefaultAuthenticationProvider(FREE, keys_file)
            return await stack.enter_async_context(serving_node(valkey.url, prefix, name, auth=auth, admin_key=ADMIN))

        north, south = await node("north"), await node("south")
        operator = Operator(http, north.url)
        async with operator.following(event="joined,call") as event:
            await until(lambda: south.app.operations.source.readers)
            planner, laptop = [await connect(hub, auth={"token": ALICE}) for hub in (north, south)]
            await planner.join("agent", "planner", "desk")
            await laptop.join("computer", "laptop", "desk")
            found = await operator.get("offices/desk")
            assert {row["name"]: row["node"] for row in found["members"]} == {"planner": "north", "laptop": "south"}
            assert (found["office"]["computers"], sorted(found["office"]["nodes"])) == (1, ["north", "south"])
            gate = Gate({"content": []})
            calling = await running_call(planner, laptop, gate, tool="add", req_id="r1")
            await laptop.ask("server:tell_state", {"agent": "planner", "req_id": "r1", "state": "waiting", "since": 1})
            for each in (operator, Operator(http, south.url)):
                calls = (await each.get("calls"))["calls"]
                shown = [(row["tool"], row["node"], row["state"]) for row in calls]
                assert shown == [("add", "south", "waiting")], "each call is shown once"
            gate.open()
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
        bob = await connect(south, auth={"token": made["key"]})
        await operator.ask("DELETE", f"keys/{made['id']}")
        await until(lambda: not bob.client.connected)
        await planner.close()
