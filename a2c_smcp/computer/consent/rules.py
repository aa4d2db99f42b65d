"""The policy file: rules, budgets, and what the owner knows of the tools of each MCP server.

A rule matches a call if every condition that it has holds. The first rule that matches decides; if none does, `default`
decides, and without it the configuration does (`auto_apply`, or the owner is asked). An unknown field is an error, not
ignored: a misspelt condition would make a rule match more than its owner wrote.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from a2c_smcp.computer.configuration.files import read_data
from a2c_smcp.errors import ConfigError
from a2c_smcp.mcp_host.config.inputs import FieldPath, did_you_mean, faults_of
from a2c_smcp.registry.schemas.check import Schema

# Mistakes in the `arguments` of a rule that JSON Schema silently accepts.
#
# A validator ignores keywords that it does not know, and says that everything fits: a misspelt `propertes` would let
# all arguments through. So unknown keywords are errors here (`unknown_keywords`). Others are warnings (`traps`): JSON
# Schema means what it says there, but often not what was meant.

_BY_NAME = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
_ONE = frozenset(
    {"additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then", "unevaluatedItems"}
)
_SEVERAL = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_CHECKED = frozenset(
    {
        "$ref", "const", "dependentRequired", "enum", "exclusiveMaximum", "exclusiveMinimum", "maxContains",
        "maximum", "maxItems", "maxLength", "maxProperties", "minContains", "minimum", "minItems", "minLength",
        "minProperties", "multipleOf", "pattern", "required", "type", "uniqueItems",
    }
)  # fmt: skip
_NOTES = frozenset({"$comment", "$id", "$schema", "default", "description", "examples", "title"})
_NARROWS = frozenset({"$ref", "allOf", "anyOf", "const", "enum", "oneOf", "type"})


def unknown_keywords(schema: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each keyword that nothing would check."""
    for place, node in _nodes(schema, ""):
        for keyword in node.keys() - _BY_NAME - _ONE - _SEVERAL - _CHECKED - _NOTES:
            if keyword == "format":
                yield f"{place}format is not checked: write a pattern"
            else:
                yield f"{place}{keyword} is no keyword that is checked; names of arguments go into properties"


