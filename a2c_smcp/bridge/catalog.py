"""The tools of an office for MCP clients: which tools, under which names, and where a call of one goes.

Built in three steps, each of which may be switched off: the same tool of several computers becomes one (`ToolGroup`),
each gets the name that it has had before (`names.py`), and if there are too many, two tools replace the list:
`search_tools` finds some of them by words (`search.py`), `call_tool` calls one.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from itertools import count
from typing import Any, Literal, TypeAlias

import orjson

from a2c_smcp.bridge.apps import has_page
from a2c_smcp.bridge.names import GivenNames, OfferedTool, Owner, SharedTool, Target, Yields
from a2c_smcp.bridge.search import ToolIndex
from a2c_smcp.errors import BadRequest
from a2c_smcp.registry.tool_info import is_for_models
from a2c_smcp.registry.toolset import unknown_tool

# Adds an argument to a tool's schema: the same values are valid as before, with this argument beside them.
#
# A schema consists of parts that judge the same object: itself, what it refers to at its top, and the branches of
# `allOf`, `anyOf`, `oneOf`, `if` and so on. Any of them may refuse properties that it does not know, so the argument
# is made known to all of them. References at the top are replaced by what they refer to; the rest stays as it is.
#
# Some schemas cannot be changed safely: those that judge properties by patterns of their names, and those whose parts
# are used for other objects, too. They are refused.

Schema: TypeAlias = Mapping[str, Any]

_LISTS = ("allOf", "anyOf", "oneOf")
_BRANCHES = ("if", "then", "else", "not")
_BY_PROPERTY = ("dependentSchemas", "dependencies")
_UNSAFE = {"patternProperties", "const", "enum"}
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_KINDS: dict[str, type] = {
    **dict.fromkeys(("properties", "dependentRequired", *_BY_PROPERTY), dict),
    **dict.fromkeys(("required", *_LISTS), list),
    **dict.fromkeys(("minProperties", "maxProperties"), int),
    "$ref": str,
}
_SAYS_NOTHING = {"type", "title", "description", "$schema", "$id", "$comment", "$defs", "definitions", "examples"}
_MOST_PARTS = 100


class CannotAdd(Exception):
    """The schema cannot be changed safely."""


def add_argument(schema: Schema, names: Iterable[str], describe: Callable[[str], Schema]) -> tuple[str, dict[str, Any]]:
    """The first of the names that the tool itself does not use, and the schema with a required argument of that name.

    `describe` is given the name and returns the argument's own schema. If all names are used, the last is numbered.
    Raises `CannotAdd`.
    """
    if not all(_is_elsewhere(reference) for reference in _references(schema)):
        raise CannotAdd
    argument = _unused(names, {name for part in _parts(schema) for name in _mentioned(part)})
    changed = _knowing(argument, schema, schema)
    added = {argument: dict(describe(argument))}
    properties = {**added, **changed.get("properties", {}), **added}  # first, and not replaced
    required = [argument, *changed.get("required", ())]
    return argument, {"type": "object", **changed, "properties": properties, "required": required}


# Some clients refuse a tool whose schema has no `properties`, or has `allOf`, `anyOf` or `oneOf` at its top.

_MERGEABLE = {"type", "title", "description", "properties", "required"}
_SEES_OTHERS = ("additionalProperties", "unevaluatedProperties")


def in_common_form(schema: Schema) -> dict[str, Any]:
    """A schema by which the same values are valid, with `properties` and with as few choices at its top as possible."""
    common = {"type": "object", **schema}
    is_referred_to = any("Of/" in reference for reference in _references(schema))
    for key in _LISTS:
        branches = common.get(key)
        if isinstance(branches, list) and (key == "allOf" or len(branches) == 1) and not is_referred_to:
            common = _merged({name: value for name, value in common.items() if name != key}, branches) or common
    return common if "properties" in common else {**common, "properties": {}}


def _merged(rest: Schema, branches: Sequence[Any]) -> dict[str, Any] | None:
    """One object for a schema and branches that all hold; `None` if it would be another schema."""
    parts = [rest, *branches]
    if not all(map(_is_about_an_object, parts)):
        return None
    named = [member for part in parts for member in part.get("properties", {}).items()]
    is_the_same = rest.keys().isdisjoint(_SEES_OTHERS) and all(branch.keys() <= _MERGEABLE for branch in branches)
    if not is_the_same or len(dict(named)) < len(named):
        return None
    required = dict.fromkeys(name for part in parts for name in part.get("required", ()))
    return {**rest, "properties": dict(named), **({"required": [*required]} if required else {})}


def _is_about_an_object(part: Any) -> bool:
    """True for a schema of objects whose keywords have the form that they should have."""
    if not isinstance(part, Mapping) or part.get("type", "object") != "object":
        return False
    required = part.get("required", [])
    return (
        isinstance(part.get("properties", {}), Mapping)
        and isinstance(required, list)
        and {*map(type, required)} <= {str}
    )


def _unused(names: Iterable[str], used: set[str]) -> str:
    last = ""
    for last in names:
        if last not in used:
            return last
    return next(name for number in count(2) if (name := f"{last}_{number}") not in used)


def _references(schema: Any) -> Iterator[str]:
    """All references anywhere in a schema, and all values that look like one."""
    rest: list[Any] = [schema]
    while rest:
        value = rest.pop()
        if isinstance(value, Mapping):
            yield from (value[key] for key in _REFERENCES if isinstance(value.get(key), str))
            rest += value.values()
        elif isinstance(value, list):
            rest += value


def _is_elsewhere(reference: str) -> bool:
    """True for a `$ref` to an unchanged part of the schema."""
    start, _, path = reference.partition("/")
    return start == "#" and path.partition("/")[0] not in {"", *_LISTS, *_BRANCHES, *_BY_PROPERTY}


def _parts(root: Schema) -> Iterator[Schema]:
    """All parts that judge the same object. Raises `CannotAdd` if one is unsafe or malformed, or if they never end."""
    rest: list[Any] = [root]
    for _ in range(_MOST_PARTS):
        part = rest.pop()
        if not isinstance(part, bool):
            _check(part)
            yield part
            rest += _branches(part)
            if "$ref" in part:
                rest.append(_referred(part["$ref"], root))
        if not rest:
            return
    raise CannotAdd


def _check(part: Any) -> None:
    if not isinstance(part, Mapping) or not _UNSAFE.isdisjoint(part):
        raise CannotAdd
    if not all(isinstance(part[key], kind) for key, kind in _KINDS.items() if key in part):
        raise CannotAdd


def _mentioned(part: Schema) -> Iterator[str]:
    for key in ("properties", "required", "dependentRequired", *_BY_PROPERTY):
        yield from part.get(key, ())


def _branches(part: Schema) -> Iterator[Any]:
    for key in _LISTS:
        yield from part.get(key, ())
    for key in _BRANCHES:
        yield from (part[key],) if key in part else ()
    for key in _BY_PROPERTY:
        yield from (branch for branch in part.get(key, {}).values() if not isinstance(branch, list))


def _knowing(argument: str, part: Any, root: Schema) -> Any:
    """The part with the argument made known to it and its branches. It must have been checked."""
    if isinstance(part, bool):
        return part

    def knowing(branch: Any) -> Any:
        return _knowing(argument, branch, root)

    result = {key: value for key, value in part.items() if key != "$ref"}
    result |= {key: [*map(knowing, part[key])] for key in _LISTS if key in part}
    result |= {key: knowing(part[key]) for key in _BRANCHES if key in part}
    for key in filter(part.__contains__, _BY_PROPERTY):
        result[key] = {name: value if isinstance(value, list) else knowing(value) for name, value in part[key].items()}
    result |= _bounds(argument, part)
    return _joined(result, knowing(_referred(part["$ref"], root))) if "$ref" in part else result


def _bounds(argument: str, part: Schema) -> dict[str, Any]:
    """The keywords of a part that judge all properties, changed to admit the argument, which counts as one more."""
    changed: dict[str, Any] = {key: part[key] + 1 for key in ("minProperties", "maxProperties") if key in part}
    if not all(part.get(key, True) is True for key in ("additionalProperties", "unevaluatedProperties")):
        changed["properties"] = {**part.get("properties", {}), argument: {}}
    if "propertyNames" in part:
        changed["propertyNames"] = {"anyOf": [{"const": argument}, part["propertyNames"]]}
    return changed


def _referred(reference: str, root: Schema) -> Any:
    """The target of a reference into the schema."""
    target: Any = root
    for step in reference.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(target, Mapping) or key not in target:
            raise CannotAdd
        target = target[key]
    return target


def _joined(one: dict[str, Any], other: Any) -> dict[str, Any]:
    """Both must hold. They become one object if the first says nothing of its own: many readers know no `allOf`."""
    if isinstance(other, Mapping) and one.keys() <= _SAYS_NOTHING and one.get("type", "object") == "object":
        return {**other, **one}
    return {**one, "allOf": [*one.get("allOf", ()), other]}


# One tool for many computers: the same tool of several computers is offered once, with an argument that names one.
#
# Tools are the same if their names and their schemas are equal. What else they say may differ. The shared tool shows
# the description, title and icons of the first computer, by name, and of the rest only what all of them say: one
# computer cannot make the tools of others look harmless.
#
# The argument is called `computer`, or `on_computer` if the tool itself has an argument of that name. It is required,
# and an enum of the computers that have the tool now.
#
# A tool is shared from a number of computers on, and once it has been shared it stays so: also when there is one
# computer left, and across restarts. Its name stands for the tool on the computer that the argument names, whatever
# its schema is there. So computers that come and go, or are updated one after another, change no name, and calls by
# an older list do not fail for it. Where the schemas differ, the name shows the schema that most computers have.
# Another one that several have is shown under a name of its own, which ends in a digest of the schema; one that a
# single computer has is shown as a tool of this computer.

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
        rest = len(computers) - _MOST_NAMED
        shown = ", ".join(map(repr, computers[:_MOST_NAMED])) + (f" and {rest} more" if rest > 0 else "")
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
    by_name: defaultdict[str, defaultdict[str, list[OfferedTool]]] = defaultdict(lambda: defaultdict(list))
    for offer in offers:
        is_alone = has_page(offer.listing)  # a page belongs to one computer
        (singles if is_alone else by_name[offer.target.tool][_schema_digest(offer.listing)]).append(offer)
    for tool, by_schema in by_name.items():
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


def _group(owner: SharedTool, digest: str, same: Sequence[OfferedTool]) -> ToolGroup | None:
    """`None` if an argument cannot be added to the tool's schema."""
    by_computer = {offer.target.computer: offer.listing for offer in same}
    computers = tuple(sorted(by_computer))
    listings = [by_computer[computer] for computer in computers]

    def describe(argument: str) -> Schema:
        also = "" if argument == _ARGUMENTS[0] else f" ({_ARGUMENTS[0]!r} is an argument of the tool itself.)"
        return {"type": "string", "enum": [*computers], "description": f"The computer that runs the tool.{also}"}

    try:
        argument, schema = add_argument(listings[0].get("inputSchema") or {}, _ARGUMENTS, describe)
    except CannotAdd:
        return None
    return ToolGroup(owner, digest, computers, argument, {**_joined_tools(listings), "inputSchema": schema})


