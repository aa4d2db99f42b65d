"""The door of a bridge over HTTP: its key, hosts and web pages, sessions, streams that are resumed, and its end."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import httpx2
import pytest

from a2c_smcp.bridge.serving.http import BoundedBodies, guarded, trust
from a2c_smcp.server import Limits
from tests.stage.bridge import (
    AUTHORIZED,
    INITIALIZE,
    JSON,
    KEY,
    BridgedOffice,
    begun,
    first_event_id,
    response_in,
    until_once_listed,
)
from tests.stage.cases import cases
from tests.stage.lines import Line, assert_nobody_holds_all_connections
from tests.stage.neighbours import MIB, memory
from tests.stage.place import Place
from tests.waiting import until, until_it_goes
from tests.web_server import hosting

pytestmark = pytest.mark.covers("bridge-http")


async def test_only_those_who_have_the_key_are_let_in(bridged: BridgedOffice) -> None:
    _, url = await bridged.start_bridge()
    async with httpx2.AsyncClient() as http:
        keys = ["", KEY, f"Bearer {KEY}x", "Bearer", f"Basic {KEY}"]
        for header in [{}, *({"Authorization": key} for key in keys)]:
            answer = await http.post(url, json=INITIALIZE, headers={**JSON, **header})
            assert (answer.status_code, answer.headers["www-authenticate"][:6]) == (401, "Bearer")
            assert KEY not in answer.text
        for header in AUTHORIZED, {**JSON, "Authorization": f"bearer {KEY}"}:
            assert (await http.post(url, json=INITIALIZE, headers=header)).status_code == 200


async def test_foreign_hosts_and_web_pages_are_refused(bridged: BridgedOffice) -> None:
    _, url = await bridged.start_bridge("--allow-host", "tools.example", "--allow-origin", "https://page.example")
    port = urlsplit(url).port
    expected = [
        ({"Host": "evil.example"}, 421),
        ({"Host": f"127.0.0.1.evil.example:{port}"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "tools.example"}, 200),
        ({"Origin": "https://page.example"}, 200),
        ({"Host": f"localhost:{port}", "Origin": f"http://localhost:{port}"}, 200),
    ]
    async with httpx2.AsyncClient() as http:
        for headers, status in expected:
            answer = await http.post(url, json=INITIALIZE, headers={**AUTHORIZED, **headers})
            assert (headers, answer.status_code) == (headers, status)
            if status != 200:
                option = "--allow-host" if status == 421 else "--allow-origin"
                assert option in answer.json()["error"]["message"]


async def test_a_web_page_that_is_allowed_is_told_so_by_its_browser(bridged: BridgedOffice) -> None:
    page, other = ({"Origin": f"https://{name}.example"} for name in ("page", "evil"))
    _, url = await bridged.start_bridge("--allow-origin", page["Origin"])
    asking = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    async with httpx2.AsyncClient() as http:
        assert (await http.options(url, headers={**page, **asking})).status_code == 200
        assert (await http.options(url, headers={**other, **asking})).status_code == 400
        answer = await http.post(url, json=INITIALIZE, headers={**AUTHORIZED, **page})
        assert answer.headers["access-control-allow-origin"] == page["Origin"]
        assert "Mcp-Session-Id" in answer.headers["access-control-expose-headers"]


async def test_on_all_addresses_this_machine_has_its_own_names_and_addresses(bridged: BridgedOffice) -> None:
    program = await bridged.place.start("bridge", "--url", bridged.url, "--port", "0", "--host", "0.0.0.0")
    url = (await program.says("listening on")).removeprefix("listening on ")
    example = (await program.says("for example")).split()[8]
    key = (await program.says("Authorization: Bearer ")).rpartition("Bearer ")[2].strip('"')
    assert "0.0.0.0" not in example
    await program.says("in the clear")
    await program.says("nothing is encrypted: 0.0.0.0 can be reached from other machines")
    port = urlsplit(url).port
    async with httpx2.AsyncClient() as http:
        for host in (urlsplit(example).netloc, f"127.0.0.1:{port}", f"{socket.gethostname().lower()}:{port}"):
            headers = {**JSON, "Authorization": f"Bearer {key}", "Host": host}
            answer = await http.post(f"http://127.0.0.1:{port}/mcp", json=INITIALIZE, headers=headers)
            assert (host, answer.status_code) == (host, 200)


@cases(
    "words, said",
    (("--port", "99999"), "--port: must be at most 65535"),
    (("--port", "0", "--no-key", "--bearer-key", KEY), "--bearer-key and --no-key are both given"),
    (("--port", "0", "--bearer-key", KEY, "--bearer-key-file", "x"), "--bearer-key and --bearer-key-file"),
    (("--port", "0", "--allow-origin", "page.example"), "https://example.com"),
    (("--port", "0", "--allow-origin", "https://page.example/"), "is not an origin"),
    (("--port", "0", "--allow-host", "http://tools.example"), "without http://"),
    ids=["port", "no key", "two keys", "no scheme", "a path", "a URL"],
)
async def test_options_that_cannot_be_meant_are_refused(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    ended = await Place(tmp_path).run("bridge", *words)
    assert (ended.code, said in ended.err) == (2, True), ended.err


async def test_a_key_is_made_once_and_kept(bridged: BridgedOffice) -> None:
    keys = []
    for _ in range(2):
        program = await bridged.place.start("bridge", "--url", bridged.url, "--port", "0")
        url = (await program.says("listening on")).removeprefix("listening on ")
        line = await program.says("key")
        (file,) = (bridged.place.state / "a2c-smcp" / "bridge").glob("*.key")
        keys.append(file.read_text().strip())
        assert file.stat().st_mode & 0o777 == 0o600
        assert str(file) in line
        async with bridged.user(url, key=keys[-1]):
            program.signal(signal.SIGTERM)
        assert await program.ends() == 0
        assert (keys[-1] in "\n".join(program.err)) == (len(keys) == 1)
        assert not any("Traceback" in line for line in program.err)
    assert keys[0] == keys[1]


async def test_without_a_key_only_on_a_loopback_address(bridged: BridgedOffice) -> None:
    refused = await bridged.place.run("bridge", "--port", "0", "--host", "0.0.0.0", "--no-key")
    assert (refused.code, "Leave out --no-key" in refused.err) == (2, True)
    program, url = await bridged.start_bridge("--no-key")
    await program.says("there is no key")
    async with httpx2.AsyncClient() as http:
        assert (await http.post(url, json=INITIALIZE, headers=JSON)).status_code == 200
    assert "nothing is encrypted" not in "\n".join(program.err)


@pytest.mark.covers("local-connections")
async def test_without_a_key_no_program_of_this_machine_can_hold_all_connections(bridged: BridgedOffice) -> None:
    _, url = await bridged.start_bridge("--no-key")
    await assert_nobody_holds_all_connections(url, "POST /mcp HTTP/1.1\nHost: localhost\nContent-Length: 0\n\n")
    async with httpx2.AsyncClient() as http:
        assert (await http.post(url, json=INITIALIZE, headers=JSON)).status_code == 200


@pytest.mark.covers("slow-bodies")
@pytest.mark.parametrize("key", [(), ("--no-key",)], ids=["key", "no key"])
async def test_slow_bodies_are_refused_beyond_the_bytes_of_all_and_small_ones_are_served(
    bridged: BridgedOffice, key: tuple[str, ...]
) -> None:
    _, url = await bridged.start_bridge(*key)
    lines = [await begun_body(url, 4 * MIB - 1) for _ in range(16)]
    answers = [asyncio.create_task(line.answer()) for line in lines]
    await until(lambda: sum(answer.done() for answer in answers) >= 8)
    assert {answer.result()[0] for answer in answers if answer.done()} == {429}
    for line, answer in zip(lines, answers, strict=True):
        answer.cancel()
        await line.end()
    async with httpx2.AsyncClient(timeout=60) as http:

        async def large() -> None:
            text = json.dumps({**INITIALIZE, "more": "x" * 3 * MIB})
            assert (await http.post(url, content=text, headers=AUTHORIZED)).status_code != 429

        await until_it_goes(large)
        assert (await http.post(url, json=INITIALIZE, headers=AUTHORIZED)).status_code == 200


async def begun_body(url: str, sent: int) -> Line:
    """A request with the key and a body of 4 MiB, of which only so much comes."""
    parts = urlsplit(url)
    line = Line(*await asyncio.open_connection(parts.hostname, parts.port))
    fields = {"Host": "localhost", **AUTHORIZED, "Content-Length": 4 * MIB}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    line.writer.write(f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + b" " * sent)
    return line


async def echo_size(scope: Any, receive: Any, send: Any) -> None:
    message = await receive()
    body = str(len(message["body"])).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


@pytest.mark.covers("slow-bodies")
async def test_a_body_that_does_not_come_or_is_too_large_or_breaks_off_is_refused_and_one_in_parts_is_whole() -> None:
    limits = Limits(max_message=1000, request_read_timeout=0.5, arriving_bytes=1500)
    async with hosting(BoundedBodies(echo_size, limits)) as url:
        late = await begun_body(url, 500)
        status, headers, body = await late.answer()
        assert (status, headers["connection"]) == (408, "close")
        assert "did not come" in json.loads(body)["error"]["message"]
        assert await late.is_over()
        large = await begun_body(url, 1001)
        assert (await large.answer())[0] == 413
        for line in (late, large):
            await line.end()
        gone = await begun_body(url, 900)
        await gone.end()

        async def parts() -> AsyncIterator[bytes]:
            for _ in range(10):
                yield b"x" * 100

        async with httpx2.AsyncClient() as http:
            for _ in range(3):
                assert (await http.post(url, content=parts())).text == "1000"


async def test_many_wrong_keys_are_answered_later_and_the_right_one_at_once(bridged: BridgedOffice) -> None:
    _, url = await bridged.start_bridge()
    clock, waits = asyncio.get_running_loop().time, []
    async with httpx2.AsyncClient() as http:
        for number in range(12):
            began = clock()
            answer = await http.post(url, json=INITIALIZE, headers={**JSON, "Authorization": f"Bearer wrong-{number}"})
            waits.append(clock() - began)
            assert answer.status_code == 401
        assert min(waits[10:]) >= 1
        began = clock()
        assert (await http.post(url, json=INITIALIZE, headers=AUTHORIZED)).status_code == 200
        assert clock() - began < 1


async def test_clients_without_the_key_hold_little_and_not_for_long(bridged: BridgedOffice) -> None:
    """Silent ones, half a head, a head that does not end, and a body that is not wanted; a member beside them."""
    program, url = await bridged.start_bridge()
    host, port = "127.0.0.1", urlsplit(url).port
    head = f"POST /mcp HTTP/1.1\r\nHost: {host}\r\n".encode()
    said = [b"", head, head + b"X: " + b"x" * 300_000, head + b"Content-Length: 9000000\r\n\r\n" + b"x" * 300_000]
    before = memory(program)
    async with httpx2.AsyncClient() as http:
        headers = await begun(http, url)
        lines = [await asyncio.open_connection(host, port) for _ in range(50) for _ in said]
        for number, (_, writer) in enumerate(lines):
            writer.write(said[number % len(said)])

        async def ends(reader: asyncio.StreamReader) -> None:
            with suppress(ConnectionError):
                while await reader.read(65536):
                    pass

        async with asyncio.timeout(60):
            await asyncio.gather(*(ends(reader) for reader, _ in lines))
        assert memory(program) - before < 64 * MIB
        large = {"jsonrpc": "2.0", "method": "notifications/initialized", "params": {"x": "x" * 2_000_000}}
        assert (await http.post(url, json=large, headers=headers)).status_code == 202
    for _, writer in lines:
        writer.close()


class Answering(asyncio.Protocol):
    """Trusts who says something, and answers."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        trust()
        self._transport.write(data)


