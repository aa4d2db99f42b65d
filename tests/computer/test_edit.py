"""Members are added to and removed from JSON texts of any style, nothing else in them changes, and a diff shows it."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from a2c_smcp.computer.configuration.files import loads, unified_diff, with_member, without_member
from tests.computer.decorated import decorated

pytestmark = pytest.mark.covers("connect")

ENTRY: dict[str, Any] = {"command": "/opt/ü b/a2c-smcp", "args": ["bridge", "--stdio"]}
GROUP, NAME = "mcpServers", "ours"

OURS = '    "ours": {\n      "command": "c"\n    }'
ALONE = '{\n  "mcpServers": {\n' + OURS + "\n  }\n}\n"
TEXTS = {
    "two spaces": (
        '{\n  "theme": "dark",\n  "mcpServers": {\n    "a": {\n      "command": "x"\n    }\n  }\n}\n',
        '{\n  "theme": "dark",\n  "mcpServers": {\n    "a": {\n      "command": "x"\n    },\n' + OURS + "\n  }\n}\n",
    ),
    "tabs": (
        '{\n\t"mcpServers": {\n\t\t"a": {}\n\t}\n}',
        '{\n\t"mcpServers": {\n\t\t"a": {},\n\t\t"ours": {\n\t\t\t"command": "c"\n\t\t}\n\t}\n}',
    ),
    "one line": ('{"mcpServers": {"a": {}}, "z": 1}', '{"mcpServers": {"a": {}, "ours": {"command": "c"}}, "z": 1}'),
    "comments and trailing commas": (
        '// mine\n{\n  "mcpServers": {\n    "a": {}, // keep\n    /* last */\n  },\n}\n',
        '// mine\n{\n  "mcpServers": {\n    "a": {}, // keep\n' + OURS + ",\n    /* last */\n  },\n}\n",
    ),
    "a comment behind the last one": (
        '{\n  "mcpServers": {\n    "a": {} // keep\n  }\n}\n',
        '{\n  "mcpServers": {\n    "a": {}, // keep\n    "ours": {\n      "command": "c"\n    }\n  }\n}\n',
    ),
    "no group": (
        '{\n    "theme": "dark"\n}\n',
        '{\n    "theme": "dark",\n    "mcpServers": {\n        "ours": {\n'
        '            "command": "c"\n        }\n    }\n}\n',
    ),
    "an empty group": ('{\n  "mcpServers": { }\n}\n', ALONE),
    "nothing": ("", ALONE),
}


@pytest.mark.parametrize(("before", "after"), TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["", "BOM"])
def test_a_member_is_written_in_the_style_of_the_file(before: str, after: str, end: str, mark: str) -> None:
    written, expected = (text.replace("\n", end if "\n" in before else "\n") for text in (before, after))
    assert with_member(mark + written, (GROUP, NAME), {"command": "c"}) == mark + expected


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def documents(draw: st.DrawFn) -> tuple[dict[str, Any], str]:
    """A file of a client, and how somebody has written it."""
    keys = st.text(max_size=4).filter(lambda key: key not in (GROUP, NAME))
    data: dict[str, Any] = draw(st.dictionaries(keys, VALUES, max_size=3))
    if draw(st.booleans()):
        data[GROUP] = draw(st.dictionaries(keys, VALUES, max_size=3))
        data |= draw(st.dictionaries(keys, VALUES, max_size=1))
    return data, decorated(data, draw)


TWO_BLOCK_COMMENTS = ({GROUP: {"a": 1}}, '{"mcpServers":{\n"a":1/* , } *//* , } */}}')


@given(documents())
@example(TWO_BLOCK_COMMENTS)
def test_whatever_is_written_around_it_a_member_comes_and_goes(document: tuple[dict[str, Any], str]) -> None:
    data, text = document
    assert loads(text) == data
    added = with_member(text, (GROUP, NAME), ENTRY)
    expected = {**data, GROUP: {**data.get(GROUP, {}), NAME: ENTRY}}
    assert loads(added) == expected
    assert [*loads(added)[GROUP]] == [*expected[GROUP]], "it is the last one"
    removed = without_member(added, GROUP, NAME)
    assert loads(removed) == {**data, GROUP: data.get(GROUP, {})}
    if data.get(GROUP):
        assert removed == text


@given(documents(), st.data())
def test_each_member_can_be_removed(document: tuple[dict[str, Any], str], data: st.DataObject) -> None:
    content, text = document
    if servers := content.get(GROUP):
        name = data.draw(st.sampled_from([*servers]))
        rest = {key: value for key, value in servers.items() if key != name}
        assert loads(without_member(text, GROUP, name)) == {**content, GROUP: rest}


@given(documents(), st.data())
def test_a_known_member_is_replaced_in_its_place(document: tuple[dict[str, Any], str], data: st.DataObject) -> None:
    content, text = document
    if servers := content.get(GROUP):
        name = data.draw(st.sampled_from([*servers]))
        replaced = with_member(text, (GROUP, name), ENTRY)
        assert loads(replaced) == {**content, GROUP: {**servers, name: ENTRY}}
        assert [*loads(replaced)[GROUP]] == [*servers]
        assert loads(with_member(replaced, (GROUP, name, "env", "HOME"), "x"))[GROUP][name]["env"] == {"HOME": "x"}


def test_nothing_happens_without_the_member() -> None:
    for text in ('{"mcpServers": {"a": 1}}', "{}"):
        assert without_member(text, GROUP, NAME) == text


LINES = st.lists(st.sampled_from("abc"), max_size=20)


@given(LINES, LINES)
def test_a_diff_of_one_change_is_the_one_that_difflib_makes(start: list[str], end: list[str]) -> None:
    before, after = [*start, *"xyz", "old", *"xyz", *end], [*start, *"xyz", *"xyz", *end]
    expected = difflib.unified_diff(before, after, "file", "file", lineterm="")
    assert unified_diff(Path("file"), before, after).splitlines() == [*expected]
    assert unified_diff(Path("file"), before, before) == ""
    assert unified_diff(Path("file"), None, after).startswith("--- /dev/null\n+++ file\n@@ -0,0 +1")
