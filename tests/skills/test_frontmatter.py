"""Frontmatter: what is cut off, which fields count, and what hostile YAML may not do."""

from __future__ import annotations

import time

import pytest

from a2c_smcp.computer.content.skill import Frontmatter, parse_frontmatter, split_frontmatter
from a2c_smcp.protocol.codec import dumps


@pytest.mark.parametrize(
    ("text", "block", "body"),
    [
        ("---\nname: a\n---\nbody\n", "name: a", "body\n"),
        ("---\nname: a\n---\n\n body ", "name: a", "\n body "),
        ("---\nname: a\n---", "name: a", ""),
        ("---\n---\nbody", "", "body"),
        ("---\n---", "", ""),
        ("---\na: 1\n---\nb\n---\nc", "a: 1", "b\n---\nc"),
        ("---\nname: a\n", None, "---\nname: a\n"),
        ("---\nname: a\n --- \nbody", None, "---\nname: a\n --- \nbody"),
        (" ---\nname: a\n---\nbody", None, " ---\nname: a\n---\nbody"),
        ("\ufeff---\nname: a\n---\n", None, "\ufeff---\nname: a\n---\n"),
        ("----\na\n---\nb", None, "----\na\n---\nb"),
        ("---", None, "---"),
        ("", None, ""),
        ("body", None, "body"),
    ],
)
def test_the_block_is_between_two_lines_at_the_beginning(text: str, block: str | None, body: str) -> None:
    assert split_frontmatter(text) == (block, body)


def test_the_fields_are_read() -> None:
    found = parse_frontmatter(
        "name: review\ndescription: >\n  Reviews\n  code.\nlicense: MIT\ncompatibility: 3\n"
        "allowed-tools: [read, 7]\ntags: [a, b]\nmetadata: {author: me, n: 1}\nversion: 9\n"
    )
    assert found == Frontmatter(
        name="review",
        description="Reviews code.\n",
        license="MIT",
        compatibility="3",
        allowed_tools=("read", "7"),
        tags=("a", "b"),
        metadata={"author": "me", "n": 1},
    )


def test_fields_of_other_shapes_are_converted_or_left_out() -> None:
    found = parse_frontmatter(
        "name: ''\ndescription: '  '\nallowed_tools: read\ntags: a\nmetadata: [a]\ncompatibility: {os: linux}"
    )
    assert found == Frontmatter(allowed_tools=("read",), compatibility='{"os": "linux"}')
    assert parse_frontmatter("tags: [a, 1]").tags is None
    assert parse_frontmatter("allowed-tools: []").allowed_tools == ()


@pytest.mark.parametrize("text", [None, "", "a: [", "- a\n- b", "just text", "a: !!python/object:os.system x", "\x00"])
def test_without_a_mapping_there_are_no_fields(text: str | None) -> None:
    assert parse_frontmatter(text) == Frontmatter()


def test_values_that_json_does_not_have_are_replaced() -> None:
    found = parse_frontmatter(
        "metadata: {at: 2026-01-02, when: 2026-01-02T03:04:05Z, nan: .nan, inf: -.inf, 2: x, true: y, null: z, "
        f'big: 0x1{"0" * 400}, raw: !!binary aGk=, set: !!set {{a}}, half: "\\ud800"}}'
    )
    assert found.metadata is not None
    assert {key: found.metadata[key] for key in ("at", "nan", "inf", "2", "true", "null", "raw", "set")} == {
        "at": "2026-01-02",
        "nan": "nan",
        "inf": "-inf",
        "2": "x",
        "true": "y",
        "null": "z",
        "raw": "aGk=",
        "set": ["a"],
    }
    assert dumps(found.metadata)


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, after in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{after}: &{after} {{<<: [{', '.join([f'*{before}'] * 9)}]}}\n"
    for before, after in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        MERGES,
        "a: &a [*a]",
        "metadata: " + "[" * 5000,
        "metadata: " + "{a: " * 500 + "1" + "}" * 500,
        f"metadata: [{', '.join('x' * 5000)}]",
        "description: " + "x" * 40_000,
        "d: 2026-99-99",
        "n: " + "1" * 10_000,
        "n: " + ":".join(["59"] * 8000),
        "? [a, b]\n: c",
        "? {a: b}\n: c",
    ],
    ids=lambda text: text[:20],
)
def test_hostile_yaml_has_no_fields_and_takes_no_time(text: str) -> None:
    began = time.process_time()
    assert parse_frontmatter(f"{text}\n").description is None
    assert time.process_time() - began < 5
