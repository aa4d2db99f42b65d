"""One tool for many computers: the same tool of several computers is offered once, with an argument that names one.

Tools are the same if their names and their schemas are equal. What else they say may differ. The shared tool shows the
description, title and icons of the first computer, by name, and of the rest only what all of them say: one computer
cannot make the tools of others look harmless.

The argument is called `computer`, or `on_computer` if the tool itself has an argument of that name. It is required, and
an enum of the computers that have the tool now.

A tool is shared from a number of computers on, and once it has been shared it stays so: also when there is one computer
left, and across restarts. Its name stands for the tool on the computer that the argument names, whatever its schema is
there. So computers that come and go, or are updated one after another, change no name, and calls by an older list do
not fail for it. Where the schemas differ, the name shows the schema that most computers have. Another one that several
have is shown under a name of its own, which ends in a digest of the schema; one that a single computer has is shown as
a tool of this computer.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any

import orjson

from a2c_smcp.bridge.added_argument import CannotAdd, add_argument
from a2c_smcp.bridge.offers import OfferedTool, SharedTool, Target
from a2c_smcp.errors import BadRequest

__all__ = ["ToolGroup", "group_tools"]

_ARGUMENTS = ("computer", "on_computer", "on_computer_")
_SCHEMAS = ("inputSchema", "outputSchema")
_OF_FIRST = ("title", "description", "icons", *_SCHEMAS)
_BY_KEY = ("annotations", "_meta")
_MOST_NAMED, _LONGEST_QUOTED = 20, 128


@dataclass(frozen=True, slots=True)
class ToolGroup:
    """The same tool of several computers. `listing` is MCP's `Tool` without its name; `argument` names the computer.

    `schema` is a digest of its schemas, `computers` are those that have it with these.
    """

    owner: SharedTool
    schema: str
    computers: tuple[str, ...]
    argument: str
    listing: Mapping[str, Any]

    def resolve(self, arguments: Mapping[str, Any], computers: Collection[str]) -> tuple[Target, dict[str, Any]]:
        """The tool of the computer that the arguments name, and its own arguments. Raises `BadRequest`.

        `computers` are all that have a tool of this name now, whatever its schema.
        """
        own = dict(arguments)
        computer = own.pop(self.argument, None)
        if not isinstance(computer, str) or computer not in computers:
            raise BadRequest(self._fault(computer, sorted(computers)), subject=f"argument {self.argument!r}")
        return Target(computer, self.owner.tool), own

    def _fault(self, computer: object, computers: Sequence[str]) -> str:
        more = len(computers) - _MOST_NAMED
        shown = ", ".join(map(repr, computers[:_MOST_NAMED])) + (f" and {more} more" if more > 0 else "")
        if computer is None:
            return f"say which computer shall run {self.owner.tool!r}: {shown}"
        return f"{str(computer)[:_LONGEST_QUOTED]!r} does not have {self.owner.tool!r} now, these have: {shown}"


def group_tools(
    offers: Iterable[OfferedTool], *, above: int, known: Collection[SharedTool]
) -> tuple[list[ToolGroup], list[OfferedTool]]:
    """Join tools that are the same on more than so many computers. `known` are those that were shared before.

    Returns the joined ones and the others.
    """
    groups: list[ToolGroup] = []
    singles: list[OfferedTool] = []
    for tool, by_schema in _by_name_and_schema(offers).items():
        most, *others = sorted(by_schema.items(), key=lambda item: (-len(item[1]), item[0]))
        wanted = {SharedTool(tool): most} | {SharedTool(tool, schema): (schema, same) for schema, same in others}
        is_shared = len(most[1]) > above or SharedTool(tool) in known
        for owner, (schema, same) in wanted.items():
            is_joined = is_shared and (not owner.schema or len(same) > 1 or owner in known)
            if is_joined and (group := _group(owner, schema, same)):
                groups.append(group)
            else:
                singles += same
    return groups, singles


def _by_name_and_schema(offers: Iterable[OfferedTool]) -> Mapping[str, Mapping[str, list[OfferedTool]]]:
    found: defaultdict[str, defaultdict[str, list[OfferedTool]]] = defaultdict(lambda: defaultdict(list))
    for offer in offers:
        found[offer.target.tool][_schema_digest(offer.listing)].append(offer)
    return found


def _group(owner: SharedTool, digest: str, same: Sequence[OfferedTool]) -> ToolGroup | None:
    """`None` if an argument cannot be added to the tool's schema."""
    by_computer = {offer.target.computer: offer.listing for offer in same}
    computers = tuple(sorted(by_computer))
    listings = [by_computer[computer] for computer in computers]
    try:
        argument, schema = add_argument(
            listings[0].get("inputSchema") or {}, _ARGUMENTS, lambda name: _computer_schema(name, computers)
        )
    except CannotAdd:
        return None
    return ToolGroup(owner, digest, computers, argument, {**_joined(listings), "inputSchema": schema})


def _computer_schema(argument: str, computers: Sequence[str]) -> dict[str, Any]:
    also = "" if argument == _ARGUMENTS[0] else f" ({_ARGUMENTS[0]!r} is an argument of the tool itself.)"
    return {"type": "string", "enum": [*computers], "description": f"The computer that runs the tool.{also}"}


def _joined(listings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first, *others = listings
    joined = {field: first[field] for field in _OF_FIRST if field in first}
    for field, value in first.items():
        if field in joined:
            continue
        different = [other.get(field) for other in others if other.get(field) != value]
        if field in _BY_KEY and isinstance(value, Mapping):
            joined[field] = _agreed(value, different)
        elif not different:
            joined[field] = value
    return joined


def _agreed(value: Mapping[str, Any], others: Sequence[Any]) -> dict[str, Any]:
    objects = [other if isinstance(other, Mapping) else {} for other in others]
    return {key: each for key, each in value.items() if all(key in other and other[key] == each for other in objects)}


def _schema_digest(listing: Mapping[str, Any]) -> str:
    schemas = [listing.get(field) for field in _SCHEMAS]
    try:
        text = orjson.dumps(schemas)
    except TypeError:  # integers beyond 64 bits, halves of surrogate pairs
        text = json.dumps(schemas).encode()
    return _digest(text)


@lru_cache(maxsize=4096)
def _digest(text: bytes) -> str:
    """Does not depend on the order of keys."""
    return sha256(json.dumps(json.loads(text), sort_keys=True).encode()).hexdigest()[:16]
