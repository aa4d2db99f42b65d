"""Forms: the fields of a question, what may be typed into each, and checks of the content of an answer.

The schema is MCP's for elicitation: an object whose properties are strings, numbers, booleans, or choices of one or of
several values. An MCP server writes it, so it may be anything: a property of another kind is answered with JSON, and a
schema that cannot be a form raises `NoForm`. `Field` reads what a person types, and says what is wrong with it; the
Computer checks the whole answer against the whole schema once more (`check_content`). The terminal (`cli/form.py`) and
the owner's console draw these fields.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from a2c_smcp.computer.secrets.rules import hints_at_secret
from a2c_smcp.errors import BadRequest
from a2c_smcp.protocol.codec import dumps, loads_exactly
from a2c_smcp.protocol.questions import Question, fields_in
from a2c_smcp.registry.schemas.check import Fault, Schema, find_faults_async, pointer

MAX_FIELDS = 100
MAX_CHOICES = 500
MISSING: Any = object()
"""The value of an optional field that is left out."""
_DEEPEST = 32

# Secrets in forms


def secret_fields(question: Question) -> frozenset[str]:
    """The fields of a form that ask for a secret: their name or their title says so (WIRE §5)."""
    return frozenset(name for name, schema in question.fields.items() if _is_secret(name, schema))


def asks_for_secret(question: Question) -> bool:
    """True if a form has a secret field, also one that its schema hides deeper than MCP's forms go."""
    return any(_is_secret(name, schema) for name, schema in _all_fields(question.schema))


def secrets_in_content(question: Question, content: Mapping[str, Any] | None) -> list[str]:
    """Return the values of secret fields, as texts. A name counts, whatever the schema says."""
    values = _secret_leaves(content or {}, secret_fields(question))
    return [str(value) for value in values if isinstance(value, str | int | float) and not isinstance(value, bool)]


def _is_secret(name: str, schema: Mapping[str, Any]) -> bool:
    is_marked = schema.get("format") == "password" or schema.get("writeOnly") is True
    return is_marked or hints_at_secret(name) or hints_at_secret(_string(schema.get("title")))


def _all_fields(schema: object, depth: int = 0) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The fields of a schema and of all schemas in it. Choices of a field are no fields: `const` has none."""
    if depth > _DEEPEST or not isinstance(schema, Mapping | list):
        return
    if isinstance(schema, Mapping):
        yield from fields_in(schema).items()
    for part in schema.values() if isinstance(schema, Mapping) else schema:
        yield from _all_fields(part, depth + 1)


def _secret_leaves(content: Mapping[str, Any], known: frozenset[str]) -> Iterator[object]:
    for name, value in content.items():
        if name in known or hints_at_secret(str(name)):
            yield from _leaves(value)
        elif isinstance(value, Mapping):
            yield from _secret_leaves(value, known)


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, Mapping | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(part)
    else:
        yield value


# Content of a form as a whole


def with_defaults(schema: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content with the defaults of the fields that it leaves out (MCP's SEP-1034)."""
    return {name: field["default"] for name, field in fields_in(schema).items() if "default" in field} | dict(content)


async def check_content(schema: Mapping[str, Any], content: Mapping[str, Any]) -> None:
    """Raise `BadRequest` if the content does not fit: `details["errors"]` has a JSON pointer and a message per fault.

    Messages quote no value. Raises `SchemaTooHeavy` as the check of arguments does.
    """
    faults = await find_faults_async(Schema(dict(schema)), dict(content)) or _format_faults(schema, content)
    if faults:
        others = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise BadRequest(f"content{faults[0]['path']}: {faults[0]['message']}{others}", field="content", errors=faults)


def _format_faults(schema: Mapping[str, Any], content: Mapping[str, Any]) -> list[Fault]:
    formats = {name: _string(field.get("format")) for name, field in fields_in(schema).items()}
    return [
        {"path": pointer([name]), "message": f"is not of the format {formats[name]!r}"}
        for name, value in content.items()
        if isinstance(value, str) and formats.get(name) in _FORMATS and not _FORMATS[formats[name]].accepts(value)
    ]


# Formats of strings: MCP's forms have four, which JSON schema only notes


class _Format(NamedTuple):
    name: str
    example: str
    check: Callable[[str], object]

    def accepts(self, text: str) -> bool:
        try:
            return bool(self.check(text))
        except ValueError:
            return False


def _is_uri(text: str) -> bool:
    parts = urlsplit(text)
    return bool(parts.scheme and (parts.netloc or parts.path)) and not re.search(r"\s", text)


def _is_date_time(text: str) -> bool:
    return "T" in text.upper() and datetime.fromisoformat(text.upper()).tzinfo is not None


