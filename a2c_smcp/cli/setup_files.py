"""Files of this machine: the one that sets it up, values of inputs, what `up` keeps, and which computers are frozen."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from a2c_smcp.cli.errors import Failed, WrongUse, file_error
from a2c_smcp.cli.options import DEFAULT_OFFICE, SHORTEST_KEY
from a2c_smcp.cli.suggestions import command_line
from a2c_smcp.computer.configuration.files import Configuration, read_all, read_data
from a2c_smcp.computer.consent.freeze import FreezeFile, FreezeState
from a2c_smcp.errors import ConfigError, SMCPError
from a2c_smcp.files import default_folder, lock, private_folder, remedy_for
from a2c_smcp.protocol.names import fault_in
from a2c_smcp.web import is_loopback

if TYPE_CHECKING:
    from a2c_smcp.cli.terminal import Terminal
    from a2c_smcp.devices.identity import DeviceRole

# The files that `a2c-smcp up` keeps for each setup: the API key of its Server, and where it runs.
#
# Only their owner can read them. A setup is running while a process holds the lock on its `.running` file; the lock
# ends with the process, so a file without a lock means nothing. Asking whether a setup runs takes the lock for a
# moment: therefore a process that wants to run the setup tries for the lock several times.

_TRIES, _PAUSE = 5, 0.05


@dataclass(frozen=True, kw_only=True)
class UpInfo:
    """Where an `a2c-smcp up` runs."""

    url: str
    office: str
    name: str
    pid: int


class AlreadyUp(Exception):
    """Another process runs this setup. `info` is `None` if it has not written yet where."""

    def __init__(self, info: UpInfo | None) -> None:
        self.info = info
        super().__init__("it is running already")


class RunningUp(NamedTuple):
    """An `a2c-smcp up` of this user that runs now, the API key of its Server, and the file that holds it."""

    info: UpInfo
    key: str
    key_file: Path


def running_ups() -> Iterator[RunningUp]:
    """All that run now."""
    for path in sorted((default_folder() / "up").glob("*.running")):
        if info := _info_in(path):
            key_file = path.with_suffix(".key")
            with suppress(OSError, ValueError):
                yield RunningUp(info, key_file.read_text("ascii").strip(), key_file)


def find_running_up(url: str) -> RunningUp | None:
    """The one that serves this URL. `localhost` means any loopback address."""
    return next((up for up in running_ups() if _is_same_place(url, up.info.url)), None)


def _is_same_place(url: str, other: str) -> bool:
    try:
        wanted, running = urlsplit(url), urlsplit(other)
        is_port = (wanted.scheme, wanted.port or 80, wanted.path.strip("/")) == (running.scheme, running.port, "")
    except ValueError:  # not a URL: connecting to it reports that
        return False
    is_any_loopback = wanted.hostname == "localhost" and is_loopback(running.hostname or "")
    return is_port and (is_any_loopback or wanted.hostname == running.hostname)


class UpState:
    """The kept files of one setup, found by a digest of the real path of its configuration file."""

    def __init__(self, config: Path, folder: Path | None = None) -> None:
        digest = hashlib.sha256(os.fsencode(config.resolve())).hexdigest()[:16]
        self._folder, self._name = folder or default_folder(), digest
        self.key_file = self._folder / "up" / f"{digest}.key"

    @property
    def has_run(self) -> bool:
        """True if this user has run the setup before."""
        return self.key_file.exists()

    def key(self, new: Callable[[], str]) -> str:
        """The kept API key; at first a new one, which is kept. Raises `OSError`."""
        private_folder(self._folder, "up")
        descriptor = os.open(self.key_file, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+", encoding="ascii", errors="replace") as file:
            os.chmod(self.key_file, 0o600)  # noqa: PTH101, the file may have existed
            known = file.read().strip()
            if len(known) >= SHORTEST_KEY and known.isascii() and known.isprintable():
                return known
            known = new()
            file.seek(0)
            file.truncate()
            file.write(f"{known}\n")
        return known

    @contextmanager
    def claimed(self) -> Iterator[Callable[[UpInfo], None]]:
        """Hold the lock of the setup; yield a function that writes where it runs. Raises `AlreadyUp` or `OSError`."""
        path = private_folder(self._folder, "up") / f"{self._name}.running"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not _lock_patiently(descriptor):
                raise AlreadyUp(_read_state(descriptor))
            os.ftruncate(descriptor, 0)

            def write(info: UpInfo) -> None:
                os.lseek(descriptor, 0, os.SEEK_SET)
                os.write(descriptor, json.dumps(asdict(info)).encode())

            yield write
            os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)

    def info(self) -> UpInfo | None:
        """Where the setup runs now; `None` if it does not, or has not written it yet."""
        return _info_in(self._folder / "up" / f"{self._name}.running")


def _info_in(path: Path) -> UpInfo | None:
    """The state that the process with the lock has written; `None` if no process holds it."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return None if lock(descriptor) else _read_state(descriptor)
    finally:
        os.close(descriptor)


