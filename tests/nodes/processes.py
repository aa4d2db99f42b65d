"""Nodes as processes: started, killed, stopped, continued, drained, and looked at from outside."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from uuid import uuid4

from a2c_smcp.server.cluster.memory import Pace
from tests.nodes.node import Plan, run
from tests.peer import PATIENCE, Peer
from tests.stage.web import fetch

__all__ = ["LIMITS", "QUICK", "Cluster", "NodeProcess", "seconds_since"]

QUICK = Pace(lease=2.0, beat=0.2, margin=0.4, patience=0.5, retry=0.1, return_grace=1.0, linger=2.0)
"""For faults that are waited for. The defaults, some seconds longer, are looked at once."""

LIMITS = {"resume_grace": 1.5}

_processes = get_context("forkserver")
_processes.set_forkserver_preload(["tests.nodes.node"])


class NodeProcess:
    """One of them."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.name = plan.name
        self.url = ""
        self._process: Any = None

    async def start(self) -> None:
        """Returns when it serves. Once it has a port it keeps that."""
        here, there = _processes.Pipe()
        self._process = _processes.Process(target=run, args=(self.plan, there), daemon=True)
        self._process.start()
        there.close()
        try:
            self.url = await asyncio.wait_for(asyncio.to_thread(here.recv), 30)
        except EOFError:
            raise AssertionError(f"node {self.name} does not start: {self.said}") from None
        finally:
            here.close()
        self.plan = replace(self.plan, port=int(self.url.rpartition(":")[2]))

    @property
    def said(self) -> str:
        return Path(self.plan.log).read_text()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)

    async def kill(self) -> None:
        """As by `kill -9`. Returns when it is gone."""
        self.signal(signal.SIGKILL)
        await self._gone()

    async def drain(self) -> int:
        """As by `kill`. How it has ended."""
        self.signal(signal.SIGTERM)
        await self._gone()
        return int(self._process.exitcode)

    async def end(self) -> None:
        if self._process and self._process.is_alive():
            self.signal(signal.SIGCONT)
            await self.kill()

    async def readiness(self) -> tuple[int, dict[str, Any]]:
        """What it tells a load balancer."""
        response = await fetch(f"{self.url}/readyz")
        return response.status, response.json

    async def until_it_is(self, status: str, seconds: float = 60) -> None:
        async with asyncio.timeout(seconds):
            while (await self.readiness())[1]["status"] != status:  # noqa: ASYNC110, it tells when it is asked
                await asyncio.sleep(0.01)

    async def _gone(self) -> None:
        await asyncio.wait_for(asyncio.to_thread(self._process.join), 30)


class Cluster:
    """Nodes on one store, and their clients."""

    def __init__(
        self,
        store: str,
        folder: Path,
        pace: Pace = QUICK,
        limits: dict[str, Any] | None = None,
        *,
        is_audited: bool = False,
        mcp_keys: Path | None = None,
        admin_key: str | None = None,
    ) -> None:
        self.nodes: list[NodeProcess] = []
        self.prefix = f"test-{uuid4().hex[:12]}:"
        self._store = store
        self._folder = folder
        self._is_audited = is_audited
        self._keys = {"mcp_keys": mcp_keys, "admin_key": admin_key}
        self._pace = pace
        self._limits = {**LIMITS, **(limits or {})}
        self._peers: list[Peer] = []

    def __iter__(self) -> Iterator[NodeProcess]:
        return iter(self.nodes)

    async def start(self, count: int) -> Sequence[NodeProcess]:
        """So many more."""
        more = [NodeProcess(self._plan(f"n{len(self.nodes) + number}")) for number in range(1, count + 1)]
        self.nodes += more
        await asyncio.gather(*(node.start() for node in more))
        return more

    async def connect(self, node: NodeProcess, role: str = "", name: str = "", office: str = "", **more: Any) -> Peer:
        """A client of a node, in an office if it has a role."""
        transports = more.pop("transports", ["websocket"])
        peer = await Peer.connect(node.url, transports=transports)
        self._peers.append(peer)
        if role:
            await peer.join(role, name, office, **more)
        return peer

    async def close_peers(self) -> None:
        peers, self._peers = self._peers, []
        for peer in peers:
            with suppress(Exception):
                await asyncio.wait_for(peer.close(), PATIENCE)

    async def close(self) -> None:
        await self.close_peers()
        for node in self.nodes:
            await node.end()

    def check_logs(self) -> None:
        """Whatever happened, nothing took a node by surprise."""
        for node in self.nodes:
            assert "Traceback" not in node.said, node.said
            assert "ERROR" not in node.said, node.said

    def _plan(self, name: str) -> Plan:
        log = str(self._folder / f"{name}-{uuid4().hex[:6]}.log")
        audit = self.audit_of(name) if self._is_audited else None
        options: dict[str, Any] = {"pace": self._pace, "limits": dict(self._limits), "audit": audit}
        return Plan(store=self._store, prefix=self.prefix, name=name, log=log, **self._keys, **options)

    def audit_of(self, name: str) -> Path:
        """The audit file of the node of this name."""
        return self._folder / f"{name}.jsonl"


@asynccontextmanager
async def cluster(store: str, folder: Path, count: int, **options: Any) -> AsyncIterator[Cluster]:
    nodes = Cluster(store, folder, **options)
    try:
        await nodes.start(count)
        yield nodes
        nodes.check_logs()
    finally:
        await nodes.close()


def seconds_since(begun: float) -> float:
    return time.monotonic() - begun