_FORMATS = {
    "email": _Format("e-mail address", "name@example.com", re.compile(r"[^@\s]+@[^@\s.]+(?:\.[^@\s.]+)*").fullmatch),
    "uri": _Format("URL", "https://example.com", _is_uri),
    "date": _Format("date", "2027-01-31", lambda text: len(text) == len("2027-01-31") and date.fromisoformat(text)),
    "date-time": _Format("date and time with its zone", "2027-01-31T09:30:00Z", _is_date_time),
}

# Fields


class NoForm(Exception):
    """The schema describes no form. The message says why."""


class Hint(NamedTuple):
    """An English text with its values, such as `whole number from {least} to {most}`."""

    text: str
    values: Mapping[str, str]

    def __str__(self) -> str:
        return self.text.format(**self.values)


class Bounds(NamedTuple):
    """The limits of a number, or of a size. `before` stands before a range of numbers."""

    least: int | float | None
    most: int | float | None
    before: str = ""

    @property
    def hint(self) -> Hint:
        """The limits in words; empty if there are none."""
        if self.least is None or self.most is None:
            text = "at least {least}" if self.least is not None else "at most {most}" if self.most is not None else ""
        else:
            is_exact = self.least == self.most and not self.before
            text = "{least}" if is_exact else f"{self.before}{{least}} to {{most}}"
        return Hint(text, {"least": dumps(self.least), "most": dumps(self.most)})

    def check(self, value: int | float, problem: str) -> None:
        """Raise `ValueError` for a value beyond the limits."""
        if (self.least is not None and value < self.least) or (self.most is not None and value > self.most):
            raise ValueError(problem.format(self.hint))


class Choice(NamedTuple):
    """A value that can be chosen, and its title."""

    value: str
    title: str


_TRUTH = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}
_WHOLE = re.compile(r"[+-]?\d{1,300}")
_NOUNS = {"integer": "whole number", "number": "number"}
_LIMITS = {
    "string": ("minLength", "maxLength", ""),
    "array": ("minItems", "maxItems", ""),
    **dict.fromkeys(_NOUNS, ("minimum", "maximum", "from ")),
}


