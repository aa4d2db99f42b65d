"""A Server that runs out of file descriptors: it says so, health pages answer, and those connected go on."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.peer import PATIENCE, Peer
from tests.program import PROGRAM, Running
from tests.stage.calls import RESULT
from tests.stage.neighbours import Meets
from tests.stage.program import ENVIRONMENT, Program, meets
from tests.stage.tls import certificate

__all__ = ["meets"]

KEY = "a-key-of-some-length"
ADMIN_KEY = "an-admin-key-of-some-length"
LIMIT = 128


@pytest.fixture(autouse=True)
def _enough_files() -> Iterator[None]:
    """The test has the other end of every connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4096, hard)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def limited(*options: str) -> Program:
    """A Server in a process that may have few descriptors."""
    words = ("server", "--port", "0", "--api-key", KEY, "--metrics", "--log-json", *options)
    line = f'ulimit -n {LIMIT}; exec "$0" "$@"'
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", line, PROGRAM, *words, env=ENVIRONMENT, stdin=-3, stdout=-1, stderr=-1
    )
    program = Program(cast(Running, process))
    program.url = json.loads(await program.says("listening on "))["url"]
    return program


def at(program: Program) -> tuple[str, int]:
    parts = urlsplit(program.url)
    return parts.hostname or "", parts.port or 0


async def page(program: Program, path: str, **headers: str) -> httpx2.Response:
    async with httpx2.AsyncClient(verify=False) as http:
        return await http.get(f"{program.url}{path}", headers=headers)


async def counted(program: Program, name: str) -> int:
    text = (await page(program, "/metrics")).text
    return int(next(line for line in text.splitlines() if line.startswith(f"{name} ")).split()[1])


async def in_use(program: Program) -> int:
    return await counted(program, "process_open_fds")


def lines_of_trouble(program: Program) -> list[str]:
    return [line for line in program.err if "file descriptors run out" in line]


@pytest.mark.covers("descriptors")
async def test_members_that_take_all_descriptors_leave_some_for_health_and_operators_and_calls_go_on(
    meets: Meets,
) -> None:
    program = await limited("--admin-key", ADMIN_KEY, "--console")
    agent = await meets(program, auth={"token": KEY})
    computer = await meets(program, auth={"token": KEY})
    await agent.join("agent", "planner", "desk")
    computer.answers("client:tool_call", RESULT)
    await computer.join("computer", "laptop", "desk")
    before = await in_use(program)
    members, refused = list[Peer](), list[BaseException]()
    for _ in range(LIMIT):
        try:
            members.append(await meets(program, auth={"token": KEY}))
        except Exception as error:
            refused.append(error)
            if len(refused) == 3:
                break
    assert len(members) > LIMIT // 2
    assert refused
    answer = await page(program, "/socket.io/?EIO=4&transport=polling", **{"x-api-key": KEY})
    assert (answer.status_code, answer.json()["code"]) == (503, 503)
    assert "no file descriptor left" in answer.json()["message"]
    for path in ("/healthz", "/readyz", "/metrics"):
        assert (await page(program, path)).status_code == 200
    listed = await page(program, "/admin/api/offices", authorization=f"Bearer {ADMIN_KEY}")
    assert [office["office"] for office in listed.json()["offices"]] == ["desk"]
    assert (await page(program, "/console/")).status_code < 400
    assert await agent.call_tool("laptop") == RESULT
    assert len(lines_of_trouble(program)) == 1
    assert "of 128 all but 32 are taken" in lines_of_trouble(program)[0]
    assert await counted(program, "a2c_descriptors_short_total") >= 3

    for member in members:
        await member.close()
    async with asyncio.timeout(PATIENCE):
        while await in_use(program) > before:
            pass  # each look waits for an answer
    later = await meets(program, auth={"token": KEY})
    await later.join("computer", "other", "desk")
    await program.stops()


@pytest.mark.covers("descriptors")
@pytest.mark.parametrize("says", [b"", b"GET /", b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"])
async def test_a_flood_of_connections_keeps_nobody_from_the_health_page(meets: Meets, says: bytes) -> None:
    program = await limited()
    members = [await meets(program, auth={"token": KEY}) for _ in range(40)]
    agent, computer, *_ = members
    await agent.join("agent", "planner", "desk")
    computer.answers("client:tool_call", RESULT)
    await computer.join("computer", "laptop", "desk")
    with ExitStack() as stack:
        for number in range(4 * LIMIT):
            peer = stack.enter_context(socket.create_connection(at(program)))
            peer.send(says)
            if number % 32 == 0:
                assert (await page(program, "/healthz")).json() == {"status": "ok"}
                assert await agent.call_tool("laptop", req_id=f"r{number}") == RESULT
        assert len(lines_of_trouble(program)) <= 1
    late = await meets(program, auth={"token": KEY})
    await late.join("computer", "other", "desk")
    await program.stops()


@pytest.mark.covers("descriptors")
async def test_over_tls_descriptors_are_kept_too(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "server")
    program = await limited("--tls-cert", str(cert), "--tls-key", str(key))
    with ExitStack() as stack:
        for number in range(3 * LIMIT):
            stack.enter_context(socket.create_connection(at(program)))
            if number % 64 == 63:
                assert (await page(program, "/healthz")).json() == {"status": "ok"}
    await program.stops()
