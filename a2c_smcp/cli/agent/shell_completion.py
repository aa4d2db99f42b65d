"""Shell completion for `a2c-smcp agent`: names of computers in the office, and of a computer's tools.

The Server is asked, for three seconds at most. Errors complete nothing, because a shell cannot show them. The names
come from other people's machines, and some shells evaluate what they complete: only names without any character that is
special in a shell are offered.
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
from a2c_smcp.cli import options
from a2c_smcp.cli.agent.run import AgentOptions

__all__ = ["computers", "prompts", "servers", "skills", "tools"]

_PATIENCE = 3.0
"""Seconds until completion gives up."""
_HARMLESS = re.compile(r"[\w@%+:,./][\w@%+:,./-]*", re.ASCII)

Ask = Callable[[AsyncSMCPAgentClient, str], Awaitable[list[str]]]


def computers(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a computer in the office."""

    async def ask(agent: AsyncSMCPAgentClient, office: str) -> list[str]:
        members = await agent.list_room(office)
        return [each["name"] for each in members if each["role"] == "computer"]

    return _beginning_with(incomplete, context, ask)


def tools(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a tool of the computer before it on the line."""

    async def ask(agent: AsyncSMCPAgentClient, office: str) -> list[str]:
        return [each["name"] for each in await agent.get_tools(str(context.params["computer"]))]

    return _beginning_with(incomplete, context, ask)


def servers(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of an MCP server of the computer before it on the line."""

    async def ask(agent: AsyncSMCPAgentClient, office: str) -> list[str]:
        return [each["name"] for each in await agent.get_servers(str(context.params["computer"]))]

    return _beginning_with(incomplete, context, ask)


def prompts(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a prompt of the MCP server before it on the line."""

    async def ask(agent: AsyncSMCPAgentClient, office: str) -> list[str]:
        computer, server = str(context.params["computer"]), str(context.params["server"])
        return [str(each["name"]) for each in (await agent.get_prompts(computer, server))["prompts"]]

    return _beginning_with(incomplete, context, ask)


def skills(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a skill of the computer before it on the line."""

    async def ask(agent: AsyncSMCPAgentClient, office: str) -> list[str]:
        return [each["name"] for each in await agent.get_skills(str(context.params["computer"]))]

    return _beginning_with(incomplete, context, ask)


def _beginning_with(incomplete: str, context: typer.Context, ask: Ask) -> list[str]:
    logging.disable(logging.CRITICAL)
    try:
        with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):
            names = asyncio.run(_ask_server(_given_options(context), ask))
    except Exception:  # a shell cannot show it
        return []
    return sorted(name for name in names if name.startswith(incomplete) and _HARMLESS.fullmatch(name))


def _given_options(context: typer.Context) -> AgentOptions:
    """The options of the group, which may stand before or after the subcommand."""
    before = context.parent.params if context.parent else {}
    given = {**before, **{name: value for name, value in context.params.items() if value is not None}}
    more: dict[str, Any] = {field: given.get(field) for field in ("api_key", "ca", "cert", "cert_key", "proxy")}
    return AgentOptions(
        name=given.get("name") or options.default_agent_name(),
        url=given.get("url") or options.DEFAULT_URL,
        office=given.get("office") or options.DEFAULT_OFFICE,
        log_level=given["log_level"],
        **more,
    ).with_key()


async def _ask_server(given: AgentOptions, ask: Ask) -> list[str]:
    tls = options.tls(given.ca, given.cert, given.cert_key)
    link: dict[str, Any] = {"api_key": given.api_key, "ssl": tls, "proxy": given.proxy, "list_resources": False}
    agent = AsyncSMCPAgentClient(given.name, url=given.url, office=given.office, **link)
    async with asyncio.timeout(_PATIENCE):
        async with agent:
            return await ask(agent, given.office)
