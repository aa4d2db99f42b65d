"""Work of a command that Ctrl-C stops: the first signal cancels it, a second one exits at once."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from typing import Any, NoReturn

from a2c_smcp.cli.terminal import Terminal
from a2c_smcp.loops import stop_on_signals

__all__ = ["unless_stopped"]


async def unless_stopped(work: Coroutine[Any, Any, None], terminal: Terminal) -> bool:
    """Do the work; return whether a signal stopped it. The first signal cancels the work, a second one exits."""
    stop = stop_on_signals()
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
    for task in (stopping, working):
        task.cancel()
    try:
        await asyncio.wait([working])
    except asyncio.CancelledError:
        _quit(terminal)
    if not working.cancelled():
        working.result()
    return working.cancelled()


def _quit(terminal: Terminal) -> NoReturn:
    """Exit without waiting for tasks or for a Server that does not answer."""
    terminal.take_away()
    sys.stdout.flush()
    os._exit(1)
