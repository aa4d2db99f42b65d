"""Searching for tools instead of listing them: what it saves, and how often the tool that is meant is found.

The tools and queries are those of `tests/bridge/queries.json`, written for this purpose. Tokens are estimated: four
characters each, which is about right for English JSON and too few for Chinese.
"""

from __future__ import annotations

import json
from typing import Any

from a2c_smcp.bridge.catalog import Catalog, CatalogOptions, catalog
from a2c_smcp.bridge.names import GivenNames, OfferedTool, Target
from benchmarks.report import save
from benchmarks.table import Row, median, options, per, report
from tests.bridge.tool_queries import ToolQuery, all_queries, all_tools

FOUND = 5
CHARACTERS_PER_TOKEN = 4
KINDS = {
    "direct": "in words that the tool itself may use",
    "paraphrase": "in other words",
    "request": "as a person asks for it, in a whole sentence",
    "chinese": "in Chinese, for tools described in Chinese",
    "crossed": "in Chinese, for tools described in English",
}


def built(search_above: int | None) -> Catalog:
    offers = [OfferedTool(Target("laptop", name), listing) for name, listing in all_tools().items()]
    return catalog(offers, GivenNames(), CatalogOptions(search_above=search_above))


def tokens(listings: list[dict[str, Any]]) -> int:
    return len(json.dumps(listings, ensure_ascii=False)) // CHARACTERS_PER_TOKEN


def found(tools: Catalog, query: ToolQuery) -> list[str]:
    return [tools.resolve(listing["name"], {})[0].tool for listing in tools.search(query.text, FOUND)]


def successes(tools: Catalog, kind: str, *, show_missed: bool) -> Row:
    queries = [query for query in all_queries() if query.kind == kind]
    results = [(query, found(tools, query)) for query in queries]
    missed = [query.text for query, names in results if {*query.expected}.isdisjoint(names)]
    firsts = sum(names[:1] != [] and names[0] in query.expected for query, names in results)
    if show_missed:
        print(f"not among the first {FOUND}, {kind}:", *missed, sep="\n  ")
    return {
        "": f"queries {KINDS[kind]}",
        "queries": len(queries),
        "first": per(firsts, len(queries), 0.01),
        f"among {FOUND}": per(len(queries) - len(missed), len(queries), 0.01),
    }


def main() -> None:
    title = f"Searching {len(all_tools())} tools instead of listing them: tokens (estimated) and success in percent"
    parser = options(title, rounds=1)
    parser.add_argument("--missed", action="store_true", help="print the queries that did not find their tool")
    chosen = parser.parse_args()
    listed, searched = built(None), built(0)
    answers = [tokens(searched.search(query.text, FOUND)) for query in all_queries()]
    rows: list[Row] = [
        {"": "tokens of the list of all tools", "tokens": tokens(listed.listings())},
        {"": "tokens of search_tools and call_tool", "tokens": tokens(searched.listings())},
        {"": f"tokens of an answer with {FOUND} tools, median", "tokens": int(median(answers))},
        *(successes(searched, kind, show_missed=chosen.missed) for kind in KINDS),
    ]
    save("tool_search", title, rows)
    report(rows, chosen)


if __name__ == "__main__":
    main()
