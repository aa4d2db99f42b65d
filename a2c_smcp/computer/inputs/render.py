"""`${input:id}` in a configuration: which ids it mentions, and how it reads with their values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from a2c_smcp.computer.inputs.errors import UnknownInput

__all__ = ["PLACEHOLDER", "ids_in", "render"]

PLACEHOLDER = re.compile(r"\$\{input:([^}]*)\}")


def ids_in(value: Any) -> set[str]:
    """Every id that a JSON-like value mentions, the keys of its objects aside."""
    return {id_ for text in _texts(value) for id_ in PLACEHOLDER.findall(text)}


def render(value: Any, lookup: Mapping[str, Any], *, server: str | None = None) -> Any:
    """A copy with values in place of placeholders. Raises `UnknownInput` naming every id that `lookup` lacks.

    A string that is one placeholder becomes the value, whatever its type; anything else is joined as text. What a value
    contains is not looked at again, so a value that reads like a placeholder stays as it is. Keys are not rendered.
    """
    if unknown := ids_in(value) - lookup.keys():
        raise UnknownInput(sorted(unknown), server)
    return _render(value, lookup)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def _render(value: Any, lookup: Mapping[str, Any]) -> Any:
    if isinstance(value, str):
        whole = PLACEHOLDER.fullmatch(value)
        return lookup[whole[1]] if whole else PLACEHOLDER.sub(lambda found: _as_text(lookup[found[1]]), value)
    if isinstance(value, dict):
        return {key: _render(each, lookup) for key, each in value.items()}
    if isinstance(value, list):
        return [_render(each, lookup) for each in value]
    if isinstance(value, tuple):
        return tuple(_render(each, lookup) for each in value)
    return value


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
