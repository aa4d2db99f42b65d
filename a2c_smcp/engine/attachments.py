"""Binary parts of JSON values: taken out of them for the wire, and put back.

In a packet's JSON the object `{"_placeholder": true, "num": n}` stands for attachment number n. Placeholders and
attachments have to match one to one: a hundred placeholders for one large attachment would make a small packet
a large one for everybody who writes it out again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from a2c_smcp.engine.packets import Malformed

__all__ = ["attach", "detach"]

_MARK, _NUMBER = "_placeholder", "num"


def detach(value: Any) -> tuple[Any, list[bytes]]:
    """A copy of a value with placeholders for the bytes in it, and these."""
    attachments: list[bytes] = []
    return _detach(value, attachments), attachments


def attach(value: Any, attachments: Sequence[bytes]) -> Any:
    """A copy of a value with these bytes in place of its placeholders. Raises `Malformed` if they do not match."""
    unused = dict(enumerate(attachments))
    try:
        whole = _attach(value, unused)
    except (KeyError, RecursionError):
        raise Malformed("the attachments do not match their placeholders") from None
    if unused:
        raise Malformed("an attachment has no placeholder")
    return whole


def _detach(value: Any, attachments: list[bytes]) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        attachments.append(bytes(value))
        return {_MARK: True, _NUMBER: len(attachments) - 1}
    if isinstance(value, dict):
        return {key: _detach(item, attachments) for key, item in value.items()}
    return [_detach(item, attachments) for item in value] if isinstance(value, list | tuple) else value


def _attach(value: Any, unused: dict[int, bytes]) -> Any:
    if isinstance(value, dict):
        if value.get(_MARK) is True:
            number = value.get(_NUMBER)
            return unused.pop(number if type(number) is int else -1)
        return {key: _attach(item, unused) for key, item in value.items()}
    return [_attach(item, unused) for item in value] if isinstance(value, list) else value
