"""A process that calls tools when it is told to, and says what that took.

Only the standard library is used: it runs beside the published package too. Who connects says, in one line,
`{"tool": "echo", "calls": 96, "at_once": 32}`, and reads the fields of a `Sample`, or nothing if a call failed.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["PARAMS", "READY", "Call", "Sample", "serve"]

READY = "ready "
PARAMS = {"text": "hello"}

Call = Callable[[str], Awaitable[Any]]
"""Calls the tool of this name with `PARAMS`."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds that each call took, that all of them took, and that this process was busy."""

    each: list[float]
    elapsed: float
    busy: float


async def serve(call: Call) -> None:
    """Says where it listens, and then does as it is told until it is stopped."""

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            sample = await _calls(call, **json.loads(await reader.readline()))
            writer.write(json.dumps(asdict(sample)).encode() + b"\n")
        finally:
            writer.close()

    server = await asyncio.start_server(on_connection, "127.0.0.1", 0)
    print(f"{READY}{server.sockets[0].getsockname()[1]}", flush=True)
    os.dup2(2, 1)  # nobody reads on: whatever a package logs must not fill the pipe
    await server.serve_forever()


async def _calls(call: Call, tool: str, calls: int, at_once: int) -> Sample:
    each: list[float] = []

    async def some() -> None:
        for _ in range(calls // at_once):
            start = time.perf_counter()
            await call(tool)
            each.append(time.perf_counter() - start)

    start, busy = time.perf_counter(), time.process_time()
    await asyncio.gather(*(some() for _ in range(at_once)))
    return Sample(each, time.perf_counter() - start, time.process_time() - busy)
