"""The cases of the official Engine.IO suite, in our words, against the echo application over real sockets.

The suite of Socket.IO asks most of them again: those run for both applications. They differ from the originals in one
thing. Pings come only where they are what is tested, so that a slow machine is not a failing test.
"""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from tests.engine.by_hand import PATIENCE, OpenHandshake, Polling, Visitor, WebSocket
from tests.engine.conftest import Visits
from tests.engine.echo import PING_INTERVAL, PING_TIMEOUT
from tests.waiting import until_it_goes

pytestmark = pytest.mark.covers("official-engine-io")

NOOP = "6"
OFFICIAL = {"ping_interval": PING_INTERVAL, "ping_timeout": PING_TIMEOUT}

both = pytest.mark.parametrize("application", ["engine.io", "socket.io"])
UNKNOWN = pytest.mark.parametrize(
    ("version", "transport"),
    [([], None), (["EIO=abc"], None), (["EIO=4"], []), (["EIO=4"], ["transport=abc"])],
    ids=["no version", "unknown version", "no transport", "unknown transport"],
)


def announced(opened: OpenHandshake) -> dict[str, object]:
    """All fields but the sid, which must be some text."""
    assert opened["sid"]
    assert isinstance(opened["sid"], str)
    return {name: value for name, value in opened.items() if name != "sid"}


def expected(*upgrades: str) -> dict[str, object]:
    return {"upgrades": list(upgrades), "pingInterval": 300, "pingTimeout": 200, "maxPayload": 1_000_000}


# Handshake


@both
async def test_polling_opens_a_session(visits: Visits, application: str) -> None:
    echo = await visits(application, **OFFICIAL)
    response = await echo.request("GET", ["EIO=4", "transport=polling"])
    assert response.status == 200
    assert announced(OpenHandshake(response.text)) == expected("websocket")


@both
async def test_a_websocket_opens_a_session(visits: Visits, application: str) -> None:
    echo = await visits(application, **OFFICIAL)
    socket = await echo.websocket("EIO=4", "transport=websocket")
    assert announced(OpenHandshake(await socket.receive_text())) == expected()


@both
@UNKNOWN
@pytest.mark.parametrize("usual", ["polling", "websocket"])
async def test_a_session_without_a_known_version_and_transport_is_refused(
    visits: Visits, application: str, usual: str, version: list[str], transport: list[str] | None
) -> None:
    echo = await visits(application)
    query = [*version, *([f"transport={usual}"] if transport is None else transport)]
    if usual == "polling":
        assert (await echo.request("GET", query)).status == 400
    else:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
            await echo.websocket(*query)
        assert refusal.value.status == 400


@both
@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_only_a_get_opens_a_session(visits: Visits, application: str, method: str) -> None:
    echo = await visits(application)
    assert (await echo.request(method, ["EIO=4", "transport=polling"])).status == 400


# Messages: what is posted comes back


@pytest.mark.parametrize(
    "payload",
    ["4hello", "4test1\x1e4test2\x1e4test3", "4hello\x1ebAQIDBA=="],
    ids=["one packet", "several packets", "text and binary"],
)
async def test_polling_carries_a_payload_there_and_back(visits: Visits, payload: str) -> None:
    polling = await (await visits("engine.io")).poll()
    response = await polling.post(payload)
    assert (response.status, response.text) == (200, "ok")
    response = await polling.get()
    assert (response.status, response.text) == (200, payload)


async def test_a_malformed_packet_in_a_payload_ends_the_session(visits: Visits) -> None:
    polling = await (await visits("engine.io")).poll()
    assert (await polling.post("abc")).status == 400
    assert (await polling.get()).status == 400


async def test_two_polls_at_once_end_the_session(visits: Visits) -> None:
    polling = await (await visits("engine.io")).poll()
    polls = [asyncio.create_task(polling.get()) for _ in range(2)]
    responses = [await poll for poll in polls]
    assert sorted(response.status for response in responses) == [200, 400]
    assert [response.text for response in responses if response.status == 200] == ["1"]
    assert (await polling.get()).status == 400


