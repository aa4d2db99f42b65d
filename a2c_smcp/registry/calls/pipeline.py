"""A tool and the rules of its registry (001 §9) compiled into two functions: one that blocks, one that is awaited.

The layers, from the outside: hooks, retries, the check of arguments, timeout and limit, the tool. A rule that is off
adds no layer, so it costs nothing per call. Each layer exists twice below, because a blocking and an awaiting caller
wait differently; what a layer does is said once, in the object that both halves are given.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial, reduce
from threading import Lock
from typing import Any, Protocol, TypeVar

from a2c_smcp.errors import CallTimeout, ConfigError, RateLimited, SMCPError
from a2c_smcp.loops import LoopIsRunning, start_in_thread, start_in_thread_async
from a2c_smcp.registry.calls.arguments import (
    ArgumentCheck,
    Arguments,
    AsyncCall,
    SyncCall,
    ToolMethods,
    argument_check,
    call_in_thread,
    result_of,
    run_blocking,
    tool_methods,
)
from a2c_smcp.registry.calls.hooks import HookLayer, Hooks
from a2c_smcp.registry.tool_info import ToolInfo, as_words, read_tool_info
from a2c_smcp.registry.toolset import MAX_QUOTED, RegisteredTool

# The rules that a registry can have for its tools and calls (001 §9): policy, timeout, retry, limit, hooks.

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


# Timeouts, and the number of calls of one tool that run at the same time.
#
# A call takes a slot, or waits in line for one; threads and event loops wait in the same line, first come, first
# served. The timeout covers the wait. A slot that was taken is given back exactly once:
#
# - An async tool gives it back when its call ends, also when a timeout cancels it.
# - A sync tool gives it back in the thread in which it ran. A thread cannot be stopped: after a timeout the caller goes
#   on, and the tool keeps its slot until it really ends.
# - A caller that gives up waiting cancels its place in line. If it got the slot at that very moment, the cancel fails,
#   and it passes the slot on.

Started = TypeVar("Started")


class ToolTimeout(CallTimeout, TimeoutError):
    """The tool did not answer within the timeout of the registry."""


class QueueFull(RateLimited):
    """As many calls of the tool wait as its `Limit` allows."""

    title = "Too many calls of this tool are waiting"


class CallSlots:
    """The slots of one tool and the line of calls that wait for one."""

    def __init__(self, tool: str, limit: Limit) -> None:
        self._tool, self._limit = tool, limit
        self._lock = Lock()
        self._taken = 0
        self._line: deque[Future[None]] = deque()

    def take(self, timeout: float | None = None) -> None:
        """Raises `QueueFull`, or `TimeoutError` if no slot becomes free in time."""
        if (turn := self._take_or_queue()) is not None:
            with self._passed_on_failure(turn):
                turn.result(timeout)

    async def take_async(self) -> None:
        """Raises `QueueFull`."""
        if (turn := self._take_or_queue()) is not None:
            with self._passed_on_failure(turn):
                await asyncio.wrap_future(turn)

    def give_back(self) -> None:
        """From any thread. The slot goes to the first call in line that still waits."""
        with self._lock:
            while self._line:
                turn = self._line.popleft()
                if turn.set_running_or_notify_cancel():
                    break
            else:
                self._taken -= 1
                return
        turn.set_result(None)

    def _take_or_queue(self) -> Future[None] | None:
        """`None` if a slot was free, else the turn to wait for."""
        with self._lock:
            if self._taken < self._limit.at_once:
                self._taken += 1
                return None
            if len(self._line) >= self._limit.waiting:
                raise QueueFull(repr(self._tool), toolId=self._tool, at_once=self._limit.at_once)
            turn: Future[None] = Future()
            self._line.append(turn)
            return turn

    @contextmanager
    def _passed_on_failure(self, turn: Future[None]) -> Iterator[None]:
        try:
            yield
        except BaseException:
            if not turn.cancel():
                self.give_back()
            with self._lock, suppress(ValueError):
                self._line.remove(turn)
            raise


@dataclass(frozen=True, slots=True)
class CallLimits:
    """The timeout of one tool in seconds, and its slots."""

    tool: str
    timeout: float | None
    slots: CallSlots | None

    def __bool__(self) -> bool:
        return self.timeout is not None or self.slots is not None

    def exceeded(self) -> ToolTimeout:
        return ToolTimeout(f"{self.tool!r} within {self.timeout:g} s", toolId=self.tool, timeout=self.timeout)


def limited(call: SyncCall, limits: CallLimits) -> SyncCall:
    """With a timeout the call runs in a thread of its own, so that the caller's thread can stop waiting."""
    slots, timeout = limits.slots, limits.timeout
    inside = call if slots is None else _then_giving_back(call, slots)

    def without_timeout(arguments: Arguments) -> Any:
        if slots is not None:
            slots.take()
        return inside(arguments)

    def with_timeout(arguments: Arguments) -> Any:
        deadline = time.monotonic() + (timeout or 0)
        try:
            if slots is not None:
                slots.take(timeout)
            outcome = _started(start_in_thread, inside, arguments, slots)
            outcome.exception(deadline - time.monotonic())
        except TimeoutError:
            raise limits.exceeded() from None
        return outcome.result()

    return without_timeout if timeout is None else with_timeout


