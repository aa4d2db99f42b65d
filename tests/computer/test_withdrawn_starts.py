"""A server that does not get to its feet: whoever stops, removes, restarts or replaces it does not wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from a2c_smcp.computer.computer import Computer
from tests.computer.hosted import PATIENCE
from tests.computer.supervised import naughty, quick
from tests.waiting import until

ENDLESS = quick(start_limit=3600, probe_limit=3600)


def state(computer: Computer, name: str = "slow") -> str:
    status = computer.status().get(name)
    return status.state if status else "unknown"


def slow(**more: Any) -> Any:
    return naughty("hangs_at_initialize", name="slow", **more)


@asynccontextmanager
async def hanging() -> AsyncIterator[tuple[Computer, asyncio.Task[None]]]:
    """A computer, and the task that waits for a server of it to start."""
    async with Computer("laptop", policy=ENDLESS) as computer:
        putting = asyncio.create_task(computer.put_server(slow()))
        await until(lambda: state(computer) == "starting")
        async with asyncio.timeout(PATIENCE):
            yield computer, putting


@pytest.mark.covers("supervise-states")
async def test_a_server_that_hangs_as_it_starts_can_be_removed() -> None:
    async with hanging() as (computer, putting):
        await computer.remove_server("slow")
        await putting
        assert computer.status() == {}


@pytest.mark.covers("supervise-states")
@pytest.mark.parametrize("name", ["slow", None])
async def test_a_server_that_hangs_as_it_starts_can_be_stopped(name: str | None) -> None:
    async with hanging() as (computer, putting):
        await computer.stop(name)
        await putting
        assert state(computer) == "stopped"


@pytest.mark.covers("supervise-states")
async def test_a_server_that_hangs_as_it_starts_can_be_replaced() -> None:
    async with hanging() as (computer, putting):
        await computer.put_server(naughty("fine", name="slow"))
        await putting
        assert state(computer) == "ready"


@pytest.mark.covers("supervise-states")
async def test_a_server_that_hangs_as_it_starts_can_be_started_anew() -> None:
    async with hanging() as (computer, putting):
        restarting = asyncio.create_task(computer.restart("slow"))
        await until(lambda: computer.status()["slow"].starts == 2)
        await computer.stop("slow")
        await asyncio.gather(putting, restarting)
        assert state(computer) == "stopped"


@pytest.mark.covers("supervise-states")
async def test_a_server_replaced_again_while_starting_has_the_last_configuration() -> None:
    async with hanging() as (computer, putting):
        await asyncio.gather(*(computer.put_server(naughty("fine", name="slow", vrl=None)) for _ in range(3)))
        await putting
        assert (state(computer), len(computer.get_tools())) == ("ready", 1)


class Owner:
    """Is asked, and never answers."""

    def __init__(self) -> None:
        self.asked = 0
        self.is_withdrawn = asyncio.Event()

    async def prompt(self, _: Any) -> str:
        self.asked += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.is_withdrawn.set()
            raise
        return ""


@asynccontextmanager
async def asking() -> AsyncIterator[tuple[Computer, Owner, asyncio.Task[None]]]:
    owner = Owner()
    async with Computer("laptop", policy=ENDLESS, prompt=owner.prompt) as computer:
        computer.define_inputs([{"type": "promptString", "id": "word", "description": ""}])
        config = naughty("fine", name="slow", env={"WORD": "${input:word}"})
        putting = asyncio.create_task(computer.put_server(config))
        await until(lambda: owner.asked)
        async with asyncio.timeout(PATIENCE):
            yield computer, owner, putting


@pytest.mark.covers("supervise-states", "inputs-sources")
@pytest.mark.parametrize("how", ["remove_server", "stop"])
async def test_a_question_for_a_server_that_is_no_longer_wanted_is_withdrawn(how: str) -> None:
    async with asking() as (computer, owner, putting):
        await getattr(computer, how)("slow")
        await asyncio.gather(putting, owner.is_withdrawn.wait())
        assert state(computer) == ("unknown" if how == "remove_server" else "stopped")


@pytest.mark.covers("supervise-states", "inputs-sources")
async def test_a_value_that_is_given_otherwise_ends_the_question() -> None:
    async with asking() as (computer, owner, putting):
        await computer.inputs.set("word", "hello")
        await until(lambda: state(computer) == "ready")
        await putting
        assert owner.is_withdrawn.is_set()


@pytest.mark.covers("supervise-states")
async def test_a_server_that_was_stopped_stays_so_when_it_is_replaced_until_it_is_started() -> None:
    async with asking() as (computer, _, putting):
        await computer.stop("slow")
        await computer.put_server(naughty("fine", name="slow"))
        await computer.stop("slow")
        await computer.put_server(naughty("fine", name="slow", tool_meta={"echo": {"alias": "said"}}))
        assert state(computer) == "stopped"
        await computer.start("slow")
        await putting
        assert (state(computer), [tool["name"] for tool in computer.get_tools()]) == ("ready", ["said"])


@pytest.mark.covers("supervise-states", "inputs-sources")
async def test_a_server_that_was_stopped_while_its_replacement_was_in_question_can_be_started() -> None:
    owner = Owner()
    async with Computer("laptop", policy=ENDLESS, prompt=owner.prompt) as computer:
        computer.define_inputs([{"type": "promptString", "id": "word", "description": ""}])
        await computer.put_server(naughty("fine", name="slow"))
        putting = asyncio.create_task(computer.put_server(naughty("fine", name="slow", env={"WORD": "${input:word}"})))
        await until(lambda: owner.asked)
        assert state(computer) == "ready", "what is replaced runs until then"
        await computer.stop("slow")
        await computer.inputs.set("word", "hello")
        await until(lambda: putting.done())
        assert state(computer) == "stopped"
        await computer.start("slow")
        assert state(computer) == "ready"
