"""The other nodes of a shared directory: where they are, and the secret by which they know one another."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from hmac import compare_digest
from typing import Protocol, runtime_checkable

from a2c_smcp.errors import BadRequest, Unavailable
from a2c_smcp.server.directory import Directory
from a2c_smcp.server.directory.nodes import Node, node_of
from a2c_smcp.server.directory.post import Post

__all__ = ["Neighbours", "Shared", "shared"]

_SCHEMES = ("http://", "https://")
_FRESH = 1.0
_BETWEEN = 0.1  # a session id is a client's word: however many it makes up, the store is not asked more often


@runtime_checkable
class Shared(Post, Protocol):
    """What a directory that several nodes have in common offers beside."""

    @property
    def is_ready(self) -> bool: ...

    async def start(self) -> None: ...

    async def nodes(self) -> list[Node]: ...

    async def secret(self) -> str: ...

    async def announce(self, office_id: str, text: str) -> int: ...


def shared(directory: Directory | None) -> Shared | None:
    """The directory, if it is one of many nodes."""
    return directory if isinstance(directory, Shared) else None


class Neighbours:
    """What the store says of the nodes, asked when somebody wants to know. While it is out of reach, what it said last
    holds until the leases have lapsed."""

    def __init__(self, directory: Shared) -> None:
        self._directory = directory
        self._urls: dict[str, tuple[str, float]] = {}
        self._secret = b""
        self._seen_at = float("-inf")
        self._looking: asyncio.Task[None] | None = None

    def owner(self, sid: str) -> str | None:
        """The other node that a session id names, whether or not there is such a node."""
        node = node_of(sid)
        return node if node != self._directory.node else None

    async def url_of(self, node: str) -> str:
        """Raises `BadRequest` for one without a lease: it has no sessions."""
        known = self._leased(node)
        if known is None or not self._is_fresh:
            try:
                await self._look()
            except Unavailable:
                if known is None:
                    raise
        known = self._leased(node)
        if known is None:
            raise BadRequest("no such session")
        if not known.startswith(_SCHEMES):
            raise Unavailable(f"node {node!r} has not said under which URL others reach it")
        return known

    async def secret(self) -> bytes:
        """What this node shows to others."""
        if not self._secret:
            await self._look()
        return self._secret

    async def knows(self, secret: bytes) -> bool:
        """Whether this is the secret, also if the store has lost it and was given another."""
        if not self._is_secret(secret) and not self._is_fresh:
            with suppress(Unavailable):
                await self._look()
        return self._is_secret(secret)

    async def close(self) -> None:
        if self._looking:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    @property
    def _is_fresh(self) -> bool:
        return time.monotonic() < self._seen_at + _FRESH

    def _leased(self, node: str) -> str | None:
        url, until = self._urls.get(node, ("", 0.0))
        return url if time.monotonic() < until else None

    def _is_secret(self, secret: bytes) -> bool:
        return bool(self._secret) and compare_digest(secret, self._secret)

    async def _look(self) -> None:
        """One look for all who want to know."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_now())
        await asyncio.shield(self._looking)

    async def _look_now(self) -> None:
        await asyncio.sleep(max(0.0, self._seen_at + _BETWEEN - time.monotonic()))
        asked = time.monotonic()
        nodes = await self._directory.nodes()
        self._secret = (await self._directory.secret()).encode()
        self._urls = {node.name: (node.url.rstrip("/"), asked + node.lease) for node in nodes}
        self._seen_at = asked
