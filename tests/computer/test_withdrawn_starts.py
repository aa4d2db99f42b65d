"""A server that does not get to its feet: whoever stops, removes, restarts or replaces it does not wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from a2c_smcp.computer.computer import Computer
from a2c_smcp.mcp_host.config.servers import MCPServerConfig
from tests.computer.hosted import PATIENCE
from tests.computer.supervised import naughty, quick
from tests.waiting import until

pytestmark = pytest.mark.covers("supervise-states", "inputs-sources")

ENDLESS = quick(start_limit=3600, probe_limit=3600)


def state(computer: Computer, name: str = "slow") -> str:
    status = computer.status().get(name)
    return status.state if status else "unknown"


@asynccontextmanager
async def hanging() -> AsyncIterator[tuple[Computer, asyncio.Task[None]]]:
    """A computer, and the task that waits for a server of it to start."""
    async with Computer("laptop", policy=ENDLESS) as computer:
        putting = asyncio.create_task(computer.put_server(naughty("hangs_at_initialize", name="slow")))
        await until(lambda: state(computer) == "starting")
        async with asyncio.timeout(PATIENCE):
            yield computer, putting


WAYS: dict[str, tuple[Callable[[Computer], Awaitable[None]], str]] = {
    "removed": (lambda computer: computer.remove_server("slow"), "unknown"),
    "stopped": (lambda computer: computer.stop("slow"), "stopped"),
    "stopped with all others": (lambda computer: computer.stop(), "stopped"),
    "replaced": (lambda computer: computer.put_server(naughty("fine", name="slow")), "ready"),
}


@pytest.mark.parametrize(("act", "left"), WAYS.values(), ids=WAYS)
async def test_a_server_that_hangs_as_it_starts_does_not_delay_that_it_is(act: Any, left: str) -> None:
    async with hanging() as (computer, putting):
        await act(computer)
        await putting
        assert state(computer) == left


async def test_a_server_that_hangs_as_it_starts_can_be_started_anew() -> None:
    async with hanging() as (computer, putting):
        restarting = asyncio.create_task(computer.restart("slow"))
        await until(lambda: computer.status()["slow"].starts == 2)
        await computer.stop("slow")
        await asyncio.gather(putting, restarting)
        assert state(computer) == "stopped"


async def test_a_server_replaced_again_while_starting_has_the_last_configuration() -> None:
    async with hanging() as (computer, putting):
        await asyncio.gather(*(computer.put_server(naughty("fine", name="slow", vrl=None)) for _ in range(3)))
        await putting
        assert (state(computer), len(computer.get_tools())) == ("ready", 1)


class SilentOwner:
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
async def asking(*before: MCPServerConfig) -> AsyncIterator[tuple[Computer, SilentOwner, asyncio.Task[None]]]:
    owner = SilentOwner()
    async with Computer("laptop", policy=ENDLESS, prompt=owner.prompt) as computer:
        computer.define_inputs([{"type": "promptString", "id": "word", "description": ""}])
        for config in before:
            await computer.put_server(config)
        config = naughty("fine", name="slow", env={"WORD": "${input:word}"})
        putting = asyncio.create_task(computer.put_server(config))
        await until(lambda: owner.asked)
        async with asyncio.timeout(PATIENCE):
            yield computer, owner, putting


@pytest.mark.parametrize("how", ["remove_server", "stop"])
async def test_a_question_for_a_server_that_is_no_longer_wanted_is_withdrawn(how: str) -> None:
    async with asking() as (computer, owner, putting):
        await getattr(computer, how)("slow")
        await asyncio.gather(putting, owner.is_withdrawn.wait())
        assert state(computer) == ("unknown" if how == "remove_server" else "stopped")


async def test_a_value_that_is_given_otherwise_ends_the_question() -> None:
    async with asking() as (computer, owner, putting):
        await computer.inputs.set("word", "hello")
        await until(lambda: state(computer) == "ready")
        await putting
        assert owner.is_withdrawn.is_set()


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


async def test_a_server_that_was_stopped_while_its_replacement_was_in_question_can_be_started() -> None:
    async with asking(naughty("fine", name="slow")) as (computer, _, putting):
        assert state(computer) == "ready", "what is replaced runs until then"
        await computer.stop("slow")
        await computer.inputs.set("word", "hello")
        await until(lambda: putting.done())
        assert state(computer) == "stopped"
        await computer.start("slow")
        assert state(computer) == "ready"
