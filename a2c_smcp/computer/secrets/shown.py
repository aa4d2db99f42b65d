"""A configuration as it may be shown: without its secrets, and without what could be one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from a2c_smcp.computer.secrets import MASKED
from a2c_smcp.computer.secrets.literals import Literals
from a2c_smcp.computer.secrets.messages import is_word
from a2c_smcp.computer.secrets.replace import replace_secrets
from a2c_smcp.computer.secrets.rules import Declared, is_public

__all__ = ["shown"]

_REFERENCE = re.compile(r"\$\{[^}]*\}")
_HARMLESS = re.compile(r"|[0-9.]{1,8}|true|false|(?:~|\.{0,2}/|[A-Za-z]:[\\/]|https?://).*", re.IGNORECASE | re.DOTALL)


def shown(data: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without its secrets, nor anything in `env` and `headers` that could be one."""
    rules = {"servers": _servers, "mcpServers": _servers, "inputs": _inputs}
    return {key: rules.get(key, _other)(value) for key, value in data.items()}


def _servers(servers: Any) -> Any:
    return {name: _server(server) for name, server in servers.items()} if isinstance(servers, Mapping) else MASKED


def _server(server: Any) -> Any:
    if not isinstance(server, Mapping):
        return MASKED
    declared = Declared(server.get("secrets"))
    if isinstance(inner := server.get("server_parameters"), Mapping):
        return {**server, "server_parameters": _parameters(inner, declared)}
    return _parameters(server, declared)


def _parameters(parameters: Mapping[str, Any], declared: Declared) -> dict[str, Any]:
    hidden = replace_secrets(parameters, "", lambda *_: MASKED, declared)
    for key in ("env", "headers"):
        if isinstance(pairs := hidden.get(key), Mapping):
            hidden[key] = {name: value if _may_be_shown(name, value) else MASKED for name, value in pairs.items()}
    return hidden


def _may_be_shown(name: str, value: Any) -> bool:
    rest = _REFERENCE.sub("", str(value)).replace(MASKED, "").strip()
    return is_public(name) or is_word(rest) or _HARMLESS.fullmatch(rest) is not None


def _inputs(inputs: Any) -> Any:
    return [_input(each) for each in inputs] if isinstance(inputs, list) else MASKED


def _input(definition: Any) -> Any:
    if not isinstance(definition, Mapping):
        return MASKED
    hides = definition.get("password") and "default" in definition
    return {**definition, "default": MASKED} if hides else _other(definition)


def _other(value: Any) -> Any:
    return Literals().field(value, "")
