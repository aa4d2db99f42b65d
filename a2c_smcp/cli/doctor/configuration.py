"""Checks of the configuration files: errors in them, missing commands, inputs without a value, and secrets."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from a2c_smcp.cli.doctor.findings import Finding, Situation, ok, problem, warning
from a2c_smcp.cli.errors import WrongUse, sentence
from a2c_smcp.cli.setup_files import (
    HOW_TO_MAKE_ONE,
    NAMES,
    git_would_take,
    read_input_values,
    setup_options,
    values_file_of,
    yaml_hint,
)
from a2c_smcp.computer.configuration.definitions import CommandFailed, InputError, MissingInputs, ids_in
from a2c_smcp.computer.configuration.files import Configuration, read_all, read_configuration
from a2c_smcp.computer.configuration.resolver import Inputs, argv_of
from a2c_smcp.computer.consent.decision import warnings_about
from a2c_smcp.computer.consent.rules import read_policy
from a2c_smcp.computer.secrets.mask import SHORTEST
from a2c_smcp.computer.secrets.rules import SecretKind, names_of_secrets, secrets_line
from a2c_smcp.errors import ConfigError, SMCPError
from a2c_smcp.files import remedy_for
from a2c_smcp.mcp_host.config.sandbox import ANY
from a2c_smcp.mcp_host.config.servers import CommandInput, MCPServerConfig, SandboxSettings, StdioConfig, source
from a2c_smcp.mcp_host.failures import NotSandboxed
from a2c_smcp.mcp_host.processes.environment import child_environment, find_command, why_not_found
from a2c_smcp.mcp_host.processes.landlock import BY_ABI
from a2c_smcp.mcp_host.processes.plan import Possible, Sandbox, planned, possible

if TYPE_CHECKING:
    from a2c_smcp.computer.computer import Computer

_NODE = "Install Node.js, which brings it: https://nodejs.org"
_UV = "Install uv, which brings it: https://docs.astral.sh/uv"
_INSTALL = {
    "npx": _NODE,
    "npm": _NODE,
    "node": _NODE,
    "uvx": _UV,
    "uv": _UV,
    "docker": "Install Docker: https://docs.docker.com/get-started/get-docker",
    "python": "Write python3, or the full path of a Python.",
}
_ELSE = "Install it, or write its full path into the file."


def read(paths: Iterable[Path]) -> tuple[Configuration, tuple[str, ...]]:
    """Read the files, as far as they can be used. Returns the configuration and all errors."""
    configuration, faults = Configuration(), list[str]()
    usable = [path for path in paths if not _add_faults(path, faults)]
    try:
        configuration = read_all(usable)
    except ConfigError as error:
        faults.append(error.about)
    return configuration, tuple(faults)


def _add_faults(path: Path, faults: list[str]) -> bool:
    for attempt in (read_configuration, setup_options):
        try:
            attempt(path)
        except ConfigError as error:
            parts = error.details.get("faults")
            faults += [f"{path}: {fault}" for fault in parts] if parts else [error.about]
            return True
    return False


def files(situation: Situation) -> Iterator[Finding]:
    if not situation.files and situation.probe is None:
        yield problem(
            f"There is no {', '.join(NAMES[:-1])} or {NAMES[-1]} here.", yaml_hint(Path.cwd()) or HOW_TO_MAKE_ONE
        )
    for fault in situation.faults:
        yield problem(sentence(fault), "Correct that field; docs/computer.md has an example of each.")
    for words in situation.configuration.unknown:
        yield warning(sentence(words), "Correct or remove it.")
    if situation.files and not situation.faults:
        names = ", ".join(path.name for path in situation.files)
        if servers := situation.configuration.servers:
            yield ok(f"{names}: MCP servers {', '.join(servers)}.")
        else:
            yield warning(f"{names} has no MCP servers.", HOW_TO_MAKE_ONE)
    for path in situation.aside:
        yield warning(
            f"{path.name} is not used, since {situation.files[0].name} is there.", f"--config {path.name} does."
        )


def commands(situation: Situation) -> Iterator[Finding]:
    """Check that the commands of stdio servers exist. Commands that contain inputs are not checked."""
    programs = [server for server in _enabled(situation) if isinstance(server, StdioConfig)]
    known = [server for server in programs if not ids_in([_command(server), server.server_parameters.cwd or ""])]
    faults = [fault for server in known if (fault := _command_fault(server))]
    yield from faults
    if known and not faults:
        yield ok(f"All are there: {', '.join(sorted({_command(server) for server in known}))}.")


def _command(server: StdioConfig) -> str:
    return server.server_parameters.command


def _command_fault(server: StdioConfig) -> Finding | None:
    asked, command = server.server_parameters, _command(server)
    cwd = Path(asked.cwd or os.curdir)
    if not cwd.is_dir():
        return problem(f"The folder of server {server.name!r}, {str(cwd)!r}, is not there.", "Make it, or correct cwd.")
    if find_command(command, str(cwd.absolute()), child_environment(os.environ, asked.env)):
        return None
    fault = f"{command!r} of server {server.name!r} {why_not_found(command)}."
    return problem(fault, _INSTALL.get(command, _ELSE))


async def inputs(situation: Situation) -> list[Finding]:
    """Check that the inputs that servers use have a value. The commands of inputs are not run."""
    if exposed := [remedy for path in map(values_file_of, situation.files) if (remedy := remedy_for(path))]:
        return [problem("The values of inputs can be changed by others on this machine.", f"Run: {exposed[0]}")]
    try:
        values = read_input_values(None, situation.files)
    except WrongUse as error:
        return [problem(error.what, error.remedy)]
    findings = await _used_inputs(situation, Inputs(situation.configuration.inputs.values(), values=values))
    exposed_files = [file for file in map(values_file_of, situation.files) if file.is_file() and git_would_take(file)]
    for file in exposed_files:
        findings.append(warning(f"git does not ignore {file.name}, which holds secrets.", "Put it on .gitignore."))
    return findings


async def _used_inputs(situation: Situation, known: Inputs) -> list[Finding]:
    """Inputs that are not defined, and those without a value; or that all have one."""
    users = {id_: server.name for server in _enabled(situation) for id_ in sorted(ids_in(source(server)))}
    defined = [id_ for id_ in users if id_ in situation.configuration.inputs]
    undefined = [
        problem(f"Server {server!r} uses input {id_!r}, which is not defined.", "Define it under inputs.")
        for id_, server in users.items()
        if id_ not in defined
    ]
    missing = [finding for id_ in defined if (finding := await _input(id_, known, situation))]
    if defined and not missing:
        return [*undefined, ok(f"All have a value, or a command for it: {', '.join(defined)}.")]
    return [*undefined, *missing]


async def _input(id_: str, known: Inputs, situation: Situation) -> Finding | None:
    definition = situation.configuration.inputs[id_]
    if isinstance(definition, CommandInput):
        return _command_input(definition)
    try:
        await known.resolve([id_], server="")
    except MissingInputs as error:
        fault, remedy = error.problems[id_]
        is_asked = not situation.no_input and any(entry.id == id_ and entry.source is None for entry in known.list())
        level = warning if is_asked else problem
        asked = " On a terminal it is asked for." if is_asked else ""
        return level(sentence(f"Input {id_!r}: {fault}"), sentence(f"{remedy[:1].upper()}{remedy[1:]}") + asked)
    return None


def _command_input(definition: CommandInput) -> Finding | None:
    try:
        command = argv_of(definition.command, definition.args)[0]
    except CommandFailed as error:
        return problem(f"Input {definition.id!r}: {error}.", "Correct it in the file.")
    if find_command(command, os.curdir, os.environ) is None:
        return problem(f"The command of input {definition.id!r} is not on PATH.", _INSTALL.get(command, _ELSE))
    return None


def _enabled(situation: Situation) -> list[MCPServerConfig]:
    return [server for server in situation.configuration.servers.values() if not server.disabled]


def secrets(situation: Situation) -> Iterator[Finding]:
    configuration = situation.configuration
    known = {name: names_of_secrets(server, configuration.inputs) for name, server in configuration.servers.items()}
    for server, secrets in known.items():
        for secret in secrets:
            if secret.kind is SecretKind.suspected:
                yield warning(
                    f"{secret.name} of server {server!r} may be a secret: it is hidden in logs, and not in results.",
                    f'Say "secrets": {json.dumps({secret.name: True})} on that server, or false if it is none.',
                )
            elif secret.is_short:
                yield warning(
                    f"{secret.name} of server {server!r} is a secret of fewer than {SHORTEST} characters: it is not"
                    " masked.",
                    "Use a longer one.",
                )
    lines = [line for server, names in known.items() if (line := secrets_line(server, names))]
    if known:
        yield ok(f"Treated as secret: {'. '.join(lines)}." if lines else "Nothing is treated as secret.")


# Checks of what an owner forbids: the policy for agents, and the sandboxes of MCP servers.

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
        rules = read_policy(path)
    except ConfigError as error:
        faults = error.details.get("faults")
        for fault in [f"{path}: {fault}" for fault in faults] if faults else [error.about]:
            yield problem(sentence(fault), f"Correct that field; {_POLICIES}")
        return
    servers = [*situation.configuration.servers] if situation.files and not situation.faults else None
    for words in warnings_about(rules, servers):
        yield warning(sentence(f"{path}: {words}"), f"If that is not meant, correct it; {_POLICIES}")
    yield ok(f"{path}: {rules}.")


def sandboxes(situation: Situation) -> Iterator[Finding]:
    """The means of this machine, and each server whose sandbox would fail or leaves something open."""
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
    for line in (*plan.warnings, *plan.obstacles) if plan else ():
        yield warning(f"{named}: {line}.", _GUIDE)
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


# Check of sign-ins: whether tokens are kept for the MCP servers that want one. No server is asked.


async def sign_in(situation: Situation) -> list[Finding]:
    """A server whose entry has `auth` needs a sign-in; of others it is only known after a sign-in."""
    servers = [
        server
        for server in _enabled(situation)
        if not isinstance(server, StdioConfig) and not _runs_command(server, situation)
    ]
    if not servers:
        return []
    signed_in = await _signed_in(situation, servers)
    missing = [server.name for server in servers if _wants_person(server) and server.name not in signed_in]
    known = [ok(f"Signed in to {', '.join(signed_in)}.")] if signed_in else []
    return known + [warning(f"Nobody is signed in to {name}.", f"a2c-smcp login {name}") for name in missing]


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
        return [server.name for server in servers if await _is_signed_in(computer, server.name)]


async def _is_signed_in(computer: Computer, name: str) -> bool:
    try:
        return await computer.owner.is_signed_in(name)
    except (SMCPError, InputError):  # it takes no sign-in, or an input has no value
        return False


def _wants_person(server: MCPServerConfig) -> bool:
    auth = None if isinstance(server, StdioConfig) else server.server_parameters.auth
    return auth is not None and not auth.is_unattended


def _runs_command(server: MCPServerConfig, situation: Situation) -> bool:
    """True if an input of the server has a command, which is not run here."""
    known = situation.configuration.inputs
    return any(id_ in known and known[id_].type == "command" for id_ in ids_in(source(server)))
