"""The program's own websockets, frame by frame: what breaks the rules of RFC 6455 ends its own connection."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.server.cluster.memory import MemoryDirectory
from tests.peer import PATIENCE, Peer, Wire
from tests.stage.frames import CLOSE, CONTINUED, KEY, PING, TEXT, Opens, frame, opens, upgrade

__all__ = ["opens"]

pytestmark = pytest.mark.covers("malformed-frames")

MIB = 1024 * 1024
EVENT = b'42/smcp,8["no:such_event",{}]'


BROKEN = {
    "no UTF-8": (frame(TEXT, b"42\xff"), 1007),
    "no UTF-8 across fragments": (frame(TEXT, b"42\xc3", fin=False) + frame(CONTINUED, b"x"), 1007),
    "an extension": (frame(TEXT, EVENT, rsv=4), 1002),
    "a continuation of nothing": (frame(CONTINUED, b"x"), 1002),
    "a message in a message": (frame(TEXT, b"4", fin=False) + frame(TEXT, EVENT), 1002),
    "a ping in fragments": (frame(PING, fin=False), 1002),
    "a close of one byte": (frame(CLOSE, b"\x03"), 1002),
    "a close without a reason that is UTF-8": (frame(CLOSE, b"\x03\xe8\xff"), 1007),
    **{f"close code {code}": (frame(CLOSE, code.to_bytes(2)), 1002) for code in (0, 999, 1005, 1006, 1015, 2999, 5000)},
}


@pytest.mark.parametrize(("broken", "code"), BROKEN.values(), ids=BROKEN)
async def test_frames_behind_a_protocol_error_are_not_answered(opens: Opens, broken: bytes, code: int) -> None:
    socket = await opens(member=True)
    socket.writer.write(broken + frame(TEXT, EVENT) * 3)
    ((kind, reason),) = await socket.rest()
    assert (kind, int.from_bytes(reason[:2])) == (CLOSE, code)


@pytest.mark.parametrize("said", [b"", b"\x03\xe8", b"\x03\xe8bye", (3000).to_bytes(2), (4999).to_bytes(2) + b"x"])
async def test_a_close_is_answered_and_ends_the_connection(opens: Opens, said: bytes) -> None:
    socket = await opens(member=True)
    socket.writer.write(frame(CLOSE, said) + frame(TEXT, EVENT))
    assert await socket.rest() == [(CLOSE, (1000).to_bytes(2))]


async def test_a_message_may_come_in_pieces_and_pings_between_them(opens: Opens) -> None:
    socket = await opens(member=True)
    pieces = [frame(TEXT, EVENT[:9], fin=False), frame(PING, b"?"), *[frame(CONTINUED, fin=False)] * 100]
    socket.writer.write(b"".join(pieces) + frame(CONTINUED, EVENT[9:]))
    assert await socket.receive() == (10, b"?")
    assert (await socket.receive())[1].startswith(b"43/smcp,8[")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (upgrade(key=f"   {KEY}  "), 101),
        (upgrade(f"Sec-WebSocket-Key: {KEY}"), 400),
        (upgrade("Sec-WebSocket-Version: 13"), 400),
        (upgrade(key="AAAA"), 400),
        (upgrade(key="?"), 400),
    ],
    ids=["spaces around the key", "two keys", "two versions", "a short key", "no key"],
)
async def test_an_upgrade_request_is_sound_or_refused(opens: Opens, request_: bytes, status: int) -> None:
    socket = await opens()
    socket.writer.write(request_)
    assert await socket.status() == status


async def test_an_upgrade_behind_a_request_that_is_not_answered_yet_is_refused(opens: Opens) -> None:
    socket = await opens()
    socket.writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" + upgrade())
    assert await socket.status() == 400


@pytest.mark.covers("limit-handshake")
async def test_a_peer_that_does_not_answer_a_close_is_cut(serve: Any, opens: Opens) -> None:
    socket = await opens(await serve(limits={"handshake_timeout": 0.2}))
    socket.writer.write(upgrade())
    assert await socket.status() == 101
    async with asyncio.timeout(PATIENCE / 2):
        assert (await socket.rest())[-1][0] == CLOSE


@pytest.mark.covers("limit-message")
async def test_memory_of_a_large_message_is_freed_while_its_connection_is_open(serve: Any, connect_wire: Any) -> None:
    hub = await serve(limits={"ping_interval": 0.3})
    before = resident()
    wires = [await connect_wire(hub) for _ in range(24)]
    large = f'42/smcp,8["client:newer",{{"x":"{"x" * (4 * MIB - 100)}"}}]'
    for wire in wires:
        assert (await wire.ask(large, 8))[0]["code"] == 400
    async with asyncio.timeout(PATIENCE):
        while resident() - before > 48 * MIB:
            for wire in wires:
                await wire.ask(EVENT.decode(), 8)
    for wire in wires:
        assert (await wire.ask(large, 8))[0]["code"] == 400


def resident() -> int:
    """The memory of this process, which is also the Server's."""
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) * 1024


class SlowDirectory(MemoryDirectory):
    """One in which joining takes its time."""

    async def commit(self, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0.2)
        return await super().commit(*args, **kwargs)


JOIN = f'42/smcp,1["server:join_office",{json.dumps({"role": "agent", "name": "planner", "office_id": "o"})}]'.encode()
CALL = b'42/smcp,3["client:newer",{"agent":"planner","req_id":"r","computer":"laptop"}]'
JOINS = {
    "in fragments": frame(TEXT, JOIN[:9], fin=False) + frame(CONTINUED, JOIN[9:]),
    "with an event that is refused at once": frame(TEXT, JOIN) + frame(TEXT, b'42/smcp,2["server:list_room",5]'),
}


@pytest.mark.covers("relay-order")
@pytest.mark.parametrize("join", JOINS.values(), ids=JOINS)
async def test_a_call_does_not_overtake_a_join_however_that_came(serve: Any, opens: Opens, join: bytes) -> None:
    socket = await opens(await serve(directory=SlowDirectory()), member=True)
    socket.writer.write(join)
    await asyncio.sleep(0.05)  # so that they come one by one
    socket.writer.write(frame(TEXT, CALL))
    answer = b""
    while not answer.startswith(b"43/smcp,3"):
        answer = (await socket.receive())[1]
    assert json.loads(answer.removeprefix(b"43/smcp,3"))[0]["code"] == 404, "the office is its own, and empty"


@pytest.mark.covers("relay-order")
async def test_an_ack_does_not_overtake_a_notice_to_a_crowd(agent: Peer, connect_wire: Any, office: str) -> None:
    crowd: list[Wire] = [await connect_wire() for _ in range(17)]
    for number, wire in enumerate(crowd):
        await wire.join("computer", f"c{number}", office)
    slow, speaker = crowd[:2]
    slow.stop_reading()
    calls = [asyncio.create_task(agent.request("client:x", "c0", pad="x" * 3 * MIB)) for _ in range(4)]
    await agent.heard_until_now()
    for turn in range(5):
        await speaker.ask(f'42/smcp,9["server:update_turn{turn}",{{"computer":"c1"}}]', 9)
        await slow.send(f'42/smcp,10{turn}["no:such_event",{{}}]')
        await agent.heard_until_now()
    slow.go_on_reading()
    heard: list[str] = []
    while len(heard) < 10:
        text = await slow.receive()
        heard += re.findall(r'^42/smcp,\["notify:update_(turn\d)|^43/smcp,10(\d)\[', text)
    assert [turn or f"ack{ack}" for turn, ack in heard] == [f"{word}{n}" for n in range(5) for word in ("turn", "ack")]
    for call in calls:
        call.cancel()
