"""Inputs of other programs as ours. A command of theirs is a name inside an editor: it is asked for, never run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from a2c_smcp.computer.imports.naming import Ids
from a2c_smcp.computer.inputs.render import ids_in
from a2c_smcp.computer.secrets.literals import Literals
from a2c_smcp.computer.secrets.names import hints_at_secret
from a2c_smcp.errors import ConfigError
from a2c_smcp.mcp_host.config.servers import parse_input, unknown_fields

__all__ = ["Definitions"]


class Definitions:
    """The inputs that are defined, and those that have to be."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self._given: dict[str, dict[str, Any]] = {}
        self.notes: list[str] = []

    def take(self, inputs: Iterable[Any]) -> None:
        """The definitions of a file. What cannot be used is asked for like any other text, and told."""
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
        """The definitions of all inputs that the servers mention: given, or of variables, of secrets, of nobody."""
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
            self.notes.append(f"{error.message.removeprefix(f'{error.opening}: ')}: it will be asked for instead")
            return _asked(id_, about, password=bool(given.get("password")) or hints_at_secret(id_))
        self.notes += [f"inputs.{id_}.{path} means nothing here, left out" for path in unknown]
        return {key: value for key, value in given.items() if key not in unknown}

    def _without_secret(self, definition: dict[str, Any]) -> dict[str, Any]:
        """A default of a password is a secret like any other; the id of its input is its own."""
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