@pytest.mark.parametrize("message", ["4hello", b"\1\2\3\4"], ids=["text", "binary"])
async def test_a_websocket_carries_a_message_there_and_back(visits: Visits, message: str | bytes) -> None:
    socket = await (await visits("engine.io")).open()
    await socket.send(message)
    assert await socket.receive() == message


async def test_a_malformed_packet_on_a_websocket_ends_the_session(visits: Visits) -> None:
    socket = await (await visits("engine.io")).open()
    await socket.send("abc")
    assert await socket.is_closed_by_the_server()


# Heartbeat


@both
async def test_pings_come_over_polling_until_one_is_left_unanswered(visits: Visits, application: str) -> None:
    polling = await (await visits(application, ping_interval=0.05)).poll()
    for _ in range(3):
        response = await polling.get()
        assert (response.status, response.text) == (200, "2")
        assert (await polling.post("3")).status == 200
    polling = await (await visits(application, ping_interval=0.05, ping_timeout=0.05)).poll()
    async with asyncio.timeout(PATIENCE):
        while (await polling.post(NOOP)).status == 200:
            pass
    assert (await polling.get()).status == 400


@both
async def test_pings_come_on_a_websocket_until_one_is_left_unanswered(visits: Visits, application: str) -> None:
    socket = await (await visits(application, ping_interval=0.05)).open()
    for _ in range(3):
        assert await socket.receive() == "2"
        await socket.send("3")
    socket = await (await visits(application, ping_interval=0.05, ping_timeout=0.05)).open()
    assert await socket.receive() == "2"
    assert await socket.is_closed_by_the_server()


# Close


@both
async def test_a_close_that_is_posted_releases_the_poll_and_ends_the_session(visits: Visits, application: str) -> None:
    echo = await visits(application)

    async def attempt() -> None:
        """The poll may come after the close, and is refused then: nobody can tell from outside when it has arrived."""
        polling = await echo.poll()
        poll = asyncio.create_task(polling.get())
        await echo.poll()
        closed, polled = await polling.post("1"), await poll
        assert (closed.status, polled.status, polled.text) == (200, 200, NOOP)
        assert (await polling.get()).status == 400

    await until_it_goes(attempt)


@both
async def test_a_close_on_a_websocket_ends_the_session(visits: Visits, application: str) -> None:
    socket = await (await visits(application)).open()
    await socket.send("1")
    assert await socket.is_closed_by_the_server()


# Upgrade


@both
async def test_a_session_moves_from_polling_to_a_websocket(visits: Visits, application: str) -> None:
    echo = await visits(application)
    polling = await echo.poll()
    socket = await echo.upgrade(polling)
    await socket.send("2probe")
    assert await socket.receive() == "3probe"
    response = await polling.get()
    assert (response.status, response.text) == (200, NOOP)
    await socket.send("5")
    await assert_it_answers(socket, application)


@both
async def test_a_poll_after_an_upgrade_is_refused_and_harms_nothing(visits: Visits, application: str) -> None:
    echo = await visits(application)
    polling = await echo.poll()
    socket = await upgraded(echo, polling)
    assert (await polling.get()).status == 400
    await assert_it_answers(socket, application)


@both
async def test_a_second_websocket_after_an_upgrade_is_closed_and_harms_nothing(
    visits: Visits, application: str
) -> None:
    echo = await visits(application)
    polling = await echo.poll()
    socket = await upgraded(echo, polling)
    second = await echo.upgrade(polling)
    assert await second.is_closed_by_the_server()
    await assert_it_answers(socket, application)


async def upgraded(echo: Visitor, polling: Polling) -> WebSocket:
    """The session has moved to this websocket, by a client that does not wait between its packets."""
    socket = await echo.upgrade(polling)
    await socket.send("2probe", "5")
    assert await socket.receive() == "3probe"
    return socket


async def assert_it_answers(socket: WebSocket, application: str) -> None:
    sent, answer = {"engine.io": ("4hello", "4hello"), "socket.io": ("40", '40{"sid":')}[application]
    await socket.send(sent)
    assert (await socket.receive_text()).startswith(answer)
