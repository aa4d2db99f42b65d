"""A computer whose tools need approval."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.computer import Computer
from tests.computer.hosted import hosted


class Guarded:
    """A computer with one tool, which needs approval, and what it has run with."""

    def __init__(self, **options: Any) -> None:
        self.runs: list[str] = []
        self.computer = Computer("laptop", **{"approve_by": "client", **options})
        self.computer.tool(self.wipe, name="wipe")
        self.computer.tool(self.wipe, name="clear")

    def wipe(self, path: str = "", more: dict[str, Any] | None = None) -> str:
        self.runs.append(path)
        return f"{path} is gone"


Guard = Callable[..., Awaitable[Guarded]]


@pytest.fixture
async def guard(shared_hub: Any, office: str, tmp_path: Path) -> AsyncIterator[Guard]:
    """Starts such a computer, in the test's office."""
    async with AsyncExitStack() as stack:

        async def begin(**options: Any) -> Guarded:
            guarded = Guarded(**options)
            await stack.enter_async_context(hosted(guarded.computer, shared_hub.url, office, tmp_path))
            return guarded

        yield begin
