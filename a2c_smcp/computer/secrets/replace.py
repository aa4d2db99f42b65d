"""Replaces the secrets that are written into a configuration: by inputs in an import, by `***` in a diff.

It finds what `Literals` finds, except that a value under `env` or `headers` is replaced only if its name or the value
itself looks like a secret: the other values have to stay, so that the server still works.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from a2c_smcp.computer.secrets.mask import MASKED, is_word
from a2c_smcp.computer.secrets.rules import Declared, Literals, hints_at_secret, is_public
from a2c_smcp.mcp_host.config.servers import PARAMETER_CONTENTS, SIGN_IN_CONTENTS, FieldContent

PAIRS = frozenset(name for name, content in PARAMETER_CONTENTS.items() if content is FieldContent.PAIRS)
"""The parameters that are variables or headers by name."""

Replace: TypeAlias = Callable[[str, str, str], str]
"""Called with the place, the name and the value of a secret; returns what to write instead of it."""


@dataclass(frozen=True)
class Secret:
    """A literal and the input that replaces it. `place` is where it was, such as `servers.github.env.TOKEN`."""

    id: str
    place: str
    value: str = field(repr=False)
    description: str = ""


_REFERENCE = re.compile(r"\$\{[^}]*\}|\$[A-Za-z_]\w*|%[A-Za-z_]\w*%")
_SCHEME = re.compile(r"\s*(?:basic|bearer|token)\s+", re.IGNORECASE)
_SCHEMES = ("basic", "bearer")
_USER = "user info"
_SETTINGS = frozenset(("true", "false", "yes", "no", "on", "off", "none", "0", "1"))


def replace_secrets(
    parameters: Mapping[str, Any], place: str, replace: Replace, declared: Declared | None = None
) -> dict[str, Any]:
    """A copy of `server_parameters` with the result of `replace` in place of each secret."""
    replaced = dict(parameters)
    for name, rule in _RULES.items():
        if parameters.get(name):
            inside = f"{place}.{name}"
            replaced[name] = rule(
                parameters[name], lambda more="", at=inside: _ReplacedLiterals(at + more, replace, declared)
            )
    return replaced


def masked_server(server: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a server's configuration in which secrets are masked."""
    parameters = server.get("server_parameters")
    if not isinstance(parameters, Mapping):
        return dict(server)
    declared = Declared(server.get("secrets"))
    return {**server, "server_parameters": replace_secrets(parameters, "", lambda *_: MASKED, declared)}


class _ReplacedLiterals(Literals):
    """Replaces the secrets that `Literals` finds instead of masking them."""

    def __init__(self, place: str, replace: Replace, declared: Declared | None) -> None:
        super().__init__(declared)
        self._place, self._replacement = place, replace
        self.count = 0
        self._inside_json = 0

    def whole(self, value: Any, name: str) -> Any:
        if not self._is_secret_name(name):
            return self.text(value) if isinstance(value, str) else value
        if self._inside_json and not isinstance(value, str):
            return value  # an input in its place would be text
        text = str(value)
        start = _start(text, name)
        secret = text[start:]
        if not secret.strip() or secret.lower() in _SETTINGS or _REFERENCE.search(text):
            return value
        return text[:start] + self._replace(name, secret)

    def _is_secret_name(self, name: str) -> bool:
        declared = self._declared.get(name)
        if declared is not None:
            return declared
        return name == _USER or name.lower() in _SCHEMES or (hints_at_secret(name) and not is_public(name))

    def text(self, text: str) -> str:
        before, deeper = self.count, _is_json(text)
        self._inside_json += deeper
        replaced = super().text(text)
        self._inside_json -= deeper
        return replaced if self.count > before else text  # without a secret, JSON stays as its author wrote it

    def secret(self, value: Any) -> Any:
        """Replace a value that is a secret as a whole, unless it refers to one."""
        is_literal = isinstance(value, str) and value.strip() and not _REFERENCE.search(value)
        return self._replace("secret", value) if is_literal else value

    def token(self, text: str) -> str:
        return self._replace("key", text)

    def random(self, text: str) -> str:
        return self._replace("key", text)

    def _hidden(self, user: str) -> str:
        return str(self.whole(user, _USER))

    def _replace(self, name: str, value: str) -> str:
        """Inside JSON a secret is handed over as JSON writes it, because the text around it is not read again."""
        self.count += 1
        written = value
        for _ in range(self._inside_json):
            written = json.dumps(written, ensure_ascii=False)[1:-1]
        instead = self._replacement(self._place, _NAMES.get(name.lower(), name), written)
        return value if instead == written else instead

    def _parameter(self, parameter: re.Match[str]) -> str:
        name = parameter["head"].strip("&=")
        return parameter["head"] + str(self.whole(parameter["value"], name))


