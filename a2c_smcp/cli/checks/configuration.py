"""Checks of the configuration files: errors in them, missing commands, inputs without a value, and secrets."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from a2c_smcp.cli.checks.findings import Finding, Situation, ok, problem, warning
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
from a2c_smcp.computer.configuration.files import Configuration, read_all, read_configuration
from a2c_smcp.computer.inputs.definitions import CommandFailed, MissingInputs, ids_in
from a2c_smcp.computer.inputs.resolver import Inputs
from a2c_smcp.computer.inputs.sources import argv_of
from a2c_smcp.computer.secrets import SHORTEST
from a2c_smcp.computer.secrets.config import names_of_secrets, secrets_line
from a2c_smcp.computer.secrets.rules import SecretKind
from a2c_smcp.errors import ConfigError
from a2c_smcp.mcp_host.config.servers import CommandInput, MCPServerConfig, StdioConfig, source
from a2c_smcp.mcp_host.processes.environment import child_environment, find_command, why_not_found
from a2c_smcp.private_files import remedy_for

__all__ = ["commands", "files", "inputs", "read", "secrets"]

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
    found, faults = Configuration(), list[str]()
    usable = [path for path in paths if not _add_faults(path, faults)]
    try:
        found = read_all(usable)
    except ConfigError as error:
        faults.append(error.about)
    return found, tuple(faults)


def _add_faults(path: Path, faults: list[str]) -> bool:
    for attempt in (read_configuration, setup_options):
        try:
            attempt(path)
        except ConfigError as error:
            found = error.details.get("faults")
            faults += [f"{path}: {fault}" for fault in found] if found else [error.about]
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
        yield _counted(situation.files, situation.configuration)
    for path in situation.aside:
        yield warning(
            f"{path.name} is not used, since {situation.files[0].name} is there.", f"--config {path.name} does."
        )


def _counted(paths: Iterable[Path], found: Configuration) -> Finding:
    names = ", ".join(path.name for path in paths)
    if not found.servers:
        return warning(f"{names} has no MCP servers.", HOW_TO_MAKE_ONE)
    return ok(f"{names}: MCP servers {', '.join(found.servers)}.")


def commands(situation: Situation) -> Iterator[Finding]:
    """Whether the commands of stdio servers exist. Commands that contain inputs are not checked."""
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
    """Whether the inputs that servers use have a value. The commands of inputs are not run."""
    if exposed := [remedy for path in map(values_file_of, situation.files) if (remedy := remedy_for(path))]:
        return [problem("The values of inputs can be changed by others on this machine.", f"Run: {exposed[0]}")]
    try:
        values = read_input_values(None, situation.files)
    except WrongUse as error:
        return [problem(error.what, error.remedy)]
    found = await _used_inputs(situation, Inputs(situation.configuration.inputs.values(), values=values))
    return [*found, *_committed(situation.files)]


async def _used_inputs(situation: Situation, known: Inputs) -> list[Finding]:
    """Inputs that are not defined, and those without a value; or that all have one."""
    users = {id_: server.name for server in _enabled(situation) for id_ in sorted(ids_in(source(server)))}
    defined = [id_ for id_ in users if id_ in situation.configuration.inputs]
    undefined = [_undefined(id_, server) for id_, server in users.items() if id_ not in defined]
    found = [await _input(id_, known, situation) for id_ in defined]
    missing = [finding for finding in found if finding]
    if defined and not missing:
        return [*undefined, ok(f"All have a value, or a command for it: {', '.join(defined)}.")]
    return [*undefined, *missing]


def _committed(paths: Iterable[Path]) -> list[Finding]:
    """Files with values of inputs that git does not ignore."""
    found = [file for file in map(values_file_of, paths) if file.is_file() and git_would_take(file)]
    return [
        warning(f"git does not ignore {file.name}, which holds secrets.", "Put it on .gitignore.") for file in found
    ]


def _undefined(id_: str, server: str) -> Finding:
    return problem(f"Server {server!r} uses input {id_!r}, which is not defined.", "Define it under inputs.")


async def _input(id_: str, known: Inputs, situation: Situation) -> Finding | None:
    definition = situation.configuration.inputs[id_]
    if isinstance(definition, CommandInput):
        return _command_input(definition)
    try:
        await known.resolve([id_], server="")
    except MissingInputs as error:
        fault, remedy = error.problems[id_]
        is_asked = not situation.no_input and any(each.id == id_ and each.source is None for each in known.list())
        found = warning if is_asked else problem
        asked = " On a terminal it is asked for." if is_asked else ""
        return found(sentence(f"Input {id_!r}: {fault}"), sentence(f"{remedy[:1].upper()}{remedy[1:]}") + asked)
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
    found = situation.configuration
    known = {name: names_of_secrets(server, found.inputs) for name, server in found.servers.items()}
    for server, names in known.items():
        for each in names:
            if each.kind is SecretKind.suspected:
                yield warning(
                    f"{each.name} of server {server!r} may be a secret: it is hidden in logs, and not in results.",
                    f'Say "secrets": {json.dumps({each.name: True})} on that server, or false if it is none.',
                )
            elif each.is_short:
                yield warning(
                    f"{each.name} of server {server!r} is a secret of fewer than {SHORTEST} characters: it is not"
                    " masked.",
                    "Use a longer one.",
                )
    lines = [line for server, names in known.items() if (line := secrets_line(server, names))]
    if known:
        yield ok(f"Treated as secret: {'. '.join(lines)}." if lines else "Nothing is treated as secret.")
