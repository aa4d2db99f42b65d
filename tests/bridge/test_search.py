"""Finding tools by words, and calling them, where there are too many to list."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2c_smcp.bridge.catalog import Catalog, CatalogOptions, catalog, search_arguments
from a2c_smcp.bridge.names import GivenNames, OfferedTool, Target
from a2c_smcp.bridge.search import ToolIndex, words_in
from a2c_smcp.errors import BadRequest, ToolNotFound
from tests.bridge.tool_queries import all_queries, all_tools
from tests.stage.cases import cases

pytestmark = pytest.mark.covers("bridge-search")

SEARCHED = CatalogOptions(search_above=2)


def many(*computers: str, options: CatalogOptions = SEARCHED) -> Catalog:
    tools = all_tools().items()
    offers = [OfferedTool(Target(computer, name), listing) for computer in computers for name, listing in tools]
    return catalog(offers, GivenNames(), options)


def found_by(query: str, *tools: dict[str, Any]) -> list[str]:
    return [tools[number]["name"] for number in ToolIndex(tools).search(query, 9)]


def named(name: str, description: str = "", **parameters: str) -> dict[str, Any]:
    properties = {key: {"description": about} for key, about in parameters.items()}
    return {"name": name, "description": description, "inputSchema": {"properties": properties}}


# The index


@cases(
    "text, words",
    ("read_text-file", ["read", "text", "fil"]),
    ("readTextFile2", ["read", "text", "fil", "2"]),
    ("parsePDFFile", ["pars", "pdf", "fil"]),
    ("The FILES of a repository", ["fil", "repository"]),
    ("creating created creates", ["creat", "creat", "creat"]),
    ("queries cities boxes stopped translation", ["query", "city", "box", "stop", "translat"]),
    ("café", ["caf"]),
    ("查询天气", ["查询", "询天", "天气"]),
    ("合并 PDF 页", ["合并", "pdf", "页"]),
    ("погода", ["погода"]),
    ("", []),
)
def test_texts_are_taken_apart_into_words(text: str, words: list[str]) -> None:
    assert words_in(text) == words


def test_names_descriptions_and_parameters_are_searched() -> None:
    tools = named("weather"), named("b", "Tells the weather."), named("c", weather=""), named("d", city="Its weather")
    found = found_by("weather", *tools, named("e", "Something else."))
    assert (found[0], {*found}, found[-1]) == ("weather", {"weather", "b", "c", "d"}, "d")


def test_a_word_that_few_tools_have_counts_more() -> None:
    tools = [named("list_files"), named("list_users"), named("list_invoices"), named("find_files")]
    assert found_by("list invoices", *tools)[0] == "list_invoices"


def test_a_query_that_fits_nothing_finds_nothing() -> None:
    assert found_by("xylophone", named("list_files")) == []
    assert found_by("", named("list_files")) == []
    assert ToolIndex([]).search("anything", 5) == []


@given(st.text(max_size=40), st.lists(st.text(max_size=20), max_size=5), st.integers(1, 9))
def test_any_query_over_any_texts_has_an_answer(query: str, texts: list[str], limit: int) -> None:
    found = ToolIndex([named(text, text) for text in texts], texts).search(query, limit)
    assert len(found) <= limit
    assert len({*found}) == len(found)
    assert {*found} <= {*range(len(texts))}


def test_listings_of_any_shape_are_indexed() -> None:
    odd = [{"name": "a", "description": None}, {"name": "b", "inputSchema": True}]
    odd += [{"name": "c", "inputSchema": {"properties": {"x": True}}}, {"name": "d", "inputSchema": {"properties": []}}]
    assert ToolIndex(odd).search("d", 5) == [3]


# How well it finds


@cases(
    "kinds, at_once, of_five",
    ({"direct"}, 0.9, 0.95),
    ({"paraphrase"}, 0.4, 0.6),
    ({"request"}, 0.3, 0.5),
    ({"chinese"}, 0.9, 0.95),
    ({"direct", "paraphrase"}, 0.75, 0.85),
)
def test_the_tool_that_is_meant_is_among_the_first(kinds: Collection[str], at_once: float, of_five: float) -> None:
    tools = many("laptop")
    queries = [query for query in all_queries() if query.kind in kinds]
    found = [[tools.resolve(each["name"], {})[0].tool for each in tools.search(query.text, 5)] for query in queries]
    hits = [not {*query.expected}.isdisjoint(tools) for query, tools in zip(queries, found, strict=True)]
    firsts = [bool(tools) and tools[0] in query.expected for query, tools in zip(queries, found, strict=True)]
    assert sum(hits) / len(hits) >= of_five
    assert sum(firsts) / len(firsts) >= at_once


def test_the_set_of_queries_is_as_large_as_the_numbers_say() -> None:
    assert len(all_tools()) >= 200
    assert len(all_queries()) >= 60
    assert all({*query.expected} <= all_tools().keys() for query in all_queries())


# In place of the list


def test_too_many_tools_are_searched_in_place_of_being_listed() -> None:
    assert [listing["name"] for listing in many("laptop").listings()] == ["call_tool", "search_tools"]
    assert len(many("laptop", options=CatalogOptions()).listings()) == len(all_tools())
    limit = len(all_tools())
    assert len(many("laptop", options=CatalogOptions(search_above=limit)).listings()) == limit


def test_what_is_found_can_be_called_at_once_and_by_call_tool() -> None:
    tools = many("laptop")
    [found] = tools.search("send an email with an attachment", 1)
    assert found == {"name": "send_email", **all_tools()["send_email"]}
    called = Target("laptop", "send_email"), {"to": "me"}
    assert tools.resolve("call_tool", {"name": "send_email", "arguments": {"to": "me"}}) == called
    assert tools.resolve("send_email", {"to": "me"}) == called
    assert tools.resolve("call_tool", {"name": "send_email"}) == (called[0], {})


def test_tools_of_several_computers_are_found_once_and_called_with_a_computer() -> None:
    tools = many("a", "b", "c", "d")
    [found] = tools.search("send an email with an attachment", 1)
    assert found["inputSchema"]["properties"]["computer"]["enum"] == ["a", "b", "c", "d"]
    arguments = {"name": found["name"], "arguments": {"computer": "c", "to": "me"}}
    assert tools.resolve("call_tool", arguments) == (Target("c", "send_email"), {"to": "me"})


def test_the_name_of_a_computer_finds_its_tools_first() -> None:
    tools = many("laptop", "tower")
    assert [found["name"] for found in tools.search("send an email from the tower", 1)] == ["tower__send_email"]


WRONG: list[dict[str, Any]] = [{}, {"name": 7}, {"name": "call_tool"}, {"name": "send_email", "arguments": "to me"}]


@pytest.mark.parametrize("arguments", WRONG)
def test_a_call_of_call_tool_must_name_a_tool_and_its_arguments(arguments: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        many("laptop").resolve("call_tool", arguments)


def test_a_client_that_was_offered_the_search_can_use_it_when_there_are_fewer_tools() -> None:
    found = catalog([OfferedTool(Target("laptop", "read"), {})], GivenNames(), SEARCHED)
    assert [listing["name"] for listing in found.listings()] == ["read"]
    assert found.is_searched
    assert found.resolve("call_tool", {"name": "read"}) == (Target("laptop", "read"), {})


@cases("options, name, match", (SEARCHED, "sendemail", "send_email"), (CatalogOptions(), "send_email", "call_tool"))
def test_unknown_names_and_a_call_tool_that_is_not_listed_are_refused(options: Any, name: str, match: str) -> None:
    with pytest.raises(ToolNotFound, match=match):
        many("laptop", options=options).resolve("call_tool", {"name": name})


def test_tools_of_computers_never_have_the_names_of_the_search() -> None:
    offers = [OfferedTool(Target("laptop", name), {}) for name in ("search_tools", "call_tool")]
    found = catalog(offers, GivenNames())
    assert [listing["name"] for listing in found.listings()] == ["laptop__call_tool", "laptop__search_tools"]


def test_the_arguments_of_a_search_are_checked() -> None:
    assert search_arguments({"query": "mail"}) == ("mail", 5)
    assert search_arguments({"query": "mail", "limit": 9}) == ("mail", 9)
    for wrong in ({}, {"query": " "}, {"query": 7}, {"query": "a", "limit": 0}, {"query": "a", "limit": True}):
        with pytest.raises(BadRequest):
            search_arguments(wrong)
