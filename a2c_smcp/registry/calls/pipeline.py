"""A tool and the rules of its registry (001 §9) compiled into two functions: one that blocks, one that is awaited.

The layers, from the outside: hooks, retries, the check of arguments, timeout and limit, the tool. A rule that is off
adds no layer, so it costs nothing per call. Each layer exists twice below, because a blocking and an awaiting caller
wait differently; what a layer does is said once, in the object that both halves are given.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from a2c_smcp.errors import SMCPError
from a2c_smcp.registry.calls.arguments import ArgumentCheck, argument_check
from a2c_smcp.registry.calls.hooks import HookLayer, Hooks
from a2c_smcp.registry.calls.limits import CallLimits, CallSlots, limited, limited_async
from a2c_smcp.registry.calls.methods import Arguments, AsyncCall, SyncCall, ToolMethods, run_blocking, tool_methods
from a2c_smcp.registry.rules import Limit, Retry, Rules, require_positive
from a2c_smcp.registry.tool_info import ToolInfo, read_tool_info
from a2c_smcp.registry.toolset import MAX_QUOTED, RegisteredTool

__all__ = ["compile_tool", "refused_tool"]


class Layer(Protocol):
    """What happens around each call of one tool."""

    def begin(self, arguments: Arguments) -> Any:
        """Called before the call. The value is passed to the other two."""

    def end(self, begun: Any, result: Any) -> None: ...

    def failed(self, begun: Any, error: BaseException) -> float | None:
        """Returns the seconds until another attempt, or `None`: then the caller gets the error."""


def compile_tool(
    tool: Any, rules: Rules, *, timeout: float | None = None, limit: Limit | None = None
) -> RegisteredTool:
    """`timeout` and `limit` replace those of the rules. Raises `TypeError` if the object is not a tool."""
    info, methods = read_tool_info(tool), tool_methods(tool)
    layers = _Layers(
        info,
        rules.hooks,
        rules.retry if info.repeatable else None,
        argument_check(tool, info) if rules.validate else None,
        _limits(info.name, rules.timeout if timeout is None else timeout, limit or rules.limit),
    )
    acall = layers.around_async(methods)
    call = run_blocking(info.name, acall) if methods.call is None else layers.around(methods.call)
    return RegisteredTool(tool, info, call, acall, rules.policy is None or rules.policy.allows(info))


def refused_tool(name: str, error: SMCPError, hooks: Hooks) -> RegisteredTool:
    """Stands for a tool that cannot be called: each call raises the error, and the hooks are told of it."""
    info = ToolInfo(str(name)[:MAX_QUOTED], "", {}, frozenset(), frozenset(), False, None, {})

    def call(arguments: Arguments) -> Any:
        raise error

    async def acall(arguments: Arguments) -> Any:
        raise error

    layer = HookLayer(info, hooks)
    return RegisteredTool(None, info, _around(call, layer), _around_async(acall, layer), False)


class _RetryLayer:
    def __init__(self, retry: Retry) -> None:
        self._retry = retry

    def begin(self, arguments: Arguments) -> Iterator[float]:
        return self._retry.pauses()

    def end(self, pauses: Iterator[float], result: Any) -> None: ...

    def failed(self, pauses: Iterator[float], error: BaseException) -> float | None:
        if not isinstance(error, Exception) or self._retry.is_final(error):
            return None
        return next(pauses, None)


@dataclass(frozen=True, slots=True)
class _Layers:
    """The layers of one tool, in their order."""

    tool: ToolInfo
    hooks: Hooks
    retry: Retry | None
    check: ArgumentCheck | None
    limits: CallLimits

    def around(self, call: SyncCall) -> SyncCall:
        if self.limits:
            call = limited(call, self.limits)
        if self.check:
            call = _checked(call, self.check)
        if self.retry:
            call = _around(call, _RetryLayer(self.retry))
        return _around(call, HookLayer(self.tool, self.hooks)) if self.hooks else call

    def around_async(self, methods: ToolMethods) -> AsyncCall:
        acall = limited_async(methods, self.limits)
        if self.check:
            acall = _checked_async(acall, self.check)
        if self.retry:
            acall = _around_async(acall, _RetryLayer(self.retry))
        return _around_async(acall, HookLayer(self.tool, self.hooks)) if self.hooks else acall


def _checked(call: SyncCall, check: ArgumentCheck) -> SyncCall:
    return lambda arguments: call(check.now(arguments))


def _checked_async(acall: AsyncCall, check: ArgumentCheck) -> AsyncCall:
    async def checked(arguments: Arguments) -> Any:
        return await acall(await check.without_blocking(arguments))

    return checked


def _around(call: SyncCall, layer: Layer) -> SyncCall:
    begin, end, failed = layer.begin, layer.end, layer.failed

    def around(arguments: Arguments) -> Any:
        begun = begin(arguments)
        while True:
            try:
                result = call(arguments)
            except BaseException as error:
                pause = failed(begun, error)
                if pause is None:
                    raise
            else:
                end(begun, result)
                return result
            time.sleep(pause)

    return around


def _around_async(acall: AsyncCall, layer: Layer) -> AsyncCall:
    begin, end, failed = layer.begin, layer.end, layer.failed

    async def around(arguments: Arguments) -> Any:
        begun = begin(arguments)
        while True:
            try:
                result = await acall(arguments)
            except BaseException as error:
                pause = failed(begun, error)
                if pause is None:
                    raise
            else:
                end(begun, result)
                return result
            await asyncio.sleep(pause)

    return around


def _limits(name: str, timeout: float | None, limit: Limit | None) -> CallLimits:
    """`math.inf` means no timeout. Use it to turn off the registry's timeout for one tool."""
    require_positive(timeout)
    return CallLimits(name, None if timeout == math.inf else timeout, None if limit is None else CallSlots(name, limit))
