"""The one file that sets up this machine: where it is found, and what its `server` table says."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from a2c_smcp.cli.options import DEFAULT_OFFICE
from a2c_smcp.cli.up_state import Standing
from a2c_smcp.computer.configuration.files import read_data
from a2c_smcp.errors import ConfigError
from a2c_smcp.protocol.names import fault_in

__all__ = [
    "DEFAULT_HOST",
    "DEFAULT_PORT",
    "HOW_TO_MAKE_ONE",
    "NAMES",
    "Place",
    "find_setups",
    "lost_setup",
    "place_of",
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
