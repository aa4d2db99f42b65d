"""The cases of the official Socket.IO suite that Engine.IO's has not, in our words, against the echo application."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import aiohttp
import pytest

from tests.engine.conftest import Visits

pytestmark = pytest.mark.covers("official-socket-io")

PLACEHOLDERS = '{"_placeholder":true,"num":0},{"_placeholder":true,"num":1}'
ATTACHMENTS = [b"\1\2\3", b"\4\5\6"]


# Connect


@pytest.mark.parametrize("namespace", ["", "/custom,"], ids=["main", "custom"])
@pytest.mark.parametrize("payload", ["", '{"token":"123"}'], ids=["without payload", "with payload"])
async def test_a_namespace_is_connected_to_and_told_its_payload(visits: Visits, namespace: str, payload: str) -> None:
    socket = await (await visits("socket.io")).open()
    await socket.send(f"40{namespace}{payload}")
    answer = await socket.receive_text()
    assert answer.startswith(f"40{namespace}{{")
    body = json.loads(answer.removeprefix(f"40{namespace}"))
    assert body.keys() == {"sid"}
    assert isinstance(body["sid"], str)
    assert await socket.receive() == f'42{namespace}["auth",{payload or "{}"}]'


async def test_an_unknown_namespace_is_refused(visits: Visits) -> None:
    socket = await (await visits("socket.io")).open()
    await socket.send("40/random")
    assert await socket.receive() == '44/random,{"message":"Invalid namespace"}'


async def test_a_packet_other_than_connect_ends_a_session_that_is_not_connected(visits: Visits) -> None:
    socket = await (await visits("socket.io")).open()
    await socket.send("4abc")
    assert await socket.is_closed_by_the_server()


async def test_a_session_that_sends_no_connect_is_ended(visits: Visits) -> None:
    socket = await (await visits("socket.io", handshake_timeout=0.05)).open()
    assert await socket.is_closed_by_the_server()


# Disconnect


async def test_a_session_without_a_namespace_stays_open(visits: Visits) -> None:
    socket = await (await visits("socket.io", ping_interval=0.05)).connect()
    await socket.send("41")
    assert await socket.receive() == "2"


async def test_a_namespace_is_left_without_harm_to_the_other(visits: Visits) -> None:
    socket = await (await visits("socket.io")).connect()
    await socket.send("40/custom")
    assert (await socket.receive_text()).startswith("40/custom,{")
    assert await socket.receive() == '42/custom,["auth",{}]'
    await socket.send("41/custom", '42["message","to the main namespace"]')
    assert await socket.receive() == '42["message-back","to the main namespace"]'


# Messages


async def test_an_event_comes_back(visits: Visits) -> None:
    socket = await (await visits("socket.io")).connect()
    await socket.send('42["message",1,"2",{"3":[true]}]')
    assert await socket.receive() == '42["message-back",1,"2",{"3":[true]}]'


async def test_an_event_with_attachments_comes_back(visits: Visits) -> None:
    socket = await (await visits("socket.io")).connect()
    await socket.send(f'452-["message",{PLACEHOLDERS}]', *ATTACHMENTS)
    assert await socket.receive() == f'452-["message-back",{PLACEHOLDERS}]'
    assert [await socket.receive() for _ in ATTACHMENTS] == ATTACHMENTS


async def test_an_event_that_wants_an_ack_gets_it(visits: Visits) -> None:
    socket = await (await visits("socket.io")).connect()
    await socket.send('42456["message-with-ack",1,"2",{"3":[false]}]')
    assert await socket.receive() == '43456[1,"2",{"3":[false]}]'


async def test_an_event_with_attachments_gets_an_ack_with_attachments(visits: Visits) -> None:
    socket = await (await visits("socket.io")).connect()
    await socket.send(f'452-789["message-with-ack",{PLACEHOLDERS}]', *ATTACHMENTS)
    assert await socket.receive() == f"462-789[{PLACEHOLDERS}]"
    assert [await socket.receive() for _ in ATTACHMENTS] == ATTACHMENTS


@pytest.mark.parametrize(
    "packet",
    ["4abc", "42{}", '42abc["message-with-ack",1,"2",{"3":[false]}]'],
    ids=["unknown type", "payload is no array", "id is no number"],
)
async def test_a_malformed_packet_ends_the_session(visits: Visits, packet: str) -> None:
    socket = await (await visits("socket.io")).connect()
    await socket.send(packet)
    assert await socket.is_closed_by_the_server()


# The application as a program, as the suites are run against it


@pytest.mark.parametrize(("options", "path"), [([], "/socket.io/"), (["--engine"], "/engine.io/")])
async def test_the_application_is_a_program(options: list[str], path: str) -> None:
    command = [sys.executable, "-m", "tests.engine.echo", "--port", "0", *options]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, cwd=Path(__file__).parents[2])
    try:
        assert process.stdout
        async with asyncio.timeout(60), aiohttp.ClientSession() as http:
            url = (await process.stdout.readline()).decode().split()[-1]
            assert url.endswith(path)
            async with http.get(f"{url}?EIO=4&transport=polling") as response:
                assert (await response.text()).startswith("0{")
    finally:
        process.terminate()
        await process.communicate()
