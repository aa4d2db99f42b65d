"""An agent of a fault run: a process that calls the computers of its office at a steady pace until SIGTERM.

`python -m tests.faults.agent PLAN`, where `PLAN` is JSON (see `Plan`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from a2c_smcp.agent import AsyncSMCPAgentClient, SMCPAgentClient
from a2c_smcp.errors import SMCPError
from tests.faults.calls import Call, Notes, choose_calls
from tests.stage.agent import Twin

_AT_ONCE = 100
_TRY_AGAIN = 0.2


@dataclass(frozen=True, slots=True)
class Plan:
    """What an agent process is told. Ids of its calls begin with `prefix`, which is new for each process."""

    url: str
    key: str
    office: str
    name: str
    prefix: str
    computers: list[str]
    tools: list[str]
    rate: float
    notes: str
    blocking: bool

    def calls(self) -> Iterator[Call]:
        return choose_calls(self.prefix, self.office, self.computers, self.tools)


async def run(plan: Plan) -> None:
    """With the client that is awaited, or with the one that blocks, used from many threads."""
    notes, stop = Notes(Path(plan.notes)), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    kind = SMCPAgentClient if plan.blocking else AsyncSMCPAgentClient
    agent = Twin(kind(plan.name, url=plan.url, office=plan.office, api_key=plan.key))
    while not await _connects(agent):  # noqa: ASYNC110, its office tells nobody when it is free
        await asyncio.sleep(_TRY_AGAIN)
    began, calling = time.monotonic(), set[asyncio.Task[None]]()
    for number, call in zip(count(), plan.calls(), strict=False):
        if await _stops(stop, began + number / plan.rate - time.monotonic()):
            break
        if len(calling) < _AT_ONCE:
            task = asyncio.create_task(_make(agent, call, notes))
            calling.add(task)
            task.add_done_callback(calling.discard)
    await asyncio.gather(*calling)
    await agent.disconnect()


async def _connects(agent: Twin) -> bool:
    """The seat of a killed process is kept for a while: until then its office refuses another agent."""
    try:
        await agent.connect()
    except SMCPError:
        return False
    return True


async def _stops(stop: asyncio.Event, seconds: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, seconds)):
            await stop.wait()
    return stop.is_set()


async def _make(agent: Twin, call: Call, notes: Notes) -> None:
    notes.begin(call)
    cancelling = asyncio.create_task(_cancel(agent, call)) if call.cancel_after is not None else None
    try:
        result = await agent.emit_tool_call(call.computer, call.tool, call.params, call.timeout, req_id=call.id)
    except SMCPError as error:
        notes.fail(call, error)
    else:
        notes.end(call, result)
    if cancelling:
        await cancelling


async def _cancel(agent: Twin, call: Call) -> None:
    await asyncio.sleep(call.cancel_after or 0)
    try:
        await agent.cancel(call.id)
    except SMCPError as error:
        logging.getLogger(__name__).info("cancel of %s: %s", call.id, error)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(run(Plan(**json.loads(sys.argv[1]))))
