"""The checks of `a2c-smcp doctor`: configuration files, what an owner forbids, sign-ins, the Server, this machine."""

from __future__ import annotations

import errno
import json
import os
import platform
import shlex
import socket
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from a2c_smcp.cli.doctor.findings import Finding, ServerProbe, Situation, ok, problem, warning
from a2c_smcp.cli.errors import WrongUse, explained, sentence
from a2c_smcp.cli.setup_files import (
    HOW_TO_MAKE_ONE,
    NAMES,
    git_would_take,
    read_input_values,
    setup_options,
    values_file_of,
    yaml_hint,
)
from a2c_smcp.computer.configuration.definitions import CommandFailed, InputError, MissingInputs, ids_in, is_secret
from a2c_smcp.computer.configuration.files import Configuration, read_all, read_configuration
from a2c_smcp.computer.configuration.resolver import Inputs, argv_of, backend
from a2c_smcp.computer.consent.decision import warnings_about
from a2c_smcp.computer.consent.rules import read_policy
from a2c_smcp.computer.content.user_skills import UserFolder, UserSkills, skill_home
from a2c_smcp.computer.secrets.mask import SHORTEST
from a2c_smcp.computer.secrets.rules import SecretKind, names_of_secrets, secrets_line
from a2c_smcp.errors import ConfigError, SMCPError, Unavailable, VersionMismatch
from a2c_smcp.files import default_folder, remedy_for
from a2c_smcp.installation import EXTRAS, install_command
from a2c_smcp.mcp_host.config.sandbox import ANY
from a2c_smcp.mcp_host.config.servers import CommandInput, MCPServerConfig, SandboxSettings, StdioConfig, source
from a2c_smcp.mcp_host.failures import NotSandboxed
from a2c_smcp.mcp_host.processes.environment import child_environment, find_command, why_not_found
from a2c_smcp.mcp_host.processes.landlock import BY_ABI
from a2c_smcp.mcp_host.processes.plan import Possible, Sandbox, planned, possible
from a2c_smcp.protocol.names import PROTOCOL_VERSION

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


# Checks of a Server: its health, certificate and clock, our key, and the protocol version.

_DAY = 24 * 3600
_SOON = 14
_SKEW = 30.0
"""Seconds between the clocks from which on tokens may be refused as not valid yet, or as expired."""

_RENEW = "The operator of the Server has to renew it."
_VOUCH = "--ca names a file of certificates that vouch for it."
_FAULTS = {
    9: "Set the clock of this machine, or wait until it begins.",
    10: f"{_RENEW} If it should be valid, look at the clock of this machine.",
    18: _VOUCH,
    19: _VOUCH,
    20: _VOUCH,
    62: "Use the name that it is for in --url.",
    64: "Use the name that it is for in --url.",
}
"""Remedies by OpenSSL's error numbers."""


def health(situation: Situation) -> Iterator[Finding]:
    probe = situation.probe
    if probe is None:
        return
    if probe.health is None and isinstance(probe.refusal, Unavailable):
        yield _explained(probe)
    elif probe.health == 200:
        yield ok(f"{probe.place} answers.")
    else:
        status = probe.health or "nothing"
        yield warning(
            f"{probe.place} answers /healthz with {status}.",
            "Something else may be there, or a proxy that lets only /socket.io/ pass: look whether --url is right.",
        )


def certificate(situation: Situation) -> Iterator[Finding]:
    shown = situation.probe.certificate if situation.probe else None
    if shown is None:
        return
    days = (shown.expires - time.time()) / _DAY
    if shown.fault:
        yield problem(f"The certificate is not accepted: {shown.fault}.", _FAULTS.get(shown.number, _VOUCH))
    elif days < _SOON:
        yield warning(f"The certificate expires in {days:.0f} days.", _RENEW)
    else:
        yield ok(f"The certificate is valid for {days:.0f} days.")


def clock(situation: Situation) -> Iterator[Finding]:
    ahead = situation.probe.ahead if situation.probe else None
    if ahead is None:
        return
    if abs(ahead) > _SKEW:
        side = "ahead of" if ahead > 0 else "behind"
        yield warning(
            f"This clock is {abs(ahead):.0f} s {side} the Server's.",
            "Let both be set by the network (NTP): keys and tokens that expire are refused too early or too late.",
        )
    else:
        yield ok("This clock and the Server's agree.")


def key(situation: Situation) -> Iterator[Finding]:
    probe = situation.probe
    if probe is None or isinstance(probe.refusal, VersionMismatch):
        return
    if probe.exposure:
        what, remedy = probe.exposure
        yield warning(f"{what}.", remedy)
    if probe.refusal is None:
        yield ok("The Server accepts the key." if probe.has_key else "The Server lets us in without a key.")
    elif not isinstance(probe.refusal, Unavailable):
        yield _explained(probe)
    elif probe.health is not None:
        yield problem(
            f"{probe.place} answers, but there is no way in.",
            "If there is a proxy in between, it has to pass /socket.io/ on, websockets too.",
        )


def protocol(situation: Situation) -> Iterator[Finding]:
    probe = situation.probe
    if probe is None:
        return
    if isinstance(probe.refusal, VersionMismatch):
        yield _explained(probe)
    elif probe.refusal is None:
        yield ok(f"The Server speaks version {PROTOCOL_VERSION} with us.")


