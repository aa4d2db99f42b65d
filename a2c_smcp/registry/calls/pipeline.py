"""All that lies between a call and its tool, put together once per tool: what is off is not there."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from a2c_smcp.errors import ConfigError, SMCPError
from a2c_smcp.registry.calls.arguments import Prepare, preparation, prepared, prepared_async
from a2c_smcp.registry.calls.hooks import Hooks, observed, observed_async
from a2c_smcp.registry.calls.limits import Bounds, Gate, Limit, bounded, bounded_async
from a2c_smcp.registry.calls.methods import Arguments, AsyncCall, Entrance, SyncCall, entrance_of, run_to_its_end
from a2c_smcp.registry.calls.retry import Retry, retried, retried_async
from a2c_smcp.registry.policy import Policy
from a2c_smcp.registry.tool_info import Traits, read_traits
from a2c_smcp.registry.toolset import MAX_QUOTED, Entry

__all__ = ["Rules", "compile_entry", "refusal"]


@dataclass(frozen=True)
class Rules:
    """What a registry does with every call (001 §9). Each is off by default."""

    validate: bool = False
    policy: Policy | None = None
    timeout: float | None = None
    retry: Retry | None = None
    limit: Limit | None = None
    hooks: Hooks = field(default_factory=lambda: Hooks(()))

    def __post_init__(self) -> None:
        _check_timeout(self.timeout)


def compile_entry(tool: Any, rules: Rules, *, timeout: float | None = None, limit: Limit | None = None) -> Entry:
    """Outermost the hooks, then new attempts, the arguments' check, the time, the gate, and inside them the tool."""
    traits, entrance = read_traits(tool), entrance_of(tool)
    layers = _Layers(
        traits,
        rules.hooks,
        preparation(tool, traits) if rules.validate else None,
        rules.retry if traits.repeatable else None,
        _bounds(traits.name, rules.timeout if timeout is None else timeout, limit or rules.limit),
    )
    acall = layers.around_async(entrance)
    call = run_to_its_end(traits.name, acall) if entrance.call is None else layers.around(entrance.call)
    return Entry(tool, traits, call, acall, rules.policy is None or rules.policy.allows(traits))


def refusal(name: str, error: SMCPError, hooks: Hooks) -> Entry:
    """A call that leads nowhere, for the hooks to hear of it."""
    traits = Traits(str(name)[:MAX_QUOTED], "", {}, frozenset(), frozenset(), False, None, {})

    def call(arguments: Arguments) -> Any:
        raise error

    async def acall(arguments: Arguments) -> Any:
        raise error

    return Entry(None, traits, observed(call, traits, hooks), observed_async(acall, traits, hooks), False)


@dataclass(frozen=True, slots=True)
class _Layers:
    tool: Traits
    hooks: Hooks
    prepare: Prepare | None
    retry: Retry | None
    bounds: Bounds

    def around(self, call: SyncCall) -> SyncCall:
        if self.bounds:
            call = bounded(call, self.bounds)
        if self.prepare:
            call = prepared(call, self.prepare)
        if self.retry:
            call = retried(call, self.retry)
        return observed(call, self.tool, self.hooks) if self.hooks else call

    def around_async(self, entrance: Entrance) -> AsyncCall:
        acall = bounded_async(entrance, self.bounds)
        if self.prepare:
            acall = prepared_async(acall, self.prepare)
        if self.retry:
            acall = retried_async(acall, self.retry)
        return observed_async(acall, self.tool, self.hooks) if self.hooks else acall


def _check_timeout(timeout: float | None) -> None:
    if timeout is not None and not timeout > 0:
        raise ConfigError(f"a timeout of {timeout} s leaves no time for a call")


def _bounds(name: str, timeout: float | None, limit: Limit | None) -> Bounds:
    """An endless timeout is none, which is how one tool is freed of its registry's."""
    _check_timeout(timeout)
    return Bounds(name, None if timeout == math.inf else timeout, None if limit is None else Gate(name, limit))
