"""Binary values in JSON: Socket.IO's placeholders, put in for sending and replaced by the attachments on arrival."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from a2c_smcp.errors import BadRequest

__all__ = ["detach", "restore"]

_MARK, _NUMBER = "_placeholder", "num"


def detach(value: Any) -> tuple[Any, list[bytes]]:
    """The value with a placeholder for everything that is binary, and what was there."""
    found: list[bytes] = []
    return _detach(value, found), found


def restore(value: Any, attachments: Sequence[bytes]) -> Any:
    """The value with its attachments in their places. Raises `BadRequest` for a place that has none."""
    try:
        return _restore(value, attachments)
    except RecursionError:
        raise BadRequest("nested too deeply") from None


def _detach(value: Any, found: list[bytes]) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        found.append(bytes(value))
        return {_MARK: True, _NUMBER: len(found) - 1}
    if isinstance(value, dict):
        return {key: _detach(each, found) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_detach(each, found) for each in value]
    return value


def _restore(value: Any, attachments: Sequence[bytes]) -> Any:
    if isinstance(value, list):
        return [_restore(each, attachments) for each in value]
    if not isinstance(value, dict):
        return value
    if value.get(_MARK) is not True:
        return {key: _restore(each, attachments) for key, each in value.items()}
    number = value.get(_NUMBER)
    if type(number) is not int or not 0 <= number < len(attachments):
        raise BadRequest(f"no attachment for placeholder {number!r}")
    return attachments[number]
