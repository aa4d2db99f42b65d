"""One node in a process of its own, at a pace that a test chooses."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from a2c_smcp.cli.serving.mounts import MCPOptions, mount_offices
from a2c_smcp.server import Limits, Settings, create_app
from a2c_smcp.server.auth.api_keys import DefaultAuthenticationProvider
from a2c_smcp.server.cluster.memory import Pace
from a2c_smcp.server.cluster.redis import RedisDirectory
from a2c_smcp.server.run import address_of, listen, serving

__all__ = ["Plan", "run"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a node is told. With port 0 it finds one."""

    store: str
    prefix: str
    name: str
    log: str
    pace: Pace = field(default_factory=Pace)
    limits: dict[str, Any] = field(default_factory=dict)
    port: int = 0
    audit: Path | None = None
    admin_key: str | None = None
    mcp_keys: Path | None = None
    """A keys file: then each office is an MCP server as well."""


def run(plan: Plan, welcome: Connection) -> None:
    """Serves until SIGTERM. Its URL is sent when it is ready."""
    logging.basicConfig(filename=plan.log, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(_serve(plan, welcome))


async def _serve(plan: Plan, welcome: Connection) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    listener = listen("127.0.0.1", plan.port)
    url = f"http://{address_of(listener)}"
    directory = RedisDirectory(plan.store, node=plan.name, node_url=url, prefix=plan.prefix, pace=plan.pace)
    auth = DefaultAuthenticationProvider(keys_file=plan.mcp_keys) if plan.mcp_keys else None
    limits, admin_key = Limits(**plan.limits), plan.admin_key
    app = create_app(Settings(directory=directory, limits=limits, audit=plan.audit, auth=auth, admin_key=admin_key))
    os.environ["XDG_STATE_HOME"] = f"{plan.log}-state"
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, app.hub.reload)
    own_listener = mount_offices(app, url, MCPOptions()) if auth else None
    async with serving(app, listener, own_listener=own_listener):
        welcome.send(url)
        await stop.wait()
