"""Fields of a question's form: what their schemas mean, and which answers they take."""

from __future__ import annotations

from typing import Any

import pytest

from a2c_smcp.computer.questions.forms import MISSING, Field, NoForm, fields_of
from a2c_smcp.protocol.questions import Question
from tests.stage.cases import cases

pytestmark = pytest.mark.covers("question-forms")

COLOURS = [{"const": "r", "title": "Red"}, {"const": "g", "title": "Dark green"}]
NAMED = {"type": "string", "enum": ["s", "m"], "enumNames": ["Small", "Medium"]}
STAMP = "2027-01-31T09:30:00"


def field(schema: dict[str, Any], name: str = "it", *, required: bool = True) -> Field:
    whole = {"type": "object", "properties": {name: schema}, "required": [name] if required else []}
    return fields_of(Question("", schema=whole))[0]


@cases(
    "schema, typed, value",
    ({"type": "string"}, " two words ", " two words "),
    ({"type": "string", "minLength": 2, "maxLength": 3}, "abc", "abc"),
    ({"type": "string", "format": "email"}, "a@b.example", "a@b.example"),
    ({"type": "string", "format": "uri"}, "https://b.example/x", "https://b.example/x"),
    ({"type": "string", "format": "uri"}, "urn:isbn:1", "urn:isbn:1"),
    ({"type": "string", "format": "date"}, "2028-02-29", "2028-02-29"),
    ({"type": "string", "format": "date-time"}, "2027-01-31T09:30:00+08:00", "2027-01-31T09:30:00+08:00"),
    ({"type": "integer", "minimum": 1, "maximum": 12}, " 12 ", 12),
    ({"type": "integer"}, "-123456789012345678901234567890", -123456789012345678901234567890),
    ({"type": "number", "minimum": 0}, "1.5", 1.5),
    ({"type": "number"}, "2", 2),
    ({"type": "number"}, "1e3", 1000.0),
    ({"type": "boolean"}, "Yes", True),
    ({"type": "boolean"}, "n", False),
    ({"type": "string", "enum": ["a", "b"]}, "2", "b"),
    ({"type": "string", "enum": ["7", "8"]}, "8", "8"),
    (NAMED, "Medium", "m"),
    (NAMED, "s", "s"),
    ({"type": "string", "oneOf": COLOURS}, "Dark green", "g"),
    ({"type": "array", "items": {"type": "string", "enum": ["a", "b", "c"]}}, "3, 1 3", ["c", "a"]),
    ({"type": "array", "items": {"anyOf": COLOURS}}, "Dark green", ["g"]),
    ({"type": "array", "items": {"anyOf": COLOURS}}, "0", []),
    ({"type": "array", "items": {"type": "number"}}, "[1, 2]", [1, 2]),
    ({}, "null", None),
)
def test_what_is_typed_becomes_a_value(schema: dict[str, Any], typed: str, value: Any) -> None:
    assert field(schema).read(typed) == value


