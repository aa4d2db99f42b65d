"""Requests straight to a server's pipe, through a real pipe."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from a2c_smcp.computer.mcp_clients.failures import RequestRefused
from a2c_smcp.computer.mcp_clients.job import Job
from a2c_smcp.computer.mcp_clients.straight import ODD_ANSWER, Request, Straight

CALL = Request("tools/call", {"name": "add", "arguments": {"a": 1}, "_meta": {"progressToken": "t"}})
PATIENCE = 10.0


class Server:
    """The other end of the pipe."""

    def __init__(self, straight: Straight, stdin: asyncio.StreamReader) -> None:
        self.straight = straight
        self._stdin = stdin

    async def hears(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            line = await self._stdin.readline()
        assert line.isascii()
        message: dict[str, Any] = json.loads(line)
        return message


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    loop, (reading, writing) = asyncio.get_running_loop(), os.pipe()
    stdin = asyncio.StreamReader()
    ears, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), os.fdopen(reading, "rb", 0))
    mouth, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(writing, "wb", 0)
    )
    yield Server(Straight(asyncio.StreamWriter(mouth, protocol, None, loop)), stdin)
    mouth.close()
    ears.close()


def job() -> Job:
    return Job("a test", PATIENCE, PATIENCE)


@pytest.mark.parametrize("as_text", [False, True], ids=["number", "text"])
async def test_an_answer_finds_its_request(server: Server, as_text: bool) -> None:
    one, other = job(), job()
    server.straight.ask(CALL, one)
    server.straight.ask(CALL, other)
    numbers = [(await server.hears())["id"] for _ in range(2)]
    for number in reversed(numbers):
        assert server.straight.takes({"id": str(number) if as_text else number, "result": {"n": number}})
    assert [(await each.outcome)["n"] for each in (one, other)] == numbers
    for each in (one, other):
        each.close()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"error": {"code": -32602, "message": "no such tool"}}, "no such tool"),
        ({"error": "nonsense"}, ODD_ANSWER),
        ({"error": {"code": "x", "message": 7}}, ODD_ANSWER),
        ({"result": [1]}, ODD_ANSWER),
        ({}, ODD_ANSWER),
    ],
    ids=str,
)
async def test_an_error_and_an_odd_answer_refuse_the_request(server: Server, answer: dict[str, Any], said: str) -> None:
    one = job()
    server.straight.ask(CALL, one)
    assert server.straight.takes({"id": (await server.hears())["id"], **answer})
    with pytest.raises(RequestRefused) as refused:
        await one.outcome
    assert refused.value.details["mcp_message"] == said
    one.close()


async def test_a_server_is_told_of_a_request_for_which_nobody_waits_and_its_answer_is_nobodys(server: Server) -> None:
    one = job()
    server.straight.ask(CALL, one)
    number = (await server.hears())["id"]
    one.close()
    told = await server.hears()
    assert (told["method"], told["params"]["requestId"]) == ("notifications/cancelled", number)
    assert not server.straight.takes({"id": number, "result": {}})


async def test_what_is_nobodys_answer_is_left_to_others(server: Server) -> None:
    assert not any(
        server.straight.takes(message)
        for message in ([], 7, {}, {"id": 99, "result": {}}, {"id": None}, {"id": 1, "method": "ping"})
    )


async def test_progress_is_told_before_the_answer_that_follows_it(server: Server) -> None:
    heard: list[Any] = []
    server.straight.on_progress = lambda method, params: heard.append(params["progress"])
    assert server.straight.takes({"method": "notifications/progress", "params": {"progress": 1}})
    assert not server.straight.takes({"method": "notifications/progress", "params": "nonsense"})
    assert not server.straight.takes({"method": "notifications/message", "params": {}})
    assert heard == [1]


async def test_signs_that_end_a_line_for_some_are_escaped_and_half_a_pair_too(server: Server) -> None:
    one, text = job(), "é\u2028\ud800"
    server.straight.ask(Request("tools/call", {"name": text}), one)
    assert (await server.hears())["params"]["name"] == text
    one.close()


async def test_what_every_request_is_stamped_with_stands_beside_its_own_meta(server: Server) -> None:
    one = job()
    server.straight.stamp = {"revision": "2026-07-28"}
    server.straight.ask(CALL, one)
    assert (await server.hears())["params"]["_meta"] == {"revision": "2026-07-28", "progressToken": "t"}
    assert "revision" not in CALL.params["_meta"]
    one.close()
