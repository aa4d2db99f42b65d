"""The fields of a question's form, read from its schema, and the values of what is typed into them.

The schema is MCP's for elicitation: an object whose properties are strings, numbers, booleans, choices of one or of
several values. It is written by an MCP server and may be anything: a property of another kind is answered with JSON,
and what cannot be a form at all raises `NoForm`. Limits of the schema are checked here, with words for the person who
types; the Computer checks the whole answer against the whole schema once more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from a2c_smcp.computer.questions.forms import secret_fields
from a2c_smcp.errors import BadRequest
from a2c_smcp.protocol.codec import dumps, loads_exactly
from a2c_smcp.protocol.questions import Question

__all__ = ["MISSING", "Choice", "Field", "Hint", "NoForm", "fields_of"]

MAX_FIELDS = 100
MAX_CHOICES = 500
MISSING: Any = object()
"""The value of an optional field that is left out."""


class NoForm(Exception):
    """The schema describes no form. The message says why."""


class Hint(NamedTuple):
    """An English text with its values, such as `whole number from {least} to {most}`."""

    text: str
    values: Mapping[str, str]


class Choice(NamedTuple):
    """A value that can be chosen, and its title."""

    value: str
    title: str


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
    def is_multiple(self) -> bool:
        """Whether several choices may be taken."""
        return self.kind == "array" and bool(self.choices)

    @property
    def kind(self) -> str:
        return _string(self.schema.get("type")) or ("string" if self.choices else "")

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The values to choose from; empty if any may be typed."""
        items = self.schema.get("items")
        return _choices(items if self.schema.get("type") == "array" and isinstance(items, Mapping) else self.schema)

    @property
    def expects(self) -> str:
        """What to type, in a few words."""
        if self.is_multiple:
            return f"numbers, as in 1,2{_counted(self.schema, 'minItems', 'maxItems', '', ' of them')}"
        if self.choices:
            return "number of the choice"
        return self.hint.text.format(**self.hint.values)

    @property
    def hint(self) -> Hint:
        """What to type into a field without choices, in a way that can be translated."""
        known = _KINDS.get(self.kind)
        return known.expects(self.schema) if known else Hint("JSON", {})

    @property
    def default(self) -> Any:
        """The default, if it is one that could be typed; otherwise `MISSING`."""
        found = self.schema.get("default", MISSING)
        if found is MISSING or found is None or self.is_secret:
            return MISSING
        try:
            return self.read(self.typed(found))
        except ValueError:
            return MISSING

    def typed(self, value: Any) -> str:
        """What one would type to give this value."""
        if self.is_multiple:
            return ",".join(map(self._number_of, value)) if isinstance(value, list) and value else "0"
        if self.choices:
            return self._number_of(value)
        if isinstance(value, bool):
            return "y" if value else "n"
        if isinstance(value, str) and self.kind == "string":
            return value
        return dumps(value)

    def _number_of(self, value: Any) -> str:
        return next((str(number) for number, each in enumerate(self.choices, 1) if each.value == value), str(value))

    def shown(self, value: Any) -> str:
        """A value as people read it: titles of choices, yes or no; nothing of a secret."""
        if value is MISSING:
            return ""
        if self.is_secret:
            return "(hidden)"
        titles = {each.value: each.title for each in self.choices}
        if isinstance(value, list) and self.is_multiple:
            return ", ".join(titles.get(each, str(each)) for each in value) or "none"
        if isinstance(value, bool):
            return "yes" if value else "no"
        return titles.get(value, value) if isinstance(value, str) else dumps(value)

    def read(self, text: str) -> Any:
        """The value of what was typed. Raises `ValueError` with a message for the person who types."""
        if self.is_multiple:
            return _several(text, self.choices, self.schema)
        if self.choices:
            return _one(text, self.choices)
        known = _KINDS.get(self.kind)
        return known.read(text, self.schema) if known else _json(text)


