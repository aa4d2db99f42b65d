"""Long polling by hand: what is malformed ends its own session, what is abandoned takes nothing with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import aiohttp
import pytest

from tests.stage.polling import Poller
from tests.stage.web import Http, fetch


@pytest.fixture
async def poller(http: Http, shared_hub: Any) -> AsyncIterator[Poller]:
    poller = await Poller(http, shared_hub.url).open()
    yield poller
    await poller.post("1")


GOOD = '42/smcp,1["no:such_event",{}]'
PONG = "3"
"""Nothing is sent back for it, which a poll could take before the Server has heard of its end."""


@pytest.mark.covers("malformed-frames")
@pytest.mark.parametrize("bad", [b"x", b"9", b"b!!!", b"", b"\xff\xfe"])
async def test_a_malformed_packet_is_refused_and_ends_its_session(poller: Poller, bad: bytes) -> None:
    status, text = await poller.post(GOOD.encode() + b"\x1e" + bad)
    assert (status, json.loads(text)["code"]) == (400, 400)
    assert (await poller.get())[0] == 400


@pytest.mark.covers("always-an-ack", "transports")
async def test_a_request_in_chunks_is_read_whole(poller: Poller) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield GOOD[:10].encode()
        yield GOOD[10:].encode()

    assert (await poller.post(chunks()))[0] == 200
    assert (await poller.get())[1].startswith("43/smcp,1[")


@pytest.mark.covers("limit-message")
async def test_a_request_beyond_what_the_transport_takes_is_refused(serve: Any, http: Http) -> None:
    poller = await Poller(http, (await serve(limits={"max_message": 4096})).url).open()
    assert (await poller.post("4" + "x" * 8192))[0] == 413


@pytest.mark.covers("always-an-ack", "transports")
@pytest.mark.parametrize("frame", [None, "garbage", "2probe"])
async def test_an_upgrade_that_fails_leaves_the_session_polling(poller: Poller, frame: str | None) -> None:
    socket = await poller.websocket()
    if frame:
        await socket.send_str(frame)
    await socket.close()
    await poller.post(GOOD)
    text = ""
    while "43/smcp,1[" not in text:
        status, text = await asyncio.wait_for(poller.get(), 10)
        assert status == 200, text


@pytest.mark.covers("malformed-frames", "transports")
async def test_after_an_upgrade_requests_over_http_are_refused_and_harm_nothing(poller: Poller) -> None:
    socket = await poller.upgrade()
    await socket.send_str(GOOD)
    assert (await socket.receive_str()).startswith("43/smcp,1[")
    assert [(await poller.post(data))[0] for data in (GOOD, "x", "1", "")] == [400] * 4
    assert (await poller.get())[0] == 400
    with pytest.raises(aiohttp.WSServerHandshakeError):
        await poller.websocket()
    await socket.send_str(GOOD)
    assert (await socket.receive_str()).startswith("43/smcp,1[")
    await socket.close()


@pytest.mark.covers("auth-refused", "transports")
async def test_a_client_closed_while_it_upgrades_reads_why(http: Http, shared_hub: Any) -> None:
    poller = await Poller(http, shared_hub.url).begin()
    socket = await poller.websocket()
    await socket.send_str("2probe")
    assert await socket.receive_str(timeout=10) == "3probe"
    assert (await poller.post("40/smcp," + json.dumps({"token": "x" * 33 * 1024})))[0] == 200
    await socket.send_str("5")
    refusal = await socket.receive_str(timeout=10)
    assert json.loads(refusal.removeprefix("44/smcp,"))["data"]["code"] == 401
    assert await socket.receive_str(timeout=10) == "1"
    assert (await socket.receive(timeout=10)).type is aiohttp.WSMsgType.CLOSE


@pytest.mark.covers("office-leave-on-disconnect")
async def test_a_poll_that_its_client_abandons_ends_the_session_and_takes_no_packets(poller: Poller) -> None:
    poll = asyncio.create_task(poller.get())
    await asyncio.wait([poll], timeout=0.2)
    poll.cancel()
    async with asyncio.timeout(30):
        while (await poller.post(PONG))[0] == 200:
            pass


@pytest.mark.covers("malformed-frames")
@pytest.mark.own_web_server
async def test_endless_headers_end_their_connection(shared_hub: Any) -> None:
    host, port = shared_hub.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))

    async def flood() -> None:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        while not reader.at_eof():
            writer.write(b"X-Pad: " + b"x" * 8192 + b"\r\n")
            await writer.drain()

    with pytest.raises(ConnectionError):
        await asyncio.wait_for(flood(), 10)
    writer.close()


@pytest.mark.covers("transports")
@pytest.mark.parametrize(
    "query", ["EIO=3&transport=polling", "transport=polling", "EIO=4&transport=polling&sid=nobody"]
)
async def test_an_unknown_session_is_refused_in_json(http: Http, shared_hub: Any, query: str) -> None:
    response = await fetch(f"{shared_hub.url}/socket.io/?{query}")
    assert (response.status, response.json["code"]) == (400, 400)
    with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
        await http.ws_connect(f"{shared_hub.url}/socket.io/?{query.replace('polling', 'websocket')}")
    assert refusal.value.status == 400


@pytest.mark.covers("relay-order")
async def test_a_second_post_at_a_time_is_refused_and_ends_the_session(poller: Poller) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield GOOD[:10].encode()
        begun.set()
        await go_on.wait()
        yield GOOD[10:].encode()

    first = asyncio.create_task(poller.post(slowly()))
    await begun.wait()
    async with asyncio.timeout(30):
        while (await poller.post(GOOD))[0] == 200:  # until the first one has arrived
            pass
    assert (await poller.get())[0] == 400
    go_on.set()
    await asyncio.wait([first])
    with suppress(aiohttp.ClientError):
        assert first.result()[0] == 400
