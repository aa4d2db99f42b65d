"""Secrets that are written into a configuration: which they are, and the configuration without them (WIRE §5).

Where to look in a field follows from its mark on the model (`FieldContent`); fields that the models do not know are
judged by their names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

from a2c_smcp.computer.inputs.definitions import Input, ids_in, is_secret
from a2c_smcp.computer.secrets.literals import Literals
from a2c_smcp.computer.secrets.rules import SecretKind, SecretName
from a2c_smcp.mcp_host.config.servers import (
    INPUT_CONTENTS,
    PARAMETER_CONTENTS,
    SERVER_CONTENTS,
    SIGN_IN_CONTENTS,
    FieldContent,
    MCPServerConfig,
    source,
)

__all__ = ["mask_config", "names_of_secrets", "secrets_in", "secrets_line", "secrets_of"]

C = TypeVar("C", bound=Mapping[str, Any])
_Rule: TypeAlias = Callable[[Any, Literals], Any]

_DECLARED = "secrets"
"""The field in which the owner declares which names of a server are secret, and which are not. Agents do not see it."""


def mask_config(config: C) -> C:
    """A copy of `{"servers": …, "inputs": …}`, the answer to `client:get_config`, that an agent may see.

    Placeholders stay. Masked are: all literals in `env` and `headers`; user information and query values in every URL;
    in `args`, commands of inputs and unknown fields, the value after a name like `--api-key` and whatever looks like a
    secret by itself; the default of a password.
    """
    masked: C = _config(config, Literals())
    return masked


def secrets_of(config: Mapping[str, Any]) -> Literals:
    """The secrets that are written into a configuration, for a `Mask`, and their names, for the owner."""
    literals = Literals()
    _config(config, literals)
    return literals


def secrets_in(text: str) -> set[str]:
    """The secrets in any text, such as the URL of a proxy."""
    literals = Literals()
    literals.text(text)
    return literals.found


def _fields(rules: Mapping[str, _Rule]) -> _Rule:
    """Apply its rule to each field; a field without a rule is judged by its name."""

    def apply(owner: Any, literals: Literals) -> Any:
        if not isinstance(owner, Mapping):
            return owner
        return {
            name: rules[name](value, literals) if name in rules else literals.field(value, name)
            for name, value in owner.items()
        }

    return apply


def _each(rule: _Rule) -> _Rule:
    def apply(values: Any, literals: Literals) -> Any:
        if isinstance(values, Mapping):
            return {name: rule(value, literals) for name, value in values.items()}
        return [rule(value, literals) for value in values] if isinstance(values, list | tuple) else values

    return apply


def _as_it_is(value: Any, _: Literals) -> Any:
    return value


def _pairs(pairs: Any, literals: Literals) -> Any:
    if not isinstance(pairs, Mapping):
        return pairs
    return {name: literals.pair(value, name) for name, value in pairs.items()}


def _arguments(args: Any, literals: Literals) -> Any:
    return literals.arguments(args) if isinstance(args, list | tuple) else args


def _server(server: Any, literals: Literals) -> Any:
    if not isinstance(server, Mapping):
        return server
    fields = {name: value for name, value in server.items() if name != _DECLARED}
    return _SERVER(fields, literals.declaring(server.get(_DECLARED)))


def _input(definition: Any, literals: Literals) -> Any:
    is_password = isinstance(definition, Mapping) and definition.get("password")
    return (_PASSWORD if is_password else _INPUT)(definition, literals)


def _default(value: Any, literals: Literals) -> Any:
    return literals.declaring({"default": True}).whole(value, "default")


def _secret(value: Any, literals: Literals) -> Any:
    return literals.declaring({"secret": True}).whole(value, "secret")


def _secret_named(name: str) -> _Rule:
    return lambda value, literals: literals.declaring({name: True}).whole(value, name)


def _sign_in(value: Any, literals: Literals) -> Any:
    return _SIGN_IN(value, literals)


_Rules: TypeAlias = Mapping[FieldContent, _Rule | None]
_RULES: _Rules = {
    FieldContent.NAME: _as_it_is,
    FieldContent.NAMES: _as_it_is,
    FieldContent.SETTING: None,
    FieldContent.PROSE: _as_it_is,
    FieldContent.PATH: None,
    FieldContent.COMMAND: None,
    FieldContent.URL: None,
    FieldContent.ARGUMENTS: _arguments,
    FieldContent.OPTIONS: None,
    FieldContent.PAIRS: _pairs,
    FieldContent.SECRET: _secret,
    FieldContent.DEFAULT: _as_it_is,
    FieldContent.SIGN_IN: _sign_in,
}
"""Without a rule, a field is judged by its name, and its text is searched."""


def _by_content(contents: Mapping[str, FieldContent], rules: _Rules = _RULES) -> dict[str, _Rule]:
    return {name: rule for name, content in contents.items() if (rule := rules[content])}


_SIGN_IN = _fields(
    _by_content(SIGN_IN_CONTENTS)
    | {name: _secret_named(name) for name, content in SIGN_IN_CONTENTS.items() if content is FieldContent.SECRET}
)
_PARAMETERS = _fields(_by_content(PARAMETER_CONTENTS))
_SERVER = _fields({**_by_content(SERVER_CONTENTS), "server_parameters": _PARAMETERS})
_INPUT = _fields(_by_content(INPUT_CONTENTS))
_PASSWORD = _fields(_by_content(INPUT_CONTENTS, {**_RULES, FieldContent.DEFAULT: _default}))
_config = _fields({"servers": _each(_server), "inputs": _each(_input)})


def names_of_secrets(config: MCPServerConfig, inputs: Mapping[str, Input]) -> list[SecretName]:
    """The names of variables, headers, flags and inputs of a server that are treated as secret, or may be."""
    data = source(config)
    given = {
        SecretName(f"input {id_}", SecretKind.declared)
        for id_ in ids_in(data)
        if id_ in inputs and is_secret(inputs[id_])
    }
    return sorted(secrets_of({"servers": {config.name: data}}).named | given)


def secrets_line(server: str, names: list[SecretName]) -> str:
    """One line on a server: `github: GITHUB_TOKEN, input token; suspected: BLOB`. Empty if it has no secrets."""
    masked = ", ".join(dict.fromkeys(each.name for each in names if each.kind.is_masked))
    suspected = ", ".join(dict.fromkeys(each.name for each in names if each.kind is SecretKind.suspected))
    parts = [part for part in (masked, suspected and f"suspected: {suspected}") if part]
    return f"{server}: {'; '.join(parts)}" if parts else ""
