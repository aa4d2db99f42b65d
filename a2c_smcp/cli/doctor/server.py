"""Checks of a Server: its health, certificate and clock, our key, and the protocol version."""

from __future__ import annotations

import errno
import os
import platform
import shlex
import socket
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from a2c_smcp.cli.doctor.findings import Finding, ServerProbe, Situation, ok, problem, warning
from a2c_smcp.cli.errors import WrongUse, explained, sentence
from a2c_smcp.cli.setup_files import read_input_values, values_file_of
from a2c_smcp.computer.configuration.definitions import is_secret
from a2c_smcp.computer.configuration.resolver import backend
from a2c_smcp.computer.content.user_skills import UserFolder, UserSkills, skill_home
from a2c_smcp.errors import Unavailable, VersionMismatch
from a2c_smcp.files import default_folder, remedy_for
from a2c_smcp.installation import EXTRAS, install_command
from a2c_smcp.mcp_host.config.servers import CommandInput
from a2c_smcp.protocol.names import PROTOCOL_VERSION

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