def _explained(probe: ServerProbe) -> Finding:
    assert probe.refusal
    failure = explained(probe.refusal, {"url": probe.place, "office": ""})
    return problem(sentence(failure.what), failure.remedy)


# Checks of this machine: Python, extras, keyring, port, and the folder for kept files.

OLDEST = (3, 11)


def python(situation: Situation) -> Iterator[Finding]:
    version = f"Python {platform.python_version()} on {platform.system()}"
    if sys.version_info < OLDEST:
        yield problem(f"{version} is too old.", f"Install Python {'.'.join(map(str, OLDEST))} or newer.")
    else:
        yield ok(f"{version}.")


def extras(situation: Situation) -> Iterator[Finding]:
    missing = [name for name, modules in EXTRAS.items() if any(find_spec(module) is None for module in modules)]
    needed = [name for name in missing if name in _needed(situation)]
    for name in needed:
        yield problem(f"The extra {name!r} is not installed, and needed here.", install_command(name))
    yield ok(f"Installed: {', '.join(name for name in EXTRAS if name not in missing)}.")
    if spared := [name for name in missing if name not in needed]:
        yield ok(f"Not installed, and not needed here: {', '.join(spared)}.")


def _needed(situation: Situation) -> set[str]:
    """The extras that are needed here; that of the Server unless there is one elsewhere."""
    servers = situation.configuration.servers.values()
    uses_vrl = any(server.vrl for server in servers)
    needed = {"cli": True, "server": not situation.probe, "computer": servers, "vrl": uses_vrl}
    return {extra for extra, is_needed in needed.items() if is_needed}


def keyring(situation: Situation) -> Iterator[Finding]:
    """Check that secrets can be kept, except those that a command prints."""
    place, kept, known = backend(), _kept_in_files(situation), situation.configuration.inputs.values()
    asked = [input_.id for input_ in known if is_secret(input_) and not isinstance(input_, CommandInput)]
    secrets = [id_ for id_ in asked if id_ not in kept]
    if place:
        yield ok(f"Secrets can be kept in {place}.")
    elif kept and not secrets:
        yield ok(f"There is no keyring here; {', '.join(sorted({*kept.values()}))} holds the secrets.")
    elif secrets:
        yield warning(
            f"There is no keyring here to keep {', '.join(secrets)} in.",
            "Answer at each start, set A2C_INPUT_…, or install the extra 'keyring' and a keyring of this system.",
        )
    else:
        yield ok("There is no keyring here, and no secret to keep in one.")


def _kept_in_files(situation: Situation) -> dict[str, str]:
    """Inputs whose values are in a file beside a configuration, with the name of that file."""
    with suppress(WrongUse):  # the check of inputs reports a file that cannot be read
        files = {path: values_file_of(path).name for path in situation.files}
        return {id_: name for path, name in files.items() for id_ in read_input_values(None, [path])}
    return {}


def port(situation: Situation) -> Iterator[Finding]:
    """Check that the port is free, unless a Server elsewhere is used."""
    if situation.up:
        yield ok(f"a2c-smcp up is running at {situation.up.url}.")
    if situation.probe:
        return
    place = f"Port {situation.port} of {situation.host}"
    error = _bind(situation.host, situation.port)
    if error is None:
        yield ok(f"{place} is free.")
    elif error.errno == errno.EADDRINUSE:
        yield problem(
            f"{place} is used by another program.",
            f"Give another --port, 0 for a free one; if it is a Server, --url http://{situation.host}:{situation.port}"
            " looks at it.",
        )
    else:
        yield problem(f"{place} cannot be had: {error.strerror}.", "Give an address of this machine as host.")


def _bind(host: str, number: int) -> OSError | None:
    try:
        *kind, _, address = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(*kind) as probe:
            if os.name == "posix":
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return error
    return None


def state(situation: Situation) -> Iterator[Finding]:
    folder = default_folder()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        yield problem(
            f"Nothing can be written into {folder}, where keys are kept.",
            f"Make {nearest} a folder that you may write to, or set XDG_STATE_HOME to one.",
        )
    elif exposed := _exposed(folder):
        others = f" and {len(exposed) - 1} more" if len(exposed) > 1 else ""
        level = problem if any(map(remedy_for, exposed)) else warning
        yield level(
            f"{exposed[0]}{others} can be used by others on this machine.",
            f"chmod -R go-rwx {shlex.quote(str(folder))}",
        )
    else:
        yield ok(f"{folder} is yours alone.")


def skills(situation: Situation) -> Iterator[Finding]:
    """The owner's skills; nothing if there are none."""
    folder = UserFolder(skill_home())
    look = folder.look(UserSkills())
    for fault in look.faults:
        yield warning(f"Left out: {fault}.", "Correct that, or remove the folder.")
    if look.skills:
        yield ok(f"{folder.path} has {len(look.skills)} skills: {', '.join(sorted(look.skills))}.")


def _exposed(folder: Path) -> list[Path]:
    """Files that others than their owner can use."""
    if os.name != "posix" or not folder.exists():
        return []
    return [path for path in (folder, *sorted(folder.rglob("*"))) if _rights_of_others(path)]


def _rights_of_others(path: Path) -> int:
    try:
        return path.lstat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    except OSError:
        return 0
