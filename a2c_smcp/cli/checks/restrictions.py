"""Checks of what an owner forbids: the policy for agents, and the sandboxes of MCP servers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from a2c_smcp.cli.checks.findings import Finding, Situation, ok, problem, warning
from a2c_smcp.cli.errors import sentence
from a2c_smcp.computer.inputs.definitions import ids_in
from a2c_smcp.computer.policy.advice import warnings_about
from a2c_smcp.computer.policy.rules import read_policy
from a2c_smcp.errors import ConfigError
from a2c_smcp.mcp_host.config.sandbox import ANY
from a2c_smcp.mcp_host.config.servers import SandboxSettings, StdioConfig, source
from a2c_smcp.mcp_host.failures import NotSandboxed
from a2c_smcp.mcp_host.processes.environment import child_environment, find_command
from a2c_smcp.mcp_host.processes.landlock import BY_ABI
from a2c_smcp.mcp_host.sandbox.plan import Possible, Sandbox, planned, possible
from a2c_smcp.private_files import remedy_for

__all__ = ["policy", "sandboxes"]

_POLICIES = "docs/guides/policy.md has an example of each."
_NEVER = (
    "It cannot tell hosts apart; a server with a port has UDP to every address, and one that may write to a folder can "
    "change the modes of all your files; CPU time and disk space are not limited."
)
_GUIDE = "docs/guides/sandbox.md says what a sandbox needs."


def policy(situation: Situation) -> Iterator[Finding]:
    """Nothing is found if no file is named: a policy is not needed."""
    if (path := situation.policy) is None:
        return
    if remedy := remedy_for(path):
        yield problem(f"{path} can be changed by others on this machine, and is not used.", f"Run: {remedy}")
    try:
        found = read_policy(path)
    except ConfigError as error:
        faults = error.details.get("faults")
        for fault in [f"{path}: {each}" for each in faults] if faults else [error.about]:
            yield problem(sentence(fault), f"Correct that field; {_POLICIES}")
        return
    servers = [*situation.configuration.servers] if situation.files and not situation.faults else None
    for words in warnings_about(found, servers):
        yield warning(sentence(f"{path}: {words}"), f"If that is not meant, correct it; {_POLICIES}")
    yield ok(f"{path}: {found}.")


def sandboxes(situation: Situation) -> Iterator[Finding]:
    """What is possible here, and each server whose sandbox would fail or leaves something open."""
    can = possible()
    yield ok(_possible(can))
    for server in situation.configuration.servers.values():
        if isinstance(server, StdioConfig) and server.sandbox and not server.disabled:
            yield from _of_server(server, server.sandbox, can)


def _possible(can: Possible) -> str:
    if not can.is_linux:
        return "This system has no sandbox for MCP servers; only Linux has one."
    if not can.landlock:
        return "This kernel has no Landlock, and so no sandbox for MCP servers."
    known = [what for version, (_, what) in BY_ABI.items() if version <= can.landlock]
    sockets = "kinds of sockets" if can.filter else "no kinds of sockets"
    can_limit = f"A sandbox can limit {', '.join(known)} (Landlock {can.landlock}), {sockets}, memory and processes."
    return f"{can_limit} {_NEVER}"


def _of_server(server: StdioConfig, settings: SandboxSettings, can: Possible) -> Iterator[Finding]:
    named = f"The sandbox of server {server.name!r}"
    if ids_in([source(server)["sandbox"], server.server_parameters.command, server.server_parameters.cwd or ""]):
        return
    try:
        plan = _planned(server, settings, can)
    except NotSandboxed as error:
        yield problem(f"{named} cannot be made, so it does not start: {error.about}.", _GUIDE)
        return
    for each in plan.warnings if plan else ():
        yield warning(f"{named}: {each}.", _GUIDE)
    if settings.write == ANY or any(plan and plan.allows("write", str(place)) for place in (Path.home(), Path("/"))):
        yield warning(
            f"{named} lets it write to your home folder, so it can change what other programs run.",
            "Name only the folders that it needs in sandbox.write.",
        )


def _planned(server: StdioConfig, settings: SandboxSettings, can: Possible) -> Sandbox | None:
    asked = server.server_parameters
    cwd, env = os.path.abspath(asked.cwd or os.curdir), child_environment(os.environ, asked.env)  # noqa: PTH100
    command = find_command(asked.command, cwd, env)
    if command is None:  # the check of commands reports it
        return None
    return planned(settings, command=command, args=asked.args, env=env, configured=asked.env or {}, cwd=cwd, can=can)
