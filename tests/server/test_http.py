"""The program's own web server, byte by byte: what HTTP/1.1 asks of it, and where it ends a connection."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest

from a2c_smcp.errors import ConfigError
from a2c_smcp.server.transport import picows_adapter
from tests.peer import PATIENCE
from tests.stage.frames import upgrade
from tests.stage.lines import OPEN, Asks
from tests.stage.neighbours import MIB, memory
from tests.stage.program import Program

pytestmark = pytest.mark.covers("transports")


async def test_a_connection_serves_one_request_after_the_other(dials: Asks) -> None:
    line = await dials()
    for _ in range(3):
        status, headers, body = await line.ask("GET /healthz HTTP/1.1\nHost: x\n\n")
        assert (status, json.loads(body), headers["content-type"]) == (200, {"status": "ok"}, "application/json")
        assert "date" in headers
        assert "connection" not in headers


async def test_requests_that_come_at_once_are_answered_in_their_order(dials: Asks) -> None:
    line = await dials()
    paths = ["/healthz", "/nothing-here", "/readyz", OPEN, "/healthz"]
    line.writer.write("".join(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n" for path in paths).encode())
    assert [(await line.answer())[0] for _ in paths] == [200, 404, 200, 200, 200]


async def test_very_many_requests_at_once_end_their_connection(dials: Asks) -> None:
    line = await dials()
    line.writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)
    async with asyncio.timeout(PATIENCE):
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                await line.answer()


async def test_a_head_has_no_body_and_a_connection_may_be_closed(dials: Asks) -> None:
    line = await dials()
    status, headers, _ = await line.ask("HEAD /healthz HTTP/1.1\nHost: x\n\n")
    assert (status, headers["content-length"]) == (200, "15")
    status, headers, _ = await line.ask("GET /healthz HTTP/1.1\nHost: x\nConnection: close\n\n")
    assert (status, headers["connection"]) == (200, "close")
    assert await line.is_over()


async def test_the_older_http_is_answered_and_closed(dials: Asks) -> None:
    line = await dials()
    assert (await line.ask("GET /healthz HTTP/1.0\n\n"))[0] == 200
    assert await line.is_over()


@pytest.mark.parametrize("path", ["http://hub.example/healthz", "/%68ealthz", "/healthz/", "/healthz?x=1"])
async def test_a_path_is_understood_however_it_is_written(dials: Asks, path: str) -> None:
    line = await dials()
    assert (await line.ask(f"GET {path} HTTP/1.1\nHost: x\n\n"))[0] == 200


async def test_a_client_that_expects_100_continue_gets_it(dials: Asks) -> None:
    line = await dials()
    await line.begin()
    head = f"POST {line.path} HTTP/1.1\nHost: x\nContent-Length: 8\nExpect: 100-continue\n\n"
    assert (await line.ask(head))[0] == 100
    line.writer.write(b"40/smcp,")
    assert (await line.answer())[::2] == (200, b"OK")


async def test_a_body_in_chunks_with_trailers_is_read(dials: Asks) -> None:
    line = await dials()
    await line.begin()
    head = f"POST {line.path} HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n\n"
    assert (await line.ask(head + "3\n40/\n5;x=y\nsmcp,\n0\nX-Trailer: 1\n\n"))[0] == 200
    assert (await line.poll()).startswith(b"40/smcp,")


@pytest.mark.parametrize("size", [60_000, 70_000, 300_000, 3_000_000])
async def test_a_body_of_any_size_is_read_whole(dials: Asks, office: str, size: int) -> None:
    line = await dials()
    await line.open()
    join = {"role": "computer", "name": "laptop", "office_id": office, "pad": "x" * size}
    assert await line.post(f'42/smcp,1["server:join_office",{json.dumps(join)}]') == b"OK"
    assert await line.poll() == b"43/smcp,1[true,null]"


@pytest.mark.parametrize(
    "broken",
    [
        "nonsense\n\n",
        "GET /healthz HTTP/9.9\n\n",
        "POST /healthz HTTP/1.1\nHost: x\nContent-Length: 1\nContent-Length: 2\n\n",
        "POST /healthz HTTP/1.1\nHost: x\nContent-Length: -1\n\n",
        "POST /healthz HTTP/1.1\nHost: x\nContent-Length: 5\nTransfer-Encoding: chunked\n\n",
        "GET /healthz HTTP/1.1\nHost : x\n\n",
    ],
)
async def test_bytes_that_are_not_http_are_refused_and_end_the_connection(dials: Asks, broken: str) -> None:
    line = await dials()
    status, headers, body = await line.ask(broken)
    assert (status, json.loads(body)["code"], headers["connection"]) == (400, 400, "close")
    assert await line.is_over()


async def test_frames_that_come_with_the_upgrade_request_are_heard(dials: Asks) -> None:
    line = await dials()
    line.writer.write(upgrade() + b"\x81\x88\0\0\0\x0040/smcp,")
    assert (await line.answer(has_body=False))[0] == 101
    async with asyncio.timeout(PATIENCE):
        await line.reader.readuntil(b"40/smcp,{")


@pytest.mark.parametrize("asked", ["h2c", "nonsense"])
async def test_an_upgrade_to_something_else_is_not_done(dials: Asks, asked: str) -> None:
    line = await dials()
    assert (await line.ask(f"GET /healthz HTTP/1.1\nHost: x\nConnection: Upgrade\nUpgrade: {asked}\n\n"))[0] == 200
    assert await line.is_over()


async def test_a_connection_that_is_not_used_any_more_is_closed(serve: Any, dials: Asks) -> None:
    line = await dials(await serve(limits={"keep_alive": 0.2}))
    await line.ask("GET /healthz HTTP/1.1\nHost: x\n\n")
    assert await line.is_over()


@pytest.mark.covers("strangers-requests")
async def test_a_client_that_sends_requests_and_reads_no_answers_is_cut(serve: Any, dials: Asks) -> None:
    line = await dials(await serve(limits={"write_timeout": 0.2}))
    wanted = f"Origin: http://x\r\nAccess-Control-Request-Headers: {'y' * 60_000}"
    asked = f"OPTIONS {OPEN} HTTP/1.1\r\nHost: x\r\n{wanted}\r\n\r\n".encode()
    line.writer.transport.pause_reading()

    async def ask_on() -> None:
        while True:
            line.writer.write(asked)
            await line.writer.drain()
            await asyncio.sleep(0.001)  # each is answered before the next one

    with pytest.raises(ConnectionError):
        async with asyncio.timeout(PATIENCE):
            await ask_on()


@pytest.mark.covers("strangers-requests")
@pytest.mark.parametrize(("head", "body"), [(0, 40_000), (40_000, 0)], ids=["bodies", "heads"])
async def test_requests_behind_a_poll_are_held_up_to_a_size(dials: Asks, head: int, body: int) -> None:
    line = await dials()
    await line.begin()
    poll = f"GET {line.path} HTTP/1.1\r\nHost: x\r\n\r\n"
    post = f"POST {line.path} HTTP/1.1\r\nHost: x\r\nX: {'x' * head}\r\nContent-Length: {body}\r\n\r\n"
    line.writer.write((poll + 2 * (post + "y" * body)).encode())
    assert await line.is_over()


async def test_a_picows_that_does_not_fit_is_told_when_the_server_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    picows_adapter.check()
    monkeypatch.setattr(picows_adapter, "WSProtocol", lambda *arguments: object())
    with pytest.raises(ConfigError, match=r"picows 2\.\S+ cannot be used: install .*picows>=2\.3,<3"):
        picows_adapter.check()


async def test_a_large_body_may_come_together_with_its_head(program: Program, dials: Asks) -> None:
    line = await dials(program)
    await line.open()
    for size in (66_000, 150_000, 250_000, 1_000_000):
        assert await line.post('42/smcp,7["no:such_event",{"x":"%s"}]' % ("x" * size)) == b"OK"
        assert (await line.poll()).startswith(b"43/smcp,7[")


async def test_nothing_is_held_of_bodies_that_were_read(program: Program, dials: Asks) -> None:
    line, before = await dials(program), memory(program)
    await line.open()
    for _ in range(50):
        assert await line.post('42/smcp,["no:such_event",{"x":"%s"}]' % ("x" * 4_000_000)) == b"OK"
    assert memory(program) < before + 64 * MIB


async def test_a_request_that_waited_for_another_has_a_deadline_too(serve: Any, dials: Asks) -> None:
    line = await dials(await serve(limits={"handshake_timeout": 0.4}))
    await line.begin()
    unfinished = f"POST {line.path} HTTP/1.1\nHost: x\nContent-Length: 10\n\n40"
    assert (await line.ask(f"GET /healthz HTTP/1.1\nHost: x\n\n{unfinished}"))[0] == 200
    assert (await line.answer())[0] == 408
    assert await line.is_over()


async def test_a_head_that_is_too_large_ends_its_connection_however_it_comes(dials: Asks) -> None:
    line = await dials()
    line.writer.write(b"GET %s HTTP/1.1\r\nHost: x\r\nX: %s\r\n\r\n" % (OPEN.encode(), b"x" * 40_000))
    assert await line.is_over()
