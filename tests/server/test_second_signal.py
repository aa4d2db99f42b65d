"""A second signal hurries: each open call is answered, with the word that its outcome is unknown."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable

import pytest

from tests.conftest import TRANSPORTS
from tests.peer import Peer
from tests.stage.calls import Gate, running_call
from tests.stage.program import Program, Starts, meets, starts

__all__ = ["meets", "starts"]

KEY = "a-key-of-some-length"


@pytest.mark.covers("program-shutdown")
@pytest.mark.parametrize("transport", sorted(TRANSPORTS))
@pytest.mark.parametrize("is_at_once", [True, False], ids=["at once", "later"])
@pytest.mark.parametrize("options", [(), ("--workers", "2")], ids=["alone", "workers"])
async def test_a_second_signal_answers_each_open_call(
    starts: Starts, meets: Callable[..., Awaitable[Peer]], options: tuple[str, ...], transport: str, is_at_once: bool
) -> None:
    program: Program = await starts("--api-key", KEY, *options)
    program.url = program.url.split()[0]
    calls = []
    for number in range(8):
        agent = await meets(program, transport, auth={"token": KEY})
        await agent.join("agent", "planner", f"office-{number}")
        computer = await meets(program, transport, auth={"token": KEY})
        await computer.join("computer", "laptop", f"office-{number}")
        calls.append(await running_call(agent, computer, Gate(), timeout=60))
    program.signal(signal.SIGTERM)
    if not is_at_once:
        await program.says("stopping")
    program.signal(signal.SIGINT)
    answers = [await call for call in calls]
    assert {answer["details"]["outcome"] for answer in answers} == {"unknown"}
    # The node of a computer tells that of the agent that it stops: to that one the computer has left.
    assert {answer["code"] for answer in answers} <= {503, 404 if options else 503}
    await program.ends()
