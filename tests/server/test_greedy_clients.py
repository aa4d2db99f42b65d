"""What one client, with a key or without, may cost a Server with `--mcp` and `--console`: memory, and who it is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.stage.keys import write_keys
from tests.stage.lines import Line
from tests.stage.mcp_clients import ask, key_of
from tests.stage.neighbours import MIB, memory
from tests.stage.program import Program, Starts
from tests.stage.web import fetch
from tests.waiting import until

ADMIN = "operator-0123456789"
BODY = 4 * MIB


@pytest.fixture
async def server(starts: Starts, tmp_path: Path) -> Program:
    keys = write_keys(tmp_path, {key_of(name): {"principal": name} for name in ("alice", "bob")})
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    return await starts("--mcp", "--console", "--admin-key", ADMIN, "--keys-file", keys, "--metrics", **state)


@pytest.mark.covers("console-files")
async def test_names_of_files_that_a_console_does_not_have_cost_no_memory(server: Program) -> None:
    async with aiohttp.ClientSession() as session:

        async def look(number: int) -> None:
            url = f"{server.url}/console/static/{number}{'x' * 7000}.css"
            async with session.get(url) as response:
                assert response.status == 404

        await asyncio.gather(*map(look, range(50)))
        before = memory(server)
        for start in range(100, 4100, 50):
            await asyncio.gather(*map(look, range(start, start + 50)))
    assert memory(server) - before < 16 * MIB


@pytest.mark.covers("slow-bodies")
async def test_slow_bodies_of_one_client_are_refused_beyond_its_bytes_and_its_neighbour_is_served(
    server: Program,
) -> None:
    before = memory(server)
    lines = [await begun(server, "alice", BODY - 1) for _ in range(40)]
    answers = [asyncio.create_task(line.answer()) for line in lines]
    await until(lambda: sum(answer.done() for answer in answers) >= 30)
    assert {answer.result()[0] for answer in answers if answer.done()} == {429}
    assert memory(server) - before < 100 * MIB
    assert (await ask(server.url, key_of("bob"), "den"))[0] == 200
    for line, answer in zip(lines, answers, strict=True):
        answer.cancel()
        await line.end()
    await until_served(server, "alice")


@pytest.mark.covers("slow-bodies")
async def test_bytes_of_bodies_that_came_or_were_given_up_do_not_count(server: Program) -> None:
    for _ in range(12):  # together more than one client may have on its way
        whole = await begun(server, "alice", BODY - 1)
        whole.writer.write(b" ")
        assert (await whole.answer())[0] == 400  # no JSON
        await whole.end()
        given_up = await begun(server, "alice", BODY // 2)
        await given_up.end()
    await until_served(server, "alice")


@pytest.mark.covers("one-credential")
@pytest.mark.parametrize("name", ["Authorization", "X-Api-Key", "access_token"])
@pytest.mark.parametrize("path", ["/mcp/desk", "/socket.io/?EIO=4&transport=polling", "/admin/api/offices"])
async def test_two_headers_of_one_credential_are_refused(server: Program, name: str, path: str) -> None:
    keys = (key_of("alice"), key_of("bob")) if "admin" not in path else (ADMIN, ADMIN)
    scheme = "Bearer " if name == "Authorization" else ""
    headers = [(name, scheme + key) for key in keys]
    method = "POST" if "mcp" in path else "GET"
    response = await fetch(f"{server.url}{path}", method, headers=headers)
    assert response.status == 400
    assert f"the header {name.lower()} comes more than once" in response.text
    assert not any(key in response.text for key in keys)


async def begun(server: Program, name: str, sent: int) -> Line:
    """A request with a key and a large body, of which only so much comes."""
    host, port = server.url.removeprefix("http://").split(":")
    line = Line(*await asyncio.open_connection(host, int(port)))
    head = f"POST /mcp/desk HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key_of(name)}\r\n"
    kinds = "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
    line.writer.write(f"{head}{kinds}Content-Length: {BODY}\r\n\r\n".encode() + b" " * sent)
    return line


async def until_served(server: Program, name: str) -> None:
    whole: Any = None
    for _ in range(600):
        whole = await begun(server, name, BODY)
        status = (await whole.answer())[0]
        await whole.end()
        if status != 429:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("its bytes still count")