def limited_async(methods: ToolMethods, limits: CallLimits) -> AsyncCall:
    """An async tool runs in the caller's loop, a sync one in a thread."""
    acall, slots = methods.acall, limits.slots
    if acall is None:
        assert methods.call is not None
        acall = _with_slot_in_thread(methods.call, slots) if slots else partial(call_in_thread, methods.call)
    elif slots:
        acall = _with_slot_in_loop(acall, slots)
    return acall if limits.timeout is None else _with_timeout(acall, limits)


def _with_slot_in_loop(acall: AsyncCall, slots: CallSlots) -> AsyncCall:
    async def call(arguments: Arguments) -> Any:
        await slots.take_async()
        try:
            return await acall(arguments)
        finally:
            slots.give_back()

    return call


def _with_slot_in_thread(call: SyncCall, slots: CallSlots) -> AsyncCall:
    inside = _then_giving_back(call, slots)

    async def in_thread(arguments: Arguments) -> Any:
        await slots.take_async()
        return await result_of(_started(start_in_thread_async, inside, arguments, slots))

    return in_thread


def _with_timeout(acall: AsyncCall, limits: CallLimits) -> AsyncCall:
    async def call(arguments: Arguments) -> Any:
        try:
            async with asyncio.timeout(limits.timeout) as timeout:
                return await acall(arguments)
        except TimeoutError:
            if timeout.expired():
                raise limits.exceeded() from None
            raise

    return call


def _then_giving_back(call: SyncCall, slots: CallSlots) -> SyncCall:
    def inside(arguments: Arguments) -> Any:
        try:
            return call(arguments)
        finally:
            slots.give_back()

    return inside


def _started(
    start: Callable[[SyncCall, Arguments], Started], call: SyncCall, arguments: Arguments, slots: CallSlots | None
) -> Started:
    """Gives the slot back if no thread can be started."""
    try:
        return start(call, arguments)
    except RuntimeError:
        if slots is not None:
            slots.give_back()
        raise


class Layer(Protocol):
    """Work around each call of one tool."""

    def begin(self, arguments: Arguments) -> Any:
        """Called before the call. The value is passed to the other two."""

    def end(self, begun: Any, result: Any) -> None: ...

    def failed(self, begun: Any, error: BaseException) -> float | None:
        """Returns the seconds until another attempt, or `None`: then the caller gets the error."""


def compile_tool(
    tool: Any, rules: Rules, *, timeout: float | None = None, limit: Limit | None = None
) -> RegisteredTool:
    """Compile a tool. `timeout` and `limit` replace those of the rules; `math.inf` means no timeout.

    Raises `TypeError` if the object is not a tool.
    """
    info, methods = read_tool_info(tool), tool_methods(tool)
    require_positive(timeout)
    timeout, limit = rules.timeout if timeout is None else timeout, limit or rules.limit
    slots = CallSlots(info.name, limit) if limit else None
    limits = CallLimits(info.name, None if timeout == math.inf else timeout, slots)
    check = argument_check(tool, info) if rules.validate else None
    layers: list[Layer] = [_RetryLayer(rules.retry)] if rules.retry and info.repeatable else []
    layers += [HookLayer(info, rules.hooks)] if rules.hooks else []
    acall = _layered_async(limited_async(methods, limits), check, layers)
    call = run_blocking(info.name, acall) if methods.call is None else _layered(methods.call, limits, check, layers)
    return RegisteredTool(tool, info, call, acall, rules.policy is None or rules.policy.allows(info))


def refused_tool(name: str, error: SMCPError, hooks: Hooks) -> RegisteredTool:
    """A tool that cannot be called: each call raises the error, and notifies the hooks."""
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


def _layered(call: SyncCall, limits: CallLimits, check: ArgumentCheck | None, layers: Sequence[Layer]) -> SyncCall:
    if limits:
        call = limited(call, limits)
    if check:
        call = _checked(call, check)
    return reduce(_around, layers, call)


def _layered_async(acall: AsyncCall, check: ArgumentCheck | None, layers: Sequence[Layer]) -> AsyncCall:
    return reduce(_around_async, layers, _checked_async(acall, check) if check else acall)


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
