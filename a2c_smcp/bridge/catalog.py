"""What an MCP client is offered of an office: which tools, under which names, and where a call of one goes.

Built in three steps, each of which may be switched off: the same tool of several computers becomes one (`grouping.py`),
each gets the name that it has had before (`names.py`), and if there are too many, two tools take the place of the list:
`search_tools` finds some of them by words (`search.py`), `call_tool` calls one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

from a2c_smcp.bridge.grouping import ToolGroup, group_tools
from a2c_smcp.bridge.names import GivenNames, Yields
from a2c_smcp.bridge.offers import OfferedTool, Owner, SharedTool, Target
from a2c_smcp.bridge.search import ToolIndex
from a2c_smcp.errors import BadRequest
from a2c_smcp.registry.toolset import unknown_tool

__all__ = [
    "CALL_TOOL",
    "SEARCH_TOOLS",
    "Catalog",
    "CatalogOptions",
    "OfferedTool",
    "Target",
    "catalog",
    "search_arguments",
]

CALL_TOOL, SEARCH_TOOLS = "call_tool", "search_tools"

_USUAL_FOUND, _MOST_FOUND = 5, 50
_MOST_COMPARED = 2_000

_SEARCH_TOOLS: dict[str, Any] = {
    "name": SEARCH_TOOLS,
    "title": "Search tools",
    "description": (
        "Find tools by what they do. There are many tools, on several computers, and none of them is listed: search "
        "before you say that something cannot be done. Returns the best matches, each with its name, its description "
        f"and the schema of its arguments; call one with {CALL_TOOL}. Only words are compared, so use the words that a "
        "tool's description would use, and try others if nothing fits."
    ),
    "inputSchema": {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What the tool should do, in a few words."},
            "limit": {
                "type": "integer",
                "minimum": 1,
                "maximum": _MOST_FOUND,
                "default": _USUAL_FOUND,
                "description": "How many tools to return at most.",
            },
        },
        "required": ["query"],
    },
    "annotations": {"readOnlyHint": True, "openWorldHint": False},
}
_CALL_TOOL: dict[str, Any] = {
    "name": CALL_TOOL,
    "title": "Call a tool",
    "description": f"Call a tool that {SEARCH_TOOLS} has found.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": f"The name of the tool, as {SEARCH_TOOLS} returned it."},
            "arguments": {"type": "object", "description": "Its arguments, as its inputSchema describes them."},
        },
        "required": ["name"],
    },
}


@dataclass(frozen=True, slots=True)
class CatalogOptions:
    """How many tools are offered as few.

    `one_for_all`: the same tool of several computers is offered once, with a `computer` argument: `on` (from two
    computers on), `off`, or `auto` (on more than `one_for_all_above` computers). With more tools than `search_above`,
    only `search_tools` and `call_tool` are listed.
    """

    one_for_all: Literal["auto", "on", "off"] = "auto"
    one_for_all_above: int = 3
    search_above: int | None = None


_Tool: TypeAlias = ToolGroup | OfferedTool


class Catalog:
    """What is offered at one moment. It never changes: when the office does, another one is built."""

    def __init__(self, tools: Mapping[str, _Tool], names: GivenNames, search_above: int | None) -> None:
        self._tools = tools
        self._names = names
        self._lists_search = search_above is not None and len(tools) > search_above
        self.is_searched = search_above is not None
        """Whether `search_tools` and `call_tool` can be called: also while all tools are listed, by older lists."""

    def listings(self) -> list[dict[str, Any]]:
        """MCP's list of tools, sorted by name. Not to be edited."""
        return [_CALL_TOOL, _SEARCH_TOOLS] if self._lists_search else [*self._listings]

    def resolve(self, name: str, arguments: Mapping[str, Any]) -> tuple[Target, dict[str, Any]]:
        """The tool that a call is for, and its own arguments. Raises `ToolNotFound` or `BadRequest`."""
        if self.is_searched and name == CALL_TOOL:
            return self.resolve(*_called(arguments))
        tool = self._tools.get(name) or self._listed_before(name)
        if isinstance(tool, ToolGroup):
            return tool.resolve(arguments, self._computers[tool.owner.tool])
        if tool is None:
            raise unknown_tool(name, [*self._tools][:_MOST_COMPARED])
        return (tool.target if isinstance(tool, OfferedTool) else tool), dict(arguments)

    def search(self, query: str, limit: int) -> list[dict[str, Any]]:
        """The tools that fit a query best, the best first, as `listings` has them without a search."""
        return [self._listings[number] for number in self._index.search(query, limit)]

    @cached_property
    def _listings(self) -> list[dict[str, Any]]:
        return [{"name": name, **_titled(tool)} for name, tool in self._tools.items()]

    @cached_property
    def _index(self) -> ToolIndex:
        return ToolIndex(self._listings, [" ".join(_computers_of(tool)) for tool in self._tools.values()])

    @cached_property
    def _computers(self) -> Mapping[str, Collection[str]]:
        return _computers_by_tool(self._tools.values())

    def _listed_before(self, name: str) -> ToolGroup | Target | None:
        """A tool that is now part of a shared one: clients that have an older list call it by its own name."""
        owner = self._names.owner_of(name)
        if isinstance(owner, Target):
            return owner if owner.computer in self._computers.get(owner.tool, ()) else None
        groups = (tool for tool in self._tools.values() if isinstance(tool, ToolGroup))
        same = (group for group in groups if owner == SharedTool(group.owner.tool, group.schema))
        return next(same, None)


