"""Checks of this machine: Python, extras, keyring, port, and the folder for kept files."""

from __future__ import annotations

import errno
import os
import platform
import shlex
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from a2c_smcp.cli.checks.findings import Finding, Situation, ok, problem, warning
from a2c_smcp.cli.errors import WrongUse
from a2c_smcp.cli.setup_files import read_input_values, values_file_of
from a2c_smcp.computer.inputs.definitions import is_secret
from a2c_smcp.computer.inputs.sources import backend
from a2c_smcp.computer.skills.user_folder import UserFolder, UserSkills, skill_home
from a2c_smcp.installation import EXTRAS, install_command
from a2c_smcp.mcp_host.config.servers import CommandInput
from a2c_smcp.private_files import default_folder, remedy_for

__all__ = ["extras", "keyring", "port", "python", "skills", "state"]

OLDEST = (3, 11)


def python(situation: Situation) -> Iterator[Finding]:
    found = f"Python {platform.python_version()} on {platform.system()}"
    if sys.version_info < OLDEST:
        yield problem(f"{found} is too old.", f"Install Python {'.'.join(map(str, OLDEST))} or newer.")
    elif sys.platform == "win32":
        yield warning(f"{found} is not tested.", "Where something fails, try it under WSL.")
    else:
        yield ok(f"{found}.")


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
    needed = {"cli": True, "server": not situation.probe, "computer": servers, "vrl": any(each.vrl for each in servers)}
    return {extra for extra, is_needed in needed.items() if is_needed}


def keyring(situation: Situation) -> Iterator[Finding]:
    """Whether secrets can be kept. Those that a command prints need not be."""
    found, kept, known = backend(), _kept_in_files(situation), situation.configuration.inputs.values()
    asked = [each.id for each in known if is_secret(each) and not isinstance(each, CommandInput)]
    secrets = [id_ for id_ in asked if id_ not in kept]
    if found:
        yield ok(f"Secrets can be kept in {found}.")
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
    """Whether the port is free, unless a Server elsewhere is used."""
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
        found = problem if any(map(remedy_for, exposed)) else warning
        yield found(
            f"{exposed[0]}{others} can be used by others on this machine.",
            f"chmod -R go-rwx {shlex.quote(str(folder))}",
        )
    else:
        yield ok(f"{folder} is yours alone.")


def skills(situation: Situation) -> Iterator[Finding]:
    """The owner's skills; nothing if there are none."""
    folder = UserFolder(skill_home())
    found = folder.look(UserSkills())
    for fault in found.faults:
        yield warning(f"Left out: {fault}.", "Correct that, or remove the folder.")
    if found.skills:
        yield ok(f"{folder.path} has {len(found.skills)} skills: {', '.join(sorted(found.skills))}.")


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
