"""The inputs of an imported configuration: those that its files define, and new ones for variables and for secrets.

In those files, the command of an input is the id of an editor command, not a program. It becomes an input that is asked
for; it is never run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from a2c_smcp.computer.imports.programs import Fills, Machine
from a2c_smcp.computer.inputs.definitions import ids_in
from a2c_smcp.computer.secrets.literals import Literals
from a2c_smcp.computer.secrets.replace import Secret
from a2c_smcp.computer.secrets.rules import hints_at_secret, is_public
from a2c_smcp.errors import ConfigError
from a2c_smcp.mcp_host.config.servers import parse_input, unknown_fields

__all__ = ["Definitions", "Ids", "Variables"]


class Definitions:
    """The definitions of all inputs of an import."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self._given: dict[str, dict[str, Any]] = {}
        self.notes: list[str] = []

    def take(self, inputs: Iterable[Any]) -> None:
        """Take in the definitions of a file. An unusable one becomes an input that is asked for, with a note."""
        for each in inputs:
            id_ = each.get("id") if isinstance(each, Mapping) else None
            if not isinstance(id_, str):
                self.notes.append("an input without an id is left out")
            elif id_ not in self._given:
                self._ids.taken.add(id_)
                self._given[id_] = self._definition(id_, dict(each))

    def complete(
        self, variables: Mapping[str, dict[str, Any]], servers: Iterable[dict[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        """The definitions of all inputs that the servers refer to: given, for variables, for secrets, or made up."""
        used = ids_in(list(servers))
        unused = sorted(self._given.keys() - used)
        self.notes += [f"inputs.{id_} is used by no server, left out" for id_ in unused]
        return {id_: self._one(id_, variables) for id_ in sorted(used)}

    def _one(self, id_: str, variables: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        if definition := self._given.get(id_) or variables.get(id_):
            return self._without_secret(definition)
        if secret := self._ids.secrets.get(id_):
            return _asked(id_, secret.description, password=True)
        self.notes.append(f"input {id_!r} is not defined in the file: it will be asked for")
        return _asked(id_, id_, password=hints_at_secret(id_))

    def _definition(self, id_: str, given: dict[str, Any]) -> dict[str, Any]:
        about = str(given.get("description") or id_)
        if given.get("type") == "command":
            command = Literals().text(str(given.get("command")))
            self.notes.append(
                f"inputs.{id_} was a command ({command}) that is its editor's, and is not run: it will be asked for"
            )
            return _asked(id_, about, password=True)
        try:
            unknown = unknown_fields(parse_input(given))
        except ConfigError as error:
            self.notes.append(f"{error.about}: it will be asked for instead")
            return _asked(id_, about, password=bool(given.get("password")) or hints_at_secret(id_))
        self.notes += [f"inputs.{id_}.{path} is an unknown field and is left out" for path in unknown]
        return {key: value for key, value in given.items() if key not in unknown}

    def _without_secret(self, definition: dict[str, Any]) -> dict[str, Any]:
        """Take the default out of a password: it is a secret. Its id is that of the input."""
        default, id_ = definition.get("default"), definition["id"]
        if not (definition.get("password") and default):
            return definition
        self._ids.give_own(id_, f"inputs.{id_}.default", default)
        if id_ in self._ids.keep:
            return definition
        return {key: value for key, value in definition.items() if key != "default"}


def _asked(id_: str, description: str, *, password: bool) -> dict[str, Any]:
    definition = {"id": id_, "type": "promptString", "description": description}
    return {**definition, "password": True} if password else definition


_REFERENCE = re.compile(r"\$\{(?:(?P<kind>[A-Za-z]+):(?!-))?(?P<name>[^}:]*)(?P<rest>:[^}]*)?\}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Variables:
    """The variables that the files refer to. Each becomes an input of the same name."""

    def __init__(self, machine: Machine, separator: str) -> None:
        self._machine, self._separator = machine, separator
        self._defaults: dict[str, str | None] = {}
        self._names: dict[str, str] = {}
        self.unknown: set[str] = set()
        """References that only the other program understands."""

    def fill(self, value: Any, fills: Fills, folder: Path) -> Any:
        """A copy with inputs, or values, in place of the variables that the program `fills` in."""
        if isinstance(value, Mapping):
            return {key: self.fill(each, fills, folder) for key, each in value.items()}
        if isinstance(value, list):
            return [self.fill(each, fills, folder) for each in value]
        if not isinstance(value, str):
            return value
        return _REFERENCE.sub(lambda found: self._one(found, fills, folder), value)

    def definitions(self) -> dict[str, dict[str, Any]]:
        """The inputs for variables, by id. Defaults that may be secrets are still in them."""
        return {id_: self._definition(id_, name) for id_, name in self._names.items()}

    def _one(self, found: re.Match[str], fills: Fills, folder: Path) -> str:
        if found["kind"] == "input":
            return found[0]
        name, rest = found["name"], found["rest"] or ""
        is_bare, is_variable = found["kind"] is None, _VARIABLE.fullmatch(name) is not None
        known = self._known(folder).get(name) if is_bare and not rest and Fills.EDITOR in fills else None
        if known:
            return known
        if is_variable and found["kind"] == "env" and not rest and Fills.ENV in fills:
            return self._variable(name, None)
        if is_variable and is_bare and rest[:2] in ("", ":-") and Fills.BARE in fills:
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


class Ids:
    """The secrets of an import, each with the id of an input: the same ids whenever the same file is converted.

    Secrets whose ids are in `keep` are not replaced.
    """

    def __init__(self, keep: Iterable[str] = ()) -> None:
        self.keep = frozenset(keep)
        self.secrets: dict[str, Secret] = {}
        self.taken: set[str] = set()
        """Ids of existing inputs."""
        self._of: dict[tuple[str, str], str] = {}

    def secret(self, server: str, place: str, name: str, value: str) -> str:
        """What replaces a secret of a server: a reference to its input, or the secret itself if it is kept."""
        if self._is_in_kept(server, value):
            return value
        id_ = self._of.get((server, value)) or self._give(
            id_of(server, name), place, value, f"{name.strip('-')} of {server}"
        )
        self._of[server, value] = id_
        return value if id_ in self.keep else f"${{input:{id_}}}"

    def give_own(self, id_: str, place: str, value: str) -> None:
        """Take in the secret value of an existing input."""
        self.secrets[id_] = Secret(id_, place, value)

    def _give(self, wanted: str, place: str, value: str, description: str) -> str:
        """An id for this value: the wanted one, unless another value has it."""
        id_, number = wanted, 1
        while id_ in self.taken or (id_ in self.secrets and self.secrets[id_].value != value):
            number += 1
            id_ = f"{wanted}-{number}"
        self.secrets.setdefault(id_, Secret(id_, place, value, description))
        return id_

    def _is_in_kept(self, server: str, value: str) -> bool:
        return any(
            owner == server and id_ in self.keep and value != whole and value in whole
            for (owner, whole), id_ in self._of.items()
        )


def id_of(server: str, name: str) -> str:
    """`github` and `GITHUB_TOKEN` make `github-token`; `tracker` and `Authorization` make `tracker-authorization`."""
    first, second = _words(server), _words(name)
    return second if second.startswith(f"{first}-") or not first else f"{first}-{second}"


def _words(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
