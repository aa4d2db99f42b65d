"""What a call waits for, and each sending after the first, are spans of their own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.computer.supervised import SERVERS
from tests.ports import free_port
from tests.program import forked
from tests.stage.place import PATIENCE, Place
from tests.stage.program import Program
from tests.stage.spans import PROGRAMS, Span, spans_in, trace_of
from tests.waiting import until

pytestmark = pytest.mark.covers("traces")


@pytest.fixture(scope="module")
def spans(tmp_path_factory: pytest.TempPathFactory) -> list[Span]:
    folder = tmp_path_factory.mktemp("waiting")
    asyncio.run(calls_that_wait(folder))
    return spans_in(folder / "program.jsonl")


async def calls_that_wait(folder: Path) -> None:
    """The Server is killed while a call runs, and is back later."""
    place, port = Place(folder), str(free_port())
    try:
        server = await place.start("server", "--port", port)
        await server.says("listening on ")
        process = await asyncio.create_subprocess_exec(
            *forked(
                *(PROGRAMS / "waiting_program.py", f"http://127.0.0.1:{port}"),
                *(folder / "program.jsonl", folder / "state", SERVERS / "good.py"),
            ),
            stdin=-1,
            stdout=-1,
            stderr=-1,
            env=place.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        )
        program = Program(process)
        place.started.append(program)
        await program.says("running")
        await server.kill()
        server = await place.start("server", "--port", port)
        await until(lambda: program.out.count("joined desk") == 2)
        assert process.stdin
        process.stdin.write(b"\n")
        await program.says("held")
        await program.says("done")
        assert await program.ends(PATIENCE) == 0
    finally:
        await place.end()


def test_the_wait_for_a_connection_and_the_second_sending_are_spans_below_the_call(spans: list[Span]) -> None:
    found = trace_of(spans, "work that is sent again")
    (call,) = [span for span in found if span.name == "execute_tool hold" and span.kind == "client"]
    waits = [span for span in found if span.name == "a2c.wait"]
    assert waits
    assert all(span.parent == call.id and span.has(rpc__method="client:tool_call") for span in waits)
    resends = [span for span in found if span.name == "a2c.resend client:tool_call"]
    assert resends
    assert [int(span.attributes["a2c.resend_count"]) for span in resends] == [*range(1, len(resends) + 1)]
    assert all(span.parent == call.id for span in resends)
    assert waits[0].began < resends[0].began
    assert call.began <= waits[0].began
    assert resends[-1].ended <= call.ended
    assert not resends[-1].is_error


def test_the_wait_for_a_turn_is_a_span_below_the_call_on_the_computer(spans: list[Span]) -> None:
    found = trace_of(spans, "work in a queue")
    queue = max((span for span in found if span.name == "a2c.queue"), key=lambda span: span.ended - span.began)
    assert queue.has(a2c__queue__name="tools")
    parent = next(span for span in found if span.id == queue.parent)
    assert (parent.name, parent.kind) == ("execute_tool slow", "server")
    assert queue.ended - queue.began > 100_000_000, "the call before it takes 0.2 s"