@cases(
    "schema, typed, said",
    ({"type": "string", "minLength": 2, "maxLength": 3}, "a", "it must have 2 to 3 characters"),
    ({"type": "string", "maxLength": 3}, "abcd", "it must have at most 3 characters"),
    ({"type": "string", "format": "email"}, "a b@c", "that is no e-mail address; write it as name@example.com"),
    ({"type": "string", "format": "uri"}, "b.example", "that is no URL; write it as https://example.com"),
    ({"type": "string", "format": "date"}, "2027-02-30", "that is no date; write it as 2027-01-31"),
    ({"type": "string", "format": "date"}, "20270130", "that is no date; write it as 2027-01-31"),
    ({"type": "string", "format": "date-time"}, STAMP, f"that is no date and time with its zone; write it as {STAMP}Z"),
    ({"type": "integer", "minimum": 1, "maximum": 12}, "13", "it must be from 1 to 12"),
    ({"type": "integer"}, "1.5", "write a whole number, such as 3"),
    ({"type": "integer"}, "١٢x", "write a whole number, such as 3"),
    ({"type": "number", "minimum": 0.5}, "0", "it must be at least 0.5"),
    ({"type": "number", "maximum": 1}, "2", "it must be at most 1"),
    ({"type": "number"}, "nan", "write a number, such as 1.5"),
    ({"type": "boolean"}, "maybe", "answer y or n"),
    ({"type": "string", "enum": ["a", "b"]}, "3", "choose a number from 1 to 2"),
    ({"type": "array", "items": {"anyOf": COLOURS}, "minItems": 1}, "0", "choose at least 1"),
    ({"type": "array", "items": {"anyOf": COLOURS}, "maxItems": 1}, "1,2", "choose at most 1"),
    ({"type": "object"}, "{", 'write JSON, such as "text" or [1, 2]: '),
)
def test_a_wrong_answer_is_refused_with_what_to_write_instead(schema: dict[str, Any], typed: str, said: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        field(schema).read(typed)
    assert str(refused.value).startswith(said)


@cases(
    "schema, default, shown",
    ({"type": "string", "default": "x"}, "x", "x"),
    ({"type": "integer", "default": 3}, 3, "3"),
    ({"type": "number", "default": 0.5}, 0.5, "0.5"),
    ({"type": "boolean", "default": True}, True, "yes"),
    ({"type": "string", "oneOf": COLOURS, "default": "g"}, "g", "Dark green"),
    ({"type": "array", "items": {"anyOf": COLOURS}, "default": ["g", "r"]}, ["g", "r"], "Dark green, Red"),
    ({"type": "array", "items": {"anyOf": COLOURS}, "default": []}, [], "none"),
    ({"type": "integer", "maximum": 2, "default": 3}, MISSING, ""),
    ({"type": "string", "enum": ["a"], "default": "b"}, MISSING, ""),
    ({"type": "string"}, MISSING, ""),
    ({"type": "string", "title": "Password", "default": "hunter2"}, MISSING, ""),
)
def test_a_default_that_the_field_takes_is_offered(schema: dict[str, Any], default: Any, shown: str) -> None:
    found = field(schema).default
    assert found is MISSING if default is MISSING else found == default
    assert field(schema).shown(found) == shown


@cases(
    "schema, expects",
    ({"type": "string"}, "text"),
    ({"type": "string", "minLength": 3, "maxLength": 3}, "text, 3 characters"),
    ({"type": "string", "format": "date"}, "date, as 2027-01-31"),
    ({"type": "integer", "minimum": 1}, "whole number at least 1"),
    ({"type": "number"}, "number"),
    ({"type": "boolean"}, "y or n"),
    (NAMED, "number of the choice"),
    ({"type": "array", "items": {"anyOf": COLOURS}, "maxItems": 2}, "numbers, as in 1,2, at most 2 of them"),
    ({"type": "null"}, "JSON"),
)
def test_a_field_says_what_to_type(schema: dict[str, Any], expects: str) -> None:
    assert field(schema).expects == expects


@cases(
    "name, schema, is_secret",
    ("password", {}, True),
    ("x", {"title": "API key"}, True),
    ("pin", {}, True),
    ("x", {"format": "password"}, True),
    ("author", {"title": "Author"}, False),
)
def test_a_field_is_secret_by_its_name_title_or_format(name: str, schema: dict[str, Any], is_secret: bool) -> None:
    found = field({"type": "string", **schema}, name)
    assert found.is_secret is is_secret
    assert (found.shown("x") == "(hidden)") is is_secret


@cases(
    "schema",
    {"properties": []},
    {"properties": {"a": True}},
    {"properties": {}, "required": ["a"]},
    {"properties": {f"f{number}": {} for number in range(101)}},
    {"properties": {"a": {"enum": [str(number) for number in range(501)]}}},
)
def test_what_is_no_form_is_refused(schema: Any) -> None:
    with pytest.raises(NoForm):
        fields_of(Question("", schema=schema))