async def test_the_oldest_of_too_many_clients_without_the_key_are_cut() -> None:
    limits = Limits(newcomers_per_address=3)
    server = await asyncio.get_running_loop().create_server(guarded(Answering, limits), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    lines = []
    async with server, asyncio.timeout(30):
        for number in range(9):
            reader, writer = await asyncio.open_connection(host, port)
            lines.append((reader, writer))
            if number < 2:
                writer.write(b"key")
                assert await reader.read(3) == b"key"
        for reader, _ in lines[2:6]:
            with suppress(ConnectionError):
                assert await reader.read(1) == b""
        for reader, writer in (*lines[:2], *lines[6:]):
            writer.write(b"still there")
            assert await reader.readexactly(11) == b"still there"
        for _, writer in lines:
            writer.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
async def test_it_ends_at_once_although_clients_listen_and_call(
    bridged: BridgedOffice, mode: Any, number: signal.Signals
) -> None:
    program, url = await bridged.start_bridge()
    async with asyncio.timeout(60), httpx2.AsyncClient(timeout=60) as http:
        first = await http.post(url, json=INITIALIZE, headers=AUTHORIZED)
        headers = {**AUTHORIZED, "Mcp-Session-Id": first.headers["mcp-session-id"]}
        async with http.stream("GET", url, headers=headers) as news:
            async with bridged.user(url, mode) as client:
                waiting = await bridged.waiting(client, "end")
                await program.stops(number)
                waiting.cancel()
            assert [line async for line in news.aiter_lines() if not line.startswith(":")] == []
    assert program.err == ["stopped"]
    await bridged.is_cancelled("end")


async def test_a_stream_that_was_cut_is_resumed(bridged: BridgedOffice) -> None:
    """A client of 2025-11-25 loses the stream of a call, and gets its result with the id of the last event."""
    _, url = await bridged.start_bridge()
    call = {"name": "once", "arguments": {"name": "cut", "seconds": 1.0}}
    async with asyncio.timeout(60), httpx2.AsyncClient(timeout=60) as http:
        headers = await begun(http, url)
        await until_once_listed(http, url, headers)
        request = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": call}
        async with http.stream("POST", url, json=request, headers=headers) as stream:
            last = await first_event_id(stream)
            await until(lambda: "once cut" in bridged.noted())
        answer = None
        while answer is None:  # a stream may end while the first one still counts as open: clients ask again
            async with http.stream("GET", url, headers={**headers, "Last-Event-ID": last}) as stream:
                answer = await response_in(stream, 7)
    assert answer["result"]["content"][0]["text"] == "cut"
    assert bridged.noted().count("once cut") == 1
