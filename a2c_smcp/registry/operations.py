"""What `execute` can be asked: to describe the tools, or to call one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from a2c_smcp.errors import BadRequest

__all__ = ["CallOperation", "UnknownOperation", "read_operation"]


class UnknownOperation(BadRequest, ValueError):
    """The payload is none of those that `execute` knows."""

    title = "Unknown operation"


class CallOperation(NamedTuple):
    name: str
    arguments: dict[str, Any]


def read_operation(payload: Any) -> CallOperation | None:
    """A call, or `None` to describe. `arguments` may be missing or null; an `op` may be, where there is a name."""
    if payload is None or payload == "describe":
        return None
    if not isinstance(payload, Mapping):
        raise UnknownOperation(f'{type(payload).__name__}, neither "describe" nor an object')
    operation = payload.get("op", "call" if "name" in payload else None)
    if operation == "describe":
        return None
    if operation != "call":
        raise UnknownOperation(f'op is {operation!r:.80}, neither "describe" nor "call"')
    return CallOperation(_name_in(payload), _arguments_in(payload))


def _name_in(payload: Mapping[Any, Any]) -> str:
    name = payload.get("name")
    if not isinstance(name, str):
        raise UnknownOperation("a call needs the name of a tool", field="name")
    return name


def _arguments_in(payload: Mapping[Any, Any]) -> dict[str, Any]:
    arguments = payload.get("arguments")
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise UnknownOperation("arguments are not an object", field="arguments")
    return arguments
