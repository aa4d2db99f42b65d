"""The content of forms: defaults, checks, and which fields are secret."""

from __future__ import annotations

from typing import Any

import pytest

from a2c_smcp.computer.questions import forms
from a2c_smcp.errors import BadRequest
from a2c_smcp.protocol.questions import Answer, Question

pytestmark = pytest.mark.covers("questions-answers", "questions-private")

X = {"const": "x", "title": "The X"}
LETTERS = {"type": "string", "enum": ["a", "b", "c"]}
FIELDS: dict[str, tuple[dict[str, Any], Any, list[Any]]] = {
    "name": ({"type": "string", "minLength": 2, "maxLength": 8}, "Anna", ["A", "much too long", 5]),
    "mail": ({"type": "string", "format": "email"}, "anna@example.org", ["no address", "a@b@c"]),
    "site": ({"type": "string", "format": "uri"}, "https://example.org/a", ["not a uri"]),
    "day": ({"type": "string", "format": "date"}, "2026-07-28", ["28.7.2026", "20260728"]),
    "at": ({"type": "string", "format": "date-time"}, "2026-07-28T12:00:00Z", ["2026-07-28", "2026-07-28T12:00:00"]),
    "count": ({"type": "integer", "minimum": 1, "default": 2}, 3, [0, 1.5]),
    "price": ({"type": "number", "default": 1.5}, 2, ["2"]),
    "fast": ({"type": "boolean", "default": False}, True, ["yes"]),
    "plain": ({"type": "string", "enum": ["a", "b"], "default": "b"}, "a", ["c"]),
    "older": ({"type": "string", "enum": ["a", "b"], "enumNames": ["A", "B"]}, "b", ["A"]),
    "titled": ({"type": "string", "oneOf": [X, {"const": "y", "title": "The Y"}]}, "y", ["The X"]),
    "many": ({"type": "array", "minItems": 1, "maxItems": 2, "items": LETTERS}, ["a", "c"], [[], ["a", "d"], "a"]),
    "titles": ({"type": "array", "items": {"anyOf": [X, {"const": "y"}]}}, ["x", "y"], [["z"]]),
}
"""Of each field: its schema, a value that fits, and some that do not."""
PROPERTIES = {name: schema for name, (schema, *_) in FIELDS.items()}
SCHEMA: dict[str, Any] = {"type": "object", "properties": PROPERTIES, "required": ["name"]}
FITS: dict[str, Any] = {name: fits for name, (_, fits, _) in FIELDS.items()}


async def test_every_kind_of_field_that_mcp_has_is_accepted() -> None:
    await forms.check_content(SCHEMA, FITS)


@pytest.mark.parametrize(("field", "value"), [(name, each) for name, (*_, unfit) in FIELDS.items() for each in unfit])
async def test_a_value_that_does_not_fit_is_refused_with_its_field_and_without_its_value(
    field: str, value: object
) -> None:
    with pytest.raises(BadRequest) as raised:
        await forms.check_content(SCHEMA, {**FITS, field: value})
    assert raised.value.details["field"] == "content"
    assert raised.value.details["errors"][0]["path"].split("/")[1] == field
    if isinstance(value, str):
        assert f'"{value}"' not in raised.value.message


async def test_a_missing_field_is_refused_and_defaults_fill_in_what_is_left_out() -> None:
    with pytest.raises(BadRequest):
        await forms.check_content(SCHEMA, forms.with_defaults(SCHEMA, {}))
    content = forms.with_defaults(SCHEMA, {"name": "Anna", "count": 4})
    assert content == {"name": "Anna", "count": 4, "price": 1.5, "fast": False, "plain": "b"}
    await forms.check_content(SCHEMA, content)


@pytest.mark.parametrize(
    ("name", "schema", "is_secret"),
    [
        *((name, {}, True) for name in ("password", "api_key", "pin")),
        *(("value", {"title": "Your access token"}, True), ("value", {"format": "password"}, True)),
        *(("author", {}, False), ("token_file", {}, False), ("city", {"title": "Where to?"}, False)),
    ],
)
def test_a_field_is_secret_if_its_name_or_title_says_so(name: str, schema: dict[str, Any], is_secret: bool) -> None:
    question = Question("", schema={"properties": {name: {"type": "string", **schema}, "other": {"type": "string"}}})
    assert forms.secret_fields(question) == ({name} if is_secret else set())
    assert forms.secrets_in_content(question, {name: "value", "other": "x"}) == (["value"] if is_secret else [])


@pytest.mark.parametrize(
    ("schema", "is_secret"),
    [
        ({"properties": {"login": {"type": "object", "properties": {"password": {}}}}}, True),
        ({"allOf": [{"properties": {"password": {}}}]}, True),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"properties": {"pin": {}}}}}, True),
        ({"properties": {"how": {"oneOf": [{"const": "password", "title": "By password"}]}}}, False),
        ({"properties": {"how": {"enum": ["password", "token"]}}}, False),
    ],
)
def test_a_schema_cannot_hide_a_secret_field_and_a_choice_is_none(schema: dict[str, Any], is_secret: bool) -> None:
    question = Question("", schema=schema)
    assert forms.asks_for_secret(question) is is_secret
    content = {"login": {"password": "x"}, "password": "y", "how": "password"}
    assert forms.secrets_in_content(question, content) == ["x", "y"]


def test_an_answer_does_not_show_its_content() -> None:
    assert "swordfish" not in repr(Answer("accept", {"password": "swordfish"}))


@pytest.mark.parametrize("odd", [{}, {"properties": 5}, {"properties": {"x": 5}}, {"type": "object"}])
async def test_a_schema_that_says_nothing_takes_anything(odd: Any) -> None:
    question = Question("", schema=odd)
    assert forms.with_defaults(question.schema, {"x": 1}) == {"x": 1}
    assert forms.secret_fields(question) == set()