def traps(schema: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each condition that arguments can go round, in a rule that allows."""
    required = schema.get("required") or ()
    for name, node in (schema.get("properties") or {}).items():
        if name not in required:
            yield f"{name} is not in required: the rule matches calls without it, too"
        if isinstance(node, Mapping) and node and _NARROWS.isdisjoint(node):
            yield f"{name} has no type: its conditions hold for values of every other type"
    for place, node in _nodes(schema, ""):
        pattern = node.get("pattern")
        if isinstance(pattern, str) and not (pattern.startswith("^") and pattern.endswith("$")):
            yield f"{place}pattern does not begin with ^ and end with $: it also matches inside a longer text"


def _nodes(schema: Any, place: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """All subschemas, each with where it is."""
    if not isinstance(schema, Mapping):
        return
    yield place, schema
    for keyword, inner in schema.items():
        if keyword in _BY_NAME and isinstance(inner, Mapping):
            for name, node in inner.items():
                yield from _nodes(node, f"{place}{keyword}.{name}.")
        elif keyword in _ONE:
            yield from _nodes(inner, f"{place}{keyword}.")
        elif keyword in _SEVERAL and isinstance(inner, list):
            for index, node in enumerate(inner):
                yield from _nodes(node, f"{place}{keyword}.{index}.")


Then: TypeAlias = Literal["allow", "ask", "deny"]
Dimension: TypeAlias = Literal["agent", "office", "server", "tool"]

Annotations: TypeAlias = dict[Literal["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"], bool]
ANNOTATIONS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SIZES = {"": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3}
_MOST_CALLS, _MOST_RULES = 100_000, 1000


def _fault(text: str) -> PydanticCustomError:
    return PydanticCustomError("config", "{fault}", {"fault": text})


def seconds_in(text: str) -> float:
    """`8h` in seconds: the one way to write a duration on the command line, at the prompt and in a policy.

    Raises `ValueError`.
    """
    match = re.fullmatch(r"(\d{1,7}(?:\.\d{1,3})?)([smhd])", text)
    if not match or float(match[1]) == 0:
        raise ValueError(f"{text!r} is not a time like 30m, 8h or 7d")
    return float(match[1]) * _UNITS[match[2]]


def _seconds(value: object) -> object:
    if not isinstance(value, str):
        raise _fault("must be a time like 30m, 8h or 7d")
    try:
        return seconds_in(value)
    except ValueError as error:
        raise _fault(str(error)) from None


def _bytes(value: object) -> object:
    found = re.fullmatch(r"([1-9]\d{0,12}) ?(kb|mb|gb|)", value.lower()) if isinstance(value, str) else None
    if found:
        return int(found[1]) * _SIZES[found[2]]
    if isinstance(value, str):
        raise _fault("must be a number of bytes, or a size like 10MB")
    return value


def _moment(value: object) -> object:
    """A time with a zone, or a day, which lasts until its end in UTC. TOML has both as values of their own."""
    if isinstance(value, datetime):
        found = value
    elif isinstance(value, str) or hasattr(value, "isoformat"):
        text = value if isinstance(value, str) else value.isoformat()
        try:
            found = datetime.fromisoformat(f"{text}T23:59:59+00:00" if len(text) == len("2026-12-31") else text)
        except ValueError:
            raise _fault("must be a day or a time like 2026-12-31T18:00:00Z") from None
    else:
        raise _fault("must be a day or a time like 2026-12-31T18:00:00Z")
    if found.tzinfo is None:
        raise _fault("must say its time zone, like 2026-12-31T18:00:00Z")
    return found.astimezone(UTC)


def _listed(value: object) -> object:
    """One name may be written without a list. An empty list would match nothing, whatever its owner meant."""
    if isinstance(value, str):
        value = [value]
    if value == []:
        raise _fault("must not be empty: leave it out to mean all")
    return tuple(value) if isinstance(value, list) else value


def _checked_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Only what can be checked exactly, and in time, may decide: a check that gives up would decide nothing."""
    ready = Schema(schema).ready
    if unknown := next(unknown_keywords(schema), None):
        raise _fault(unknown)
    if ready.unusable is not None:
        raise _fault(f"is not a JSON Schema that can be used: {ready.unusable}")
    if ready.validator is None:
        raise _fault(
            "takes too long to check: no references in a circle, no look-around in patterns, no unevaluatedProperties"
        )
    return schema


_Names: TypeAlias = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_listed)]
_Seconds: TypeAlias = Annotated[float, BeforeValidator(_seconds), WithJsonSchema({"type": "string"})]
_Count: TypeAlias = Annotated[int, Field(ge=1, le=_MOST_CALLS)]


class _PolicyModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)


@lru_cache(maxsize=1024)
def _pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    """`*` stands for any characters; everything else is meant as it is written."""
    plain = (name.replace("[", "[[]").replace("?", "[?]") for name in names)
    return re.compile("|".join(f"(?:{fnmatch.translate(name)})" for name in plain))


def names_match(names: tuple[str, ...] | None, *given: str) -> bool:
    """True if one of the names matches one of these patterns (`*`: any characters). `None` matches all."""
    return names is None or any(_pattern(names).fullmatch(name) for name in given)


class CallConditions(_PolicyModel):
    """Which calls are meant, by names. What is left out holds for all."""

    agents: _Names | None = None
    offices: _Names | None = None
    servers: _Names | None = None
    tools: _Names | None = None


class PolicyRule(CallConditions):
    """A rule for matching calls.

    `arguments` is a JSON Schema that the arguments have to fit. `annotations` are those that the owner vouches for.
    `every_time`: a permanent approval does not answer the question. `until`: afterwards the rule matches nothing.
    """

    name: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    then: Then
    annotations: Annotated[Annotations, Field(min_length=1)] | None = None
    arguments: Annotated[dict[str, Any], AfterValidator(_checked_schema)] | None = None
    every_time: bool = False
    until: Annotated[datetime, BeforeValidator(_moment)] | None = None
    why: Annotated[str, Field(max_length=500)] = ""

    @model_validator(mode="after")
    def _asks_every_time(self) -> Self:
        if self.every_time and self.then != "ask":
            raise _fault('every_time: is only for rules with "then": "ask"')
        return self

    @cached_property
    def argument_schema(self) -> Schema | None:
        return None if self.arguments is None else Schema(self.arguments)

    def is_over(self, now: float) -> bool:
        return self.until is not None and self.until.timestamp() <= now


