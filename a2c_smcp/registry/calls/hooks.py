"""Who hears of calls: what a hook is told of each, and the telling. A hook that fails is logged and harms nothing."""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any, Literal, NamedTuple, TypeAlias

from pydantic_core import PydanticSerializationError, to_json

from a2c_smcp.errors import BadRequest, CallTimeout, Forbidden, RateLimited, SMCPError, ToolNotFound
from a2c_smcp.registry.calls.methods import Arguments, AsyncCall, SyncCall
from a2c_smcp.registry.tool_info import Traits, kind_of

__all__ = ["Hook", "Hooks", "ToolCall", "Values", "observed", "observed_async"]

logger = logging.getLogger(__name__)

_MOMENTS = ("before", "after", "error")

Outcome: TypeAlias = Literal["running", "ok", "refused", "timeout", "cancelled", "error"]

_OUTCOMES: tuple[tuple[tuple[type[BaseException], ...], Outcome], ...] = (
    ((CancelledError,), "cancelled"),
    ((CallTimeout,), "timeout"),
    ((BadRequest, Forbidden, RateLimited, ToolNotFound), "refused"),
    ((BaseException,), "error"),
)


class Values(NamedTuple):
    """What went in and what came out, or what was raised instead. Perhaps private, perhaps large."""

    arguments: Any
    result: Any
    error: BaseException | None


class ToolCall:
    """One call, the same object from `before` to `after` or `error`. Arguments and result only by `reveal()`."""

    __slots__ = (
        "_arguments",
        "_began",
        "_error",
        "_result",
        "_tool",
        "duration",
        "error_code",
        "error_type",
        "outcome",
    )

    def __init__(self, tool: Traits, arguments: Any) -> None:
        self._tool, self._arguments = tool, arguments
        self._result: Any = None
        self._error: BaseException | None = None
        self.outcome: Outcome = "running"
        self.error_type: str | None = None
        self.error_code: int | None = None
        self.duration = 0.0
        """In seconds, once it is over."""
        self._began = perf_counter()

    @property
    def name(self) -> str:
        return self._tool.name

    @property
    def description(self) -> str:
        return self._tool.description

    @property
    def tags(self) -> frozenset[str]:
        return self._tool.tags

    @property
    def origin(self) -> str | None:
        return self._tool.origin

    @property
    def cost(self) -> Any:
        """What the tool says under `meta` (001 §7), if it says so."""
        meta = self._result.get("meta") if isinstance(self._result, dict) else None
        return meta.get("cost") if isinstance(meta, dict) else None

    @property
    def arguments_size(self) -> int | None:
        """In bytes of JSON, `None` for what is no JSON. Measured when it is asked for."""
        return _size(self._arguments)

    @property
    def result_size(self) -> int | None:
        return _size(self._result) if self.outcome == "ok" else None

    def reveal(self) -> Values:
        """The values themselves. The error is there only while the hooks are told of it."""
        return Values(self._arguments, self._result, self._error)

    def __repr__(self) -> str:
        return f"ToolCall({self.name!r}, {self.outcome})"

    def _end(self, result: Any) -> None:
        self.duration = perf_counter() - self._began
        self._result, self.outcome = result, "ok"

    def _fail(self, error: BaseException) -> None:
        self.duration = perf_counter() - self._began
        self._error, self.error_type = error, type(error).__name__
        self.error_code = error.code if isinstance(error, SMCPError) else None
        self.outcome = next(outcome for kinds, outcome in _OUTCOMES if isinstance(error, kinds))

    def _forget_error(self) -> None:
        """A traceback holds on to every frame it came through."""
        self._error = None


class Hook:
    """Told of every call of a registry, in the thread or task that made it: be quick. Override what you need."""

    def before(self, call: ToolCall) -> None: ...

    def after(self, call: ToolCall) -> None: ...

    def error(self, call: ToolCall) -> None: ...


class Hooks:
    """Who listens at each moment. The first to hear of a beginning is the last to hear of its end."""

    def __init__(self, hooks: Iterable[Any]) -> None:
        """Raises `TypeError` for what has no method of a hook."""
        listed = [_checked(hook) for hook in hooks]
        self.before = _listening(listed, "before")
        self.after = _listening(listed[::-1], "after")
        self.error = _listening(listed[::-1], "error")

    def __bool__(self) -> bool:
        return bool(self.before or self.after or self.error)


def observed(call: SyncCall, tool: Traits, hooks: Hooks) -> SyncCall:
    def told(arguments: Arguments) -> Any:
        seen = ToolCall(tool, arguments)
        _tell(hooks.before, seen)
        try:
            result = call(arguments)
        except BaseException as error:
            _tell_error(hooks, seen, error)
            raise
        seen._end(result)
        _tell(hooks.after, seen)
        return result

    return told


def observed_async(acall: AsyncCall, tool: Traits, hooks: Hooks) -> AsyncCall:
    async def told(arguments: Arguments) -> Any:
        seen = ToolCall(tool, arguments)
        _tell(hooks.before, seen)
        try:
            result = await acall(arguments)
        except BaseException as error:
            _tell_error(hooks, seen, error)
            raise
        seen._end(result)
        _tell(hooks.after, seen)
        return result

    return told


def _tell_error(hooks: Hooks, seen: ToolCall, error: BaseException) -> None:
    seen._fail(error)
    _tell(hooks.error, seen)
    seen._forget_error()


def _tell(listeners: tuple[Callable[[ToolCall], None], ...], seen: ToolCall) -> None:
    for listener in listeners:
        try:
            listener(seen)
        except Exception:
            logger.exception("A hook failed on a call of tool %r", seen.name)


def _checked(hook: Any) -> Any:
    if isinstance(hook, type) or not any(callable(getattr(hook, moment, None)) for moment in _MOMENTS):
        raise TypeError(f"{kind_of(hook)} is not a hook: it has none of {', '.join(_MOMENTS)}")
    return hook


def _listening(hooks: list[Any], moment: str) -> tuple[Callable[[ToolCall], None], ...]:
    """The methods that are there, and more than what `Hook` itself has."""
    methods = [getattr(hook, moment, None) for hook in hooks]
    return tuple(one for one in methods if one and getattr(one, "__func__", None) is not getattr(Hook, moment))


def _size(value: Any) -> int | None:
    try:
        return len(to_json(value))
    except (PydanticSerializationError, ValueError):
        return None
