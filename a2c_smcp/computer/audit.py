"""The audit file of a Computer: an entry for everything that happens, in the file before the answer leaves.

A call takes one line. Its arguments are recorded as a keyed hash of their JSON, or, if that was asked for, as they are
shown to the owner: with secrets masked. If they cannot be written as JSON, the line is without them. Results are not
recorded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson

from a2c_smcp.audit.file import AuditFile
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.observation import ComputerHappened, ToolCallBegun, ToolCallEnded
from a2c_smcp.computer.secrets import ARGUMENTS

__all__ = ["recorded"]

_NO_JSON = (TypeError, ValueError, RecursionError)


@contextmanager
def recorded(computer: Computer, path: Path | None, *, with_arguments: bool = False) -> Iterator[AuditFile | None]:
    """Inside the `with` block, record what happens on a computer, if there is a path. Raises `ConfigError`."""
    if path is None:
        yield None
        return
    file = AuditFile(path)

    def arguments_of(ended: ToolCallEnded) -> Any:
        params = ended.call.params
        return computer.mask.data(params, ARGUMENTS, ended.server) if with_arguments else file.hash(_json(params))

    def observe(happened: ComputerHappened) -> None:
        if isinstance(happened, ToolCallBegun):
            return
        facts = happened.facts()
        if isinstance(happened, ToolCallEnded):
            facts["ms"] = round(facts.pop("seconds") * 1000, 3)
            with suppress(*_NO_JSON):
                facts["arguments"] = arguments_of(happened)
        file.write(facts)
        file.flush()

    computer.observation.add(observe, often=True)
    try:
        yield file
    finally:
        computer.observation.remove(observe)
        file.close()


def _json(arguments: Any) -> bytes:
    """Arguments as JSON without spaces. Raises one of `_NO_JSON` if they are nested too deep.

    orjson refuses half a surrogate pair and integers of more than 64 bits, which JSON may hold.
    """
    try:
        return orjson.dumps(arguments, default=repr)
    except TypeError:
        return json.dumps(arguments, separators=(",", ":"), default=repr).encode("ascii")
