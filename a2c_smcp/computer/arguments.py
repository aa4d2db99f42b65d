"""Whether the arguments of a call fit the tool's schema. A schema that cannot be used never stands in the way.

Both sides may be hostile: a schema whose references multiply, and arguments with a million faults or endless nesting,
would each cost the library unbounded time or memory, so they are measured before it sees them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from jsonschema_rs import ReferencingError, ValidationErrorKind, Validator, validator_for

from a2c_smcp.errors import BadRequest

__all__ = ["Schema", "check_arguments", "compile_schema"]

MAX_WEIGHT = 20_000
"""Subschemas in a schema, with references followed. Times the values in the arguments, it is the work of a check."""
MAX_WORK = 100_000_000
"""What costs more is not checked here: the server will do it."""
MAX_EXPLAINED = 50_000
"""What costs more is not told fault by fault, which takes far more time and memory than a yes or no."""
MAX_DEPTH, MAX_FAULTS, MAX_MESSAGE = 200, 20, 300

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


def check_arguments(schema: Schema, params: dict[str, Any]) -> None:
    """Raises `BadRequest` whose `details["errors"]` has a JSON pointer and a message per fault, and quotes no value."""
    if schema.validator is None:
        return
    values, depth = _measure(params)
    if depth > MAX_DEPTH:
        raise _misfit([{"path": "", "message": f"nested more than {MAX_DEPTH} deep"}])
    work = schema.weight * values
    if work > MAX_WORK:
        return
    try:
        faults = _faults(schema.validator, params, work)
    except UnicodeEncodeError:
        faults = _faults(schema.validator, _without_surrogates(params), work)
    except ValueError:
        raise _misfit([{"path": "", "message": "not JSON"}]) from None
    if faults:
        raise _misfit(faults)


def _faults(validator: Validator, params: dict[str, Any], work: int) -> list[dict[str, str]]:
    if validator.is_valid(params):
        return []
    if work > MAX_EXPLAINED:
        return [{"path": "", "message": "does not fit, and is too large to say where"}]
    errors = [error for error in validator.iter_errors(params) if not isinstance(error.kind, _NOT_THE_CALLERS)]
    return [
        {"path": _pointer(error.instance_path), "message": error.message[:MAX_MESSAGE]} for error in errors[:MAX_FAULTS]
    ]


def _misfit(faults: list[dict[str, str]]) -> BadRequest:
    first = faults[0]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return BadRequest(f"params{first['path']}: {first['message']}{more}", field="params", errors=faults)


def _pointer(path: list[str | int]) -> str:
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


def _weight(node: object, root: dict[str, Any], known: dict[int, int]) -> int:
    """How many subschemas there are when every local reference is written out; a cycle is written out once."""
    if not isinstance(node, dict | list):
        return 0
    if id(node) not in known:
        known[id(node)] = 0
        known[id(node)] = 1 + sum(_weight(child, root, known) for child in _visited(node, root))
    return known[id(node)]


def _visited(node: dict[str, Any] | list[Any], root: dict[str, Any]) -> list[Any]:
    if isinstance(node, list):
        return node
    shelves = ("$defs", "definitions") if node is root else ()
    return [_target(node.get("$ref"), root), *(child for key, child in node.items() if key not in shelves)]


def _target(reference: object, root: dict[str, Any]) -> object:
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found: Any = root
    for step in reference.split("/")[1:]:
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found


def _measure(value: object) -> tuple[int, int]:
    """How many values there are in it, and how deep it is; it stops counting where it is too deep anyway."""
    count, depth, level = 1, 0, [value]
    while level and depth <= MAX_DEPTH:
        inner = [node.values() if isinstance(node, dict) else node for node in level if isinstance(node, dict | list)]
        count += sum(map(len, inner))
        level = [child for node in inner for child in node if isinstance(child, dict | list)]
        depth += 1
    return count, depth


def _without_surrogates(params: dict[str, Any]) -> dict[str, Any]:
    """Halves of surrogate pairs are JSON, which the library cannot read: as far as a schema goes, any sign will do."""
    copy: dict[str, Any] = json.loads(json.dumps(params, ensure_ascii=False).encode(errors="replace"))
    return copy


def _refuse(uri: str) -> NoReturn:
    raise ValueError("references to other documents are not followed")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:MAX_MESSAGE]
