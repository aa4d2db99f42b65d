"""What an MCP client is offered of an office: which tools, under which names, and where a call of one goes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from a2c_smcp.bridge.names import GivenNames
from a2c_smcp.bridge.offers import OfferedTool, Owner, Target
from a2c_smcp.registry.toolset import unknown_tool

__all__ = ["Catalog", "CatalogOptions", "OfferedTool", "Target", "catalog"]


@dataclass(frozen=True, slots=True)
class CatalogOptions:
    """How many tools are offered as few.

    `one_for_all`: the same tool of several computers is offered once, with a `computer` argument: always, never, or
    (`auto`) from more than `one_for_all_above` computers on. With more tools than `search_above`, there are only
    `search_tools` and `call_tool`.
    """

    one_for_all: Literal["auto", "on", "off"] = "auto"
    one_for_all_above: int = 3
    search_above: int | None = None


class Catalog:
    """What is offered at one moment. It never changes: when the office does, another one is built."""

    def __init__(self, tools: Mapping[str, OfferedTool]) -> None:
        self._tools = tools

    def listings(self) -> list[dict[str, Any]]:
        """MCP's list of tools, by name. Not to be edited."""
        return [{"name": name, **tool.listing} for name, tool in self._tools.items()]

    def resolve(self, name: str, arguments: Mapping[str, Any]) -> tuple[Target, dict[str, Any]]:
        """The tool that a call is for, and its arguments. Raises `ToolNotFound` or `BadRequest`."""
        tool = self._tools.get(name)
        if tool is None:
            raise unknown_tool(name, [*self._tools])
        return tool.target, dict(arguments)

    def search(self, query: str, limit: int) -> list[dict[str, Any]]:
        """The tools that fit a query best, the best first, as in `listings`."""
        return self.listings()[:limit]


def catalog(
    offers: Iterable[OfferedTool],
    names: GivenNames,
    options: CatalogOptions = CatalogOptions(),  # noqa: B008  # it is frozen
    reserved: Collection[str] = (),
) -> Catalog:
    """Build the catalog of an office. `reserved` are names that none of its tools may have."""
    tools: dict[Owner, OfferedTool] = {
        offer.target: offer for offer in sorted(offers, key=lambda offer: (offer.target.computer, offer.target.tool))
    }
    given = names.names_of([*tools], reserved=reserved)
    return Catalog({name: tools[target] for target, name in sorted(given.items(), key=lambda item: item[1])})
