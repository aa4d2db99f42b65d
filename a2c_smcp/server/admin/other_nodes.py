"""The other nodes, asked over HTTP at the URLs where nodes reach one another, with the secret that they share.

A list of all nodes is made by the node that was asked. A node that does not answer in time is named in the answer, and
what it knows is missing there.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlencode

import aiohttp
import msgspec

from a2c_smcp.errors import SMCPError, Unavailable
from a2c_smcp.server.cluster.peer_nodes import NODE_HEADER, PeerNodes
from a2c_smcp.server.directory.interface import SharedDirectory

__all__ = ["NODE_PATH", "Missing", "NodeAnswers", "OtherNodes"]

NODE_PATH = "/admin/node"
"""Below it, nodes ask one another. Only the secret opens it, not the admin key."""

_PATIENCE = aiohttp.ClientTimeout(total=3.0, sock_connect=1.0)
_STREAMING = aiohttp.ClientTimeout(total=None, sock_connect=1.0, sock_read=30.0)
_LONGEST_LINE = 256 * 1024
_FAILURES = (aiohttp.ClientError, OSError, TimeoutError, ValueError)
_NOT_FOUND = 404


class Missing(msgspec.Struct):
    """A node that has not answered, and why."""

    node: str
    reason: str


class NodeAnswers(NamedTuple):
    """The answers of other nodes by name, as JSON, and the nodes without one."""

    bodies: dict[str, bytes]
    missing: list[Missing]


class OtherNodes:
    """Asks all other nodes at once. Without a shared directory there are none."""

    def __init__(self, shared: SharedDirectory | None) -> None:
        self._peers = PeerNodes(shared) if shared else None
        self._session: aiohttp.ClientSession | None = None

    async def knows(self, secret: bytes) -> bool:
        """Whether a request that shows this secret comes from another node."""
        return self._peers is not None and await self._peers.knows(secret)

    async def names(self) -> list[str]:
        """Raises `Unavailable`."""
        return sorted(await self._peers.others()) if self._peers else []

    async def ask(self, what: str, *, method: str = "GET", **query: str) -> NodeAnswers:
        """Asks every other node the same."""
        if self._peers is None:
            return NodeAnswers({}, [])
        try:
            urls = await self._peers.others()
        except Unavailable as error:
            return NodeAnswers({}, [Missing("*", error.about)])
        answers = await asyncio.gather(*(self._ask(url, what, method, query) for url in urls.values()))
        found = dict(zip(urls, answers, strict=True))
        return NodeAnswers(
            {node: answer for node, answer in found.items() if isinstance(answer, bytes)},
            [Missing(node, answer) for node, answer in found.items() if isinstance(answer, str)],
        )

    async def lines(self, node: str, what: str) -> AsyncIterator[bytes]:
        """What another node streams, line by line, until it ends. Raises `Unavailable`."""
        url = (await self._peers.others()).get(node) if self._peers else None
        if url is None:
            raise Unavailable(f"node {node!r} is gone")
        try:
            headers = await self._headers()
            async with self._http().get(
                f"{url}{NODE_PATH}/{what}", headers=headers, timeout=_STREAMING, allow_redirects=False
            ) as response:
                response.raise_for_status()
                async for line in response.content:
                    yield line
        except _FAILURES as error:
            raise Unavailable(f"node {node!r} does not answer: {type(error).__name__}") from None

    async def close(self) -> None:
        if self._peers:
            await self._peers.close()
        if self._session:
            await self._session.close()

    async def _ask(self, url: str, what: str, method: str, query: Mapping[str, str]) -> bytes | str:
        """The answer, or why there is none."""
        try:
            async with self._http().request(
                method,
                f"{url}{NODE_PATH}/{what}?{urlencode(query)}",
                headers=await self._headers(),
                allow_redirects=False,
                timeout=_PATIENCE,
            ) as response:
                body = await response.read()
        except (*_FAILURES, SMCPError) as error:
            return f"it does not answer ({type(error).__name__})"
        if response.status == _NOT_FOUND:
            return "it runs without --admin-key"
        return body if response.ok else f"it answers with status {response.status}"

    async def _headers(self) -> dict[str, str]:
        assert self._peers
        return {NODE_HEADER.decode(): (await self._peers.secret()).decode()}

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            trust: ssl.SSLContext | bool = True
            with suppress(ssl.SSLError):
                trust = ssl.create_default_context()
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0, ssl=trust),
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=_LONGEST_LINE,
            )
        return self._session
