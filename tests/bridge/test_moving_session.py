"""A client's session that moves from one bridge to the next. The test is the client and the bridges."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from a2c_smcp.bridge.serving.moving_session import Link, MovingSession
from tests.stage.cases import cases
from tests.stage.mcp_clients import INITIALIZE

pytestmark = pytest.mark.covers("bridge-shared")

LISTS = {
    "tools/list": "notifications/tools/list_changed",
    "resources/list": "notifications/resources/list_changed",
    "resources/templates/list": "notifications/resources/list_changed",
    "prompts/list": "notifications/prompts/list_changed",
}


class Peer:
    """One side of a session: what it says, and what it hears."""

    def __init__(self) -> None:
        self._send, self.reads = anyio.create_memory_object_stream[Any](100)
        self.writes, self._receive = anyio.create_memory_object_stream[Any](100)

    async def says(self, **message: Any) -> None:
        await self._send.send(SessionMessage(jsonrpc_message_adapter.validate_python({"jsonrpc": "2.0", **message})))

    async def hears(self) -> dict[str, Any]:
        async with asyncio.timeout(30):
            item = await self._receive.receive()
        message: dict[str, Any] = item.message.model_dump(by_alias=True, exclude_unset=True)
        assert message.pop("jsonrpc") == "2.0"
        return message

    async def answers(self, method: str, result: Any) -> dict[str, Any]:
        """The request of this method, which is answered."""
        request = await self.hears()
        assert request["method"] == method
        await self.says(id=request["id"], result=result)
        return request

    def ends(self) -> None:
        self._send.close()

    def close(self) -> None:
        for stream in (self._send, self.reads, self.writes, self._receive):
            stream.close()


class Moving:
    """A client and the bridges that serve it, one after the other."""

    def __init__(self) -> None:
        self.client, self.bridge = Peer(), Peer()
        self._ended: list[Peer] = []
        self._bridges: asyncio.Queue[Peer] = asyncio.Queue()
        self.is_over = False

    @asynccontextmanager
    async def link(self) -> AsyncIterator[Link]:
        bridge = await self._bridges.get()
        yield Link(bridge.reads, bridge.writes, lambda: self.is_over)

    async def next(self) -> Peer:
        """The present bridge ends, and there is another one."""
        self.bridge.ends()
        self._ended.append(self.bridge)
        self.bridge = Peer()
        await self._bridges.put(self.bridge)
        return self.bridge

    def close(self) -> None:
        for peer in (self.client, self.bridge, *self._ended):
            peer.close()

    async def asks(self, id_: int, method: str, result: Any, **params: Any) -> None:
        """A request of the client, which the bridge answers."""
        await self.client.says(id=id_, method=method, params=params)
        await self.bridge.answers(method, result)
        assert await self.client.hears() == {"id": id_, "result": result}


@pytest.fixture
async def moving() -> AsyncIterator[Moving]:
    """At its first bridge."""
    found = Moving()
    serving = asyncio.create_task(MovingSession(found.client.reads, found.client.writes).serve(found.link))
    await found.next()
    yield found
    found.client.ends()
    async with asyncio.timeout(30):
        await serving
    found.close()


async def begin(moving: Moving) -> None:
    """The handshake of an older client."""
    await moving.client.says(**INITIALIZE)
    await moving.bridge.answers("initialize", {"serverInfo": {}})
    await moving.client.hears()
    await moving.client.says(method="notifications/initialized")
    await moving.bridge.hears()


async def resume(bridge: Peer) -> None:
    await bridge.answers("initialize", {"serverInfo": {}})
    assert (await bridge.hears())["method"] == "notifications/initialized"


async def is_quiet(moving: Moving) -> None:
    """Nothing was said to the client until now."""
    await moving.asks(99, "ping", {})


async def test_the_handshake_level_and_subscriptions_are_told_again_and_not_to_the_client(moving: Moving) -> None:
    await begin(moving)
    await moving.asks(2, "logging/setLevel", {}, level="debug")
    await moving.asks(3, "resources/subscribe", {}, uri="a://1")
    await moving.asks(4, "resources/subscribe", {}, uri="a://2")
    await moving.asks(5, "resources/unsubscribe", {}, uri="a://1")
    bridge = await moving.next()
    await resume(bridge)
    assert (await bridge.answers("logging/setLevel", {}))["params"] == {"level": "debug"}
    assert (await bridge.answers("resources/subscribe", {}))["params"] == {"uri": "a://2"}
    told = {"method": "notifications/resources/updated", "params": {"uri": "a://2"}}
    assert await moving.client.hears() == told
    await is_quiet(moving)


@pytest.mark.parametrize("method", LISTS)
async def test_an_older_client_is_told_of_lists_that_differ_and_of_no_others(moving: Moving, method: str) -> None:
    await begin(moving)
    for number, cursor in enumerate(({}, {"cursor": "2"})):
        await moving.asks(number, method, {"page": number}, **cursor)
    bridge = await moving.next()
    await resume(bridge)
    for page in range(2):
        await bridge.answers(method, {"page": page})
    await is_quiet(moving)
    bridge = await moving.next()
    await resume(bridge)
    await bridge.answers(method, {"page": 0})
    await bridge.answers(method, {"page": "another"})
    assert await moving.client.hears() == {"method": LISTS[method], "params": {}}


async def test_a_newer_client_is_told_on_the_streams_that_are_for_it(moving: Moving) -> None:
    wanted = {"toolsListChanged": True, "resourceSubscriptions": ["a://1"]}
    streams = {7: wanted, 8: {"promptsListChanged": True}}
    acknowledged = "notifications/subscriptions/acknowledged"

    def ack(id_: int) -> dict[str, Any]:
        meta = {"io.modelcontextprotocol/subscriptionId": id_}
        return {"method": acknowledged, "params": {"_meta": meta, "notifications": streams[id_]}}

    await moving.asks(1, "tools/list", {"tools": []})
    for id_, kinds in streams.items():
        await moving.client.says(id=id_, method="subscriptions/listen", params={"notifications": kinds})
        await moving.bridge.hears()
        await moving.bridge.says(**ack(id_))
        assert await moving.client.hears() == ack(id_)
    bridge = await moving.next()
    await bridge.answers("tools/list", {"tools": ["another"]})
    meta = {"_meta": {"io.modelcontextprotocol/subscriptionId": 7}}
    assert await moving.client.hears() == {"method": "notifications/tools/list_changed", "params": meta}
    assert [(await bridge.hears())["id"] for _ in streams] == [*streams]
    for id_ in streams:
        await bridge.says(**ack(id_))
    told = {"method": "notifications/resources/updated", "params": {"uri": "a://1", **meta}}
    assert await moving.client.hears() == told
    await is_quiet(moving)


async def test_open_calls_are_unknown_and_other_requests_are_sent_again_unless_cancelled(moving: Moving) -> None:
    await begin(moving)
    for id_, method in ((2, "tools/call"), (3, "prompts/get"), (4, "prompts/get"), (5, "resources/read")):
        await moving.client.says(id=id_, method=method, params={"name": str(id_)})
        await moving.bridge.hears()
    await moving.client.says(method="notifications/cancelled", params={"requestId": 4})
    assert (await moving.bridge.hears())["method"] == "notifications/cancelled"
    bridge = await moving.next()
    lost = await moving.client.hears()
    assert (lost["id"], lost["result"]["isError"]) == (2, True)
    assert lost["result"]["_meta"] == {"a2c_error": {"code": 503, "outcome": "unknown"}}
    await resume(bridge)
    again = [await bridge.hears() for _ in range(2)]
    assert [(each["id"], each["method"]) for each in again] == [(3, "prompts/get"), (5, "resources/read")]
    await bridge.says(id=5, result={"contents": []})
    assert await moving.client.hears() == {"id": 5, "result": {"contents": []}}


@cases("late", {"result": {"action": "accept"}}, {"error": {"code": -1, "message": "no"}})
async def test_a_late_answer_to_one_bridge_is_never_given_to_the_next(moving: Moving, late: dict[str, Any]) -> None:
    await begin(moving)
    await moving.bridge.says(id=1, method="elicitation/create", params={"message": "the first asks"})
    first = await moving.client.hears()
    bridge = await moving.next()
    withdrawn = await moving.client.hears()
    assert (withdrawn["method"], withdrawn["params"]["requestId"]) == ("notifications/cancelled", first["id"])
    await resume(bridge)
    await bridge.says(id=1, method="elicitation/create", params={"message": "the second asks"})
    second = await moving.client.hears()
    assert second["id"] != first["id"]
    await moving.client.says(id=first["id"], **late)
    await moving.client.says(id=second["id"], result={"action": "decline"})
    assert await bridge.hears() == {"id": 1, "result": {"action": "decline"}}


async def test_a_question_that_its_bridge_withdraws_is_withdrawn_under_its_own_number(moving: Moving) -> None:
    await begin(moving)
    numbers = []
    for id_ in ("a", "b"):
        await moving.bridge.says(id=id_, method="elicitation/create", params={"message": id_})
        numbers.append((await moving.client.hears())["id"])
    await moving.bridge.says(method="notifications/cancelled", params={"requestId": "a"})
    assert (await moving.client.hears())["params"]["requestId"] == numbers[0]
    await moving.bridge.says(method="notifications/cancelled", params={"requestId": "of another"})
    for number in numbers:
        await moving.client.says(id=number, result={"action": "accept"})
    assert await moving.bridge.hears() == {"id": "b", "result": {"action": "accept"}}


async def test_what_a_bridge_says_after_its_time_is_over_is_no_answer(moving: Moving) -> None:
    await moving.client.says(id=1, method="tools/call", params={"name": "x"})
    await moving.bridge.hears()
    moving.is_over = True
    await moving.bridge.says(id=1, error={"code": -32000, "message": "Connection closed"})
    await moving.next()
    assert (await moving.client.hears())["result"]["_meta"]["a2c_error"]["outcome"] == "unknown"