def fields_of(question: Question) -> list[Field]:
    """The fields of a question's form, in their order. Raises `NoForm`."""
    properties, required = question.schema.get("properties", {}), question.schema.get("required")
    if not isinstance(properties, Mapping) or not all(isinstance(each, Mapping) for each in properties.values()):
        raise NoForm("its schema is no list of fields")
    if len(properties) > MAX_FIELDS:
        raise NoForm(f"it has {len(properties)} fields, and {MAX_FIELDS} are the most")
    needed = required if isinstance(required, list) else []
    if missing := [name for name in needed if name not in properties]:
        raise NoForm(f"it wants a field {missing[0]!r:.100} that it does not describe")
    secret = secret_fields(question)
    fields = [Field(str(name), each, name in needed, name in secret) for name, each in properties.items()]
    if any(len(each.choices) > MAX_CHOICES for each in fields):
        raise NoForm(f"a field of it has more than {MAX_CHOICES} choices")
    return fields


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


# Choices: `enum` with or without `enumNames`, or `oneOf` (of several: `anyOf`) with `const` and `title`.


def _choices(schema: Mapping[str, Any]) -> tuple[Choice, ...]:
    values, names = schema.get("enum"), schema.get("enumNames")
    if isinstance(values, list):
        titles = names if isinstance(names, list) and len(names) == len(values) else values
        return _with_titles(zip(values, titles, strict=True))
    listed = schema.get("oneOf", schema.get("anyOf"))
    found = [each for each in listed if isinstance(each, Mapping)] if isinstance(listed, list) else []
    return _with_titles((each.get("const"), each.get("title")) for each in found)


def _with_titles(pairs: Iterable[tuple[object, object]]) -> tuple[Choice, ...]:
    return tuple(Choice(value, _string(title) or value) for value, title in pairs if isinstance(value, str))


def _one(text: str, choices: tuple[Choice, ...]) -> str:
    """A choice by its number; else by its value or title, if only one has it."""
    typed = text.strip()
    if typed.isdecimal() and 1 <= int(typed[:9]) <= len(choices):
        return choices[int(typed) - 1].value
    found = {each.value for each in choices if typed in (each.value, each.title)}
    if len(found) != 1:
        raise ValueError(f"choose a number from 1 to {len(choices)}")
    return found.pop()


def _several(text: str, choices: tuple[Choice, ...], schema: Mapping[str, Any]) -> list[str]:
    words = [] if text.strip() == "0" else [word for word in re.split(r"[,\s]+", text.strip()) if word]
    found: list[str]
    try:
        found = [_one(word, choices) for word in words]
    except ValueError:
        found = [_one(text, choices)]  # one title that has blanks in it
    chosen = list(dict.fromkeys(found))
    _check_size(len(chosen), schema, "minItems", "maxItems", "choose{}")
    return chosen


# The other kinds


class _Kind(NamedTuple):
    read: Callable[[str, Mapping[str, Any]], Any]
    expects: Callable[[Mapping[str, Any]], Hint]


def _text(text: str, schema: Mapping[str, Any]) -> str:
    _check_size(len(text), schema, "minLength", "maxLength", "it must have{} characters")
    known = _FORMATS.get(_string(schema.get("format")))
    if known and not known.accepts(text):
        raise ValueError(f"that is no {known.name}; write it as {known.example}")
    return text


def _text_expected(schema: Mapping[str, Any]) -> Hint:
    known = _FORMATS.get(_string(schema.get("format")))
    if known:
        return Hint(f"{known.name}, as {{example}}", {"example": known.example})
    low, high = _limit(schema, "minLength"), _limit(schema, "maxLength")
    values = {"least": f"{low:g}" if low is not None else "", "most": f"{high:g}" if high is not None else ""}
    if low is None and high is None:
        return Hint("text", {})
    if low is None or high is None:
        return Hint(f"text, at {'most {most}' if low is None else 'least {least}'} characters", values)
    return Hint(f"text, {'{least}' if low == high else '{least} to {most}'} characters", values)


def _number_expected(noun: str) -> Callable[[Mapping[str, Any]], Hint]:
    def expected(schema: Mapping[str, Any]) -> Hint:
        least, most = _limit(schema, "minimum"), _limit(schema, "maximum")
        values = {"least": dumps(least), "most": dumps(most)}
        if least is not None and most is not None:
            return Hint(f"{noun} from {{least}} to {{most}}", values)
        limited = " at least {least}" if least is not None else " at most {most}" if most is not None else ""
        return Hint(f"{noun}{limited}", values)

    return expected


