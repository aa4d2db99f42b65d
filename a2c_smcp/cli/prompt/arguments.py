"""The arguments of a tool as a person gives them: words on a line, or answers to what its schema asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from a2c_smcp.errors import BadRequest
from a2c_smcp.protocol.codec import dumps, loads_exactly

__all__ = ["Parameter", "parameters_of", "read_arguments", "to_ask"]

_FORMS = 'write NAME=VALUE words, or JSON such as {"a": 1}'


@dataclass(frozen=True)
class Parameter:
    """One property of a tool's schema, as far as a person needs to know it."""

    name: str
    types: tuple[str, ...]
    description: str
    choices: tuple[Any, ...]
    is_required: bool
    is_secret: bool

    @property
    def question(self) -> str:
        about = " or ".join(_text(choice) for choice in self.choices) or " or ".join(self.types)
        notes = ", ".join(note for note in (about, "" if self.is_required else "Enter leaves it out") if note)
        said = f"{self.description.strip().partition(chr(10))[0]}\n" if self.description else ""
        return f"{said}{self.name}{f' ({notes})' if notes else ''}: "

    @property
    def values(self) -> list[str]:
        """What a value may be, where that can be listed."""
        return [_text(each) for each in self.choices] or ["true", "false"] * ("boolean" in self.types)

    def read(self, text: str) -> Any:
        """The value that is meant. Raises `ValueError` with a sentence."""
        if self.types == ("string",):
            return text
        try:
            value = loads_exactly(text)
        except BadRequest:
            if self.types and "string" not in self.types:
                raise ValueError(f"{self.name} must be {' or '.join(self.types)}, as JSON") from None
            return text
        return text if isinstance(value, str) and "string" in self.types else value


def parameters_of(schema: Mapping[str, Any]) -> list[Parameter]:
    """The required ones first."""
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, Mapping):
        return []
    needed = required if isinstance(required, list) else []
    found = [_parameter(name, each, name in needed) for name, each in properties.items()]
    return sorted(found, key=lambda parameter: not parameter.is_required)


def read_arguments(words: Sequence[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object, or `NAME=VALUE` words whose values are read as the schema has them. Raises `ValueError`."""
    if len(words) == 1 and words[0].startswith("{"):
        return _object(words[0])
    known = {parameter.name: parameter for parameter in parameters_of(schema)}
    found = {}
    for word in words:
        name, sign, text = word.partition("=")
        if not (name and sign):
            raise ValueError(f"{word!r} is no argument: {_FORMS}")
        found[name] = known.get(name, _parameter(name, {}, False)).read(text)
    return found


def to_ask(schema: Mapping[str, Any], given: Mapping[str, Any]) -> list[Parameter]:
    """What is still to be asked for: what is missing, and what may be left out where nothing was given at all."""
    return [each for each in parameters_of(schema) if each.name not in given and (each.is_required or not given)]


def _parameter(name: str, schema: object, is_required: bool) -> Parameter:
    known: Mapping[str, Any] = schema if isinstance(schema, Mapping) else {}
    types, choices = known.get("type"), known.get("enum")
    return Parameter(
        name=name,
        types=tuple(map(str, types)) if isinstance(types, list) else (str(types),) if types else (),
        description=str(known.get("description") or ""),
        choices=tuple(choices) if isinstance(choices, list) else (),
        is_required=is_required,
        is_secret=known.get("format") == "password" or known.get("writeOnly") is True,
    )


def _object(text: str) -> dict[str, Any]:
    """What begins with a brace and is JSON is an object."""
    try:
        found: dict[str, Any] = loads_exactly(text)
    except BadRequest as error:
        raise ValueError(f"{error.message.removeprefix('Bad request: ')}: {_FORMS}") from None
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value)
