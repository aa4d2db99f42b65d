"""`/mcp/<office>` on several nodes: any of them answers, and none is missed for long.

`MCP_CALLS=1000` makes it a thousand calls while a node is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import httpx2
import mcp_types as types
import pytest

from a2c_smcp.server.cluster.memory import Pace
from tests.computer.hosted import hosted
from tests.computer.supervised import script
from tests.nodes.conftest import Start
from tests.nodes.processes import Cluster, NodeProcess
from tests.peer import PATIENCE
from tests.stage.keys import write_keys
from tests.stage.mcp_clients import ask, called, client, key_of, session_of
from tests.stage.questions import NEWER, OLDER, Answerer, until_listed
from tests.stage.worker import Worker
from tests.waiting import until

pytestmark = pytest.mark.covers("mcp-on-nodes")

CALLS, AT_ONCE = int(os.environ.get("MCP_CALLS", "200")), 16
KEYS: dict[str, Any] = {
    "alice": {"principal": "alice", "offices": ["desk"]},
    "dave": {"principal": "dave", "offices": ["desk"]},
    "laptop": {"principal": "laptop", "roles": ["computer"]},
}
ERAS = pytest.mark.parametrize("mode", ["auto", "legacy"])
VERSION, META = "2026-07-28", "io.modelcontextprotocol/"


class Fleet:
    """Three nodes, and a computer at the first."""

    def __init__(self, nodes: Cluster, keys: Path, worker: Worker) -> None:
        self.nodes, self.keys, self.worker = nodes, keys, worker
        self.one, self.two, self.three = nodes


@pytest.fixture
async def fleet(start: Start, tmp_path: Path) -> AsyncIterator[Fleet]:
    keys = write_keys(tmp_path, {key_of(name): KEYS[name] for name in KEYS})
    nodes, worker = await start(3, pace=Pace(), mcp_keys=keys), Worker()
    async with hosted(worker.computer, nodes.nodes[0].url, "desk", tmp_path / "laptop", api_key=key_of("laptop")):
        yield Fleet(nodes, keys, worker)


QUESTIONS_EACH = int(os.environ.get("QUESTIONS_EACH", "6"))


def spread(fleet: Fleet) -> dict[str, Any]:
    """Options of an HTTP client: each of its requests goes to the next node, whatever session it belongs to."""
    ports = cycle([urlsplit(node.url).port for node in fleet.nodes])

    async def send_elsewhere(request: httpx2.Request) -> None:
        request.url = request.url.copy_with(port=next(ports))

    return {"event_hooks": {"request": [send_elsewhere]}}


@ERAS
@pytest.mark.covers("questions-whose")
async def test_questions_of_five_clients_at_three_nodes_never_cross(fleet: Fleet, tmp_path: Path, mode: Any) -> None:
    """`QUESTIONS_EACH=200` makes it a thousand of each era of servers. No request stays at a node."""
    tools = {"greet_older": OLDER, "greet_newer": NEWER}
    for tool, file in tools.items():
        meta = {"default_tool_meta": {"auto_apply": True}, "tool_meta": {"greet": {"alias": tool}}}
        await fleet.worker.computer.put_server(script(file, tmp_path / "notes", name=tool, **meta))
    people = [Answerer(f"client-{number}") for number in range(5)]
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                client(fleet.one.url, mode=mode, callbacks={"elicitation_callback": person.answer}, **spread(fleet))
            )
            for person in people
        ]
        await until_listed(clients[0], *tools)
        for tool in tools:
            pairs = zip(people, clients, strict=True)
            await asyncio.gather(*(person.calls(each, tool, QUESTIONS_EACH) for person, each in pairs))


@pytest.mark.parametrize(("file", "goes_on"), [(NEWER, True), (OLDER, False)], ids=["2026-07-28", "2025-11-25"])
async def test_a_question_outlives_its_node_if_the_mcp_server_needs_no_session(
    fleet: Fleet, http: aiohttp.ClientSession, tmp_path: Path, file: str, *, goes_on: bool
) -> None:
    """Else the call has ended with its agent, and nothing is done."""
    meta = {"default_tool_meta": {"auto_apply": True}}
    await fleet.worker.computer.put_server(script(file, tmp_path / "notes", name="asking", **meta))
    assert (await call(http, fleet.two, number=0, seconds=0))[0] == 200  # it has the seat now

    async def answer(_: Any, params: Any) -> types.ElicitResult:
        await fleet.two.kill()
        return types.ElicitResult(action="accept", content={"name": "Ada"})

    async with client(fleet.three.url, callbacks={"elicitation_callback": answer}) as session:
        await until_listed(session, "greet")
        result = await session.call_tool("greet", {"name": "x"})
        assert bool(result.is_error) is not goes_on, result


async def call(
    http: aiohttp.ClientSession, node: NodeProcess, name: str = "alice", **arguments: Any
) -> tuple[int, dict[str, Any]]:
    """One call of a client of 2026-07-28, which knows nothing of earlier ones."""
    headers = {
        "Authorization": f"Bearer {key_of(name)}",
        "Accept": "application/json, text/event-stream",
        "Mcp-Protocol-Version": VERSION,
        "Mcp-Method": "tools/call",
        "Mcp-Name": "work",
    }
    meta = {f"{META}protocolVersion": VERSION, f"{META}clientCapabilities": {}}
    params = {"name": "work", "arguments": arguments, "_meta": meta}
    sent = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    async with http.post(f"{node.url}/mcp/desk", json=sent, headers=headers) as response:
        text = await response.text()
        return response.status, json.loads(text.rpartition("data: ")[2] if text[:1] in (":", "e", "d") else text)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """It does not keep connections: one that its node has cut could be taken for a call."""
    connector, patience = aiohttp.TCPConnector(force_close=True), aiohttp.ClientTimeout(PATIENCE)
    async with aiohttp.ClientSession(connector=connector, timeout=patience) as session:
        yield session


def outcome_of(answer: dict[str, Any]) -> str:
    """`done`, or what the error says of the tool."""
    result = answer["result"]
    return str(result["_meta"]["a2c_error"]["outcome"]) if result.get("isError") else "done"


@ERAS
async def test_clients_of_one_principal_use_one_office_at_three_nodes(fleet: Fleet, mode: Any) -> None:
    fleet.worker.go.set()
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client(node.url, mode=mode)) for node in fleet.nodes]
        for _ in range(3):
            answers = await asyncio.gather(*(called(each, "work", number=n) for n, each in enumerate(clients)))
            assert answers == ["0", "1", "2"]


async def test_first_requests_at_all_nodes_at_once_are_all_answered(fleet: Fleet, http: aiohttp.ClientSession) -> None:
    """All nodes try to take the seat, and one gets it."""
    fleet.worker.go.set()
    answers = await asyncio.gather(*(call(http, node, number=n) for n in range(5) for node in fleet.nodes))
    assert {status for status, _ in answers} == {200}
    assert {outcome_of(answer) for _, answer in answers} == {"done"}
    assert set(fleet.worker.runs.values()) == {3}


async def test_a_node_that_is_killed_costs_no_call_and_repeats_none(fleet: Fleet, http: aiohttp.ClientSession) -> None:
    """Every call is answered: with its result, or with an error that says that it may have run."""
    fleet.worker.go.set()
    assert (await call(http, fleet.two))[0] == 200  # it has the seat now
    fleet.worker.runs.clear()
    turns, numbers, outcomes = cycle(fleet.nodes), iter(range(1, CALLS + 1)), dict[int, str]()

    async def work() -> None:
        for number in numbers:
            if number == CALLS // 3:
                await fleet.two.kill()
            outcomes[number] = await settled(http, turns, number)

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    assert sorted(outcomes) == [*range(1, CALLS + 1)]
    assert max(fleet.worker.runs.values()) == 1
    lost = [number for number, outcome in outcomes.items() if outcome != "done"]
    assert len(lost) <= 2 * AT_ONCE, Counter(outcomes.values())  # in flight, or sent to what a node takes for alive
    assert all(fleet.worker.runs[number] == 1 for number in outcomes if number not in lost)
    print(Counter(outcomes.values()), sum(fleet.worker.runs.values()))


async def settled(http: aiohttp.ClientSession, turns: Any, number: int) -> str:
    """The outcome of a call. A client goes to the next node if one does not take its connection."""
    for node in turns:
        try:
            status, answer = await call(http, node, number=number)
        except aiohttp.ClientConnectorError:
            continue
        except aiohttp.ClientError:
            return "cut"  # by the node that it was sent to: nobody else can say more
        assert status == 200, answer
        return outcome_of(answer)
    raise AssertionError


async def test_a_call_whose_node_is_killed_has_an_unknown_outcome_and_is_not_repeated(
    fleet: Fleet, http: aiohttp.ClientSession
) -> None:
    calls = [asyncio.create_task(call(http, node, number=7)) for node in (fleet.two,)]
    await until(lambda: fleet.worker.runs[7] == 1)
    calls.append(asyncio.create_task(call(http, fleet.three, number=8)))
    await until(lambda: fleet.worker.runs[8] == 1)
    await fleet.two.kill()
    status, answer = await asyncio.wait_for(calls[1], PATIENCE)
    assert (status, outcome_of(answer)) == (200, "unknown")
    with pytest.raises(aiohttp.ClientError):
        await calls[0]
    fleet.worker.go.set()
    status, answer = await call(http, fleet.three, number=9)
    assert (status, outcome_of(answer)) == (200, "done")
    assert fleet.worker.runs == {7: 1, 8: 1, 9: 1}


async def test_an_older_session_is_known_at_every_node_and_begun_anew_when_its_node_is_gone(fleet: Fleet) -> None:
    fleet.worker.go.set()
    session = await session_of(fleet.two.url)
    assert session["Mcp-Session-Id"].startswith("n2.")
    assert await listed(fleet.one, session) == await listed(fleet.two, session) == 200
    foreign = session | {"Authorization": f"Bearer {key_of('dave')}"}
    assert await listed(fleet.two, foreign) == await listed(fleet.three, foreign) == 404
    await fleet.two.kill()
    assert await listed(fleet.three, session) == 404
    anew = await session_of(fleet.three.url)
    assert await listed(fleet.one, anew) == 200
    invented = session | {"Mcp-Session-Id": "n9.0123456789abcdef"}
    assert await listed(fleet.one, invented) == 404


async def listed(node: NodeProcess, headers: dict[str, str]) -> int:
    sent = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    async with aiohttp.request("POST", f"{node.url}/mcp/desk", json=sent, headers=headers) as response:
        return response.status


async def test_another_principal_is_told_at_every_node_who_has_the_office(fleet: Fleet) -> None:
    await session_of(fleet.two.url)
    for node in fleet.nodes:
        status, _, told = await ask(node.url, key_of("dave"))
        assert (status, told["error"]["data"]["code"]) == (403, 403)
        assert "'mcp:alice'" in told["error"]["message"]


async def test_a_key_that_is_revoked_ends_streams_on_every_node(fleet: Fleet, tmp_path: Path) -> None:
    session = await session_of(fleet.two.url)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE)) as http, AsyncExitStack() as stack:
        stream = await stack.enter_async_context(http.get(f"{fleet.one.url}/mcp/desk", headers=session))
        assert stream.status == 200
        write_keys(tmp_path, {key_of("laptop"): KEYS["laptop"]})
        fleet.one.signal(signal.SIGHUP)  # the node of the stream, not of the seat
        with suppress(aiohttp.ClientError):
            while await stream.content.readany():
                pass


async def test_a_node_that_drains_hands_its_seat_over(fleet: Fleet, http: aiohttp.ClientSession) -> None:
    fleet.worker.go.set()
    assert (await call(http, fleet.two, number=1))[0] == 200
    draining = asyncio.create_task(fleet.two.drain())
    answers = await asyncio.gather(*(call(http, node, number=2) for node in (fleet.one, fleet.three)))
    assert [(status, outcome_of(answer)) for status, answer in answers] == [(200, "done")] * 2
    assert await draining == 0


async def test_nobody_passes_for_a_node(fleet: Fleet) -> None:
    """Headers between nodes mean nothing without their secret."""
    await session_of(fleet.two.url)
    forged = {"X-A2C-Node": "0" * 64, "X-A2C-Client": "http 203.0.113.9 1"}
    status, headers, _ = await ask(fleet.one.url, key_of("alice"), **forged)
    assert (status, "x-a2c-not-run" in headers) == (200, False)
