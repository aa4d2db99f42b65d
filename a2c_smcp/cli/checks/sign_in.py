"""Check of sign-ins: whether tokens are kept for the MCP servers that want one. No server is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from a2c_smcp.cli.checks.findings import Finding, Situation, ok, warning
from a2c_smcp.cli.errors import WrongUse
from a2c_smcp.cli.setup_files import read_input_values
from a2c_smcp.computer.inputs.definitions import InputError, ids_in
from a2c_smcp.errors import SMCPError
from a2c_smcp.mcp_host.config.servers import MCPServerConfig, StdioConfig, source

if TYPE_CHECKING:
    from a2c_smcp.computer.computer import Computer

__all__ = ["sign_in"]


async def sign_in(situation: Situation) -> list[Finding]:
    """A server whose entry has `auth` needs a sign-in; of others it is only known after a sign-in."""
    servers = [
        each
        for each in situation.configuration.servers.values()
        if not each.disabled and not isinstance(each, StdioConfig) and not _runs_command(each, situation)
    ]
    if not servers:
        return []
    signed_in = await _signed_in(situation, servers)
    missing = [each.name for each in servers if _wants_person(each) and each.name not in signed_in]
    found = [ok(f"Signed in to {', '.join(signed_in)}.")] if signed_in else []
    return found + [warning(f"Nobody is signed in to {name}.", f"a2c-smcp login {name}") for name in missing]


async def _signed_in(situation: Situation, servers: Sequence[MCPServerConfig]) -> list[str]:
    from a2c_smcp.computer.computer import Computer

    try:
        computer = Computer("doctor", values=read_input_values(None, situation.files))
    except WrongUse:  # the check of inputs reports it
        return []
    computer.define_inputs(situation.configuration.inputs.values())
    for server in servers:
        computer.add_server(server)
    async with computer:
        return [each.name for each in servers if await _is_signed_in(computer, each.name)]


async def _is_signed_in(computer: Computer, name: str) -> bool:
    try:
        return await computer.is_signed_in(name)
    except (SMCPError, InputError):  # it takes no sign-in, or an input has no value
        return False


def _wants_person(server: MCPServerConfig) -> bool:
    auth = None if isinstance(server, StdioConfig) else server.server_parameters.auth
    return auth is not None and not auth.is_unattended


def _runs_command(server: MCPServerConfig, situation: Situation) -> bool:
    """Whether an input of the server has a command, which is not run here."""
    known = situation.configuration.inputs
    return any(id_ in known and known[id_].type == "command" for id_ in ids_in(source(server)))
