"""The other nodes of a shared directory: their URLs, and the secret by which nodes recognise one another."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from hmac import compare_digest

from a2c_smcp.errors import BadRequest, Unavailable
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.server.directory.interface import SharedDirectory
from a2c_smcp.server.directory.nodes import node_of

__all__ = ["NODE_HEADER", "PeerNodes"]

NODE_HEADER = b"x-a2c-node"
"""In a request of another node: the secret that nodes share."""

_SCHEMES = ("http://", "https://")
_FRESH = 1.0
_BETWEEN = 0.1  # clients may invent session ids: however many, the store is not asked more often


class PeerNodes:
    """Asks the store when a node is looked for. While the store is out of reach, its last answer is used until the
    leases in it have ended."""

    def __init__(self, directory: SharedDirectory) -> None:
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
        """Raises `BadRequest` for a node without a lease: it has no sessions."""
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

    async def others(self) -> dict[str, str]:
        """The URLs of the other nodes that hold a lease. Raises `Unavailable` if none is known."""
        try:
            if not self._is_fresh:
                await self._look()
        except Unavailable:
            if not self._urls:
                raise
        known = {node: self._leased(node) for node in self._urls if node != self._directory.node}
        return {node: url for node, url in known.items() if url}

    async def secret(self) -> bytes:
        """The secret that this node shows to others. Raises `Unavailable`."""
        if not self._secret:
            await self._look()
        return self._secret

    async def knows(self, secret: bytes) -> bool:
        """Whether this is the secret, also after the store has lost the old one and has a new one."""
        if not self._is_secret(secret) and not self._is_fresh:
            with suppress(Unavailable):
                await self._look()
        return self._is_secret(secret)

    async def close(self) -> None:
        if self._looking:
            await cancel_and_wait(self._looking)

    @property
    def _is_fresh(self) -> bool:
        return time.monotonic() < self._seen_at + _FRESH

    def _leased(self, node: str) -> str | None:
        url, until = self._urls.get(node, ("", 0.0))
        return url if time.monotonic() < until else None

    def _is_secret(self, secret: bytes) -> bool:
        return bool(self._secret) and compare_digest(secret, self._secret)

    async def _look(self) -> None:
        """Asks the store, once for all that wait for the answer."""
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
