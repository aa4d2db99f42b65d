"""Which tools a registry lets anybody see and call."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from a2c_smcp.registry.tool_info import Traits, as_words

__all__ = ["Policy"]


class Policy:
    """Allowed is what `allow` or `allow_tags` names, everything if neither is given; what is denied is never allowed.

    Each is a list of names or tags, with `*`, `?` and `[…]` as in file names. What is denied as `rm` is also denied
    as `laptop__rm`, the name that it gets when two computers have one. Tags that a tool of a computer or an MCP server
    brings along can only deny, unless that source is trusted: whoever offers a tool could allow it by himself.
    """

    def __init__(
        self,
        *,
        allow: Iterable[str] | None = None,
        deny: Iterable[str] = (),
        allow_tags: Iterable[str] | None = None,
        deny_tags: Iterable[str] = (),
    ) -> None:
        self._everything = allow is None and allow_tags is None
        self._allow, self._allow_tags = as_words(allow), as_words(allow_tags)
        self._deny, self._deny_tags = as_words(deny), as_words(deny_tags)

    def allows(self, tool: Traits) -> bool:
        if _match(_names(tool.name), self._deny) or _match(tool.tags, self._deny_tags):
            return False
        return self._everything or _match([tool.name], self._allow) or _match(tool.granted_tags, self._allow_tags)


def _match(words: Iterable[str], patterns: frozenset[str] | None) -> bool:
    return any(fnmatchcase(word, pattern) for word in words for pattern in patterns or ())


def _names(name: str) -> list[str]:
    parts = name.split("__")
    return ["__".join(parts[start:]) for start in range(len(parts))]