def _lock_patiently(descriptor: int) -> bool:
    for _ in range(_TRIES - 1):
        if lock(descriptor):
            return True
        time.sleep(_PAUSE)
    return lock(descriptor)


def _read_state(descriptor: int) -> UpInfo | None:
    with suppress(ValueError, TypeError, OSError):
        return UpInfo(**json.loads(os.read(descriptor, 65536)))
    return None


def set_freeze(computer: str | None, state: FreezeState) -> list[str]:
    """Freeze computers of this machine, or release them, whether they run or not. Returns their names.

    Without a name, all that were started here are frozen, and the only frozen one is released. One whose file cannot be
    used stops none of the others. Raises `Failed` and `WrongUse`.
    """
    folder = default_folder()
    files: dict[str, FreezeFile] = {}
    faults: list[str] = []
    for name in [computer] if computer else FreezeFile.computers(folder) or [platform.node()]:
        try:
            file = FreezeFile(folder, name)
        except (OSError, ConfigError) as error:
            faults.append(f"computer {name!r}: {error}")
        else:
            if state.is_frozen or file.read().is_frozen:
                files[name] = file
    if not state.is_frozen and len(files) > 1:
        raise WrongUse(f"Several computers are frozen here: {', '.join(files)}", "--name NAME releases one.")
    for name, file in files.items():
        try:
            file.write(state)
        except ConfigError as error:
            faults.append(f"computer {name!r}: {error.about}")
    if faults:
        raise Failed(f"not done for {'; '.join(faults)}", f"Make {folder} writable for its owner alone, and try again.")
    return list(files)


# Lines to paste at the other end, so that it knows this device: a key that is bound to it, or an entry of trust.


def own_fingerprint(terminal: Terminal) -> str | None:
    """The fingerprint of this computer, made on first use; `None` without the extra `devices`, or if none can be kept.

    It may have to wait for the keyring.
    """
    try:
        from a2c_smcp.devices.identity import IdentityStore
    except ModuleNotFoundError:
        return None
    try:
        return IdentityStore("computer").load_or_make().identity.fingerprint
    except ConfigError as error:
        terminal.show(f"this device cannot be paired: {error.about}", "yellow")
        return None


def trust_line(role: DeviceRole, name: str, office: str, url: str, fingerprint: str) -> str:
    """For the other side of sealed calls: knows this device beforehand."""
    return command_line("device", "trust", fingerprint, role, name, "--office", office, "--url", url)


def pairing_lines(fingerprint: str, name: str, office: str, url: str, *, has_own_server: bool) -> list[str]:
    """Lines that pair this computer with a Server that others run, and with agents; only with --log-level info."""
    if not logging.getLogger().isEnabledFor(logging.INFO):
        return []
    # For the operator of the Server: makes a key that only this device can use.
    scope = ("--role", "computer", "--name", name, "--office", office)
    key = command_line("key", "--principal", name, *scope, "--device", fingerprint)
    trust = trust_line("computer", name, office, url, fingerprint)
    return [
        *([] if has_own_server else [f"to bind its key to this device, at the Server:\n  {key}"]),
        f"to know this device beforehand, at the agent:\n  {trust}",
    ]


NAMES = ("a2c.toml", "a2c.json", "mcp.json")
"""Names of the setup file. If there are several, the first is used, unless another one was run before."""

HOW_TO_MAKE_ONE = (
    "`a2c-smcp import` makes one of the servers that another program has, and --config names a file elsewhere, "
    "such as an mcp.json."
)
DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 7000


