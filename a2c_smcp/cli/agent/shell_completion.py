"""Names that a shell completes for `a2c-smcp agent`: the computers of an office, and the tools of one.

The Server is asked, for a moment at most, and whatever goes wrong completes nothing: a shell has no place for errors.
The names come from other people's machines and go onto a command line, where some shells evaluate them: only those
that mean nothing to any shell are offered.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import typer

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.cli import options as connection
from a2c_smcp.cli.agent.run import Door

__all__ = ["computers", "tools"]

_PATIENCE = 3.0
"""How long a shell waits for it all, in seconds."""
_HARMLESS = re.compile(r"[\w@%+:,./][\w@%+:,./-]*", re.ASCII)

Ask = Callable[[AsyncSMCPAgentClient, str], Awaitable[list[str]]]


def computers(context: typer.Context, incomplete: str) -> list[str]:
    """Of the office that the options and the environment name."""

    async def ask(agent: AsyncSMCPAgentClient, office: str) -> list[str]:
        members = await agent.list_room(office)
        return [each["name"] for each in members if each["role"] == "computer"]

    return _beginning_with(incomplete, context, ask)


def tools(context: typer.Context, incomplete: str) -> list[str]:
    """Of the computer that stands before."""

    async def ask(agent: AsyncSMCPAgentClient, office: str) -> list[str]:
        return [each["name"] for each in await agent.get_tools(str(context.params["computer"]))]

    return _beginning_with(incomplete, context, ask)


def _beginning_with(incomplete: str, context: typer.Context, ask: Ask) -> list[str]:
    logging.disable(logging.CRITICAL)
    try:
        with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):
            names = asyncio.run(_asked(_door(context), ask))
    except Exception:  # there is nobody to tell
        return []
    return sorted(name for name in names if name.startswith(incomplete) and _HARMLESS.fullmatch(name))


def _door(context: typer.Context) -> Door:
    """The options of the group may stand before the command or after it."""
    before = context.parent.params if context.parent else {}
    given = {**before, **{name: value for name, value in context.params.items() if value is not None}}
    options: dict[str, Any] = {field: given.get(field) for field in ("api_key", "ca", "cert", "cert_key", "proxy")}
    return Door(
        name=given.get("name") or connection.default_agent_name(),
        url=given.get("url") or connection.DEFAULT_URL,
        office=given.get("office") or connection.DEFAULT_OFFICE,
        log_level=given["log_level"],
        **options,
    ).found()


async def _asked(door: Door, ask: Ask) -> list[str]:
    tls = connection.tls(door.ca, door.cert, door.cert_key)
    options: dict[str, Any] = {"api_key": door.api_key, "ssl": tls, "proxy": door.proxy}
    agent = AsyncSMCPAgentClient(door.name, url=door.url, office=door.office, **options)
    async with asyncio.timeout(_PATIENCE):
        async with agent:
            return await ask(agent, door.office)
