"""Requests that go to a server without the SDK, through a real pipe."""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import AsyncIterator
from datetime import date
from typing import Any
from uuid import UUID

import pytest

from a2c_smcp.errors import BadRequest
from a2c_smcp.mcp_host.failures import RequestRefused
from a2c_smcp.mcp_host.transports.direct_requests import ODD_ANSWER, DirectRequests, MCPRequest, PendingRequest
from tests.stage.cases import cases

CALL = MCPRequest("tools/call", {"name": "add", "arguments": {"a": 1}, "_meta": {"progressToken": "t"}})
PATIENCE = 10.0
LONGEST = 1024 * 1024
LARGE = MCPRequest("tools/call", {"name": "add", "arguments": {"text": "x" * 200_000}})


class Server:
    """The other end of the pipe."""

    def __init__(self, pipe: asyncio.StreamWriter, stdin: asyncio.StreamReader, ears: asyncio.ReadTransport) -> None:
        self.direct = DirectRequests(pipe)
        self.pipe = pipe
        self.ears = ears
        self._stdin = stdin
        self._pending: list[PendingRequest] = []

    def send(self, request: MCPRequest = CALL) -> PendingRequest:
        self._pending.append(PendingRequest("a test", PATIENCE, PATIENCE))
        self.direct.send(request, self._pending[-1])
        return self._pending[-1]

    async def hears_id(self) -> int:
        number: int = (await self.hears())["id"]
        return number

    def close(self) -> None:
        for each in self._pending:
            each.close()

    async def hears(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            line = await self._stdin.readline()
        assert line.isascii()
        message: dict[str, Any] = json.loads(line)
        return message


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    loop, (reading, writing) = asyncio.get_running_loop(), os.pipe()
    stdin = asyncio.StreamReader(limit=LONGEST)
    ears, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), os.fdopen(reading, "rb", 0))
    mouth, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(writing, "wb", 0)
    )
    server = Server(asyncio.StreamWriter(mouth, protocol, None, loop), stdin, ears)
    running = asyncio.create_task(server.direct.write_waiting())
    yield server
    server.close()
    mouth.close()
    ears.close()
    running.cancel()


@pytest.mark.parametrize("as_text", [False, True], ids=["number", "text"])
async def test_an_answer_finds_its_request(server: Server, as_text: bool) -> None:
    one, other = server.send(), server.send()
    numbers = [await server.hears_id() for _ in range(2)]
    for number in reversed(numbers):
        assert server.direct.handle({"id": str(number) if as_text else number, "result": {"n": number}})
    assert [(await each.outcome)["n"] for each in (one, other)] == numbers


async def test_answers_in_one_read_are_handled_together(server: Server) -> None:
    one, other = server.send(), server.send()
    numbers = [await server.hears_id() for _ in range(2)]
    answers = [{"jsonrpc": "2.0", "id": number, "result": {"n": number}} for number in numbers]
    assert server.direct.handle_lines(b"".join(json.dumps(answer).encode() + b"\n" for answer in answers))
    assert [(await each.outcome)["n"] for each in (one, other)] == numbers


@cases(
    "lines",
    '{"id":%d,"result":{}}',
    '{"id":%d,"result":{}}\n{"id":77,',
    '{"id":%d,"result":{}}\n{"id":77,"result":{}}\n',
    '{"id":%d,"result":{}}\n{"method":"notifications/progress","params":{"progress":1}}\n',
    '{"id":%d,"result":{}}\n\n',
    '{"id":%d,"result":{}}\n' * 2,
    '{"id":%d,"result":{},"error":{"code":1,"message":"both"}}\n',
    '{"id":%d,"result":{},"method":"roots/list"}\n',
    '{"id":"%d","result":{}}\n',
    '{"id":%d,"result":[1]}\n',
    '[{"id":%d,"result":{}}]\n',
    '{"id":%d,"result":{"deep":' + "[" * 100_000 + "]" * 100_000 + "}}\n",
    ids=lambda lines: lines[:60],
)
async def test_lines_that_are_not_all_answers_are_not_handled_together(server: Server, lines: str) -> None:
    one, number = server.send(), await server.hears_id()
    assert not server.direct.handle_lines(lines.replace("%d", str(number)).encode())
    assert not one.outcome.done()
    assert server.direct.handle({"id": number, "result": {}})