@dataclass(frozen=True)
class Field:
    """One field of a form."""

    name: str
    schema: Mapping[str, Any]
    is_required: bool
    is_secret: bool

    @property
    def title(self) -> str:
        return _string(self.schema.get("title")) or self.name

    @property
    def description(self) -> str:
        return _string(self.schema.get("description"))

    @property
    def kind(self) -> str:
        return _string(self.schema.get("type")) or ("string" if self.choices else "")

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """The values to choose from; empty if any may be typed.

        They are an `enum` with or without `enumNames`, or `oneOf` (of several: `anyOf`) with `const` and `title`.
        """
        schema, items = self.schema, self.schema.get("items")
        if schema.get("type") == "array" and isinstance(items, Mapping):
            schema = items
        pairs = _values_and_titles(schema)
        return tuple(Choice(value, _string(title) or value) for value, title in pairs if isinstance(value, str))

    @property
    def is_multiple(self) -> bool:
        """True if several choices may be taken."""
        return self.kind == "array" and bool(self.choices)

    @property
    def limits(self) -> Bounds:
        """The limits of a number, of the length of a text, or of how many choices may be taken."""
        least, most, before = _LIMITS.get(self.kind, ("", "", ""))
        low, high = self.schema.get(least), self.schema.get(most)
        return Bounds(low if _is_number(low) else None, high if _is_number(high) else None, before)

    @property
    def expects(self) -> str:
        """The expected input, in a few words."""
        if self.is_multiple:
            limits = str(self.limits.hint)
            return f"numbers, as in 1,2, {limits} of them" if limits else "numbers, as in 1,2"
        return "number of the choice" if self.choices else str(self.hint)

    @property
    def hint(self) -> Hint:
        """The expected input of a field without choices, as a text that can be translated."""
        if self.kind == "boolean":
            return Hint("y or n", {})
        if self.kind == "string" and (known := self._format):
            return Hint(f"{known.name}, as {{example}}", {"example": known.example})
        text, values = self.limits.hint
        if self.kind == "string":
            return Hint(f"text, {text} characters" if text else "text", values)
        return Hint(f"{_NOUNS[self.kind]} {text}".rstrip(), values) if self.kind in _NOUNS else Hint("JSON", {})

    @property
    def default(self) -> Any:
        """The default, if it is one that could be typed; otherwise `MISSING`."""
        default = self.schema.get("default")
        if default is None or self.is_secret:
            return MISSING
        try:
            return self.read(self.typed(default))
        except ValueError:
            return MISSING

    def typed(self, value: Any) -> str:
        """Return what one would type to give this value."""
        if self.is_multiple:
            return ",".join(map(self._number_of, value)) if isinstance(value, list) and value else "0"
        if self.choices:
            return self._number_of(value)
        if isinstance(value, bool):
            return "y" if value else "n"
        return value if isinstance(value, str) and self.kind == "string" else dumps(value)

    def shown(self, value: Any) -> str:
        """Return a value as people read it: titles of choices, yes or no; nothing of a secret."""
        if value is MISSING:
            return ""
        if self.is_secret:
            return "(hidden)"
        titles = {choice.value: choice.title for choice in self.choices}
        if isinstance(value, list) and self.is_multiple:
            return ", ".join(titles.get(chosen, str(chosen)) for chosen in value) or "none"
        if isinstance(value, bool):
            return "yes" if value else "no"
        return titles.get(value, value) if isinstance(value, str) else dumps(value)

    def answer(self, typed: str, default: Any = MISSING) -> Any:
        """Return the value of what was typed, the default if that is nothing. Raises `ValueError` as `read` does."""
        if typed.strip():
            return self.read(typed)
        if default is MISSING and self.is_required:
            raise ValueError("an answer is needed")
        return default

    def read(self, text: str) -> Any:
        """Return the value of what was typed. Raises `ValueError` with a message for the person who types."""
        if self.is_multiple:
            return self._read_several(text)
        if self.choices:
            return self._read_choice(text)
        if self.kind == "string":
            self.limits.check(len(text), "it must have {} characters")
            if (known := self._format) and not known.accepts(text):
                raise ValueError(f"that is no {known.name}; write it as {known.example}")
            return text
        if self.kind in _NOUNS:
            value = self._read_number(text)
            self.limits.check(value, "it must be {}")
            return value
        if self.kind == "boolean":
            if (word := text.strip().lower()) not in _TRUTH:
                raise ValueError("answer y or n")
            return _TRUTH[word]
        try:
            return loads_exactly(text)
        except BadRequest as error:
            raise ValueError(f'write JSON, such as "text" or [1, 2]: {error.about}') from None

    @property
    def _format(self) -> _Format | None:
        return _FORMATS.get(_string(self.schema.get("format")))

    def _number_of(self, value: Any) -> str:
        return next((str(number) for number, choice in enumerate(self.choices, 1) if choice.value == value), str(value))

    def _read_choice(self, text: str) -> str:
        """A choice by its number; else by its value or title, if only one has it."""
        typed, choices = text.strip(), self.choices
        if typed.isdecimal() and 1 <= int(typed[:9]) <= len(choices):
            return choices[int(typed) - 1].value
        named = {choice.value for choice in choices if typed in choice}
        if len(named) != 1:
            raise ValueError(f"choose a number from 1 to {len(choices)}")
        return named.pop()

    def _read_several(self, text: str) -> list[str]:
        words = [] if text.strip() == "0" else [word for word in re.split(r"[,\s]+", text.strip()) if word]
        try:
            chosen = [self._read_choice(word) for word in words]
        except ValueError:
            chosen = [self._read_choice(text)]  # one title that has blanks in it
        chosen = list(dict.fromkeys(chosen))
        self.limits.check(len(chosen), "choose {}")
        return chosen

    def _read_number(self, text: str) -> int | float:
        if _WHOLE.fullmatch(text.strip()):
            return int(text)
        if self.kind == "integer":
            raise ValueError("write a whole number, such as 3")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ValueError("write a number, such as 1.5")
        return value


def fields_of(question: Question) -> list[Field]:
    """Return the fields of a question's form, in their order. Raises `NoForm`."""
    properties, required = question.schema.get("properties", {}), question.schema.get("required")
    if not isinstance(properties, Mapping) or not all(isinstance(schema, Mapping) for schema in properties.values()):
        raise NoForm("its schema is no list of fields")
    if len(properties) > MAX_FIELDS:
        raise NoForm(f"it has {len(properties)} fields, and {MAX_FIELDS} are the most")
    needed = required if isinstance(required, list) else []
    if missing := [name for name in needed if name not in properties]:
        raise NoForm(f"it wants a field {missing[0]!r:.100} that it does not describe")
    secret = secret_fields(question)
    fields = [Field(str(name), schema, name in needed, name in secret) for name, schema in properties.items()]
    if any(len(field.choices) > MAX_CHOICES for field in fields):
        raise NoForm(f"a field of it has more than {MAX_CHOICES} choices")
    return fields


def content_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of an answer: the values without those of fields that are left out."""
    return {name: value for name, value in values.items() if value is not MISSING}


def _values_and_titles(schema: Mapping[str, Any]) -> list[tuple[object, object]]:
    values, names = schema.get("enum"), schema.get("enumNames")
    if isinstance(values, list):
        return [*zip(values, names if isinstance(names, list) and len(names) == len(values) else values, strict=True)]
    options = schema.get("oneOf", schema.get("anyOf"))
    known = [option for option in options if isinstance(option, Mapping)] if isinstance(options, list) else []
    return [(option.get("const"), option.get("title")) for option in known]


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
