"""A load balancer in miniature: connections go to nodes in turn, and to the next one if a node does not take them."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from tests.balancer import Balancer, exchange
from tests.nodes.processes import NodeProcess

__all__ = ["Front"]


class Front(Balancer):
    """It knows nothing of sessions, nor of what is said."""

    def __init__(self, nodes: Sequence[NodeProcess]) -> None:
        super().__init__()
        self._turns = deque(nodes)
        self._carried: Counter[str] = Counter()

    def carries(self, node: NodeProcess) -> int:
        """How many of the connections that are open now go to this node."""
        return self._carried[node.name]

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(len(self._turns)):
            node = self._turns[0]
            self._turns.rotate(-1)
            parts = urlsplit(node.url)
            with suppress(OSError):
                there, back = await asyncio.open_connection(parts.hostname, parts.port)
                await self._exchange(node, (reader, back), (there, writer))
                return
        writer.close()

    async def _exchange(self, node: NodeProcess, *ways: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        self._carried[node.name] += 1
        try:
            await exchange(*ways)
        finally:
            self._carried[node.name] -= 1
