"""`${input:id}` in configurations: where it is found, and what becomes of it."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2c_smcp.computer.configuration.definitions import UnknownInput, ids_in, render

pytestmark = pytest.mark.covers("inputs-render")

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20
)
ids = st.text(st.characters(exclude_characters="}"), min_size=1, max_size=8)
plain = st.text(st.characters(exclude_characters="$"))


@pytest.mark.parametrize("value", ["text", "", 7, 1.5, True, None, ["a", 1], {"b": [2]}])
def test_a_string_that_is_one_placeholder_keeps_the_type_of_the_value(value: Any) -> None:
    assert render({"port": "${input:x}"}, {"x": value}) == {"port": value}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("Bearer ${input:token}", "Bearer t0k"),
        ("${input:host}:${input:port}", "example.org:8080"),
        ("${input:token}${input:token}", "t0kt0k"),
        ("verbose=${input:on}", "verbose=true"),
        (" ${input:port}", " 8080"),
        ("--names=${input:names}", '--names=["é"]'),
        ("$${input:token}}", "$t0k}"),
    ],
)
def test_placeholders_inside_text_are_joined_as_text(template: str, text: str) -> None:
    values = {"token": "t0k", "host": "example.org", "port": 8080, "on": True, "names": ["é"]}
    assert render(template, values) == text


@pytest.mark.parametrize("template", ["${input:a}", "<${input:a}>", "${input:a}${input:b}"])
def test_a_value_that_reads_like_a_placeholder_is_not_looked_at_again(template: str) -> None:
    values = {"a": "${input:b}", "b": "x"}
    assert render(template, values) == template.replace("${input:b}", "x").replace("${input:a}", "${input:b}")


def test_they_are_found_anywhere_in_lists_and_objects_but_not_in_keys() -> None:
    config = {"env": {"${input:a}": "${input:b}"}, "args": ["--x", ["${input:c}"]], "other": ("${input:d}", 1)}
    assert ids_in(config) == {"b", "c", "d"}
    rendered = render(config, {"b": 1, "c": 2, "d": 3})
    assert rendered == {"env": {"${input:a}": 1}, "args": ["--x", [2]], "other": (3, 1)}


@pytest.mark.parametrize(
    "text", ["$input:a", "{input:a}", "${env:a}", "${input}", "${input:a", "${INPUT:a}", "$ {input:a}"]
)
def test_text_similar_to_a_placeholder_stays(text: str) -> None:
    assert render(text, {}) == text
    assert ids_in(text) == set()


def test_an_unknown_id_is_an_error_that_names_the_server_and_every_such_id() -> None:
    with pytest.raises(UnknownInput, match=r"'github'.*'key', 'token'") as caught:
        render({"a": "${input:token}", "b": ["x${input:key}", "${input:known}"]}, {"known": "v4lue"}, server="github")
    assert caught.value.ids == ("key", "token")
    assert "v4lue" not in str(caught.value)


def test_an_empty_id_is_unknown_rather_than_a_silent_literal() -> None:
    with pytest.raises(UnknownInput):
        render("${input:}", {"a": 1})


@given(json_values)
def test_a_value_without_placeholders_is_unchanged(value: Any) -> None:
    if "${input:" not in json.dumps(value):
        assert ids_in(value) == set()
        assert render(value, {}) == value


@given(st.lists(plain | st.tuples(ids), max_size=6), st.dictionaries(ids, st.text()))
def test_text_is_the_join_of_its_pieces(pieces: list[str | tuple[str]], known: dict[str, str]) -> None:
    values = {piece[0]: known.get(piece[0], "?") for piece in pieces if isinstance(piece, tuple)}
    template = "".join(piece if isinstance(piece, str) else f"${{input:{piece[0]}}}" for piece in pieces)
    assert ids_in(template) == values.keys()
    assert render(template, values) == "".join(
        piece if isinstance(piece, str) else values[piece[0]] for piece in pieces
    )


@given(json_values, ids, json_values)
def test_the_template_itself_is_never_changed(value: Any, id_: str, put: Any) -> None:
    template = {"first": value, "second": [f"${{input:{id_}}}"]}
    before = copy.deepcopy(template)
    if ids_in(template) == {id_}:
        assert render(template, {id_: put})["second"] == [put]
    assert template == before
