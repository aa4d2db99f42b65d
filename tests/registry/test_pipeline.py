"""Rules for calls in all combinations: what a tool returns and raises passes through all of them unchanged."""

from __future__ import annotations

import asyncio
import copy
from itertools import product
from typing import Any

import pytest

from a2c_smcp.registry import Hook, Limit, MCPRegistry, Retry, ToolCall

pytestmark = pytest.mark.covers("registry-validation", "registry-timeout", "registry-retry", "registry-telemetry")

SCHEMA = {"properties": {"words": {"type": "array"}, "n": {"type": "integer", "default": 1}}, "required": ["n"]}
ARGUMENTS = {"words": [["a"]]}
BOUND = 10


class Counting(Hook):
    def __init__(self) -> None:
        self.told: list[str] = []

    def before(self, call: ToolCall) -> None:
        self.told.append(call.outcome)

    def after(self, call: ToolCall) -> None:
        self.told.append(call.outcome)

    error = after


class Sync:
    """Raises what it is given, or returns it."""

    name, input_schema = "act", SCHEMA

    def __init__(self, outcome: Any, *, idempotent: bool) -> None:
        self.outcome, self.idempotent, self.seen = outcome, idempotent, list[dict[str, Any]]()

    def act(self, arguments: dict[str, Any]) -> Any:
        self.seen.append(arguments)
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome

    def call(self, arguments: dict[str, Any]) -> Any:
        return self.act(arguments)


class Async(Sync):
    async def call(self, arguments: dict[str, Any]) -> Any:
        await asyncio.sleep(0)
        return self.act(arguments)


class Both(Sync):
    async def acall(self, arguments: dict[str, Any]) -> Any:
        return self.act(arguments)


RULES = [
    {"validate": validate, "timeout": timeout, "retry": retry, "limit": limit}
    for validate, timeout, retry, limit in product(
        (False, True), (None, BOUND), (None, Retry(attempts=2, first_pause=0)), (None, Limit(1, waiting=0))
    )
]


def called(registry: MCPRegistry, arguments: dict[str, Any], *, awaited: bool) -> Any:
    """What came of it, returned or raised."""
    try:
        return asyncio.run(registry.acall("act", arguments)) if awaited else registry.call("act", arguments)
    except Exception as error:
        return error


@pytest.mark.parametrize("outcome", [object(), KeyError("own"), TimeoutError("own")], ids=["value", "key", "timeout"])
@pytest.mark.parametrize("kind", [Sync, Async, Both])
@pytest.mark.parametrize("hooked", [False, True])
def test_any_combination_of_rules_keeps_the_tools_outcome(kind: type[Sync], outcome: Any, hooked: bool) -> None:
    for rules, awaited, idempotent in product(RULES, (False, True), (False, True)):
        hook, tool = Counting(), kind(outcome, idempotent=idempotent)
        registry = MCPRegistry(**rules, hooks=[hook] if hooked else [])  # type: ignore[arg-type]
        registry.register(tool)
        arguments = copy.deepcopy(ARGUMENTS)
        for _ in range(2):  # a place that was not given back would be missed by the second call
            assert called(registry, arguments, awaited=awaited) is outcome
        failed = isinstance(outcome, Exception)
        assert len(tool.seen) == (4 if failed and idempotent and rules["retry"] else 2)
        assert all(seen == ARGUMENTS | ({"n": 1} if rules["validate"] else {}) for seen in tool.seen)
        assert arguments == ARGUMENTS
        assert hook.told == (["running", "error" if failed else "ok"] * 2 if hooked else [])
