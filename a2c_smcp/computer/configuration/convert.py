"""Converts servers and inputs of other programs into ours: in the shape of 000, with inputs for variables and secrets.

Whatever cannot be converted is in the notes, each a sentence for the owner.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from a2c_smcp.computer.configuration.definitions import ids_in
from a2c_smcp.computer.configuration.programs import PLAIN, Document, Fills, Machine
from a2c_smcp.computer.secrets.replace import Secret, replace_secrets
from a2c_smcp.computer.secrets.rules import Literals, hints_at_secret, is_public
from a2c_smcp.errors import ConfigError
from a2c_smcp.mcp_host.config.servers import BaseServerConfig, parse_input, parse_server, unknown_fields

# The inputs of an imported configuration: those that its files define, and new ones for variables and for secrets.
#
# In those files, the command of an input is the id of an editor command, not a program. It becomes an input that is
# asked for; it is never run.


class Definitions:
    """The definitions of all inputs of an import."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self._given: dict[str, dict[str, Any]] = {}
        self.notes: list[str] = []

    def take(self, inputs: Iterable[Any]) -> None:
        """Take in the definitions of a file. An unusable one becomes an input that is asked for, with a note."""
        for definition in inputs:
            id_ = definition.get("id") if isinstance(definition, Mapping) else None
            if not isinstance(id_, str):
                self.notes.append("an input without an id is left out")
            elif id_ not in self._given:
                self._ids.taken.add(id_)
                self._given[id_] = self._definition(id_, dict(definition))

    def referred_to(
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
            return [self.fill(item, fills, folder) for item in value]
        if not isinstance(value, str):
            return value
        return _REFERENCE.sub(lambda found: self._one(found, fills, folder), value)

    def definitions(self) -> dict[str, dict[str, Any]]:
        """The inputs for variables, by id. Defaults that may be secrets are still in them."""
        return {id_: self._definition(id_, name) for id_, name in self._names.items()}

    def _one(self, found: re.Match[str], fills: Fills, folder: Path) -> str:
        if found["kind"] == "input":
            return found[0]
        if filled := self._filled(found["kind"], found["name"], found["rest"] or "", fills, folder):
            return filled
        if fills:
            self.unknown.add(found[0])
        return found[0]

    def _filled(self, kind: str | None, name: str, rest: str, fills: Fills, folder: Path) -> str | None:
        if kind is None and not rest and (known := self._known(folder, fills).get(name)):
            return known
        if not _VARIABLE.fullmatch(name):
            return None
        if kind == "env" and not rest and Fills.ENV in fills:
            return self._variable(name, None)
        if kind is None and rest[:2] in ("", ":-") and Fills.BARE in fills:
            return self._variable(name, rest[2:] if rest else None)
        return None

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

    def _known(self, folder: Path, fills: Fills) -> dict[str, str]:
        """The variables of an editor."""
        if Fills.EDITOR not in fills:
            return {}
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
        """The replacement of a server's secret: a reference to its input, or the secret itself if it is kept."""
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


_HINTS = {
    "alwaysAllow": "tool_meta with auto_apply is what lets tools run here",
    "autoApprove": "tool_meta with auto_apply is what lets tools run here",
    "disabledTools": "forbidden_tools is what hides tools here",
    "enabled": "disabled is what keeps a server from starting here",
    "envFile": "its variables have to stand under env",
}
_LEAVE = "its tools ask; set it yourself in the file that is written, if they need not"
_OTHER_MEANING = ("timeout", "sse_read_timeout")  # milliseconds, or for calls, according to the program


@dataclass(frozen=True)
class Conversion:
    """The result of a conversion. `refused` are servers that cannot be used, with the reason."""

    servers: Mapping[str, dict[str, Any]] = field(repr=False)
    inputs: Mapping[str, dict[str, Any]] = field(repr=False)
    secrets: tuple[Secret, ...]
    kept: frozenset[str]
    refused: Mapping[str, str]
    notes: tuple[str, ...]

    def values(self, servers: Iterable[str]) -> dict[str, str]:
        """The values of the inputs that replace secrets of these servers. They have to be stored elsewhere."""
        used = ids_in([self.servers[name] for name in servers])
        return {secret.id: secret.value for secret in self.secrets if secret.id in used - self.kept}


def convert(documents: Iterable[Document], machine: Machine, keep: Iterable[str] = ()) -> Conversion:
    """Convert all servers of these files; the first file wins. `keep` are ids of secrets that are not replaced."""
    return _Converter(machine, frozenset(keep)).run(list(documents))


class _Converter:
    def __init__(self, machine: Machine, keep: frozenset[str]) -> None:
        self._ids = Ids(keep)
        self._variables = Variables(machine, os.sep)
        self._definitions = Definitions(self._ids)
        self._servers: dict[str, dict[str, Any]] = {}
        self._refused: dict[str, str] = {}
        self._origins: dict[str, Document] = {}
        self._notes: list[str] = []

    def run(self, documents: list[Document]) -> Conversion:
        for document in documents:
            self._definitions.take(self._filled(list(document.inputs), document))
        for document in documents:
            self._take(document)
        for reference in sorted(self._variables.unknown):
            self._notes.append(f"{reference} stays as it is: only the program it was written for knows what it means")
        inputs = self._definitions.referred_to(self._variables.definitions(), self._servers.values())
        return Conversion(
            self._servers,
            inputs,
            tuple(self._ids.secrets.values()),
            self._ids.keep,
            self._refused,
            (*self._notes, *self._definitions.notes),
        )

    def _take(self, document: Document) -> None:
        self._notes += document.notes
        if document.left_out:
            self._notes.append(f"not about MCP servers, left out: {', '.join(document.left_out)}")
        for name, server in document.servers.items():
            if name in self._origins:
                self._notes.append(f"{name}: taken from {self._origins[name].path}, not from {document.path}")
                continue
            self._origins[name] = document
            try:
                self._servers[name] = self._server(name, server, document)
            except ConfigError as error:
                self._refused[name] = error.reason

    def _server(self, name: str, server: Any, document: Document) -> dict[str, Any]:
        raw = self._without_other_meanings(name, server, document) if isinstance(server, dict) else server
        raw = _as_text(self._filled(raw, document))
        config = cast("BaseServerConfig", parse_server(raw, name))
        unknown = unknown_fields(config)
        self._notes += [_means_nothing(f"servers.{name}.{path}") for path in unknown]
        entry = self._without_leave(name, _in_shape(raw, config, {*unknown}))
        place = f"servers.{name}"
        entry["server_parameters"] = replace_secrets(
            entry["server_parameters"], place, lambda where, what, value: self._ids.secret(name, where, what, value)
        )
        return entry

    def _without_leave(self, name: str, entry: dict[str, Any]) -> dict[str, Any]:
        """Remove `auto_apply`: only the owner of this computer decides which tools run without asking."""
        tools = entry.get("tool_meta")
        by_path = {f"tool_meta.{tool}": meta for tool, meta in tools.items()} if isinstance(tools, dict) else {}
        for path, meta in {"default_tool_meta": entry.get("default_tool_meta"), **by_path}.items():
            if isinstance(meta, dict) and meta.get("auto_apply") not in (None, False):
                self._notes.append(f"servers.{name}.{path}.auto_apply is left out: {_LEAVE}")
        return {
            **{
                key: _asking(value) if key in ("default_tool_meta", "tool_meta") else value
                for key, value in entry.items()
            },
            **_declared(entry),
        }

    def _filled(self, value: Any, document: Document) -> Any:
        return self._variables.fill(value, document.program.fills, document.folder)

    def _without_other_meanings(self, name: str, server: dict[str, Any], document: Document) -> dict[str, Any]:
        if document.program is PLAIN or "server_parameters" in server:
            return server
        self._notes += [_means_nothing(f"servers.{name}.{key}") for key in _OTHER_MEANING if key in server]
        return {key: value for key, value in server.items() if key not in _OTHER_MEANING}


def _declared(entry: dict[str, Any]) -> dict[str, Any]:
    """The declaration of secrets without those that declare a name to be none: the file is not trusted with that."""
    said = entry.get("secrets")
    return (
        {"secrets": {name: True for name, is_one in said.items() if is_one is True}} if isinstance(said, dict) else {}
    )


def _asking(meta: Any) -> Any:
    """A copy without anything that lets a tool run without asking, one level down too."""
    if not isinstance(meta, dict):
        return meta
    return {
        key: _asking(value)
        for key, value in meta.items()
        if key != "auto_apply" or value in (None, False) or isinstance(value, dict)
    }


def _means_nothing(path: str) -> str:
    hint = _HINTS.get(path.rpartition(".")[2])
    return f"{path} is an unknown field and is left out" + (f": {hint}" if hint else "")


def _in_shape(raw: dict[str, Any], config: BaseServerConfig, unknown: set[str]) -> dict[str, Any]:
    """The server in the shape of 000, with only the fields that were given."""
    parameters = type(config).model_fields["server_parameters"].annotation
    known = getattr(parameters, "model_fields", {})
    given = raw.get("server_parameters", raw)
    fields = {**({"sandbox": given["sandbox"]} if given.get("sandbox") else {}), **raw}
    rest = {key: fields[key] for key in type(config).model_fields if key in fields and key not in ("name", "type")}
    return {
        "type": getattr(config, "type", ""),
        **rest,
        "server_parameters": {key: given[key] for key in known if key in given and key not in unknown},
    }


def _as_text(server: Any) -> Any:
    """Write numbers among arguments and variables as text. A variable that is null is not set."""
    if not isinstance(server, dict):
        return server
    inner = server.get("server_parameters")
    if isinstance(inner, dict):
        return {**server, "server_parameters": _as_text(inner)}
    result = dict(server)
    if isinstance(args := server.get("args"), list):
        result["args"] = [_one_text(arg) for arg in args]
    if isinstance(env := server.get("env"), dict):
        result["env"] = {name: _one_text(value) for name, value in env.items() if value is not None}
    return result


def _one_text(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value
