"""`sandbox` in the configuration of a stdio server: what its process may read, write, connect to and use up."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from a2c_smcp.mcp_host.config.fields import FieldContent, Flag, fault, has_placeholder
from a2c_smcp.mcp_host.config.inputs import StrictModel

ANY: Final = "any"
STRICT: Final = "strict"
UNIX: Final = "unix"

_LARGEST_PORT = 65535
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?)(b?))?b?", re.IGNORECASE)
_SIZE_FAULT = 'must be a number of bytes above zero, a size such as "512 MiB", or "any"'
_PORTS_FAULT = f'must be a list of TCP ports, 1 to {_LARGEST_PORT}, and of "{UNIX}"; or "any"'
_PATHS_FAULT = 'must be a list of paths, or "any"'


def bytes_of(size: int | str) -> int | None:
    """Return the bytes of `536870912`, `"512 MiB"`, `"0.5 GiB"` or `"512 MB"`; `None` for anything else."""
    if isinstance(size, int):
        return size if not isinstance(size, bool) and size > 0 else None
    match = _SIZE.fullmatch(size.strip())
    if match is None:
        return None
    number, letter, binary, unit = match.groups()
    base = 1000 if unit and not binary else 1024
    power = " kmgt".index(letter.lower()) if letter else 0
    return int(float(number) * base**power) or None


def _paths(value: object) -> object:
    if value == ANY:
        return value
    if not isinstance(value, list) or not all(isinstance(path, str) and path.strip() for path in value):
        raise fault(_PATHS_FAULT)
    return value


def _ports(value: object) -> object:
    if value == ANY:
        return value
    if not isinstance(value, list):
        raise fault(_PORTS_FAULT)
    return [_port(port) for port in value]


def _port(value: object) -> int | str:
    if isinstance(value, str) and value.isdecimal():  # an input that was typed in arrives as text
        value = int(value)
    if isinstance(value, str) and (value == UNIX or has_placeholder(value)):
        return value
    if type(value) is int and 0 < value <= _LARGEST_PORT:
        return value
    raise fault(_PORTS_FAULT)


def _memory(value: object) -> object:
    is_open = value == ANY or has_placeholder(value)
    if not is_open and (not isinstance(value, int | str) or bytes_of(value) is None):
        raise fault(_SIZE_FAULT)
    return value


def _processes(value: object) -> object:
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if value != ANY and not has_placeholder(value) and (type(value) is not int or value < 1):
        raise fault('must be a number of processes above zero, or "any"')
    return value


Paths: TypeAlias = Annotated[list[str] | Literal["any"], BeforeValidator(_paths)]
Ports: TypeAlias = Annotated[list[int | str] | Literal["any"], BeforeValidator(_ports)]
Size: TypeAlias = Annotated[int | str, BeforeValidator(_memory)]
Count: TypeAlias = Annotated[int | str, BeforeValidator(_processes)]


class SandboxSettings(StrictModel):
    """Additional rights of one server. No field set means `"strict"`.

    `read`, `write`: files and folders, with everything in them; what may be written may be read. `connect`: TCP ports,
    and `"unix"` for Unix sockets. `memory`, `processes`: limits of the server and its descendants together; above one
    they are ended. `"any"` lifts a limit. `required`: without a kernel that can enforce these fields, do not start.
    """

    read: Annotated[Paths, FieldContent.PATH] = Field(default_factory=list)
    write: Annotated[Paths, FieldContent.PATH] = Field(default_factory=list)
    connect: Annotated[Ports, FieldContent.SETTING] = Field(default_factory=list)
    memory: Annotated[Size, FieldContent.SETTING] = "2 GiB"
    processes: Annotated[Count, FieldContent.SETTING] = 64
    required: Annotated[Flag, FieldContent.SETTING] = True


def _strict(value: object) -> object:
    if value == STRICT:
        return {}
    if isinstance(value, str | bool):
        raise fault(f'must be "{STRICT}" or an object')
    return value


SandboxField: TypeAlias = Annotated[SandboxSettings | None, BeforeValidator(_strict)]


def as_written(sandbox: Any) -> Any:
    """Return `"strict"`, or an object with the fields that differ from it, as a person would write it."""
    if not isinstance(sandbox, Mapping):
        return sandbox
    defaults = SandboxSettings().model_dump(mode="json")
    return {name: value for name, value in sandbox.items() if value != defaults.get(name)} or STRICT


def loosens(before: Any, after: Any) -> bool:
    """True if a change of the field, in JSON, allows a server more than before, or may do so."""
    if before is None:
        return False
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return True
    readable = ANY if ANY in (before["read"], before["write"]) else [*before["read"], *before["write"]]
    return (
        not _is_within(after["read"], readable)
        or not _is_within(after["write"], before["write"])
        or not _is_within(after["connect"], before["connect"])
        or not _is_at_most(after["memory"], before["memory"])
        or not _is_at_most(after["processes"], before["processes"])
        or (before["required"] is not False and after["required"] is not True)
    )


def _is_within(new: Any, old: Any) -> bool:
    return old == ANY or (new != ANY and set(new) <= set(old))


def _is_at_most(new: Any, old: Any) -> bool:
    if new == old or old == ANY:
        return True
    new_size, old_size = bytes_of(new), bytes_of(old)
    return new_size is not None and old_size is not None and new_size <= old_size
