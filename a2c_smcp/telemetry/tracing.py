"""Spans, if the program has set a tracer provider, and nothing otherwise. Only `opentelemetry-api` is used here.

`span` is a context manager. While no provider is set it is always the same object, which does nothing: no name and no
attributes are made. The provider may be the program's own, or the one that `exporting.py` makes for our programs. One
that is set later is noticed within 50 ms.

The context of a trace travels as `traceparent` and `tracestate` (W3C) in the `_meta` object of a request: from agent to
computer, which replaces it by its own span for the MCP server. The Server passes it on unchanged; its span is a sibling
of the computer's. Baggage is not sent.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec

from a2c_smcp.telemetry.conventions import ERROR_TYPE, OUTCOME, REQ_ID, SpanStart

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.trace import Span

__all__ = ["LiveSpan", "is_on", "is_within", "log_fields", "look_again", "record", "record_wait", "span"]

P = ParamSpec("P")

_SCOPE = "a2c_smcp"
_HEADERS = frozenset(("traceparent", "tracestate"))
_LONGEST = 512  # characters of a header
_WAIT = 0.001  # seconds, of which no span is made
_PAUSE = 0.05


def look_again() -> None:
    """A tracer provider has been set."""
    global _next_look
    _next_look = 0.0


def is_on() -> bool:
    """Whether this process has a tracer provider."""
    return _tracing() is not None


class LiveSpan(AbstractContextManager["LiveSpan"]):
    """A span that is current until the block ends. This class itself is the one that does nothing."""

    __slots__ = ()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def set(self, name: str, value: str | int | bool) -> None:
        """Sets an attribute."""

    def fail(self, error_type: str) -> None:
        """The span is one of a failure, of this kind."""

    def inject(self, meta: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """`_meta` with the context of this span."""
        return meta


def span(make: Callable[P, SpanStart], carrier: Mapping[str, Any] | None, *facts: P.args, **more: P.kwargs) -> LiveSpan:
    """Begins a span. `make` is a function of `conventions.py` for these facts.

    It is a child of the context in `carrier`, the `_meta` of a request, or else of the current span.
    """
    tracing = _tracing()
    return _OFF if tracing is None else _OpenSpan(tracing, make(*facts, **more), carrier)


def record(
    begun: SpanStart, traceparent: str | None, seconds: float, error_type: str | None, outcome: str | None = None
) -> None:
    """Makes a span of something that took so many seconds and ends now.

    Its parent is the span that `traceparent` names, or else the current one.
    """
    tracing = _tracing()
    if tracing is None:
        return
    now = time.time_ns()
    parent = tracing.extract({"traceparent": traceparent}) if traceparent else None
    attributes = begun.attributes if outcome is None else begun.attributes | {OUTCOME: outcome}
    made = tracing.tracer.start_span(
        begun.name, parent, tracing.kinds[begun.kind], attributes, start_time=now - int(seconds * 1e9)
    )
    if error_type:
        made.set_attribute(ERROR_TYPE, error_type)
        made.set_status(tracing.error)
    made.end(now)


def record_wait(make: Callable[P, SpanStart], began: float, *facts: P.args, **more: P.kwargs) -> None:
    """Makes a span of a wait since `began`, by `time.monotonic`, if it was one."""
    seconds = time.monotonic() - began
    if seconds > _WAIT and _tracing() is not None:
        record(make(*facts, **more), None, seconds, None)


def is_within() -> bool:
    """Whether a span is current."""
    tracing = _tracing()
    return tracing is not None and tracing.trace.get_current_span().get_span_context().is_valid


def log_fields() -> dict[str, str]:
    """The trace, the span and the `req_id` that the current task works for, to be written into its log lines."""
    tracing = _found
    if tracing is None:
        return {}
    current = tracing.trace.get_current_span().get_span_context()
    fields = {"trace_id": f"{current.trace_id:032x}", "span_id": f"{current.span_id:016x}"} if current.is_valid else {}
    req_id = tracing.context.get_value(REQ_ID)
    return fields | {"req_id": req_id} if isinstance(req_id, str) else fields


class _Tracing:
    """The parts of `opentelemetry-api` that are used here."""

    def __init__(self) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self.trace, self.context = trace, context
        self.tracer = trace.get_tracer(_SCOPE)
        self.kinds = {
            "internal": trace.SpanKind.INTERNAL,
            "client": trace.SpanKind.CLIENT,
            "server": trace.SpanKind.SERVER,
        }
        self.error = trace.Status(trace.StatusCode.ERROR)
        self.propagator = TraceContextTextMapPropagator()

    def extract(self, carrier: Mapping[str, Any]) -> Context | None:
        """The context in a `_meta`; `None` if there is none."""
        found = {name: carrier[name] for name in _HEADERS & carrier.keys()}
        if not all(isinstance(value, str) and len(value) <= _LONGEST for value in found.values()):
            return None
        context = self.propagator.extract(found)
        return context if self.trace.get_current_span(context).get_span_context().is_valid else None


class _OpenSpan(LiveSpan):
    """A span of OpenTelemetry."""

    __slots__ = ("_begun", "_parent", "_span", "_token", "_tracing")

    def __init__(self, tracing: _Tracing, begun: SpanStart, carrier: Mapping[str, Any] | None) -> None:
        self._tracing = tracing
        self._begun = begun
        self._parent = tracing.extract(carrier) if carrier else None

    def __enter__(self) -> LiveSpan:
        tracing, begun = self._tracing, self._begun
        made = tracing.tracer.start_span(begun.name, self._parent, tracing.kinds[begun.kind], begun.attributes)
        context = tracing.trace.set_span_in_context(made, self._parent)
        if req_id := begun.attributes.get(REQ_ID):
            context = tracing.context.set_value(REQ_ID, req_id, context)
        self._span: Span = made
        self._token: Token[Context] = tracing.context.attach(context)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._tracing.context.detach(self._token)
        if kind is not None:
            self.fail("cancelled" if issubclass(kind, asyncio.CancelledError) else kind.__name__)
        self._span.end()

    def set(self, name: str, value: str | int | bool) -> None:
        self._span.set_attribute(name, value)

    def fail(self, error_type: str) -> None:
        self._span.set_attribute(ERROR_TYPE, error_type)
        self._span.set_status(self._tracing.error)

    def inject(self, meta: Mapping[str, Any] | None) -> Mapping[str, Any]:
        carrier = {name: value for name, value in (meta or {}).items() if name not in _HEADERS}
        self._tracing.propagator.inject(carrier)
        return carrier


_OFF = LiveSpan()
_found: _Tracing | None = None
_next_look = 0.0


def _tracing() -> _Tracing | None:
    """A provider that was set stays. Until then it is looked for at most once in `_PAUSE` seconds: it takes a while."""
    global _found, _next_look
    if _found is not None or (now := time.monotonic()) < _next_look:
        return _found
    _next_look = now + _PAUSE
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry import trace

        none = trace.ProxyTracerProvider | trace.NoOpTracerProvider
        if not isinstance(trace.get_tracer_provider(), none):
            _found = _Tracing()
    return _found