class BudgetEntry(CallConditions):
    """A limit that matching calls share; with `per`, each agent, office, server or tool has its own."""

    name: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    per: Annotated[tuple[Dimension, ...], BeforeValidator(_listed)] = ()
    calls_per_minute: _Count | None = None
    running: _Count | None = None
    bytes_per_hour: Annotated[int, BeforeValidator(_bytes), Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if self.calls_per_minute is None and self.running is None and self.bytes_per_hour is None:
            raise _fault("limits nothing: it needs calls_per_minute, running or bytes_per_hour")
        return self


class ServerStatement(_PolicyModel):
    """The owner's statements about the tools of a server.

    `trust_hints`: the server's own annotations count. `read_only` and `destructive` name tools, and win over them.
    """

    trust_hints: bool = False
    read_only: _Names | None = None
    destructive: _Names | None = None


class AccessPolicy(_PolicyModel):
    """A policy file as a whole.

    `read_only`: only tools that are known to change nothing may be called. `grants_last`: how long a permanent approval
    lasts at most.
    """

    default: Then | None = None
    read_only: bool = False
    grants_last: _Seconds | None = None
    servers: dict[str, ServerStatement] = Field(default_factory=dict)
    rules: Annotated[list[PolicyRule], Field(max_length=_MOST_RULES)] = Field(default_factory=list)
    budgets: Annotated[list[BudgetEntry], Field(max_length=_MOST_RULES)] = Field(default_factory=list)

    def rule_label(self, index: int) -> str:
        return _label("rules", index, self.rules[index].name)

    def budget_label(self, index: int) -> str:
        return _label("budgets", index, self.budgets[index].name)

    def with_options(self, *, read_only: bool, trust_hints: tuple[str, ...]) -> AccessPolicy:
        """The policy with what the command line adds to it."""
        trusted = {
            name: self.servers.get(name, ServerStatement()).model_copy(update={"trust_hints": True})
            for name in trust_hints
        }
        update = {"read_only": self.read_only or read_only, "servers": {**self.servers, **trusted}}
        return self.model_copy(update=update)

    def __str__(self) -> str:
        parts = [
            _counted(len(self.rules), "rule"),
            *([_counted(len(self.budgets), "budget")] if self.budgets else []),
            *(["read-only"] if self.read_only else []),
            *([f"otherwise {self.default}"] if self.default else []),
        ]
        return ", ".join(parts)


def read_policy(path: Path) -> AccessPolicy:
    """The policy in a file; `.toml` is TOML, anything else JSON. Raises `ConfigError` naming file, rule and field."""
    return parse_policy(read_data(path), str(path))


def parse_policy(data: object, where: str = "policy") -> AccessPolicy:
    """The policy in data as it is in a file. Every fault is named in one `ConfigError`."""
    try:
        policy = AccessPolicy.model_validate(data)
    except ValidationError as error:
        faults = [_sentence(data, path, said) for path, said in faults_of(error)]
        raise ConfigError("; ".join(faults), subject=where, faults=faults) from None
    for kind, labels in (
        ("rules", [rule.name for rule in policy.rules]),
        ("budgets", [b.name for b in policy.budgets]),
    ):
        if twice := sorted({name for name in labels if name and labels.count(name) > 1}):
            fault = f"{kind}: the name {twice[0]!r} is given twice"
            raise ConfigError(fault, subject=where, faults=[fault])
    return policy


def _sentence(data: object, path: FieldPath, said: str) -> str:
    """Where the fault is, with the name of its rule, and what is wrong."""
    place = _place(data, path)
    if said == _UNKNOWN:
        model = _MODELS.get(str(path[0]), AccessPolicy) if len(path) > 1 else AccessPolicy
        said += did_you_mean(str(path[-1]), [*model.model_fields])
    return f"{place}: {said}" if place else said


_UNKNOWN = "is an unknown field"
_MODELS: dict[str, type[BaseModel]] = {"rules": PolicyRule, "budgets": BudgetEntry, "servers": ServerStatement}


def _place(data: object, path: FieldPath) -> str:
    """`rules.2 ('no payments').then`; steps that are no field of the file, such as pydantic's own, are left out."""
    place, value = "", data
    for step in path:
        if isinstance(value, dict):
            place += f".{step}" if place else str(step)
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
            name = value.get("name") if isinstance(value, dict) else None
            place += f".{step}" + (f" ({name!r})" if isinstance(name, str) else "")
    return place


def _label(kind: str, index: int, name: str | None) -> str:
    return name or f"{kind}.{index}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
