"""However the bytes of a connection are cut into reads, the program's web server answers the same."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from a2c_smcp.server.run import listen
from tests.engine.echo import PATHS, application, serving
from tests.peer import PATIENCE
from tests.stage.frames import BINARY, CLOSE, CONTINUED, TEXT, frame, upgrade

pytestmark = pytest.mark.covers("engine-splits")

cuts = st.lists(st.integers(1, 40) | st.integers(1, 400), max_size=60)
"""How many bytes come with each read; the rest comes with the last one."""

FRAMES = [
    (TEXT, b"4one"),
    (TEXT, b"4" + b"x" * 300),
    (BINARY, b"\0\1\2"),
    (TEXT, "4ü€".encode()),
    (BINARY, b"y" * 70_000),
    (TEXT, b"4last"),
]
PIECES = frame(TEXT, b"4in ", fin=False) + frame(CONTINUED, b"pieces")


def websocket(_: bytes) -> bytes:
    """All that a client sends on a websocket, from its first byte to its last."""
    request = upgrade().replace(b"/socket.io/", PATHS["engine.io"].encode(), 1)
    return request + b"".join(frame(*each) for each in FRAMES) + PIECES + frame(CLOSE, b"\x03\xe8")


def requests(sid: bytes) -> bytes:
    """Requests of a session that follow each other without waiting, with bodies of both kinds."""
    head = b" %s?EIO=4&transport=polling&sid=%s HTTP/1.1\r\nHost: x\r\n" % (PATHS["engine.io"].encode(), sid)
    return (
        b"POST" + head + b"Content-Length: 4\r\n\r\n4one"
        b"POST" + head + b"Transfer-Encoding: chunked\r\n\r\n2\r\n4t\r\n2\r\nwo\r\n0\r\n\r\n"
        b"GET" + head + b"\r\n"
        b"PUT /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )


async def answers(stream: Callable[[bytes], bytes], sizes: Sequence[int]) -> bytes:
    """All that comes back on a connection, without dates. The bytes are made for the sid of a session that polls."""
    door = listen("127.0.0.1", 0)
    async with asyncio.timeout(PATIENCE), serving(application("engine.io", ping_interval=60), door):
        sent = stream(await opened(door))
        reader, writer = await asyncio.open_connection(*door.getsockname())
        ends = [0, *(end for end in accumulate(sizes) if end < len(sent)), len(sent)]
        for start, end in pairwise(ends):
            writer.write(sent[start:end])
            for _ in range(3):
                await asyncio.sleep(0)  # the server reads in the same loop
        received = await reader.read()
        writer.close()
        await writer.wait_closed()
    return re.sub(rb"\r\ndate: [^\r]*", b"", received)


async def opened(door: socket.socket) -> bytes:
    """The sid of a new session."""
    reader, writer = await asyncio.open_connection(*door.getsockname())
    writer.write(b"GET %s?EIO=4&transport=polling HTTP/1.1\r\nConnection: close\r\n\r\n" % PATHS["engine.io"].encode())
    found = re.search(rb'"sid":"(\w+)"', await reader.read())
    writer.close()
    await writer.wait_closed()
    assert found
    return found[1]


def of_server(kind: int, data: bytes) -> bytes:
    """A frame without a mask."""
    masked = frame(kind, data)
    head = masked[: len(masked) - len(data) - 4]
    return bytes([head[0], head[1] & 127]) + head[2:] + data


@settings(max_examples=40)
@given(cuts)
def test_a_websocket_is_answered_alike_however_its_bytes_come(sizes: list[int]) -> None:
    _, _, received = asyncio.run(answers(websocket, sizes)).partition(b"\r\n\r\n")
    echoes = b"".join(of_server(*each) for each in [*FRAMES, (TEXT, b"4in pieces"), (CLOSE, b"\x03\xe8")])
    assert received.endswith(echoes)
    assert len(received) - len(echoes) < 200  # the OPEN packet


@settings(max_examples=40)
@given(cuts)
def test_requests_are_answered_alike_however_their_bytes_come(sizes: list[int]) -> None:
    received = asyncio.run(answers(requests, sizes))
    responses = [response.partition(b"\r\n\r\n")[2] for response in received.split(b"HTTP/1.1 ")[1:]]
    assert responses == [b"ok", b"ok", b"4one\x1e4two", b"Bad request"]
