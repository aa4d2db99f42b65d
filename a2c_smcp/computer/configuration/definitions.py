"""Inputs of a configuration: what a definition says, where `${input:id}` refers to it, and what can be wrong with it.

Error messages name inputs and servers, never a value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from a2c_smcp.mcp_host.config.servers import CommandInput, PickStringInput, PromptStringInput

Input: TypeAlias = PromptStringInput | PickStringInput | CommandInput

KEYRING_SERVICE = "a2c-smcp"
"""The service name under which the keyring keeps values; the user name is the id of the input."""

_PLACEHOLDER = re.compile(r"\$\{input:([^}]*)\}")

_PREFIX, _PUBLISHED_PREFIX = "A2C_INPUT_", "A2C_SMCP_"


class InputError(Exception):
    """An input cannot be used."""


class UnknownInput(InputError):
    """A configuration refers to inputs that have no definition."""

    def __init__(self, ids: Iterable[str], server: str | None = None) -> None:
        self.ids, self.server = tuple(ids), server
        names = ", ".join(repr(id_) for id_ in self.ids)
        who = f"server {server!r} uses" if server is not None else "there is no definition of"
        super().__init__(f"{who} {names}: define it under `inputs`, or correct the placeholder")


class InputProblem(NamedTuple):
    """A fault of an input, and its remedy."""

    fault: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.fault}; {self.remedy}"


class MissingInputs(InputError):
    """Some inputs of a server have no usable value. The message lists each with its problem and a remedy."""

    def __init__(self, problems: Mapping[str, InputProblem], server: str) -> None:
        self.ids, self.server, self.problems = tuple(problems), server, dict(problems)
        lines = "".join(f"\n  {id_}: {problem}" for id_, problem in problems.items())
        super().__init__(f"server {server!r} cannot start without these inputs:{lines}")


class InvalidInput(InputError):
    """The definition of an input does not allow this value."""

    def __init__(self, id_: str, fault: str) -> None:
        self.id, self.fault = id_, fault
        super().__init__(f"input {id_!r}: {fault}")


class CommandFailed(InputError):
    """The command of an input gave no value."""


# Definitions


def variable_of(id_: str) -> str:
    """The environment variable of an input: `github-token` is read from `A2C_INPUT_GITHUB_TOKEN`."""
    return _PREFIX + re.sub(r"[^A-Z0-9]", "_", id_.upper())


def published_variable_of(id_: str) -> str:
    """The variable from which the published package reads an input: `github-token` from `A2C_SMCP_github_token`."""
    return _PUBLISHED_PREFIX + re.sub(r"[^A-Za-z0-9_]", "_", id_)


def is_ours(variable: str) -> bool:
    """True if an environment variable holds a credential of ours, which commands of inputs must not get."""
    return variable.startswith((_PREFIX, _PUBLISHED_PREFIX)) or variable == "A2C_API_KEY"


def is_secret(definition: Input) -> bool:
    """Passwords and the output of commands are secrets (WIRE §5)."""
    return isinstance(definition, CommandInput) or (
        isinstance(definition, PromptStringInput) and bool(definition.password)
    )


def default_of(definition: Input) -> str | None:
    return None if isinstance(definition, CommandInput) else definition.default


def check(definition: Input, value: Any, what: str = "") -> None:
    """Raise `InvalidInput` if the definition does not allow this value. The message does not quote it."""
    options = [option.value for option in definition.options] if isinstance(definition, PickStringInput) else [value]
    if value not in options:
        raise InvalidInput(definition.id, f"{what}must be one of {', '.join(map(repr, options))}")
    if is_secret(definition) and not isinstance(value, str | int | float):
        raise InvalidInput(definition.id, f"{what}must be text")
    if value is None or not _is_json(value):
        raise InvalidInput(definition.id, f"{what}must be text, or another JSON value that is not null")


def advice(definition: Input, error: Exception) -> InputProblem:
    """The fault, and its remedy for the owner."""
    fault = error.fault if isinstance(error, InvalidInput) else error
    about = f" ({definition.description})" if definition.description else ""
    return InputProblem(
        f"{fault}{about}",
        f"give it explicitly, in the environment as {variable_of(definition.id)}, "
        f"or in the keyring under service {KEYRING_SERVICE!r} and user {definition.id!r}",
    )


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


# Placeholders


def ids_in(value: Any) -> set[str]:
    """The ids of all placeholders in a JSON-like value. Keys of objects are not searched."""
    return {id_ for text in _texts(value) for id_ in _PLACEHOLDER.findall(text)}


def render(value: Any, lookup: Mapping[str, Any], *, server: str | None = None) -> Any:
    """A copy with values in place of placeholders. Raises `UnknownInput` naming every id that `lookup` lacks.

    A string that is one placeholder becomes the value, whatever its type; anything else is joined as text. Values are
    not searched for placeholders in turn. Keys are not rendered.
    """
    if unknown := ids_in(value) - lookup.keys():
        raise UnknownInput(sorted(unknown), server)
    return _render(value, lookup)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _render(value: Any, lookup: Mapping[str, Any]) -> Any:
    if isinstance(value, str):
        whole = _PLACEHOLDER.fullmatch(value)
        return lookup[whole[1]] if whole else _PLACEHOLDER.sub(lambda found: _as_text(lookup[found[1]]), value)
    if isinstance(value, dict):
        return {key: _render(each, lookup) for key, each in value.items()}
    if isinstance(value, list):
        return [_render(item, lookup) for item in value]
    if isinstance(value, tuple):
        return tuple(_render(item, lookup) for item in value)
    return value


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
