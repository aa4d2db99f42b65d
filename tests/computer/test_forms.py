"""The content of forms: defaults, checks, and which fields are secret."""

from __future__ import annotations

from typing import Any

import pytest

from a2c_smcp.computer.questions.forms import (
    asks_for_secret,
    check_content,
    complete,
    secret_fields,
    secrets_in_content,
)
from a2c_smcp.errors import BadRequest
from a2c_smcp.protocol.questions import Answer, Question

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 8},
        "mail": {"type": "string", "format": "email"},
        "site": {"type": "string", "format": "uri"},
        "day": {"type": "string", "format": "date"},
        "at": {"type": "string", "format": "date-time"},
        "count": {"type": "integer", "minimum": 1, "default": 2},
        "price": {"type": "number", "default": 1.5},
        "fast": {"type": "boolean", "default": False},
        "plain": {"type": "string", "enum": ["a", "b"], "default": "b"},
        "older": {"type": "string", "enum": ["a", "b"], "enumNames": ["A", "B"]},
        "titled": {"type": "string", "oneOf": [{"const": "x", "title": "The X"}, {"const": "y", "title": "The Y"}]},
        "many": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "string", "enum": ["a", "b", "c"]}},
        "titles": {"type": "array", "items": {"anyOf": [{"const": "x", "title": "The X"}, {"const": "y"}]}},
    },
    "required": ["name"],
}
FITS: dict[str, Any] = {
    "name": "Anna",
    "mail": "anna@example.org",
    "site": "https://example.org/a",
    "day": "2026-07-28",
    "at": "2026-07-28T12:00:00Z",
    "count": 3,
    "price": 2,
    "fast": True,
    "plain": "a",
    "older": "b",
    "titled": "y",
    "many": ["a", "c"],
    "titles": ["x", "y"],
}


@pytest.mark.covers("questions-answers")
async def test_every_kind_of_field_that_mcp_has_is_accepted() -> None:
    await check_content(SCHEMA, FITS)


@pytest.mark.covers("questions-answers")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "A"),
        ("name", "much too long"),
        ("name", 5),
        ("mail", "no address"),
        ("mail", "a@b@c"),
        ("site", "not a uri"),
        ("day", "28.7.2026"),
        ("day", "20260728"),
        ("at", "2026-07-28"),
        ("at", "2026-07-28T12:00:00"),
        ("count", 0),
        ("count", 1.5),
        ("price", "2"),
        ("fast", "yes"),
        ("plain", "c"),
        ("older", "A"),
        ("titled", "The X"),
        ("many", []),
        ("many", ["a", "d"]),
        ("many", "a"),
        ("titles", ["z"]),
    ],
)
async def test_a_value_that_does_not_fit_is_refused_with_its_field_and_without_its_value(
    field: str, value: object
) -> None:
    with pytest.raises(BadRequest) as raised:
        await check_content(SCHEMA, {**FITS, field: value})
    assert raised.value.details["field"] == "content"
    assert raised.value.details["errors"][0]["path"].split("/")[1] == field
    if isinstance(value, str):
        assert f'"{value}"' not in raised.value.message


@pytest.mark.covers("questions-answers")
async def test_a_missing_field_is_refused_and_defaults_fill_in_what_is_left_out() -> None:
    with pytest.raises(BadRequest):
        await check_content(SCHEMA, complete(SCHEMA, {}))
    content = complete(SCHEMA, {"name": "Anna", "count": 4})
    assert content == {"name": "Anna", "count": 4, "price": 1.5, "fast": False, "plain": "b"}
    await check_content(SCHEMA, content)


@pytest.mark.covers("questions-private")
@pytest.mark.parametrize(
    ("name", "schema", "is_secret"),
    [
        ("password", {}, True),
        ("api_key", {}, True),
        ("pin", {}, True),
        ("value", {"title": "Your access token"}, True),
        ("value", {"format": "password"}, True),
        ("author", {}, False),
        ("token_file", {}, False),
        ("city", {"title": "Where to?"}, False),
    ],
)
def test_a_field_is_secret_if_its_name_or_title_says_so(name: str, schema: dict[str, Any], is_secret: bool) -> None:
    question = Question("", schema={"properties": {name: {"type": "string", **schema}, "other": {"type": "string"}}})
    assert secret_fields(question) == ({name} if is_secret else set())
    assert secrets_in_content(question, {name: "value", "other": "x"}) == (["value"] if is_secret else [])


@pytest.mark.covers("questions-private")
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
    assert asks_for_secret(question) is is_secret
    content = {"login": {"password": "x"}, "password": "y", "how": "password"}
    assert secrets_in_content(question, content) == ["x", "y"]


@pytest.mark.covers("questions-private")
def test_an_answer_does_not_show_its_content() -> None:
    assert "swordfish" not in repr(Answer("accept", {"password": "swordfish"}))


@pytest.mark.parametrize("odd", [{}, {"properties": 5}, {"properties": {"x": 5}}, {"type": "object"}])
async def test_a_schema_that_says_nothing_takes_anything(odd: Any) -> None:
    question = Question("", schema=odd)
    assert complete(question.schema, {"x": 1}) == {"x": 1}
    assert secret_fields(question) == set()
