"""The frontmatter of a `SKILL.md`: the YAML between two lines `---` at its beginning, which describes the skill.

It may come from a hostile MCP server. So it is read up to a size only, and what it becomes is bounded: aliases, by
which a few bytes of YAML become gigabytes, count as broken YAML, and values that JSON does not have are replaced.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

import yaml

__all__ = ["LONGEST_FRONTMATTER", "Frontmatter", "parse_frontmatter", "split_frontmatter"]

LONGEST_FRONTMATTER = 32 * 1024
"""Characters. A longer frontmatter has no fields."""

_FENCE = "---"
_MOST_VALUES = 2000
_DEEPEST = 32
_LARGEST_INTEGER = 2**63


@dataclass(frozen=True)
class Frontmatter:
    """The fields that are there and usable."""

    name: str | None = None
    description: str | None = None
    license: str | None = None
    compatibility: str | None = None
    allowed_tools: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    metadata: Mapping[str, Any] | None = None


def split_frontmatter(text: str) -> tuple[str | None, str]:
    """The YAML of a file, `None` if it has no frontmatter, and its body. Line ends are LF."""
    if not text.startswith(f"{_FENCE}\n"):
        return None, text
    begin = len(_FENCE) + 1
    if text.startswith(f"{_FENCE}\n", begin) or text[begin:] == _FENCE:
        return "", text[begin + len(_FENCE) + 1 :]
    end = text.find(f"\n{_FENCE}\n", begin)
    if end >= 0:
        return text[begin:end], text[end + len(_FENCE) + 2 :]
    if text.endswith(f"\n{_FENCE}"):
        return text[begin : -len(_FENCE) - 1], ""
    return None, text


def parse_frontmatter(text: str | None) -> Frontmatter:
    """The fields of a frontmatter. Broken YAML has none."""
    found = _loaded(text) if text and len(text) <= LONGEST_FRONTMATTER else None
    if not isinstance(found, dict):
        return Frontmatter()
    tools = found.get("allowed-tools", found.get("allowed_tools"))
    tags, metadata = found.get("tags"), found.get("metadata")
    return Frontmatter(
        name=_text(found.get("name")),
        description=_text(found.get("description")),
        license=_text(found.get("license")),
        compatibility=_text(found.get("compatibility")),
        allowed_tools=None if tools is None else tuple(map(_written, tools if isinstance(tools, list) else [tools])),
        tags=tuple(tags) if isinstance(tags, list) and all(isinstance(tag, str) for tag in tags) else None,
        metadata=metadata if isinstance(metadata, dict) else None,
    )


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """Makes plain values only, and refuses aliases."""

    def compose_node(self, parent: object, index: object) -> object:
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases are not read", self.peek_event().start_mark)
        return super().compose_node(parent, index)


class _TooMuch(Exception):
    """More values, or deeper ones, than a frontmatter may have."""


def _loaded(text: str) -> Any:
    """The YAML as JSON values; `None` if it is broken."""
    try:
        return _JSONValues().of(yaml.load(text, _Loader))  # noqa: S506  # it is a SafeLoader
    except (yaml.YAMLError, _TooMuch, ValueError, TypeError, OverflowError, AttributeError, RecursionError):
        return None  # PyYAML's own constructors raise all of these, for instance for the 99th of a month


class _JSONValues:
    """Replaces what JSON does not have: dates, bytes, sets, keys that are not text, infinities, huge integers."""

    def __init__(self) -> None:
        self._left = _MOST_VALUES

    def of(self, value: Any, depth: int = 0) -> Any:
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST:
            raise _TooMuch
        if isinstance(value, dict):
            return {_written(key): self.of(each, depth + 1) for key, each in value.items()}
        if isinstance(value, list | tuple | set):
            return [self.of(each, depth + 1) for each in value]
        return _scalar(value)


def _scalar(value: Any) -> Any:
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and abs(value) >= _LARGEST_INTEGER:
        return hex(value)
    return value


def _text(value: Any) -> str | None:
    """A field that is a text. An empty one counts as missing."""
    text = "" if value is None else _written(value)
    return text if text.strip() else None


def _written(value: Any) -> str:
    value = _scalar(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