@dataclass(frozen=True, kw_only=True)
class SetupOptions:
    """The `server` table: where the Server listens, the office, and the name of this computer."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    office: str = DEFAULT_OFFICE
    name: str = platform.node()


def find_setups(folder: Path) -> list[Path]:
    """The setup files in a folder. The first is used.

    One that `up` has run before goes first: a program that can write files here, such as a tool of an agent, could
    otherwise put another one in its place for the next start.
    """
    here = [folder / name for name in NAMES if (folder / name).is_file()]
    return sorted(here, key=lambda file: not UpState(file).has_run)


def missing_setup(folder: Path) -> Path | None:
    """A file that `up` ran here before and that is gone, if `up` has not run another one here either."""
    known = [folder / name for name in NAMES if UpState(folder / name).has_run]
    return None if any(file.is_file() for file in known) else next(iter(known), None)


def yaml_hint(folder: Path) -> str:
    """The remedy for a setup file in YAML; empty if there is none."""
    names = [f"{Path(name).stem}{suffix}" for name in NAMES for suffix in (".yaml", ".yml")]
    file = next((name for name in names if (folder / name).is_file()), None)
    return f"YAML is not read: write {file} as {Path(file).stem}.json, in JSON." if file else ""


def read_setups(paths: Iterable[Path]) -> Configuration:
    """The MCP servers and inputs of these files. Raises `WrongUse`."""
    try:
        return read_all(paths)
    except SMCPError as error:
        raise file_error(error) from None


def setup_options(file: Path, given: Mapping[str, Any] | None = None) -> SetupOptions:
    """The `server` table of the file; values that are `given` win. Raises `ConfigError` for wrong settings."""
    data = read_data(file)
    table = data.get("server", {}) if isinstance(data, dict) else {}
    if faults := _faults(table):
        raise ConfigError(f"{file}: {'; '.join(faults)}", faults=faults)
    return SetupOptions(**{**table, **{key: value for key, value in (given or {}).items() if value is not None}})


def _faults(table: Any) -> list[str]:
    if not isinstance(table, dict):
        return ["server: must be a table of settings"]
    return [f"server.{key}: {fault}" for key, value in table.items() if (fault := _fault(key, value))]


def _fault(key: str, value: Any) -> str | None:
    if key in ("office", "name"):
        return fault_in(value)
    if key == "host":
        return None if isinstance(value, str) and value else "must be an address of this machine, such as 127.0.0.1"
    if key == "port":
        return None if type(value) is int and 0 <= value <= 65535 else "must be a number from 0 to 65535"
    known = ", ".join(field.name for field in fields(SetupOptions))
    return f"no such setting, there are {known}; MCP servers belong under `servers`"


_NOT_IGNORED = 1
_PATIENCE = 5.0
_REMEDY = 'Write an object into it, such as {"token": "…"}.'


def values_file_of(config: Path) -> Path:
    """Where values of inputs are kept if there is no keyring: `a2c.inputs.json` for `a2c.json`."""
    return config.with_name(f"{config.stem}.inputs.json")


def git_would_take(path: Path) -> bool:
    """True if `git add` would add a file that holds secrets; false where there is no repository or no git."""
    folder = path.absolute().parent
    if not any((parent / ".git").exists() for parent in (folder, *folder.parents)):
        return False
    command = ["git", "-C", str(folder), "check-ignore", "--quiet", "--no-index", path.name]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(  # noqa: S603, git and the name of our own file
            command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == _NOT_IGNORED


def read_input_values(inputs: Path | None, configs: Iterable[Path] = ()) -> dict[str, Any]:
    """The values from the files beside these configurations and from --inputs, which wins. Raises `WrongUse`."""
    kept = [path for path in map(values_file_of, configs) if path.is_file()]
    return {name: value for path in [*kept, *([inputs] if inputs else [])] for name, value in _read(path).items()}


def _read(path: Path) -> dict[str, Any]:
    if remedy := remedy_for(path):
        raise WrongUse(f"{path} can be changed by others on this machine, and is not used", f"Run: {remedy}")
    try:
        values = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise WrongUse(f"{path}: cannot be read: {error.strerror}", "Name a file that can.") from None
    except ValueError:
        raise WrongUse(f"{path}: is no JSON", _REMEDY) from None
    if not isinstance(values, dict):
        raise WrongUse(f"{path}: is no JSON object", _REMEDY)
    return values
