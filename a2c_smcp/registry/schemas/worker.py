"""Checks of arguments against compiled schemas, called in this process or by a worker process.

As a worker (`mcp_host/processes/worker_program.py`) it runs isolated, so it imports nothing of this package. A request
is a letter (`v`: do they fit, `e`: why not), the length of the schema in four bytes, the schema and the arguments as
JSON. An answer is JSON.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn, TypeAlias

from jsonschema_rs import FancyRegexOptions, ReferencingError, ValidationErrorKind, Validator, validator_for

MAX_FAULTS, MAX_MESSAGE = 20, 300
MEMORY = 256 * 1024 * 1024
MAX_KEPT = 64
BACKTRACKING = 100_000

Misfit: TypeAlias = tuple[list[str | int], str]
"""The path to a value and a message, which quotes no value."""

_validators: dict[bytes, Validator | str] = {}
_NOT_THE_CALLERS = (
    ValidationErrorKind.BacktrackLimitExceeded,
    ValidationErrorKind.RegexEngineFailure,
    ValidationErrorKind.Referencing,
)


def compiled(schema: Any, **options: Any) -> Validator:
    """`$schema` says which draft it is, by default 2020-12. Nothing is ever fetched.

    Raises `ValueError` or `ReferencingError` for a schema that cannot be used.
    """
    return validator_for(schema, retriever=_refuse, mask="value", **options)


def fits(validator: Validator, arguments: Any) -> bool:
    try:
        return validator.is_valid(arguments)
    except UnicodeEncodeError:
        return validator.is_valid(_without_surrogates(arguments))


def misfits(validator: Validator, arguments: Any) -> list[Misfit]:
    try:
        errors = [*validator.iter_errors(arguments)]
    except UnicodeEncodeError:
        errors = [*validator.iter_errors(_without_surrogates(arguments))]
    theirs = [error for error in errors if not isinstance(error.kind, _NOT_THE_CALLERS)]
    return [(error.instance_path, error.message[:MAX_MESSAGE]) for error in theirs[:MAX_FAULTS]]


def first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:MAX_MESSAGE]


def _refuse(uri: str) -> NoReturn:
    raise ValueError("references to other documents are not followed")


def _without_surrogates(arguments: Any) -> Any:
    """Half surrogate pairs are JSON, but the library cannot read them: they are replaced by another character.

    Raises `ValueError`, as the library does, for arguments that are not JSON.
    """
    try:
        return json.loads(json.dumps(arguments, ensure_ascii=False).encode(errors="replace"))
    except TypeError as error:
        raise ValueError(str(error)) from None


def answer(request: bytes) -> bytes:
    return json.dumps(_answer(request)).encode()


def _answer(request: bytes) -> bool | str | list[Misfit]:
    """True if the arguments fit, or their misfits; a string is the reason why the schema cannot be used."""
    size = int.from_bytes(request[1:5], "big")
    schema, arguments = request[5 : 5 + size], json.loads(request[5 + size :])
    if schema not in _validators:
        if len(_validators) >= MAX_KEPT:
            _validators.clear()
        try:
            options = FancyRegexOptions(backtrack_limit=BACKTRACKING)
            _validators[schema] = compiled(json.loads(schema), pattern_options=options)
        except (ValueError, ReferencingError) as error:
            _validators[schema] = first_line(error)
    validator = _validators[schema]
    if isinstance(validator, str):
        return validator
    return misfits(validator, arguments) if request[:1] == b"e" else fits(validator, arguments)
