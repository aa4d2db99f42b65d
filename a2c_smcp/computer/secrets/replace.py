"""Secrets that are written out in a server's configuration: taken out of it, each replaced by an input."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from a2c_smcp.computer.secrets.literals import Literals
from a2c_smcp.computer.secrets.rules import Declared, hints_at_secret, is_public

__all__ = ["Found", "Secret", "replace_secrets"]


@dataclass(frozen=True)
class Secret:
    """A literal and the input that can stand for it. `place` is where it was, such as `servers.github.env.TOKEN`."""

    id: str
    place: str
    value: str = field(repr=False)
    description: str = ""


Found: TypeAlias = Callable[[str, str, str], str]
"""Called with the place, the name and the value of a secret; returns what to write instead of it."""

_REFERENCE = re.compile(r"\$\{[^}]*\}|\$[A-Za-z_]\w*|%[A-Za-z_]\w*%")
_SCHEME = re.compile(r"\s*(?:basic|bearer|token)\s+", re.IGNORECASE)
_SCHEMES = ("basic", "bearer")
_USER = "user info"
_SETTINGS = frozenset(("true", "false", "yes", "no", "on", "off", "none", "0", "1"))


def replace_secrets(
    parameters: Mapping[str, Any], place: str, found: Found, declared: Declared | None = None
) -> dict[str, Any]:
    """A copy of `server_parameters` with whatever `found` returns in place of each secret."""
    taken = dict(parameters)
    for name, rule in _RULES.items():
        if parameters.get(name):
            inside = f"{place}.{name}"
            taken[name] = rule(parameters[name], lambda more="", at=inside: _Replacing(at + more, found, declared))
    return taken


class _Replacing(Literals):
    """Finds what `Literals` finds, but for values whose names tell nothing, and replaces instead of masking."""

    def __init__(self, place: str, found: Found, declared: Declared | None) -> None:
        super().__init__(declared)
        self._place, self._found = place, found
        self.count = 0
        self._inside_json = 0

    def whole(self, value: Any, name: str) -> Any:
        if not self._tells(name):
            return self.text(value) if isinstance(value, str) else value
        if self._inside_json and not isinstance(value, str):
            return value  # an input in its place would be text
        text = str(value)
        start = _start(text, name)
        secret = text[start:]
        if not secret.strip() or secret.lower() in _SETTINGS or _REFERENCE.search(text):
            return value
        return text[:start] + self._replace(name, secret)

    def _tells(self, name: str) -> bool:
        said = self._declared.get(name)
        if said is not None:
            return said
        return name == _USER or name.lower() in _SCHEMES or (hints_at_secret(name) and not is_public(name))

    def text(self, text: str) -> str:
        before, deeper = self.count, _is_json(text)
        self._inside_json += deeper
        replaced = super().text(text)
        self._inside_json -= deeper
        return replaced if self.count > before else text  # as it was written, not as JSON is written by us

    def token(self, text: str) -> str:
        return self._replace("key", text)

    def random(self, text: str) -> str:
        return self._replace("key", text)

    def _hidden(self, user: str) -> str:
        return str(self.whole(user, _USER))

    def _replace(self, name: str, value: str) -> str:
        """What stands for a secret inside JSON is written as JSON writes it: the text around it is not read again."""
        self.count += 1
        written = value
        for _ in range(self._inside_json):
            written = json.dumps(written, ensure_ascii=False)[1:-1]
        instead = self._found(self._place, _NAMES.get(name.lower(), name), written)
        return value if instead == written else instead

    def _parameter(self, parameter: re.Match[str]) -> str:
        name = parameter["head"].strip("&=")
        return parameter["head"] + str(self.whole(parameter["value"], name))


_Make: TypeAlias = Callable[..., _Replacing]
"""Makes one for a place, or for a place inside it."""

_NAMES = {_USER: "password", **dict.fromkeys(_SCHEMES, "token")}


def _is_json(text: str) -> bool:
    try:
        return text.startswith(("{", "[")) and json.loads(text) is not None
    except (ValueError, RecursionError):
        return False


def _start(text: str, name: str) -> int:
    """Where the secret begins: after `Bearer`, after the name of a user."""
    if name == _USER:
        return text.find(":") + 1
    scheme = _SCHEME.match(text)
    return scheme.end() if scheme else 0


def _pairs(pairs: Any, replacing: _Make) -> Any:
    if not isinstance(pairs, Mapping):
        return pairs
    return {name: replacing(f".{name}").field(value, name) for name, value in pairs.items()}


def _arguments(args: Any, replacing: _Make) -> Any:
    return replacing().arguments(args) if isinstance(args, list) else args


def _line(text: Any, replacing: _Make) -> Any:
    return replacing().text(text) if isinstance(text, str) else text


_RULES: dict[str, Callable[[Any, _Make], Any]] = {
    "command": _line,
    "args": _arguments,
    "env": _pairs,
    "url": _line,
    "headers": _pairs,
}
