"""`examples/cluster.py`: what it claims has happened, and what it would say if it had not."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from a2c_smcp.errors import ComputerLeft
from examples.cluster import CallCounts, Load, LoadBalancer
from tests.program import run_program
from tests.stage.place import assert_it_can_be_left
from tests.waiting import until

EXAMPLE = Path(__file__).parents[2] / "examples" / "cluster.py"
PATIENCE = 60.0
CLAIMS = (
    "offices span nodes",
    "calls a second from now on",
    "all members have their seats at other nodes",
    "✓ no call lost, and none run twice",
)

pytestmark = pytest.mark.covers("demo-cluster")


def test_a_node_is_killed_under_load_and_no_call_is_lost_or_run_twice() -> None:
    done = run_program(script=EXAMPLE)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert done.stderr == ""
    assert [claim for claim in CLAIMS if claim not in done.stdout] == []
    figures = dict(re.findall(r"^(\S.*?) {2,}(\S.*?) *$", done.stdout.partition("Figures")[2], re.MULTILINE))
    assert (figures["lost"], figures["run twice"]) == ("0", "0")
    assert figures["answered"] == figures["calls made"]
    assert int(figures["calls made"]) > 500
    assert figures["nodes before"] == "east, north, west"
    assert figures["nodes after"] == "east, west"


async def test_ctrl_c_leaves_no_process_behind() -> None:
    await assert_it_can_be_left(sys.executable, str(EXAMPLE), at="calls a second")


# The front


@asynccontextmanager
async def echo(name: str) -> AsyncIterator[str]:
    """Says its name, and then what it hears."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"{name}\n".encode())
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield "http://{}:{}".format(*server.sockets[0].getsockname())


async def said_at(url: str) -> str:
    """Who answers a connection to the front; nothing, if nobody does."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    async with asyncio.timeout(PATIENCE):
        name = (await reader.readline()).decode().strip()
        if name:
            writer.write(b"hello\n")
            assert await reader.readline() == b"hello\n"
    writer.close()
    return name


async def test_the_load_balancer_takes_nodes_in_turn_and_skips_dead_ones() -> None:
    async with echo("north") as north, echo("south") as south:
        async with echo("west") as west:
            urls = (north, south, west)
        async with LoadBalancer(urls).open() as url:
            names = [await said_at(url) for _ in range(6)]
    assert set(names) == {"north", "south"}


async def test_the_load_balancer_closes_connections_when_no_node_is_left() -> None:
    async with echo("north") as north:
        pass
    async with LoadBalancer([north]).open() as url:
        assert await said_at(url) == ""


# The account


async def account(call: object, counts: CallCounts | None = None) -> CallCounts:
    counts = counts or CallCounts()
    load = Load([call], 1000, counts)  # type: ignore[list-item]
    load.start()
    await until(lambda: counts.made >= 20)
    await load.end()
    return counts


async def test_a_refused_call_counts_as_lost() -> None:
    async def refuse(number: int) -> str:
        if number == 3:
            raise ComputerLeft
        return str(number)

    counts = await account(refuse)
    assert (counts.lost, counts.doubled) == (1, 0)
    assert list(counts.failures) == [3]


async def test_a_call_that_gets_another_answer_counts_as_lost() -> None:
    async def mistake(number: int) -> str:
        return "7"

    counts = await account(mistake)
    assert counts.lost == counts.made - 1


async def test_a_call_that_ran_twice_is_counted_by_the_tool() -> None:
    counts = CallCounts()

    async def run_twice(number: int) -> str:
        counts.runs[number] += 2 if number == 5 else 1
        return str(number)

    await account(run_twice, counts)
    assert (counts.lost, counts.doubled) == (0, 1)


async def test_calls_do_not_wait_for_answers_to_earlier_calls() -> None:
    never = asyncio.Event()

    async def hang(number: int) -> str:
        await never.wait()
        return str(number)

    counts = CallCounts()
    load = Load([hang], 1000, counts)
    load.start()
    await until(lambda: counts.made >= 50)
    assert counts.lost >= 50
    never.set()
    await load.end()
    assert counts.lost == 0
