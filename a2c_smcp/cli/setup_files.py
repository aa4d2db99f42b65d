"""The file that sets up this machine, its `server` table, and the file with values of inputs beside it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from a2c_smcp.cli.errors import WrongUse
from a2c_smcp.cli.options import DEFAULT_OFFICE
from a2c_smcp.cli.up_state import UpState
from a2c_smcp.computer.configuration.text import read_data
from a2c_smcp.errors import ConfigError
from a2c_smcp.private_files import remedy_for
from a2c_smcp.protocol.names import fault_in

__all__ = [
    "DEFAULT_HOST",
    "DEFAULT_PORT",
    "HOW_TO_MAKE_ONE",
    "NAMES",
    "SetupOptions",
    "find_setups",
    "git_would_take",
    "missing_setup",
    "read_input_values",
    "setup_options",
    "values_file_of",
    "yaml_hint",
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
    """Those in a folder. The first is used.

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
    """What to do about a setup file in YAML; empty if there is none."""
    names = [f"{Path(name).stem}{suffix}" for name in NAMES for suffix in (".yaml", ".yml")]
    found = next((name for name in names if (folder / name).is_file()), None)
    return f"YAML is not read: write {found} as {Path(found).stem}.json, in JSON." if found else ""


def setup_options(file: Path, given: Mapping[str, Any] | None = None) -> SetupOptions:
    """The `server` table of the file; values that are `given` win. Raises `ConfigError` for wrong settings."""
    data = read_data(file)
    said = data.get("server", {}) if isinstance(data, dict) else {}
    if faults := _faults(said):
        raise ConfigError(f"{file}: {'; '.join(faults)}", faults=faults)
    return SetupOptions(**{**said, **{key: value for key, value in (given or {}).items() if value is not None}})


def _faults(table: Any) -> list[str]:
    if not isinstance(table, dict):
        return ["server: must be a table of settings"]
    return [f"server.{key}: {fault}" for key, value in table.items() if (fault := _fault(key, value))]


def _fault(key: str, value: Any) -> str | None:
    if key not in _SETTINGS:
        return f"no such setting, there are {', '.join(_SETTINGS)}; MCP servers belong under `servers`"
    return _SETTINGS[key](value)


def _host_fault(value: Any) -> str | None:
    return None if isinstance(value, str) and value else "must be an address of this machine, such as 127.0.0.1"


def _port_fault(value: Any) -> str | None:
    is_port = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 65535
    return None if is_port else "must be a number from 0 to 65535"


_SETTINGS: dict[str, Callable[[Any], str | None]] = {
    "host": _host_fault,
    "port": _port_fault,
    "office": fault_in,
    "name": fault_in,
}


_NOT_IGNORED = 1
_PATIENCE = 5.0
_REMEDY = 'Write an object into it, such as {"token": "…"}.'


def values_file_of(config: Path) -> Path:
    """Where values of inputs are kept if there is no keyring: `a2c.inputs.json` for `a2c.json`."""
    return config.with_name(f"{config.stem}.inputs.json")


def git_would_take(path: Path) -> bool:
    """Whether `git add` would add a file that holds secrets; false where there is no repository or no git."""
    folder = path.absolute().parent
    if not any((each / ".git").exists() for each in (folder, *folder.parents)):
        return False
    command = ["git", "-C", str(folder), "check-ignore", "--quiet", "--no-index", path.name]
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        asked = subprocess.run(  # noqa: S603, git and the name of our own file
            command, env=surroundings, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == _NOT_IGNORED


def read_input_values(given: Path | None, configs: Iterable[Path] = ()) -> dict[str, Any]:
    """The values from the files beside these configurations and from the given file, which wins. Raises `WrongUse`."""
    kept = [path for path in map(values_file_of, configs) if path.is_file()]
    return {name: value for path in [*kept, *([given] if given else [])] for name, value in _read(path).items()}


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