def _joined_tools(listings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
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
    """The part of an object that all others have, too."""
    objects = [other if isinstance(other, Mapping) else {} for other in others]
    return {key: item for key, item in value.items() if all(key in other and other[key] == item for other in objects)}


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
    """Options by which many tools become few.

    `one_for_all`: the same tool of several computers is offered once, with a `computer` argument: `on` (from two
    computers on), `off`, or `auto` (on more than `one_for_all_above` computers). With more tools than `search_above`,
    only `search_tools` and `call_tool` are listed.
    """

    one_for_all: Literal["auto", "on", "off"] = "auto"
    one_for_all_above: int = 3
    search_above: int | None = None


_Tool: TypeAlias = ToolGroup | OfferedTool


class Catalog:
    """The tools at one moment. It never changes: when the office does, another one is built."""

    def __init__(self, tools: Mapping[str, _Tool], names: GivenNames, search_above: int | None) -> None:
        self._tools = tools
        self._names = names
        self._lists_search = search_above is not None and len(tools) > search_above
        self.is_searched = search_above is not None
        """True if `search_tools` and `call_tool` can be called: by older lists also while all tools are listed."""

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
        """The tools for models that fit a query best, the best first, as `listings` has them without a search."""
        return [self._searched[number][0] for number in self._index.search(query, limit)]

    def tools_of(self, computer: str) -> Iterator[tuple[Target, tuple[str, str | None]]]:
        """The tools of a computer: for each its name here, and the argument that names the computer if it is shared."""
        for name, tool in self._tools.items():
            if computer in _computers_of(tool):
                argument = tool.argument if isinstance(tool, ToolGroup) else None
                yield Target(computer, _own_name(tool)), (name, argument)

    @cached_property
    def _listings(self) -> list[dict[str, Any]]:
        return [{"name": name, **_titled(tool)} for name, tool in self._tools.items()]

    @cached_property
    def _searched(self) -> list[tuple[dict[str, Any], str]]:
        """The tools for models, and the computers that have them."""
        listed = zip(self._listings, self._tools.values(), strict=True)
        return [(listing, " ".join(_computers_of(tool))) for listing, tool in listed if is_for_models(listing)]

    @cached_property
    def _index(self) -> ToolIndex:
        return ToolIndex([listing for listing, _ in self._searched], [computers for _, computers in self._searched])

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
    computers: defaultdict[str, set[str]] = defaultdict(set)
    for tool in tools:
        computers[_own_name(tool)].update(_computers_of(tool))
    return computers


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
    names_of = names.names_of([*tools], reserved={*reserved, CALL_TOOL, SEARCH_TOOLS}, yields=yields)
    by_name = {name: tools[owner] for owner, name in sorted(names_of.items(), key=lambda item: item[1])}
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
    """The tool and the arguments in a call of `call_tool`. Raises `BadRequest`."""
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
