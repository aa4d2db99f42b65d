"""A tool and the rules of its registry (001 §9) compiled into two functions: one that blocks, one that is awaited.

The layers, from the outside: hooks, retries, the check of arguments, timeout and limit, the tool. A rule that is off
adds no layer, so it costs nothing per call. Each layer exists twice below, because a blocking and an awaiting caller
wait differently; what a layer decides is said once, in the object that both halves are given.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from typing import Any

from a2c_smcp.errors import SMCPError
from a2c_smcp.registry.calls.arguments import ArgumentCheck, argument_check
from a2c_smcp.registry.calls.hooks import Hooks
from a2c_smcp.registry.calls.limits import CallLimits, CallSlots, limited, limited_async
from a2c_smcp.registry.calls.methods import Arguments, AsyncCall, SyncCall, ToolMethods, run_blocking, tool_methods
from a2c_smcp.registry.rules import Limit, Retry, Rules, require_positive
from a2c_smcp.registry.tool_info import ToolInfo, read_tool_info
from a2c_smcp.registry.toolset import MAX_QUOTED, RegisteredTool

__all__ = ["compile_tool", "refused_tool"]


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

    return RegisteredTool(None, info, _watched(call, info, hooks), _watched_async(acall, info, hooks), False)


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
            call = _retried(call, self.retry)
        return _watched(call, self.tool, self.hooks) if self.hooks else call

    def around_async(self, methods: ToolMethods) -> AsyncCall:
        acall = limited_async(methods, self.limits)
        if self.check:
            acall = _checked_async(acall, self.check)
        if self.retry:
            acall = _retried_async(acall, self.retry)
        return _watched_async(acall, self.tool, self.hooks) if self.hooks else acall


def _checked(call: SyncCall, check: ArgumentCheck) -> SyncCall:
    return lambda arguments: call(check.now(arguments))


def _checked_async(acall: AsyncCall, check: ArgumentCheck) -> AsyncCall:
    async def checked(arguments: Arguments) -> Any:
        return await acall(await check.without_blocking(arguments))

    return checked


def _retried(call: SyncCall, retry: Retry) -> SyncCall:
    def retried(arguments: Arguments) -> Any:
        for pause in retry.pauses():
            try:
                return call(arguments)
            except Exception as error:
                if retry.is_final(error):
                    raise
            time.sleep(pause)
        return call(arguments)

    return retried


def _retried_async(acall: AsyncCall, retry: Retry) -> AsyncCall:
    async def retried(arguments: Arguments) -> Any:
        for pause in retry.pauses():
            try:
                return await acall(arguments)
            except Exception as error:
                if retry.is_final(error):
                    raise
            await asyncio.sleep(pause)
        return await acall(arguments)

    return retried


def _watched(call: SyncCall, tool: ToolInfo, hooks: Hooks) -> SyncCall:
    def watched(arguments: Arguments) -> Any:
        seen = hooks.began(tool, arguments)
        try:
            result = call(arguments)
        except BaseException as error:
            hooks.failed(seen, error)
            raise
        hooks.returned(seen, result)
        return result

    return watched


def _watched_async(acall: AsyncCall, tool: ToolInfo, hooks: Hooks) -> AsyncCall:
    async def watched(arguments: Arguments) -> Any:
        seen = hooks.began(tool, arguments)
        try:
            result = await acall(arguments)
        except BaseException as error:
            hooks.failed(seen, error)
            raise
        hooks.returned(seen, result)
        return result

    return watched


def _limits(name: str, timeout: float | None, limit: Limit | None) -> CallLimits:
    """An endless timeout is none: that is how one tool is freed of its registry's."""
    require_positive(timeout)
    return CallLimits(name, None if timeout == math.inf else timeout, None if limit is None else CallSlots(name, limit))
