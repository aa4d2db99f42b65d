"""`${VAR}`, `${env:VAR}` and what editors fill in: resolved where that is safe, otherwise turned into inputs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from a2c_smcp.computer.imports.programs import Fills, Machine
from a2c_smcp.computer.secrets.names import hints_at_secret, is_public

__all__ = ["Variables"]

_REFERENCE = re.compile(r"\$\{(?:(?P<kind>[A-Za-z]+):(?!-))?(?P<name>[^}:]*)(?P<rest>:[^}]*)?\}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Variables:
    """The variables that were met, each an input of its own name."""

    def __init__(self, machine: Machine, separator: str) -> None:
        self._machine, self._separator = machine, separator
        self._defaults: dict[str, str | None] = {}
        self._names: dict[str, str] = {}
        self.unknown: set[str] = set()
        """References that only the program they were written for understands."""

    def fill(self, value: Any, fills: Fills, folder: Path) -> Any:
        """A copy with inputs, or values, in place of the variables that `fills` says are meant."""
        if isinstance(value, Mapping):
            return {key: self.fill(each, fills, folder) for key, each in value.items()}
        if isinstance(value, list):
            return [self.fill(each, fills, folder) for each in value]
        if not isinstance(value, str):
            return value
        return _REFERENCE.sub(lambda found: self._one(found, fills, folder), value)

    def definitions(self) -> dict[str, dict[str, Any]]:
        """The inputs, by id. A default whose variable is named like a secret is still in it."""
        return {id_: self._definition(id_, name) for id_, name in self._names.items()}

    def _one(self, found: re.Match[str], fills: Fills, folder: Path) -> str:
        kind, name, rest = found["kind"], found["name"], found["rest"] or ""
        is_variable = _VARIABLE.fullmatch(name) is not None
        if kind == "input":
            return found[0]
        if kind is None and Fills.EDITOR in fills and (known := self._known(folder).get(name)) and not rest:
            return known
        if kind == "env" and Fills.ENV in fills and is_variable and not rest:
            return self._variable(name, None)
        if kind is None and Fills.BARE in fills and is_variable and (not rest or rest.startswith(":-")):
            return self._variable(name, rest[2:] if rest else None)
        if fills:
            self.unknown.add(found[0])
        return found[0]

    def _variable(self, name: str, default: str | None) -> str:
        value = self._machine.environ.get(name)
        if is_public(name) and (known := value or default):
            return known
        id_, number = name, 1
        while None not in (default, self._defaults.get(id_)) and self._defaults[id_] != default:
            number += 1
            id_ = f"{name}-{number}"
        self._names[id_] = name
        self._defaults[id_] = self._defaults.get(id_) if default is None else default
        return f"${{input:{id_}}}"

    def _definition(self, id_: str, name: str) -> dict[str, Any]:
        definition: dict[str, Any] = {"id": id_, "type": "promptString", "description": f"{name} of the environment"}
        if (default := self._defaults[id_]) is not None:
            definition["default"] = default
        return {**definition, "password": True} if hints_at_secret(name) else definition

    def _known(self, folder: Path) -> dict[str, str]:
        return {
            "workspaceFolder": str(folder),
            "workspaceFolderBasename": folder.name,
            "userHome": str(self._machine.home),
            "pathSeparator": self._separator,
            "/": self._separator,
        }