def _computers_by_tool(tools: Iterable[_Tool]) -> Mapping[str, Collection[str]]:
    """The computers that have a tool, by its own name."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for tool in tools:
        found[_own_name(tool)].update(_computers_of(tool))
    return found


def _computers_of(tool: _Tool) -> tuple[str, ...]:
    return tool.computers if isinstance(tool, ToolGroup) else (tool.target.computer,)


def _own_name(tool: _Tool) -> str:
    return tool.owner.tool if isinstance(tool, ToolGroup) else tool.target.tool


def _titled(tool: _Tool) -> Mapping[str, Any]:
    """A name in other letters than clients accept is shown as the title."""
    own = _own_name(tool)
    return tool.listing if own.isascii() or tool.listing.get("title") else {"title": own, **tool.listing}


def catalog(
    offers: Iterable[OfferedTool],
    names: GivenNames,
    options: CatalogOptions = CatalogOptions(),  # noqa: B008  # it is frozen
    reserved: Collection[str] = (),
) -> Catalog:
    """Build the catalog of an office. `reserved` are names that none of its tools may have."""
    groups, singles = list[ToolGroup](), [*offers]
    if options.one_for_all != "off":
        above = 1 if options.one_for_all == "on" else options.one_for_all_above
        groups, singles = group_tools(singles, above=above, known=names.shared_tools())
    groups.sort(key=lambda group: (group.owner.tool, group.owner.schema))
    singles.sort(key=lambda offer: (offer.target.computer, offer.target.tool))
    tools: dict[Owner, _Tool] = {group.owner: group for group in groups} | {offer.target: offer for offer in singles}
    yields = _passing_on(_computers_by_tool(groups), may_end_sharing=options.one_for_all == "off")
    given = names.names_of([*tools], reserved={*reserved, CALL_TOOL, SEARCH_TOOLS}, yields=yields)
    by_name = {name: tools[owner] for owner, name in sorted(given.items(), key=lambda item: item[1])}
    return Catalog(by_name, names, options.search_above)


def search_arguments(arguments: Mapping[str, Any]) -> tuple[str, int]:
    """The query and the limit in a call of `search_tools`. Raises `BadRequest`."""
    query, limit = arguments.get("query"), arguments.get("limit", _USUAL_FOUND)
    if not isinstance(query, str) or not query.strip():
        raise BadRequest("must say in words what the tool should do", subject="argument 'query'")
    if type(limit) is not int or not 1 <= limit <= _MOST_FOUND:
        raise BadRequest(f"must be a number from 1 to {_MOST_FOUND}", subject="argument 'limit'")
    return query, limit


def _called(arguments: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """What a call of `call_tool` calls."""
    name, inner = arguments.get("name"), arguments.get("arguments")
    if not isinstance(name, str) or name == CALL_TOOL:
        raise BadRequest(f"must be the name of a tool that {SEARCH_TOOLS} has found", subject="argument 'name'")
    if not isinstance(inner, Mapping | None):
        raise BadRequest("must be an object", subject="argument 'arguments'")
    return name, inner or {}


def _passing_on(computers: Mapping[str, Collection[str]], *, may_end_sharing: bool) -> Yields:
    """Which names pass on to another owner that is the same tool. `computers` are those that share it, by its name.

    A shared tool takes over the name of a computer's tool that is part of it now. If nothing shall be shared, the names
    of shared tools are free.
    """

    def yields(holder: Owner, newcomer: Owner) -> bool:
        if holder.tool != newcomer.tool:
            return False
        if isinstance(holder, SharedTool):
            return may_end_sharing
        return isinstance(newcomer, SharedTool) and holder.computer in computers.get(holder.tool, ())

    return yields
