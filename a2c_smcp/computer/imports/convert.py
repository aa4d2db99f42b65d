"""Converts servers and inputs of other programs into ours: in the shape of 000, with inputs for variables and secrets.

Whatever cannot be converted is in the notes, each a sentence for the owner.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from a2c_smcp.computer.imports.inputs import Definitions, Ids, Variables
from a2c_smcp.computer.imports.programs import PLAIN, Document, Machine
from a2c_smcp.computer.inputs.definitions import ids_in
from a2c_smcp.computer.secrets.replace import Secret, replace_secrets
from a2c_smcp.errors import ConfigError
from a2c_smcp.mcp_host.config.servers import BaseServerConfig, parse_server, unknown_fields

__all__ = ["Conversion", "convert"]

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
        inputs = self._definitions.complete(self._variables.definitions(), self._servers.values())
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
        tools = {"default_tool_meta": entry.get("default_tool_meta"), **_by_path(entry.get("tool_meta"))}
        for path, meta in tools.items():
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


def _by_path(tools: Any) -> dict[str, Any]:
    return {f"tool_meta.{tool}": meta for tool, meta in tools.items()} if isinstance(tools, dict) else {}


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
