"""Bodies of several JSON messages, one on each line, as some servers stream them; and bodies that only look like it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from a2c_smcp.mcp_host.transports.messages import lines_as_events
from tests.stage.cases import cases

NOTICE = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": 1}}
ANSWER = {"jsonrpc": "2.0", "id": 1, "result": {"text": "ä" * 10}}


class Parts(httpx2.AsyncByteStream):
    """A body that comes in pieces of this size."""

    def __init__(self, body: bytes, size: int) -> None:
        self._parts = [body[at : at + size] for at in range(0, len(body), size)]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            yield part


async def read(body: bytes, size: int = 7, **headers: str) -> tuple[str, bytes]:
    given = {"content-type": "application/json", **{key.replace("_", "-"): value for key, value in headers.items()}}
    response = httpx2.Response(200, headers=given, stream=Parts(body, size))
    await lines_as_events(response)
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    return response.headers["content-type"], b"".join([part async for part in response.stream])


def lines(*messages: Any) -> bytes:
    return b"\n".join(json.dumps(each).encode() for each in messages)


def messages_in(events: bytes) -> list[Any]:
    return [json.loads(event.partition(b"data: ")[2]) for event in events.split(b"\n\n") if event]


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
async def test_lines_become_events_however_they_are_cut(size: int, end: bytes) -> None:
    kind, body = await read(lines(NOTICE, ANSWER) + end, size)
    assert kind == "text/event-stream"
    assert messages_in(body) == [NOTICE, ANSWER]


@cases(
    "body",
    json.dumps(ANSWER).encode(),
    json.dumps(ANSWER, indent=2).encode(),
    b"",
    b"not json\nat all",
    b'{"no": "message"}\n{"jsonrpc": "2.0"}',
    ids=["one line", "many lines", "empty", "no json", "no message"],
)
async def test_other_bodies_stay_as_they_are(body: bytes) -> None:
    assert await read(body) == ("application/json", body)


@pytest.mark.parametrize("header", [{"content_length": "9"}, {"content_encoding": "gzip"}])
async def test_a_body_with_a_length_or_an_encoding_is_not_looked_at(header: dict[str, str]) -> None:
    assert await read(lines(NOTICE, ANSWER), **header) == ("application/json", lines(NOTICE, ANSWER))
