"""Programs whose stderr nobody reads: they go on, say later what is missing, and end when they are asked to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from signal import SIGTERM
from typing import Any

import pytest

from a2c_smcp.cli.logs import QueuedStream
from tests.ports import free_port
from tests.stage.bridge import BridgedOffice
from tests.stage.calls import RESULT, both
from tests.stage.crew import Crew
from tests.stage.metrics import scrape, total
from tests.stage.place import Place
from tests.stage.web import fetch
from tests.waiting import until

pytestmark = pytest.mark.covers("unread-stderr")


@pytest.fixture
def full_pipe() -> Iterator[int]:
    """The end for writing of a pipe that is full and that nobody reads."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    yield writing
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("words", [(), ("--log-json", "--log-level", "debug")])
async def test_a_server_whose_stderr_is_full_serves_calls_and_ends(
    place: Place, full_pipe: int, connect: Any, words: tuple[str, ...]
) -> None:
    port = free_port()
    server = await place.start("server", "--port", str(port), "--metrics", *words, stderr=full_pipe)
    await server.says("listening")
    server.url = f"http://127.0.0.1:{port}"
    agent, computer = await both(connect, server, "desk")
    computer.answers("client:tool_call", RESULT)
    assert await agent.call_tool("laptop") == RESULT
    assert (await fetch(f"{server.url}/healthz")).status == 200
    assert total(await scrape(server.url), "a2c_log_lines_dropped_total") == 0
    server.signal(SIGTERM)
    assert await server.ends() == 0


async def test_workers_whose_stderr_is_full_serve_and_end(place: Place, full_pipe: int, connect: Any) -> None:
    crew = await Crew.start(place, stderr=full_pipe)
    agent, computer = await both(connect, crew, "desk")
    computer.answers("client:tool_call", RESULT)
    assert await agent.call_tool("laptop") == RESULT
    crew.program.signal(SIGTERM)
    assert await crew.program.ends() == 0
    await until(lambda: not crew.left())


async def test_computer_and_bridge_whose_stderr_is_full_serve_calls_and_end(place: Place, full_pipe: int) -> None:
    office = BridgedOffice(place.folder)
    try:
        await office.start_server()
        await office.start_computer("--log-level", "debug", stderr=full_pipe)
        bridge, url = await office.start_bridge("--log-level", "debug", stderr=full_pipe)
        async with office.user(url) as client:
            assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == {"result": 3}
        for program in (bridge, office.computer):
            program.signal(SIGTERM)
            assert await program.ends() == 0
    finally:
        await office.close()


def test_lines_that_found_no_room_are_counted_and_told_where_they_are_missing() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as file, os.fdopen(reading, "rb") as reader:
        stream = QueuedStream(file)
        for number in range(30):
            stream.write(f"{number:02d}{'x' * 99_998}\n")
        missing = stream.dropped
        assert 0 < missing < 30
        lines = [reader.readline() for _ in range(30 - missing + 1)]
        assert [int(line[:2]) for line in lines[:-1]] == [*range(30 - missing)]
        assert lines[-1].startswith(f"{missing} lines are missing here".encode())
        stream.write("one\ntwo\n")
        assert [reader.readline(), reader.readline()] == [b"one\n", b"two\n"]
        assert stream.dropped == missing


def test_a_reader_that_ended_and_a_pipe_that_does_not_block_stop_nobody() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with os.fdopen(writing, "w") as file:
        stream = QueuedStream(file)
        with os.fdopen(reading, "rb") as reader:
            stream.write("x" * 200_000 + "\n")
            assert len(reader.readline()) == 200_001
        stream.write("nobody\n")
        stream.drain(60)
        assert stream.dropped == 0
