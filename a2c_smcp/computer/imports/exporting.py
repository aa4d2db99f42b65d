"""Exports our configuration as `mcpServers` for other programs, without secrets. Notes say what cannot be expressed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from a2c_smcp.computer.configuration.files import Configuration
from a2c_smcp.computer.imports.inputs import Ids
from a2c_smcp.computer.inputs.definitions import PLACEHOLDER, Input, default_of, is_secret
from a2c_smcp.computer.secrets.replace import replace_secrets
from a2c_smcp.mcp_host.config.sandbox import as_written
from a2c_smcp.mcp_host.config.servers import CommandInput, MCPServerConfig, PickStringInput, source

__all__ = ["STYLES", "Export", "export"]

Style: TypeAlias = Callable[[str, str | None], str]
"""How a program refers to an environment variable, with a default if there is one."""


def _bare(variable: str, default: str | None) -> str:
    return f"${{{variable}}}" if default is None or "}" in default else f"${{{variable}:-{default}}}"


def _env(variable: str, _: str | None) -> str:
    return f"${{env:{variable}}}"


def _to_be_filled_in(variable: str, default: str | None) -> str:
    return default if default is not None else f"<{variable}>"


STYLES: dict[str, Style] = {"claude-code": _bare, "cursor": _env, "claude-desktop": _to_be_filled_in}

_TYPES = {"streamable": "http", "sse": "sse"}
_KNOWN = ("name", "type", "disabled", "server_parameters", "sandbox")
_WRITTEN = ("command", "args", "env", "cwd", "url", "headers")


@dataclass(frozen=True)
class Export:
    """The exported servers. `variables` have to be set, or filled in, by the user: each with its description."""

    servers: Mapping[str, dict[str, Any]] = field(repr=False)
    variables: Mapping[str, str]
    notes: tuple[str, ...]


def export(configuration: Configuration, style: Style) -> Export:
    """Export all servers that are not disabled."""
    return _Exporter(configuration.inputs, style).run(configuration.servers)


class _Exporter:
    def __init__(self, inputs: Mapping[str, Input], style: Style) -> None:
        self._inputs, self._style = inputs, style
        self._ids = Ids()
        self._variables: dict[str, str] = {}
        self._notes: list[str] = []

    def run(self, servers: Mapping[str, MCPServerConfig]) -> Export:
        enabled = {name: config for name, config in servers.items() if not config.disabled}
        exported = {name: self._server(config) for name, config in enabled.items()}
        self._notes += [f"servers.{name} is disabled, left out" for name in servers if name not in enabled]
        return Export(exported, self._variables, tuple(self._notes))

    def _server(self, config: MCPServerConfig) -> dict[str, Any]:
        place, data = f"servers.{config.name}", source(config)
        parameters = data["server_parameters"]
        self._notes += [f"{place}.{field} cannot be expressed, left out" for field in _lost(config)]
        kept = {key: parameters[key] for key in _WRITTEN if parameters.get(key)}
        kept = replace_secrets(
            kept, place, lambda where, name, value: self._ids.secret(config.name, where, name, value)
        )
        kind = {"type": _TYPES[config.type]} if config.type in _TYPES else {}
        filled: dict[str, Any] = self._filled({**kept, **self._sandbox(place, data)})
        return {**kind, **filled}

    def _sandbox(self, place: str, data: Mapping[str, Any]) -> dict[str, Any]:
        if data.get("sandbox") is None:
            return {}
        self._notes.append(f"{place}.sandbox is written, and other programs ignore it: they run the server without one")
        return {"sandbox": as_written(data["sandbox"])}

    def _filled(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: self._filled(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._filled(each) for each in value]
        return PLACEHOLDER.sub(lambda found: self._variable(found[1]), value) if isinstance(value, str) else value

    def _variable(self, id_: str) -> str:
        definition, name = self._inputs.get(id_), re.sub(r"[^A-Z0-9]", "_", id_.upper())
        secret = self._ids.secrets.get(id_)
        if name not in self._variables:
            about = definition.description if definition else secret.description if secret else ""
            self._variables[name] = about or id_
            self._note(definition)
        hides = definition is None or is_secret(definition)
        return self._style(name, None if hides or definition is None else default_of(definition))

    def _note(self, definition: Input | None) -> None:
        if isinstance(definition, CommandInput):
            self._notes.append(f"inputs.{definition.id} is a command, which cannot be expressed: set its value")
        if isinstance(definition, PickStringInput):
            values = ", ".join(option.value for option in definition.options)
            self._notes.append(f"inputs.{definition.id} is a choice, which cannot be expressed: one of {values}")


def _lost(config: MCPServerConfig) -> list[str]:
    """The fields that were set and that `mcpServers` cannot express."""
    own = [name for name in config.model_fields_set if name not in _KNOWN]
    parameters = config.server_parameters
    own += [f"server_parameters.{name}" for name in parameters.model_fields_set if name not in _WRITTEN]
    own += [f"server_parameters.{name}" for name in _waiting(config)]
    return sorted(own)


def _waiting(config: MCPServerConfig) -> list[str]:
    return [str(path[-1]) for path in config._waiting if path[0] == "server_parameters" and path[-1] not in _WRITTEN]
