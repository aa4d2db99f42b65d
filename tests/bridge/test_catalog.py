"""What an MCP client is offered of an office, and where its calls go."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2c_smcp.bridge.catalog import Catalog, CatalogOptions, catalog
from a2c_smcp.bridge.names import GivenNames, OfferedTool, Target
from a2c_smcp.errors import ToolNotFound

pytestmark = pytest.mark.covers("bridge-catalog")

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def offer(computer: str, tool: str, **listing: Any) -> OfferedTool:
    return OfferedTool(Target(computer, tool), {"description": f"{tool}.", "inputSchema": SCHEMA, **listing})


def names_in(found: Catalog) -> list[str]:
    return [listing["name"] for listing in found.listings()]


def test_tools_are_listed_as_their_computers_list_them_sorted_by_name() -> None:
    more = {"outputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}, "title": "Read"}
    found = catalog([offer("tower", "write"), offer("laptop", "read", **more)], GivenNames())
    read, write = ({"name": name, "description": f"{name}.", "inputSchema": SCHEMA} for name in ("read", "write"))
    assert found.listings() == [{**read, **more}, write]


def test_a_call_goes_to_the_tool_that_has_the_name() -> None:
    found = catalog([offer("laptop", "files.read"), offer("tower", "files.read")], GivenNames())
    assert names_in(found) == ["files_read", "tower__files_read"]
    assert found.resolve("files_read", {"path": "a"}) == (Target("laptop", "files.read"), {"path": "a"})
    assert found.resolve("tower__files_read", {}) == (Target("tower", "files.read"), {})


def test_an_unknown_name_is_refused_with_similar_ones() -> None:
    found = catalog([offer("laptop", "read_file")], GivenNames())
    with pytest.raises(ToolNotFound, match=r"'read_flie', did you mean 'read_file'\?"):
        found.resolve("read_flie", {})


def test_the_order_in_which_computers_are_listed_does_not_matter() -> None:
    offers = [offer(computer, tool) for computer in ("a", "b") for tool in ("read", "write")]
    assert catalog(offers, GivenNames()).listings() == catalog(offers[::-1], GivenNames()).listings()


def test_names_that_are_reserved_are_given_to_no_tool() -> None:
    options = CatalogOptions(one_for_all="off")
    found = catalog([offer("laptop", "get_desktop")], GivenNames(), options, reserved={"get_desktop"})
    assert names_in(found) == ["laptop__get_desktop"]


def test_a_name_in_other_letters_than_clients_accept_is_shown_as_the_title() -> None:
    offers = [offer("laptop", "查询天气"), offer("laptop", "搜索", title="Search")]
    assert {listing["title"] for listing in catalog(offers, GivenNames()).listings()} == {"Search", "查询天气"}


schemas = st.sampled_from([SCHEMA, {"type": "object"}, {"patternProperties": {"": {}}}, {"$ref": "#/$defs/a"}])
words = st.sampled_from(["a", "b", "a__b", "a.b", "a b", "search_tools", "搜索"])
offices = st.dictionaries(st.builds(Target, words, words), schemas, max_size=12)
all_options = st.builds(CatalogOptions, st.sampled_from(["auto", "on", "off"]), st.integers(0, 3), st.none())


@given(st.lists(offices, min_size=1, max_size=4), all_options)
def test_every_tool_can_be_called_under_one_listed_name_and_no_other_tool_can(
    rounds: list[dict[Target, Any]], options: CatalogOptions
) -> None:
    names = GivenNames()
    for office in rounds:
        found = catalog(
            [OfferedTool(target, {"inputSchema": schema}) for target, schema in office.items()], names, options
        )
        reached = [found.resolve(name, call)[0] for name, call in calls_of(found)]
        assert len(reached) == len(office)
        assert {*reached} == office.keys()


def calls_of(found: Catalog) -> list[tuple[str, dict[str, str]]]:
    calls: list[tuple[str, dict[str, str]]] = []
    for listing in found.listings():
        which = listing["inputSchema"].get("properties", {}).get("computer")
        calls += [(listing["name"], {"computer": each}) for each in which["enum"]] if which else [(listing["name"], {})]
    return calls
