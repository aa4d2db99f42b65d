"""What an MCP client is offered of an office, and where its calls go."""

from __future__ import annotations

from typing import Any

import pytest

from a2c_smcp.bridge.catalog import Catalog, CatalogOptions, OfferedTool, Target, catalog
from a2c_smcp.bridge.names import GivenNames
from a2c_smcp.errors import ToolNotFound

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def offer(computer: str, tool: str, **listing: Any) -> OfferedTool:
    return OfferedTool(Target(computer, tool), {"description": f"{tool}.", "inputSchema": SCHEMA, **listing})


def names_in(found: Catalog) -> list[str]:
    return [listing["name"] for listing in found.listings()]


@pytest.mark.covers("bridge-catalog")
def test_tools_are_listed_as_their_computers_list_them_sorted_by_name() -> None:
    more = {"outputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}, "title": "Read"}
    found = catalog([offer("tower", "write"), offer("laptop", "read", **more)], GivenNames())
    assert found.listings() == [
        {"name": "read", "description": "read.", "inputSchema": SCHEMA, **more},
        {"name": "write", "description": "write.", "inputSchema": SCHEMA},
    ]


@pytest.mark.covers("bridge-catalog")
def test_a_call_goes_to_the_tool_that_has_the_name() -> None:
    found = catalog([offer("laptop", "files.read"), offer("tower", "files.read")], GivenNames())
    assert names_in(found) == ["files_read", "tower__files_read"]
    assert found.resolve("files_read", {"path": "a"}) == (Target("laptop", "files.read"), {"path": "a"})
    assert found.resolve("tower__files_read", {}) == (Target("tower", "files.read"), {})


@pytest.mark.covers("bridge-catalog")
def test_an_unknown_name_is_refused_with_similar_ones() -> None:
    found = catalog([offer("laptop", "read_file")], GivenNames())
    with pytest.raises(ToolNotFound, match=r"'read_flie', did you mean 'read_file'\?"):
        found.resolve("read_flie", {})


@pytest.mark.covers("bridge-catalog")
def test_the_order_in_which_computers_are_listed_does_not_matter() -> None:
    offers = [offer(computer, tool) for computer in ("a", "b") for tool in ("read", "write")]
    assert catalog(offers, GivenNames()).listings() == catalog(offers[::-1], GivenNames()).listings()


@pytest.mark.covers("bridge-catalog")
def test_names_that_are_reserved_are_given_to_no_tool() -> None:
    options = CatalogOptions(one_for_all="off")
    found = catalog([offer("laptop", "get_desktop")], GivenNames(), options, reserved={"get_desktop"})
    assert names_in(found) == ["laptop__get_desktop"]
