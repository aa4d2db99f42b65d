"""The rules that a registry can have for its tools and calls (001 §9): policy, timeout, retry, limit, hooks."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from a2c_smcp.errors import ConfigError, SMCPError
from a2c_smcp.loops import LoopIsRunning
from a2c_smcp.registry.calls.hooks import Hooks
from a2c_smcp.registry.tool_info import ToolInfo, as_words

_TRANSIENT_CODES = (408, 429)


@dataclass(frozen=True)
class Rules:
    """The rules of a registry for every call (001 §9). Each is off by default."""

    validate: bool = False
    policy: Policy | None = None
    timeout: float | None = None
    retry: Retry | None = None
    limit: Limit | None = None
    hooks: Hooks = field(default_factory=lambda: Hooks(()))

    def __post_init__(self) -> None:
        require_positive(self.timeout)


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


@dataclass(frozen=True, slots=True)
class Retry:
    """Calls again after a failure. Only tools that are marked idempotent or read-only are ever called again.

    The pause before an attempt is random, between zero and a bound in seconds that doubles from `first_pause` to
    `longest_pause`. Two kinds of errors are final: those that say the call itself is wrong (4xx codes except 408 and
    429, `LoopIsRunning`), and those of a remote tool that may have run, since another attempt would be another call
    (WIRE §5).
    """

    attempts: int = 3
    first_pause: float = 0.1
    longest_pause: float = 5.0
    on: type[Exception] | tuple[type[Exception], ...] = Exception

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.first_pause < 0 or self.longest_pause < 0:
            raise ValueError("Retry needs at least one attempt, and pauses that are not negative")

    def pauses(self) -> Iterator[float]:
        """One before each attempt but the first."""
        bound = self.first_pause
        for _ in range(self.attempts - 1):
            yield random.uniform(0, min(bound, self.longest_pause))  # noqa: S311  # spreads callers, guards nothing
            bound *= 2

    def is_final(self, error: Exception) -> bool:
        if isinstance(error, SMCPError) and error.details.get("outcome", "not_run") != "not_run":
            return True
        if isinstance(error, SMCPError) and 400 <= error.code < 500:
            return error.code not in _TRANSIENT_CODES
        return isinstance(error, LoopIsRunning) or not isinstance(error, self.on)


@dataclass(frozen=True, slots=True)
class Limit:
    """The calls of one tool that may run at the same time, and those that may wait; more are refused (429)."""

    at_once: int
    waiting: int = 100

    def __post_init__(self) -> None:
        if self.at_once < 1 or self.waiting < 0:
            raise ValueError("Limit needs at least one call at once, and a line that is not negative")


def require_positive(timeout: float | None) -> None:
    if timeout is not None and not timeout > 0:
        raise ConfigError(f"a timeout of {timeout} s leaves no time for a call")


def _match(words: Iterable[str], patterns: frozenset[str] | None) -> bool:
    return any(fnmatchcase(word, pattern) for word in words for pattern in patterns or ())


def _with_suffixes(name: str) -> list[str]:
    """`a__b__c`, `b__c`, `c`."""
    parts = name.split("__")
    return ["__".join(parts[start:]) for start in range(len(parts))]
