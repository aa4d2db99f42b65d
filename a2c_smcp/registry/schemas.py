"""Whether the arguments of a call fit the tool's schema, and where they do not.

Both sides may be hostile: a schema whose references multiply, and arguments with a million faults or endless nesting,
would each cost the library unbounded time or memory, so they are measured before it sees them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

from jsonschema_rs import ReferencingError, ValidationErrorKind, Validator, validator_for

__all__ = ["Fault", "Schema", "compile_schema", "find_faults", "local_target", "pointer"]

MAX_WEIGHT = 20_000
"""Subschemas in a schema, with references followed. Times the values in the arguments, it is the work of a check."""
MAX_WORK = 100_000_000
"""What costs more is not checked here: the server will do it."""
MAX_EXPLAINED = 50_000
"""What costs more is not told fault by fault, which takes far more time and memory than a yes or no."""
MAX_DEPTH, MAX_FAULTS, MAX_MESSAGE = 200, 20, 300

Fault: TypeAlias = dict[str, str]
"""A JSON pointer as `path`, and a `message` that quotes no value."""

_NESTS = (dict, list)
_NOT_THE_CALLERS = (
    ValidationErrorKind.BacktrackLimitExceeded,
    ValidationErrorKind.RegexEngineFailure,
    ValidationErrorKind.Referencing,
)


@dataclass(frozen=True)
class Schema:
    """A tool's schema as it was sent, and ready for use; or why it cannot be used."""

    raw: dict[str, Any]
    validator: Validator | None = field(default=None, compare=False, repr=False)
    weight: int = 0
    unusable: str | None = None


def compile_schema(schema: dict[str, Any]) -> Schema:
    """Drafts are told by `$schema`, 2020-12 by default. Nothing is ever fetched."""
    try:
        weight = _weight(schema, schema, {})
        if weight > MAX_WEIGHT:
            return Schema(schema, unusable="its references multiply beyond measure")
        return Schema(schema, validator_for(schema, retriever=_refuse, mask="value"), weight)
    except RecursionError:
        return Schema(schema, unusable="nested too deeply")
    except (ValueError, ReferencingError) as error:
        return Schema(schema, unusable=_first_line(error))


def find_faults(schema: Schema, arguments: dict[str, Any]) -> list[Fault]:
    """What in the arguments does not fit. A schema that cannot be used never stands in the way."""
    if schema.validator is None:
        return []
    values, depth = _measure(arguments)
    if depth > MAX_DEPTH:
        return [{"path": "", "message": f"nested more than {MAX_DEPTH} deep"}]
    work = schema.weight * values
    if work > MAX_WORK:
        return []
    try:
        return _faults(schema.validator, arguments, work)
    except UnicodeEncodeError:
        return _faults(schema.validator, _without_surrogates(arguments), work)
    except ValueError:
        return [{"path": "", "message": "not JSON"}]


def _faults(validator: Validator, arguments: dict[str, Any], work: int) -> list[Fault]:
    if validator.is_valid(arguments):
        return []
    if work > MAX_EXPLAINED:
        return [{"path": "", "message": "does not fit, and is too large to say where"}]
    errors = [error for error in validator.iter_errors(arguments) if not isinstance(error.kind, _NOT_THE_CALLERS)]
    return [
        {"path": pointer(error.instance_path), "message": error.message[:MAX_MESSAGE]} for error in errors[:MAX_FAULTS]
    ]


def pointer(path: Iterable[str | int]) -> str:
    """As JSON points at something (RFC 6901)."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


def _weight(node: object, root: dict[str, Any], known: dict[int, int]) -> int:
    """How many subschemas there are when every local reference is written out; a cycle is written out once."""
    if not isinstance(node, _NESTS):
        return 0
    if id(node) not in known:
        known[id(node)] = 0
        known[id(node)] = 1 + sum(_weight(child, root, known) for child in _visited(node, root))
    return known[id(node)]


def _visited(node: dict[str, Any] | list[Any], root: dict[str, Any]) -> list[Any]:
    if isinstance(node, list):
        return node
    shelves = ("$defs", "definitions") if node is root else ()
    return [local_target(node.get("$ref"), root), *(child for key, child in node.items() if key not in shelves)]


def local_target(reference: object, root: dict[str, Any]) -> Any:
    """What a `$ref` into the same document leads to; `None` if nowhere."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found: Any = root
    for step in reference.split("/")[1:]:
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found


def _measure(arguments: dict[str, Any]) -> tuple[int, int]:
    """How many values there are in it, and how deep it is; it stops counting where it is too deep anyway."""
    count, depth = 1 + len(arguments), 1
    level = [child for child in arguments.values() if isinstance(child, _NESTS)]
    while level and depth <= MAX_DEPTH:
        inner = [node.values() if isinstance(node, dict) else node for node in level]
        count += sum(map(len, inner))
        level = [child for node in inner for child in node if isinstance(child, _NESTS)]
        depth += 1
    return count, depth


def _without_surrogates(arguments: dict[str, Any]) -> dict[str, Any]:
    """Halves of surrogate pairs are JSON, which the library cannot read: as far as a schema goes, any sign will do."""
    copy: dict[str, Any] = json.loads(json.dumps(arguments, ensure_ascii=False).encode(errors="replace"))
    return copy


def _refuse(uri: str) -> NoReturn:
    raise ValueError("references to other documents are not followed")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:MAX_MESSAGE]
