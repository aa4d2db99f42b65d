"""Limits on clients that are not authenticated (WIRE §6): others are not delayed, and little memory is used."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from ipaddress import ip_network
from typing import Any

import pytest

from a2c_smcp.server import DefaultAuthenticationProvider
from tests.conftest import TRANSPORTS, Hub
from tests.peer import PATIENCE, Peer, Wire
from tests.stage.frames import CLOSE, CONTINUED, PING, TEXT, Opens, Socket, frame, opens
from tests.stage.lines import OPEN
from tests.stage.neighbours import MIB, Meets, memory, neighbours_calling
from tests.stage.polling import Poller
from tests.stage.program import Program, Starts
from tests.stage.web import Http
from tests.waiting import until

__all__ = ["opens"]

KIB = 1024
PONG = 10
KEY = "correct-horse-battery-staple"
REFUSED = {"message": "Not authenticated", "data": {"code": 401, "message": "Not authenticated"}}
DEEP = "[" * 10_000 + "]" * 10_000


async def floods_until_it_is_cut(socket: Socket, data: bytes) -> None:
    """Sends the same again and again, as fast as it is taken."""

    async def flood() -> None:
        while True:
            socket.writer.write(data)
            await socket.writer.drain()

    with pytest.raises(ConnectionError):
        async with asyncio.timeout(PATIENCE):
            await flood()


# Frames

EMPTY = {
    "pings": (b"", frame(PING)),
    "pongs": (b"", frame(PONG)),
    "continuations": (frame(TEXT, b"4", fin=False), frame(CONTINUED, fin=False)),
    "texts": (b"", frame(TEXT)),
    "events": (b"", frame(TEXT, b'42/smcp,1["server:list_room",{}]')),
}


@pytest.mark.covers("strangers-frames")
@pytest.mark.parametrize(("first", "empty"), EMPTY.values(), ids=EMPTY)
async def test_a_flood_of_frames_that_bring_nothing_ends_its_connection_and_delays_nobody(
    program: Program, meets: Meets, opens: Opens, first: bytes, empty: bytes
) -> None:
    async with neighbours_calling(program, meets):
        for _ in range(6):  # a new connection is no way around it
            socket = await opens(program, websocket=True)
            socket.writer.write(first)
            await floods_until_it_is_cut(socket, empty * 10_000)


@pytest.mark.covers("strangers-frames")
async def test_a_flood_of_tiny_frames_delays_nobody(program: Program, meets: Meets, opens: Opens) -> None:
    socket = await opens(program, member=True)
    refused = frame(TEXT, b'42/smcp,["no:such_event",{}]')
    async with neighbours_calling(program, meets):
        for _ in range(40):
            socket.writer.write(refused * 2_000)
            await socket.writer.drain()
        socket.writer.write(frame(TEXT, b'42/smcp,7["no:such_event",{}]'))
        while not (answer := (await socket.receive())[1]).startswith(b"43/smcp,7["):
            assert answer == b"2"
            socket.writer.write(frame(TEXT, b"3"))


@pytest.mark.covers("strangers-frames")
async def test_a_flood_of_a_member_that_was_closed_delays_nobody(program: Program, meets: Meets, opens: Opens) -> None:
    async with neighbours_calling(program, meets):
        for _ in range(5):
            socket = await opens(program, member=True)
            await floods_until_it_is_cut(socket, frame(TEXT) * 10_000)  # the first of them ends its session


@pytest.mark.covers("strangers-frames")
async def test_a_message_in_very_many_fragments_delays_nobody(program: Program, meets: Meets, opens: Opens) -> None:
    socket = await opens(program, member=True)
    async with neighbours_calling(program, meets):
        socket.writer.write(frame(TEXT, b'42/smcp,7["no:such_event",{"x":"', fin=False))
        for _ in range(50):
            socket.writer.write(frame(CONTINUED, b"x", fin=False) * 10_000)
            await socket.writer.drain()
        socket.writer.write(frame(CONTINUED, b'"}]'))
        while not (await socket.receive())[1].startswith(b"43/smcp,7["):
            pass


# What is held


@pytest.fixture
async def keyed(serve: Any) -> Hub:
    """A Server that knows one key."""
    hub: Hub = await serve(auth=DefaultAuthenticationProvider(KEY))
    return hub


@pytest.mark.covers("strangers-held")
@pytest.mark.parametrize("size", [33 * KIB, 100 * KIB, 5 * MIB])
async def test_a_connect_that_is_too_large_is_refused_without_being_read(keyed: Hub, opens: Opens, size: int) -> None:
    socket = await opens(keyed, websocket=True)
    connect = f'40/smcp,{{"token":"{KEY}","x":"{"x" * size}"}}'.encode()
    socket.writer.write(frame(TEXT, connect))
    refusal, *rest = await socket.rest()
    assert json.loads(refusal[1].removeprefix(b"44/smcp,")) == REFUSED
    assert [rest[0], rest[-1][0]] == [(TEXT, b"1"), CLOSE]


@pytest.mark.covers("strangers-held")
async def test_a_connect_in_fragments_is_bounded_too(keyed: Hub, opens: Opens) -> None:
    socket = await opens(keyed, websocket=True)
    socket.writer.write(frame(TEXT, b"40/smcp,", fin=False) + frame(CONTINUED, b"x" * 10 * KIB, fin=False) * 10)
    refusal = (await socket.rest())[0]
    assert json.loads(refusal[1].removeprefix(b"44/smcp,")) == REFUSED
    assert keyed.app.metrics.value("a2c_cut_total") == 1


@pytest.mark.covers("strangers-held")
async def test_a_connect_that_is_too_large_is_refused_over_polling(keyed: Hub, http: Http) -> None:
    held, refused = [await Poller(http, keyed.url).begin() for _ in range(2)]
    connect = f'40/smcp,{{"token":"{KEY}","x":"%s"}}'
    assert (await held.post(connect % ("x" * 33 * KIB)))[0] == 200
    refusal, end = (await held.get())[1].split("\x1e")
    assert (json.loads(refusal.removeprefix("44/smcp,")), end) == (REFUSED, "1")
    assert (await refused.post(connect % ("x" * 100 * KIB)))[0] == 413
    assert (await refused.get())[0] == 400


@pytest.mark.covers("strangers-held")
async def test_frames_that_are_never_finished_take_little_memory(program: Program, meets: Meets, opens: Opens) -> None:
    sockets = [await opens(program, websocket=True) for _ in range(200)]
    before, beginning = memory(program), frame(TEXT, bytes(8 * MIB))[: 100 * KIB]
    async with neighbours_calling(program, meets):
        for socket in sockets:
            socket.writer.write(beginning)
        ended = [asyncio.ensure_future(socket.rest()) for socket in sockets]
        await asyncio.wait(ended, timeout=PATIENCE)
    assert memory(program) - before < 32 * MIB


@pytest.mark.covers("strangers-held")
async def test_nothing_of_an_unauthenticated_client_is_parsed(program: Program, meets: Meets, opens: Opens) -> None:
    socket = await opens(program, websocket=True)
    async with neighbours_calling(program, meets) as waits:
        for _ in range(200):
            socket.writer.write(frame(TEXT, f'42/smcp,1["client:tool_call",{DEEP}]'.encode()))
            socket.writer.write(frame(TEXT, f"43/smcp,1[{DEEP}]".encode()))
            await socket.writer.drain()
        socket.writer.write(frame(TEXT, b"40/smcp,"))
        assert (await socket.receive())[1].startswith(b"40/smcp,"), "no answer to anything before it"
    assert waits.p99 < 1


# Requests


@pytest.mark.covers("strangers-requests")
@pytest.mark.parametrize("pause", [0.05, 0.15])
async def test_a_request_has_one_deadline_however_slow(serve: Any, http: Http, opens: Opens, pause: float) -> None:
    hub = await serve(limits={"handshake_timeout": 0.5})
    path = (await Poller(http, hub.url).begin()).url().removeprefix(hub.url)
    socket = await opens(hub)
    socket.writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())

    async def trickle() -> None:
        while True:
            socket.writer.write(b"1\r\n4\r\n")
            await asyncio.sleep(pause)

    trickling = asyncio.create_task(trickle())
    began = asyncio.get_running_loop().time()
    with suppress(ConnectionError):
        assert await socket.status() in (400, 408)
    assert asyncio.get_running_loop().time() - began < 30
    trickling.cancel()


@pytest.mark.covers("strangers-requests")
async def test_a_member_has_more_time_for_its_requests(serve: Any, http: Http) -> None:
    poller = await Poller(http, (await serve(limits={"handshake_timeout": 0.3})).url).open()

    async def slowly() -> AsyncIterator[bytes]:
        for part in (b"42/smcp,", b'1["no:such_event",', b"{}]"):
            yield part
            await asyncio.sleep(0.3)

    assert (await poller.post(slowly()))[0] == 200
    assert (await poller.get())[1].startswith("43/smcp,1[")


@pytest.mark.covers("strangers-requests")
@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/nothing-here", f"{OPEN}&sid=nobody"])
async def test_a_body_that_is_not_needed_is_not_waited_for(opens: Opens, path: str) -> None:
    socket = await opens()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
    socket.writer.write(head.encode() + b"x" * 1000)
    assert await socket.status() in (200, 400, 404)
    async with asyncio.timeout(PATIENCE):
        with suppress(ConnectionError):
            await socket.rest()


@pytest.mark.covers("strangers-connections")
async def test_the_oldest_of_too_many_newcomers_at_one_address_are_closed(serve: Any, opens: Opens) -> None:
    hub = await serve(limits={"newcomers_per_address": 4}, auth=DefaultAuthenticationProvider(KEY))
    member = await Wire.connect(hub.url, {"token": KEY})
    silent = [await opens(hub) for _ in range(6)]
    for socket in silent[:2]:
        async with asyncio.timeout(PATIENCE):
            with suppress(ConnectionError):
                assert await socket.rest() == []
    newer = [await opens(hub, websocket=True) for _ in range(3)]
    other = await Wire.connect(hub.url, {"token": KEY})
    for socket in newer:
        socket.writer.write(frame(PING, b"?"))
        assert await socket.receive() == (PONG, b"?")
    for wire in (member, other):
        assert (await wire.ask('42/smcp,1["no:such_event",{}]', 1))[0]["code"] == 400
        await wire.close()


@pytest.mark.covers("strangers-connections")
async def test_the_oldest_of_too_many_newcomers_in_all_are_closed(serve: Any) -> None:
    hub = await serve(trusted_proxies=(ip_network("127.0.0.1"),), limits={"newcomers": 6})
    wires = [await Wire.open(hub.url, headers={"X-Forwarded-For": f"192.0.2.{n}"}) for n in range(8)]
    for wire in wires[:2]:
        assert not await wire.receive()
    for wire in wires[2:]:
        await connects(wire)
    for wire in wires:
        await wire.close()


async def connects(wire: Wire) -> None:
    await wire.send("40/smcp,")
    assert (await wire.receive()).startswith("40/smcp,")


# Keys


async def is_refused(wire: Wire, key: str) -> None:
    await wire.send(f'40/smcp,{{"token":"{key}"}}')
    assert (await wire.receive()).startswith("44/smcp,")


@pytest.mark.covers("strangers-keys")
async def test_three_wrong_keys_end_a_session(keyed: Hub) -> None:
    wire = await Wire.open(keyed.url)
    for number in range(3):
        await is_refused(wire, f"wrong-{number}")
    assert await wire.receive() == "1"
    assert not await wire.receive()
    await wire.close()


@pytest.mark.covers("strangers-keys")
async def test_guessing_is_slowed_down_and_a_right_key_is_not(keyed: Hub) -> None:
    clock = asyncio.get_running_loop().time
    waits = []
    for number in range(12):
        wire = await Wire.open(keyed.url)
        began = clock()
        await is_refused(wire, f"wrong-{number}")
        waits.append(clock() - began)
        await wire.close()
    assert max(waits[:10]) < 1 <= min(waits[10:])
    began = clock()
    wire = await Wire.connect(keyed.url, {"token": KEY})
    assert clock() - began < 1
    await wire.close()


# Behind a proxy


@pytest.mark.covers("strangers-proxy")
@pytest.mark.parametrize(
    ("trusted", "forwarded", "client"),
    [
        ("127.0.0.0/8", "192.0.2.7", "192.0.2.7"),
        ("127.0.0.0/8", "198.51.100.1, 192.0.2.7", "192.0.2.7"),
        ("127.0.0.0/8", "192.0.2.7, 127.0.0.9", "192.0.2.7"),
        ("127.0.0.0/8", "192.0.2.7:4711", "192.0.2.7"),
        ("127.0.0.0/8", "[2001:db8::7]:4711", "2001:db8::7"),
        ("127.0.0.0/8", "nonsense", "127.0.0.1"),
        ("127.0.0.0/8", "", "127.0.0.1"),
        ("10.0.0.0/8", "192.0.2.7", "127.0.0.1"),
    ],
)
async def test_a_trusted_proxy_says_who_its_client_is(
    serve: Any, caplog: pytest.LogCaptureFixture, trusted: str, forwarded: str, client: str
) -> None:
    caplog.set_level(logging.INFO)
    hub = await serve(trusted_proxies=(ip_network(trusted),))
    wire = await Wire.open(hub.url, headers={"X-Forwarded-For": forwarded})
    await connects(wire)
    assert f"address='{client}'" in caplog.messages[-1]
    await wire.close()


@pytest.mark.covers("strangers-proxy")
async def test_the_program_takes_the_networks_of_its_proxies(starts: Starts) -> None:
    program = await starts("--trusted-proxy", "127.0.0.0/8", "--trusted-proxy", "10.1.2.3")
    wire = await Wire.open(program.url, headers={"X-Forwarded-For": "192.0.2.7"})
    await wire.send("40/smcp,")
    await program.says("address='192.0.2.7'")
    await wire.close()


@pytest.mark.covers("strangers-proxy")
async def test_limits_are_those_of_the_client_behind_the_proxy(serve: Any) -> None:
    hub = await serve(trusted_proxies=(ip_network("127.0.0.1"),), limits={"newcomers_per_address": 2})
    wires = [await Wire.open(hub.url, headers={"X-Forwarded-For": f"192.0.2.{n % 2}"}) for n in range(5)]
    for wire in wires[1:]:
        await connects(wire)
    assert not await wires[0].receive()
    for wire in wires:
        await wire.close()
    await until(lambda: not len(hub.app.sessions))


@pytest.mark.covers("strangers-connections")
async def test_authenticated_clients_do_not_count_as_newcomers(serve: Any, connect: Any, office: str) -> None:
    hub = await serve(limits={"newcomers_per_address": 2})
    peers = [await connect(hub, transport) for transport in [*TRANSPORTS] * 2]
    for number, peer in enumerate(peers):
        await peer.join("computer", f"c{number}", office)


@pytest.mark.covers("strangers-frames")
async def test_waiting_messages_are_handled_after_their_sender_is_gone(agent: Peer, opens: Opens, office: str) -> None:
    socket = await opens(member=True)
    join = json.dumps({"role": "computer", "name": "laptop", "office_id": office})
    said = [f'42/smcp,1["server:join_office",{join}]', *['42/smcp,["no:such_event",{}]'] * 500]
    said += ['42/smcp,["server:update_last_word",{"computer":"laptop"}]']
    socket.writer.write(b"".join(frame(TEXT, each.encode()) for each in said))
    socket.writer.write_eof()
    assert await agent.hears("notify:update_last_word")
    await agent.hears("notify:leave_office", computer="laptop")