def _whole_number(text: str, schema: Mapping[str, Any]) -> int:
    if not re.fullmatch(r"[+-]?\d{1,300}", text.strip()):
        raise ValueError("write a whole number, such as 3")
    value = int(text)
    _check_range(value, schema)
    return value


def _number(text: str, schema: Mapping[str, Any]) -> int | float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise ValueError("write a number, such as 1.5")
    whole = re.fullmatch(r"[+-]?\d{1,300}", text.strip())
    value = int(text) if whole else found
    _check_range(value, schema)
    return value


def _check_range(value: int | float, schema: Mapping[str, Any]) -> None:
    least, most = _limit(schema, "minimum"), _limit(schema, "maximum")
    if (least is not None and value < least) or (most is not None and value > most):
        raise ValueError(f"it must be {_range(schema)}")


def _range(schema: Mapping[str, Any]) -> str:
    least, most = _limit(schema, "minimum"), _limit(schema, "maximum")
    if least is not None and most is not None:
        return f"from {dumps(least)} to {dumps(most)}"
    return f"at least {dumps(least)}" if least is not None else f"at most {dumps(most)}" if most is not None else ""


_TRUTH = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}


def _boolean(text: str, schema: Mapping[str, Any]) -> bool:
    word = text.strip().lower()
    if word not in _TRUTH:
        raise ValueError("answer y or n")
    return _TRUTH[word]


def _json(text: str) -> Any:
    try:
        return loads_exactly(text)
    except BadRequest as error:
        raise ValueError(f'write JSON, such as "text" or [1, 2]: {error.about}') from None


_KINDS = {
    "string": _Kind(_text, _text_expected),
    "integer": _Kind(_whole_number, _number_expected("whole number")),
    "number": _Kind(_number, _number_expected("number")),
    "boolean": _Kind(_boolean, lambda schema: Hint("y or n", {})),
}
"""By the `type` of a property."""


def _limit(schema: Mapping[str, Any], key: str) -> int | float | None:
    found = schema.get(key)
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None


def _check_size(size: int, schema: Mapping[str, Any], least: str, most: str, words: str) -> None:
    low, high = _limit(schema, least), _limit(schema, most)
    if (low is not None and size < low) or (high is not None and size > high):
        raise ValueError(words.format(_counted(schema, least, most, " ", "")))


def _counted(schema: Mapping[str, Any], least: str, most: str, before: str, after: str) -> str:
    """How many there may be, in words; empty if any number."""
    low, high = _limit(schema, least), _limit(schema, most)
    if low is not None and high is not None:
        words = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    elif low is not None or high is not None:
        words = f"at least {low:g}" if low is not None else f"at most {high:g}"
    else:
        return ""
    return f"{before or ', '}{words}{after}"


# Formats of strings


class _Format(NamedTuple):
    name: str
    example: str
    accepts: Callable[[str], bool]


def _is_uri(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return bool(re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*:\S+", text) and (parts.netloc or parts.path))


def _is_parsed_by(parse: Callable[[str], object], shape: str) -> Callable[[str], bool]:
    def accepts(text: str) -> bool:
        try:
            return bool(re.fullmatch(shape, text)) and parse(text) is not None
        except ValueError:
            return False

    return accepts


_DAY = r"\d{4}-\d{2}-\d{2}"
_FORMATS = {
    "email": _Format("e-mail address", "name@example.com", lambda text: bool(re.fullmatch(r"[^@\s]+@[^@\s]+", text))),
    "uri": _Format("URL", "https://example.com", _is_uri),
    "date": _Format("date", "2027-01-31", _is_parsed_by(date.fromisoformat, _DAY)),
    "date-time": _Format(
        "date and time with its zone",
        "2027-01-31T09:30:00Z",
        _is_parsed_by(
            datetime.fromisoformat, rf"{_DAY}[Tt]\d{{2}}:\d{{2}}:\d{{2}}(?:\.\d+)?(?:[Zz]|[+-]\d{{2}}:\d{{2}})"
        ),
    ),
}
"""MCP's four."""
