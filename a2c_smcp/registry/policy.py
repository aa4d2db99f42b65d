"""Which tools a registry shows and calls."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from a2c_smcp.registry.tool_info import ToolInfo, as_words

__all__ = ["Policy"]


class Policy:
    """Tools that `allow` or `allow_tags` names are allowed, all tools if neither is given; `deny` always wins.

    Each is a list of names or tags, with `*`, `?` and `[…]` as in file names. Denying `rm` also denies `laptop__rm`,
    the name that `rm` gets when two computers offer it. Tags that a tool of a computer or an MCP server brings along
    can deny it, but allow it only if that source is trusted: otherwise a source could allow its own tools.
    """

    def __init__(
        self,
        *,
        allow: Iterable[str] | None = None,
        deny: Iterable[str] = (),
        allow_tags: Iterable[str] | None = None,
        deny_tags: Iterable[str] = (),
    ) -> None:
        self._allows_all = allow is None and allow_tags is None
        self._allow, self._allow_tags = as_words(allow), as_words(allow_tags)
        self._deny, self._deny_tags = as_words(deny), as_words(deny_tags)

    def allows(self, tool: ToolInfo) -> bool:
        if _match(_with_suffixes(tool.name), self._deny) or _match(tool.tags, self._deny_tags):
            return False
        return self._allows_all or _match([tool.name], self._allow) or _match(tool.granted_tags, self._allow_tags)


def _match(words: Iterable[str], patterns: frozenset[str] | None) -> bool:
    return any(fnmatchcase(word, pattern) for word in words for pattern in patterns or ())


def _with_suffixes(name: str) -> list[str]:
    """`a__b__c`, `b__c`, `c`."""
    parts = name.split("__")
    return ["__".join(parts[start:]) for start in range(len(parts))]
