"""The one file that sets up this machine: where it is found, and what its `server` table says."""

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
from a2c_smcp.cli.up_state import Standing
from a2c_smcp.computer.configuration.files import read_data
from a2c_smcp.computer.private_files import remedy_for
from a2c_smcp.errors import ConfigError
from a2c_smcp.protocol.names import fault_in

__all__ = [
    "DEFAULT_HOST",
    "DEFAULT_PORT",
    "HOW_TO_MAKE_ONE",
    "NAMES",
    "Place",
    "beside",
    "find_setups",
    "is_open_to_git",
    "lost_setup",
    "place_of",
    "read_values",
    "yaml_in",
]

NAMES = ("a2c.toml", "a2c.json", "mcp.json")
"""What it may be called. Of several the first is used, unless another has been run before."""

HOW_TO_MAKE_ONE = (
    "`a2c-smcp import` makes one of the servers that another program has, and --config names a file elsewhere, "
    "such as an mcp.json."
)
DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 7000


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the Server listens, and who sits in which of its offices."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    office: str = DEFAULT_OFFICE
    name: str = platform.node()


def find_setups(folder: Path) -> list[Path]:
    """Those in a folder. The first is used.

    One that `up` has run before goes first: whoever can write files here, such as an agent with a tool for that, could
    otherwise put another one in its place for the next start.
    """
    here = [folder / name for name in NAMES if (folder / name).is_file()]
    return sorted(here, key=lambda file: not Standing(file).has_run)


def lost_setup(folder: Path) -> Path | None:
    """One that `up` has run before and that is gone, where no other has taken its place with the owner's word."""
    known = [folder / name for name in NAMES if Standing(folder / name).has_run]
    return None if any(file.is_file() for file in known) else next(iter(known), None)


def yaml_in(folder: Path) -> str:
    """What to do about a file that would be used if it were not YAML; empty if there is none."""
    names = [f"{Path(name).stem}{suffix}" for name in NAMES for suffix in (".yaml", ".yml")]
    found = next((name for name in names if (folder / name).is_file()), None)
    return f"YAML is not read: write {found} as {Path(found).stem}.json, in JSON." if found else ""


def place_of(file: Path, given: Mapping[str, Any] | None = None) -> Place:
    """What is given goes before what the file says. Raises `ConfigError` for a table with anything else in it."""
    data = read_data(file)
    said = data.get("server", {}) if isinstance(data, dict) else {}
    if faults := _faults(said):
        raise ConfigError(f"{file}: {'; '.join(faults)}", faults=faults)
    return Place(**{**said, **{key: value for key, value in (given or {}).items() if value is not None}})


def _faults(table: Any) -> list[str]:
    if not isinstance(table, dict):
        return ["server: must be a table of settings"]
    return [f"server.{key}: {fault}" for key, value in table.items() if (fault := _fault(key, value))]


def _fault(key: str, value: Any) -> str | None:
    if key not in _SETTINGS:
        return f"no such setting, there are {', '.join(_SETTINGS)}; MCP servers stand under `servers`"
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


def beside(config: Path) -> Path:
    """Where the values of a configuration are kept if there is no keyring: `a2c.inputs.json` for `a2c.json`."""
    return config.with_name(f"{config.stem}.inputs.json")


def is_open_to_git(path: Path) -> bool:
    """Whether `git add` would take a file that holds secrets. Where there is no git, nobody knows, and it is no."""
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


def read_values(given: Path | None, configs: Iterable[Path] = ()) -> dict[str, Any]:
    """The values in all of them; what is given wins. Raises `WrongUse`."""
    kept = [path for path in map(beside, configs) if path.is_file()]
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