_Make: TypeAlias = Callable[..., _ReplacedLiterals]
"""Makes one for a field, or for a place inside it."""

_NAMES = {_USER: "password", **dict.fromkeys(_SCHEMES, "token")}


def _is_json(text: str) -> bool:
    try:
        return text.startswith(("{", "[")) and json.loads(text) is not None
    except (ValueError, RecursionError):
        return False


def _start(text: str, name: str) -> int:
    """Where the secret begins: after `Bearer`, or after the name of a user."""
    if name == _USER:
        return text.find(":") + 1
    scheme = _SCHEME.match(text)
    return scheme.end() if scheme else 0


def _pairs(pairs: Any, literals: _Make) -> Any:
    if not isinstance(pairs, Mapping):
        return pairs
    return {name: literals(f".{name}").field(value, name) for name, value in pairs.items()}


def _line(text: Any, literals: _Make) -> Any:
    return literals().text(text) if isinstance(text, str) else text


def _sign_in(auth: Any, literals: _Make) -> Any:
    if not isinstance(auth, Mapping):
        return auth
    replaced = dict(auth)
    for name, rule in _SIGN_IN_RULES.items():
        if auth.get(name):
            replaced[name] = rule(auth[name], lambda more="", at=f".{name}": literals(at + more))
    return replaced


_BY_CONTENT: Mapping[FieldContent, Callable[[Any, _Make], Any] | None] = {
    FieldContent.NAME: None,
    FieldContent.NAMES: None,
    FieldContent.SETTING: None,
    FieldContent.PROSE: None,
    FieldContent.PATH: None,
    FieldContent.COMMAND: _line,
    FieldContent.URL: _line,
    FieldContent.ARGUMENTS: lambda args, literals: literals().arguments(args) if isinstance(args, list) else args,
    FieldContent.OPTIONS: None,
    FieldContent.PAIRS: _pairs,
    FieldContent.SECRET: lambda value, literals: literals().secret(value),
    FieldContent.DEFAULT: None,
    FieldContent.SIGN_IN: _sign_in,
}
"""Without a rule, a field stays as it is."""
_SIGN_IN_RULES = {name: rule for name, content in SIGN_IN_CONTENTS.items() if (rule := _BY_CONTENT[content])}
_RULES = {name: rule for name, content in PARAMETER_CONTENTS.items() if (rule := _BY_CONTENT[content])}


# Files as they may be shown

_HARMLESS = re.compile(r"|[0-9.]{1,8}|true|false|(?:~|\.{0,2}/|[A-Za-z]:[\\/]|https?://).*", re.IGNORECASE | re.DOTALL)
_PLACEHOLDER = re.compile(r"\$\{[^}]*\}")


def masked_file(data: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration file without its secrets, and without anything in `env` and `headers` that could be one."""
    rules = {"servers": _file_servers, "mcpServers": _file_servers, "inputs": _file_inputs}
    return {key: rules.get(key, _other)(value) for key, value in data.items()}


def _file_servers(servers: Any) -> Any:
    return {name: _file_server(server) for name, server in servers.items()} if isinstance(servers, Mapping) else MASKED


def _file_server(server: Any) -> Any:
    if not isinstance(server, Mapping):
        return MASKED
    declared = Declared(server.get("secrets"))
    if isinstance(inner := server.get("server_parameters"), Mapping):
        return {**server, "server_parameters": _file_parameters(inner, declared)}
    return _file_parameters(server, declared)


def _file_parameters(parameters: Mapping[str, Any], declared: Declared) -> dict[str, Any]:
    masked = replace_secrets(parameters, "", lambda *_: MASKED, declared)
    for key in PAIRS:
        if isinstance(pairs := masked.get(key), Mapping):
            masked[key] = {name: value if _may_be_shown(name, value) else MASKED for name, value in pairs.items()}
    return masked


def _may_be_shown(name: str, value: Any) -> bool:
    rest = _PLACEHOLDER.sub("", str(value)).replace(MASKED, "").strip()
    return is_public(name) or is_word(rest) or _HARMLESS.fullmatch(rest) is not None


def _file_inputs(inputs: Any) -> Any:
    return [_file_input(definition) for definition in inputs] if isinstance(inputs, list) else MASKED


def _file_input(definition: Any) -> Any:
    if not isinstance(definition, Mapping):
        return MASKED
    hides = definition.get("password") and "default" in definition
    return {**definition, "default": MASKED} if hides else _other(definition)


def _other(value: Any) -> Any:
    return Literals().field(value, "")
