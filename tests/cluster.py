"""Servers that are nodes of one directory, and a load balancer without stickiness in front of them."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from a2c_smcp.server import Limits, Settings, create_app
from a2c_smcp.server.cluster.memory import Pace
from a2c_smcp.server.cluster.redis import RedisDirectory
from a2c_smcp.server.run import address_of, listen, serving
from tests.balancer import Balancer, exchange
from tests.conftest import Hub

__all__ = ["STEADY", "Front", "serving_node"]

STEADY = Pace(lease=60, patience=10)
"""For tests in which no node is to be lost, on a machine that may be busy."""


@asynccontextmanager
async def serving_node(
    store: str,
    prefix: str,
    name: str,
    *,
    pace: Pace = STEADY,
    limits: dict[str, Any] | None = None,
    tls: Path | None = None,
    **settings: Any,
) -> AsyncIterator[Hub]:
    """With `tls`, a folder that has `cert.pem` and `cert-key.pem`, everybody reaches it over TLS, other nodes too."""
    listener = listen("127.0.0.1", 0)
    url = f"{'https' if tls else 'http'}://{address_of(listener)}"
    directory = RedisDirectory(store, node=name, node_url=url, prefix=prefix, pace=pace)
    app = create_app(Settings(directory=directory, limits=Limits(**(limits or {})), **settings))
    files = {"tls_cert": tls / "cert.pem", "tls_key": tls / "cert-key.pem"} if tls else {}
    async with serving(app, listener, **files):
        yield Hub([app], [address_of(listener)])


class Front(Balancer):
    """Sessions are opened at the first of its nodes. Every other request goes to the next node in turn."""

    def __init__(self, hubs: Sequence[Hub]) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()
        self._home, *_ = self._all = [urlsplit(hub.url).netloc for hub in hubs]
        self._turn = itertools.cycle([*self._all[1:], self._home])

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request: its connection is not kept, so that the next one comes on another."""
        with closing(writer), suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            address = next(self._turn) if b"sid=" in head.partition(b"\r\n")[0] else self._home
            self.asked[address] += 1
            there, back = await asyncio.open_connection(*address.split(":"))
            back.write(head if b"upgrade: websocket" in head.lower() else _without_keeping(head))
            await exchange((reader, back), (there, writer))


def _without_keeping(head: bytes) -> bytes:
    first, *fields = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    kept = [field for field in fields if not field.lower().startswith(b"connection:")]
    return b"\r\n".join([first, *kept, b"connection: close", b"", b""])