@cases(
    "answer, said",
    ({"error": {"code": -32602, "message": "no such tool"}}, "no such tool"),
    ({"error": {"code": -32000.0, "message": "of a server to which all numbers are alike"}}, "alike"),
    ({"error": {"message": "without a code"}}, "without a code"),
    ({"error": "nonsense"}, ODD_ANSWER),
    ({"error": {"code": "x", "message": 7}}, ODD_ANSWER),
    ({"result": [1]}, ODD_ANSWER),
    ({}, ODD_ANSWER),
    ids=str,
)
async def test_an_error_and_an_odd_answer_refuse_the_request(server: Server, answer: dict[str, Any], said: str) -> None:
    one = server.send()
    assert server.direct.handle({"id": await server.hears_id(), **answer})
    with pytest.raises(RequestRefused) as refused:
        await one.outcome
    assert str(refused.value.details["mcp_message"]).endswith(said)
    assert type(refused.value.details["mcp_code"]) is int


async def test_a_closed_request_is_cancelled_at_the_server_and_its_answer_ignored(server: Server) -> None:
    one, number = server.send(), await server.hears_id()
    one.close()
    told = await server.hears()
    assert (told["method"], told["params"]["requestId"]) == ("notifications/cancelled", number)
    assert not server.direct.handle({"id": number, "result": {}})


async def test_messages_that_answer_no_request_are_not_handled(server: Server) -> None:
    assert not any(
        server.direct.handle(message)
        for message in ([], 7, {}, {"id": 99, "result": {}}, {"id": None}, {"id": 1, "method": "ping"})
    )


async def test_progress_is_reported_before_the_answer(server: Server) -> None:
    heard: list[Any] = []
    server.direct.on_notification = lambda method, params: heard.append(params["progress"])
    assert server.direct.handle({"method": "notifications/progress", "params": {"progress": 1}})
    assert not server.direct.handle({"method": "notifications/progress", "params": "nonsense"})
    assert not server.direct.handle({"method": "notifications/tools/list_changed", "params": {}})
    assert heard == [1]


async def test_common_meta_is_added_to_the_meta_of_a_request(server: Server) -> None:
    server.direct.common_meta = {"revision": "2026-07-28"}
    server.send()
    assert (await server.hears())["params"]["_meta"] == {"revision": "2026-07-28", "progressToken": "t"}
    assert "revision" not in CALL.params["_meta"]


async def test_requests_that_a_server_does_not_read_wait_in_order(server: Server) -> None:
    server.ears.pause_reading()
    pending = [server.send(request) for request in (LARGE, LARGE, LARGE, CALL, CALL)]
    pending[3].close()
    server.ears.resume_reading()
    first = await server.hears_id()
    server.send()
    assert [await server.hears_id() - first for _ in range(4)] == [1, 2, 4, 5]  # 3 was given up in time
    pending[0].close()
    assert (await server.hears())["params"]["requestId"] == first


async def test_the_sdk_can_write_to_a_busy_pipe(server: Server) -> None:
    server.ears.pause_reading()
    for _ in range(10):
        server.send(LARGE)
    turn = asyncio.create_task(server.pipe.drain())
    await asyncio.sleep(0)
    server.ears.resume_reading()
    for _ in range(5):
        await server.hears()
        server.send(LARGE)
    assert turn.done()


async def test_python_values_are_written_as_the_sdk_would_and_others_refused(server: Server) -> None:
    values = {"when": date(2026, 7, 28), "which": UUID(int=7), "no number": math.nan, "some": (1, 2)}
    server.send(MCPRequest("tools/call", {"name": "add", "arguments": values}))
    written = (await server.hears())["params"]["arguments"]
    assert written == {"when": "2026-07-28", "which": str(UUID(int=7)), "no number": None, "some": [1, 2]}
    with pytest.raises(BadRequest):
        server.send(MCPRequest("tools/call", {"name": "add", "arguments": {"x": object()}}))


async def test_nothing_is_written_to_a_closed_pipe(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(20):
        server.send()
    server.pipe.close()
    server.close()
    assert not caplog.records
