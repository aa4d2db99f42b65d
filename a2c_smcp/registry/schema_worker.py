"""Checks arguments against schemas: the functions for it, and the program that runs them in a process of its own.

It imports nothing of ours: as a program it runs isolated, and is killed when a check takes too long. A request is a
letter (`v` whether they fit, `e` why not), the length of the schema in four bytes, the schema and the arguments as
JSON; before it stands the length of all that, in four bytes. An answer is JSON with its length before it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeAlias

from jsonschema_rs import FancyRegexOptions, ReferencingError, ValidationErrorKind, Validator, validator_for

__all__ = ["Misfit", "compiled", "first_line", "fits", "main", "misfits"]

MAX_FAULTS, MAX_MESSAGE = 20, 300
MEMORY = 256 * 1024 * 1024
PATIENCE = 10  # seconds; the parent process waits less: this ends a check whose parent is gone
MAX_KEPT = 64
BACKTRACKING = 100_000

Misfit: TypeAlias = tuple[list[str | int], str]
"""Where, as the steps to it, and what; no value is quoted."""

_NOT_THE_CALLERS = (
    ValidationErrorKind.BacktrackLimitExceeded,
    ValidationErrorKind.RegexEngineFailure,
    ValidationErrorKind.Referencing,
)


def compiled(schema: Any, **options: Any) -> Validator:
    """Drafts are told by `$schema`, 2020-12 by default. Nothing is ever fetched.

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
    """Halves of surrogate pairs are JSON, which the library cannot read: as far as a schema goes, any sign will do."""
    return json.loads(json.dumps(arguments, ensure_ascii=False).encode(errors="replace"))


def main() -> None:
    _confine()
    validators: dict[bytes, Validator | str] = {}
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    _write(answers, None)
    while request := _read(requests):
        if hasattr(signal, "alarm"):
            signal.alarm(PATIENCE)
        answer = _answer(validators, request)
        if hasattr(signal, "alarm"):
            signal.alarm(0)
        _write(answers, answer)


def _read(requests: BinaryIO) -> bytes:
    return requests.read(int.from_bytes(requests.read(4), "big"))


def _write(answers: BinaryIO, answer: Any) -> None:
    data = json.dumps(answer).encode()
    answers.write(len(data).to_bytes(4, "big") + data)
    answers.flush()


def _answer(validators: dict[bytes, Validator | str], request: bytes) -> Any:
    """Whether they fit, or why they do not; a text says why the schema cannot be used."""
    size = int.from_bytes(request[1:5], "big")
    schema, arguments = request[5 : 5 + size], json.loads(request[5 + size :])
    if schema not in validators:
        if len(validators) >= MAX_KEPT:
            validators.clear()
        try:
            options = FancyRegexOptions(backtrack_limit=BACKTRACKING)
            validators[schema] = compiled(json.loads(schema), pattern_options=options)
        except (ValueError, ReferencingError) as error:
            validators[schema] = first_line(error)
    validator = validators[schema]
    if isinstance(validator, str):
        return validator
    return misfits(validator, arguments) if request[:1] == b"e" else fits(validator, arguments)


def _confine() -> None:
    """No more memory, no new file, socket or process, no core dump, where the system knows such limits."""
    try:
        import resource
    except ImportError:
        return
    limits = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": 0, "RLIMIT_NPROC": 0, "RLIMIT_AS": _size() + MEMORY, "RLIMIT_NOFILE": 3}
    for name, value in limits.items():
        with suppress(AttributeError, OSError, ValueError):
            resource.setrlimit(getattr(resource, name), (value, value))


def _size() -> int:
    """Of the address space in use, in bytes; where that is not told, as much as nobody needs."""
    try:
        return int(Path("/proc/self/statm").read_text("ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 1024 * 1024 * 1024


if __name__ == "__main__":
    main()
