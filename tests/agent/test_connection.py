"""A client's connection over a websocket, with a Server of another make that may read slowly."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import reduce
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from a2c_smcp.connection import Connection, ConnectionLost, Deferred
from a2c_smcp.endpoint import Endpoint
from a2c_smcp.errors import BadRequest, SMCPError, TooLarge
from tests.stage.raising import raises
from tests.waiting import until

PATIENCE = 60.0
MEGABYTE = 1024 * 1024
TURNS = 50  # of the event loop
OPEN = {"sid": "s", "upgrades": [], "maxPayload": 10**8}
ODD = [
    *("42/smcp,", "42/smcp,[]", "42/smcp,{}", "42/smcp,x[1]", "42/smcp,7"),
    *("43/smcp,", "43/smcp,0", "43/smcp,0[]", "43/smcp,98", "43/smcp,x[]", "43/smcp,99[]", '460-/smcp,0["x"]'),
]
LET_IN = '40/smcp,{"sid":"x"}'


class Hub:
    """A websocket, on which it says what it is told to."""

    def __init__(self, greeting: tuple[str, ...], ping: float) -> None:
        self._greeting = greeting
        self._open = {**OPEN, "pingInterval": ping * 1000, "pingTimeout": ping * 1000}
        self._entered: asyncio.Future[web.WebSocketResponse] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()

    async def hears(self) -> Any:
        """The next packet: a text, or bytes."""
        async with asyncio.timeout(PATIENCE):
            message = await (await self._entered).receive()
        assert message.type in (WSMsgType.TEXT, WSMsgType.BINARY)
        return message.data

    async def says(self, packet: str | bytes) -> None:
        websocket = await self._entered
        await (websocket.send_str(packet) if isinstance(packet, str) else websocket.send_bytes(packet))

    def hang_up(self) -> None:
        self._over.set()

    async def meet(self, request: web.Request) -> web.StreamResponse:
        assert request.query["transport"] == "websocket"
        websocket = web.WebSocketResponse(max_msg_size=0, timeout=0.1)
        await websocket.prepare(request)
        await websocket.send_str(f"0{json.dumps(self._open)}")
        assert (await websocket.receive_str()).startswith("40/smcp,")
        for packet in self._greeting:
            await websocket.send_str(packet)
        self._entered.set_result(websocket)
        await self._over.wait()
        return websocket


@asynccontextmanager
async def talking(
    *greeting: str, on_event: Callable[[str, Any], Any] = lambda name, data: None, ping: float = PATIENCE
) -> AsyncIterator[tuple[Connection, Hub]]:
    hub, app = Hub((*greeting, LET_IN), ping), web.Application()
    app.router.add_get("/socket.io/", hub.meet)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with Connection(Endpoint(url=f"http://127.0.0.1:{runner.addresses[0][1]}"), on_event) as connection:
            try:
                yield connection, hub
            finally:
                hub.hang_up()
    finally:
        await runner.cleanup()


def asking(connection: Connection, event: str, **data: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(connection.ask(event, data, PATIENCE))


async def waits(task: asyncio.Task[Any]) -> None:
    """It has got as far as it can."""
    for _ in range(TURNS):
        await asyncio.sleep(0)
    assert not task.done()


async def test_nothing_comes_between_a_packet_and_its_attachments_however_slow_the_server() -> None:
    async with talking() as (connection, hub):
        asked = [asking(connection, "fill", text="x" * 7 * MEGABYTE) for _ in range(3)]
        await waits(asked[0])
        asked.append(asking(connection, "bytes", text="x" * MEGABYTE, one=b"1", two=b"2"))
        await waits(asked[-1])
        asked += [asking(connection, "small", number=number) for number in range(3)]
        await waits(asked[-1])
        heard = [await hub.hears() for _ in range(9)]
        assert [each if isinstance(each, bytes) else each.partition(",{")[0] for each in heard] == [
            *(f'42/smcp,{number}["fill"' for number in (1, 2, 3)),
            '452-/smcp,4["bytes"',
            *(b"1", b"2"),
            *(f'42/smcp,{number}["small"' for number in (5, 6, 7)),
        ]
        for number, task in enumerate(asked, 1):
            await hub.says(f"43/smcp,{number}[{number}]")
            assert await task == number


async def test_a_cancelled_sender_leaves_no_half_packet_behind() -> None:
    async with talking() as (connection, hub):
        filling = [asking(connection, "fill", text="x" * 7 * MEGABYTE) for _ in range(3)]
        await waits(filling[0])
        sending = asking(connection, "bytes", text="x" * MEGABYTE, blob=b"1")
        await waits(sending)
        sending.cancel()
        after = asking(connection, "small")
        await waits(after)
        heard = [await hub.hears() for _ in range(6)]
        assert heard[4] == b"1"
        assert heard[5].startswith('42/smcp,5["small"')
        await hub.says("43/smcp,4[true]")
        await hub.says("43/smcp,5[true]")
        assert await after is True
        for task in filling:
            task.cancel()


async def test_a_later_answer_is_sent_unless_the_connection_is_lost() -> None:
    given: list[Callable[[Any], None]] = []
    async with talking(on_event=lambda name, data: Deferred(given.append)) as (connection, hub):
        for number in (7, 8):
            await hub.says(f'42/smcp,{number}["client:later"]')
        await until(lambda: len(given) == 2)
        given[1]({"answer": b"ab"})
        assert await hub.hears() == '461-/smcp,8[{"answer":{"_placeholder":true,"num":0}}]'
        assert await hub.hears() == b"ab"
        await hub.says("41/smcp,")
        async with asyncio.timeout(PATIENCE):
            await connection.lost.wait()
        given[0]("too late")


async def test_an_event_with_bytes_in_its_answer_is_answered() -> None:
    async with talking(on_event=lambda name, data: {"name": name, "blob": b"ab"}) as (_, hub):
        await hub.says('42/smcp,7["client:blob"]')
        assert await hub.hears() == '461-/smcp,7[{"name":"client:blob","blob":{"_placeholder":true,"num":0}}]'
        assert await hub.hears() == b"ab"


@pytest.mark.parametrize(("answer", "code"), [("x" * 9_000_000, 413), (object(), 400)], ids=["large", "odd"])
async def test_an_answer_that_cannot_be_sent_is_an_error(answer: Any, code: int) -> None:
    async with talking(on_event=lambda name, data: {"answer": answer}) as (_, hub):
        await hub.says('42/smcp,7["client:odd"]')
        assert json.loads((await hub.hears()).removeprefix("43/smcp,7"))[0]["error"]["code"] == code


@pytest.mark.parametrize("is_later", [False, True], ids=["at once", "later"])
async def test_an_event_whose_handler_fails_is_answered_with_an_error(is_later: bool) -> None:
    async def fail_later() -> None:
        raise ValueError("a secret")

    def on_event(name: str, data: Any) -> Any:
        if is_later:
            return fail_later()
        raise ValueError("a secret")

    async with talking(on_event=on_event) as (_, hub):
        await hub.says('42/smcp,7["client:odd"]')
        answer = await hub.hears()
        assert json.loads(answer.removeprefix("43/smcp,7"))[0]["error"]["code"] == 500
        assert "secret" not in answer


async def test_a_request_that_cannot_be_sent_is_refused_and_waits_for_no_answer() -> None:
    async with talking() as (connection, hub):
        for data, error in (
            ({"x": {1}}, BadRequest),
            ({"x": object()}, BadRequest),
            ({"x": reduce(lambda inner, _: [inner], range(5000), b"")}, BadRequest),
            ({"x": "x" * 9_000_000}, TooLarge),
            ({"x": "漢" * 3_000_000}, TooLarge),
            ({"x": bytes(7_000_000)}, TooLarge),
        ):
            with pytest.raises(error):
                await connection.ask("odd", data, PATIENCE)
        sound = asking(connection, "sound")
        number = (await hub.hears()).removeprefix("42/smcp,").partition("[")[0]
        for odd in range(int(number)):
            await hub.says(f'43/smcp,{odd}["nobody asked"]')
        await hub.says(f"43/smcp,{number}[1,2]")
        assert await sound == (1, 2)


async def test_events_keep_their_order_even_before_connect_is_answered_and_odd_packets_are_ignored() -> None:
    heard: list[Any] = []
    async with talking('42/smcp,["early",0]', on_event=lambda *event: heard.append(event)) as (connection, hub):
        for packet in ODD:
            await hub.says(packet)
        for number in range(1, 4):
            await hub.says(f'42/smcp,["later",{number}]')
        last = asking(connection, "sound")
        await hub.hears()
        await hub.says("43/smcp,1[true]")
        assert await last is True
        assert heard == [("early", 0), *(("later", number) for number in range(1, 4))]


async def test_a_request_fails_when_the_server_closes_the_connection() -> None:
    async with talking() as (connection, hub):
        asked = [asking(connection, "fill", text="x" * 7 * MEGABYTE) for _ in range(4)]
        await waits(asked[0])
        hub.hang_up()
        for task in asked:
            with pytest.raises(ConnectionLost):
                await task
        assert connection.lost.is_set()


@pytest.mark.parametrize("answer", ["", "{}", "[1", "[NaN]", '[{"_placeholder":true,"num":0}'])
async def test_an_unreadable_answer_fails_its_own_request_only(answer: str) -> None:
    async with talking() as (connection, hub):
        asked = asking(connection, "odd")
        await hub.hears()
        await hub.says(f"43/smcp,1{answer}")
        with pytest.raises(SMCPError, match="the answer to odd cannot be read"):
            await asked
        sound = asking(connection, "sound")
        await hub.hears()
        await hub.says("43/smcp,2[2]")
        assert await sound == 2


@pytest.mark.parametrize("event", ['["odd"', '["odd",NaN]', "{}", '["odd",{"_placeholder":true,"num":3}]'])
async def test_an_unreadable_event_is_answered_with_the_reason(event: str) -> None:
    async with talking() as (_, hub):
        head = "451-/smcp,7" if "placeholder" in event else "42/smcp,7"
        await hub.says(f"{head}{event}")
        if "placeholder" in event:
            await hub.says(b"blob")
        answer = await hub.hears()
        assert answer.startswith("43/smcp,7[")
        assert json.loads(answer.removeprefix("43/smcp,7"))[0]["code"] == 400


async def test_attachments_of_an_event_replace_their_placeholders() -> None:
    heard: list[Any] = []
    async with talking(on_event=lambda *event: heard.append(event)) as (connection, hub):
        await hub.says('452-/smcp,["put",{"a":{"_placeholder":true,"num":1},"b":[{"num":0,"_placeholder":true}]}]')
        await hub.says(b"zero")
        await hub.says(b"one")
        asked = asking(connection, "get")
        await hub.hears()
        await hub.says('461-/smcp,1[{"_placeholder":true,"num":0}]')
        await hub.says(b"blob")
        assert await asked == b"blob"
    assert heard == [("put", {"a": b"one", "b": [b"zero"]})]


async def test_an_answer_is_converted_before_a_later_event_is_handled() -> None:
    order: list[str] = []
    async with talking(on_event=lambda name, data: order.append(name)) as (connection, hub):
        asked = asyncio.create_task(connection.ask("who", {}, PATIENCE, then=lambda answer: order.append(answer)))
        await hub.hears()
        await hub.says('42/smcp,["before"]')
        await hub.says('43/smcp,1["answer"]')
        await hub.says('42/smcp,["after"]')
        await asked
        await until(lambda: len(order) == 3)
    assert order == ["before", "answer", "after"]


async def test_closing_disconnects_and_waits_at_most_a_second_for_the_server() -> None:
    async with talking() as (connection, hub):
        begun = time.monotonic()
        await connection.__aexit__(None, None, None)
        assert time.monotonic() - begun < 20
        assert [await hub.hears(), await hub.hears()] == ["41/smcp,", "1"]
        with raises(ConnectionLost, outcome="not_run"):
            await connection.ask("late", {}, PATIENCE)


async def test_a_ping_is_answered_and_a_missing_one_ends_the_connection() -> None:
    async with talking(ping=0.2) as (connection, hub):
        await hub.says("2")
        assert await hub.hears() == "3"
        async with asyncio.timeout(PATIENCE):
            await connection.lost.wait()
