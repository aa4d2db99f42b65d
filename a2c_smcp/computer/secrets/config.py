"""The secrets that are written out in a configuration: which they are, and how it reads without them (WIRE §5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

from a2c_smcp.computer.inputs.definitions import Input, ids_in, is_secret
from a2c_smcp.computer.secrets.literals import Literals
from a2c_smcp.computer.secrets.rules import Kind, Named
from a2c_smcp.mcp_host.config.servers import MCPServerConfig, source

__all__ = ["mask_config", "names_of_secrets", "secrets_in", "secrets_of", "told"]

C = TypeVar("C", bound=Mapping[str, Any])
Rule: TypeAlias = Callable[[Any, Literals], Any]

_DECLARED = "secrets"
"""The field in which a server says which names are secret, and which are not. Agents are not shown it."""


def mask_config(config: C) -> C:
    """A copy of what `client:get_config` answers (`{"servers": …, "inputs": …}`), fit to be seen by an agent.

    Placeholders stay. Literals are masked in `env` and `headers`; in every URL, those of the user information and the
    query; in `args`, command inputs and fields that 000 does not know, those that follow a name like `--api-key`, and
    what looks like a secret by itself; and so is the default of a password.
    """
    masked: C = _config(config, Literals())
    return masked


def secrets_of(config: Mapping[str, Any]) -> Literals:
    """The secrets among the literals of a configuration, for a `Mask`, and their names, for the owner."""
    literals = Literals()
    _config(config, literals)
    return literals


def secrets_in(text: str) -> set[str]:
    """The secrets in a text that is no configuration, such as the URL of a proxy."""
    literals = Literals()
    literals.text(text)
    return literals.found


def _fields(rules: Mapping[str, Rule]) -> Rule:
    """Each field by its own rule; one that has none is judged by its name."""

    def apply(owner: Any, literals: Literals) -> Any:
        if not isinstance(owner, Mapping):
            return owner
        return {
            name: rules[name](value, literals) if name in rules else literals.field(value, name)
            for name, value in owner.items()
        }

    return apply


def _each(rule: Rule) -> Rule:
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


_PARAMETERS = _fields({"env": _pairs, "headers": _pairs, "args": _arguments})
_SERVER = _fields(
    {
        "server_parameters": _PARAMETERS,
        **dict.fromkeys(("name", "forbidden_tools", "tool_meta", "default_tool_meta", "vrl"), _as_it_is),
    }
)
_KNOWN = dict.fromkeys(("id", "description", "type", "options", "password"), _as_it_is)
_INPUT = _fields({**_KNOWN, "default": _as_it_is})
_PASSWORD = _fields({**_KNOWN, "default": _default})
_config = _fields({"servers": _each(_server), "inputs": _each(_input)})


def names_of_secrets(config: MCPServerConfig, inputs: Mapping[str, Input]) -> list[Named]:
    """What counts as a secret of this server, or may be one: names of its variables, headers, flags and inputs."""
    data = source(config)
    given = {Named(f"input {id_}", Kind.declared) for id_ in ids_in(data) if id_ in inputs and is_secret(inputs[id_])}
    return sorted(secrets_of({"servers": {config.name: data}}).named | given)


def told(server: str, names: list[Named]) -> str:
    """One line on a server: `github: GITHUB_TOKEN, input token; suspected: BLOB`. Empty where there is nothing."""
    masked = ", ".join(dict.fromkeys(each.name for each in names if each.kind.is_masked))
    suspected = ", ".join(dict.fromkeys(each.name for each in names if each.kind is Kind.suspected))
    parts = [part for part in (masked, suspected and f"suspected: {suspected}") if part]
    return f"{server}: {'; '.join(parts)}" if parts else ""
