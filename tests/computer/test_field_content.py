"""The marks on fields of configurations: each table that treats secrets knows every mark."""

from __future__ import annotations

from typing import Annotated

import pytest

from a2c_smcp.computer.secrets import mask as messages
from a2c_smcp.computer.secrets import replace, rules
from a2c_smcp.computer.secrets.mask import MASKED, Mask
from a2c_smcp.computer.secrets.rules import Literals
from a2c_smcp.mcp_host.config import inputs
from a2c_smcp.mcp_host.config.servers import INPUT_CONTENTS, SERVER_CONTENTS, TOOL_META_CONTENTS, FieldContent


@pytest.mark.parametrize(
    "table",
    [rules._RULES, messages._STRUCTURES, replace._BY_CONTENT, inputs._SHOWN],
    ids=["masked", "shown", "replaced", "repr"],
)
def test_every_table_of_secrets_has_an_entry_for_each_mark(table: dict[FieldContent, object]) -> None:
    assert set(table) == set(FieldContent)


def test_only_parameters_of_servers_are_marked_as_secrets() -> None:
    for contents in (SERVER_CONTENTS, TOOL_META_CONTENTS, INPUT_CONTENTS):
        assert FieldContent.SECRET not in contents.values()


def test_a_field_that_is_marked_as_a_secret_is_hidden_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    class Parameters(inputs.StrictModel):
        colour: Annotated[str, FieldContent.SECRET]

    contents = inputs.contents_of(Parameters)
    literals = Literals()
    mask = rules._fields(rules._by_content(contents))
    assert mask({"colour": "turquoise"}, literals) == {"colour": MASKED}
    assert literals.found == {"turquoise"}
    assert mask({"colour": "${input:colour}"}, literals) == {"colour": "${input:colour}"}
    structure = messages.Structure(messages._by_content(contents))
    assert Mask(literals.found).data({"colour": "turquoise"}, structure) == {"colour": MASKED}
    assert repr(Parameters(colour="turquoise")) == "Parameters(colour='***')"
    rule = replace._BY_CONTENT[contents["colour"]]
    assert rule
    monkeypatch.setitem(replace._RULES, "colour", rule)
    places = []

    def note(place: str, name: str, value: str) -> str:
        places.append((place, name, value))
        return "${input:new}"

    assert replace.replace_secrets({"colour": "turquoise"}, "servers.a", note) == {"colour": "${input:new}"}
    assert replace.replace_secrets({"colour": "${input:x}"}, "servers.a", note) == {"colour": "${input:x}"}
    assert places == [("servers.a.colour", "secret", "turquoise")]
