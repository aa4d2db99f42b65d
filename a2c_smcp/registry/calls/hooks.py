"""Hooks: objects that are notified of every call. A hook that raises is logged and changes nothing for the call."""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from pydantic_core import PydanticSerializationError, to_json

from a2c_smcp.errors import BadRequest, CallTimeout, Forbidden, RateLimited, SMCPError, ToolNotFound
from a2c_smcp.registry.tool_info import ToolInfo, kind_of

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

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
    """The arguments of a call, and its result or its error. They may be private or large."""

    arguments: Any
    result: Any
    error: BaseException | None


class ToolCall:
    """One call: the same object from `before` to `after` or `error`. `reveal()` gives arguments and result."""

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

    def __init__(self, tool: ToolInfo, arguments: Any) -> None:
        self._tool, self._arguments = tool, arguments
        self._result: Any = None
        self._error: BaseException | None = None
        self.outcome: Outcome = "running"
        self.error_type: str | None = None
        self.error_code: int | None = None
        self.duration = 0.0
        """In seconds, once the call has ended."""
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
        """The `cost` that the tool gives under `meta` in its result (001 §7); `None` without one."""
        meta = self._result.get("meta") if isinstance(self._result, dict) else None
        return meta.get("cost") if isinstance(meta, dict) else None

    @property
    def arguments_size(self) -> int | None:
        """In bytes of JSON, `None` if they are not JSON. Measured when this is read."""
        return _size(self._arguments)

    @property
    def result_size(self) -> int | None:
        return _size(self._result) if self.outcome == "ok" else None

    def reveal(self) -> Values:
        """Unmasked values; `error` is set only during the hook call."""
        return Values(self._arguments, self._result, self._error)

    def __repr__(self) -> str:
        return f"ToolCall({self.name!r}, {self.outcome})"

    def _fail(self, error: BaseException) -> None:
        self.duration = perf_counter() - self._began
        self._error, self.error_type = error, type(error).__name__
        self.error_code = error.code if isinstance(error, SMCPError) else None
        self.outcome = next(outcome for kinds, outcome in _OUTCOMES if isinstance(error, kinds))


class Hook:
    """A base class for hooks: override what you need.

    The methods run in the thread or task of the call, which waits for them: be quick.
    """

    def before(self, call: ToolCall) -> None: ...

    def after(self, call: ToolCall) -> None: ...

    def error(self, call: ToolCall) -> None: ...


class Hooks:
    """The methods of all hooks by moment. `after` and `error` are called in the reverse order of `before`."""

    def __init__(self, hooks: Iterable[Any]) -> None:
        """Raises `TypeError` for an object without any method of a hook."""
        listed = [*hooks]
        for hook in listed:
            if isinstance(hook, type) or not any(callable(getattr(hook, moment, None)) for moment in _MOMENTS):
                raise TypeError(f"{kind_of(hook)} is not a hook: it has none of {', '.join(_MOMENTS)}")
        self.before = _methods(listed, "before")
        self.after = _methods(listed[::-1], "after")
        self.error = _methods(listed[::-1], "error")

    def __bool__(self) -> bool:
        return bool(self.before or self.after or self.error)


class HookLayer:
    """Calls the hooks around the calls of one tool: a `Layer` of `pipeline.py`."""

    def __init__(self, tool: ToolInfo, hooks: Hooks) -> None:
        self._tool, self._hooks = tool, hooks

    def begin(self, arguments: Any) -> ToolCall:
        call = ToolCall(self._tool, arguments)
        _tell(self._hooks.before, call)
        return call

    def end(self, call: ToolCall, result: Any) -> None:
        call.duration = perf_counter() - call._began
        call._result, call.outcome = result, "ok"
        _tell(self._hooks.after, call)

    def failed(self, call: ToolCall, error: BaseException) -> None:
        call._fail(error)
        _tell(self._hooks.error, call)
        call._error = None  # its traceback would keep every frame on the way alive


def _tell(methods: tuple[Callable[[ToolCall], None], ...], call: ToolCall) -> None:
    for method in methods:
        try:
            method(call)
        except Exception:
            logger.exception("A hook failed on a call of tool %r", call.name)


def _methods(hooks: list[Any], moment: str) -> tuple[Callable[[ToolCall], None], ...]:
    """The methods of this name, without those of `Hook` itself, which do nothing."""
    methods = [getattr(hook, moment, None) for hook in hooks]
    return tuple(one for one in methods if one and getattr(one, "__func__", None) is not getattr(Hook, moment))


def _size(value: Any) -> int | None:
    try:
        return len(to_json(value))
    except (PydanticSerializationError, ValueError):
        return None


# Calls as OpenTelemetry spans, by the GenAI conventions for `execute_tool`.

_OPERATION = "execute_tool"


class OpenTelemetryHook(Hook):
    """A hook that makes a span for each call. It is current while the tool runs, so spans of the tool are below it.

    Without a provider nothing is recorded, and a call costs next to nothing more. A span has no arguments, no results
    and no messages of errors.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        """Without `provider`, uses the program's own, also if it is set later. Needs `opentelemetry-api`."""
        from opentelemetry import context, trace

        self._trace, self._context = trace, context
        self._tracer = trace.get_tracer("a2c_smcp.registry", tracer_provider=provider)
        self._open: dict[ToolCall, tuple[Span, Any]] = {}

    def before(self, call: ToolCall) -> None:
        span = self._tracer.start_span(f"{_OPERATION} {call.name}", attributes=_attributes(call))
        if span.get_span_context().is_valid:
            self._open[call] = span, self._context.attach(self._trace.set_span_in_context(span))

    def after(self, call: ToolCall) -> None:
        self._end(call)

    def error(self, call: ToolCall) -> None:
        self._end(call)

    def _end(self, call: ToolCall) -> None:
        if (opened := self._open.pop(call, None)) is None:
            return
        span, token = opened
        self._context.detach(token)
        if call.error_type is not None:
            span.set_attribute("error.type", call.error_type)
            span.set_status(self._trace.StatusCode.ERROR)
        if isinstance(call.cost, int | float):
            span.set_attribute("a2c_smcp.tool.cost", call.cost)
        span.end()


def _attributes(call: ToolCall) -> dict[str, str]:
    """A tool with an origin runs elsewhere: it is an `extension`."""
    attributes = {
        "gen_ai.operation.name": _OPERATION,
        "gen_ai.tool.name": call.name,
        "gen_ai.tool.type": "function" if call.origin is None else "extension",
    }
    if call.description:
        attributes["gen_ai.tool.description"] = call.description
    return attributes if call.origin is None else attributes | {"a2c_smcp.tool.origin": call.origin}
