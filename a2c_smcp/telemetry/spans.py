"""Spans of any tracer provider. Only `opentelemetry-api` is used here, and only once there is a provider."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from contextvars import Token
from typing import Any

from opentelemetry.context import Context, attach, detach, get_current, get_value
from opentelemetry.trace import (
    INVALID_SPAN,
    INVALID_SPAN_CONTEXT,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    get_current_span,
    get_tracer,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from a2c_smcp.telemetry.conventions import ERROR_TYPE, REQ_ID, Facts, LiveSpan, MoreFacts, SpanStart, Times

SCOPE = "a2c_smcp"
KINDS = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT, "server": SpanKind.SERVER}
ERROR = Status(StatusCode.ERROR)

_PARENT, _STATE = "traceparent", "tracestate"
_LONGEST = 512  # characters of a header
_USUAL = re.compile("00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_propagator = TraceContextTextMapPropagator()
(_SPAN,) = set_span_in_context(INVALID_SPAN, Context())
"""The key of the span in a context."""


class Spans:
    """Makes spans by the tracer provider that is set."""

    def __init__(self) -> None:
        self._tracer = get_tracer(SCOPE)

    def begin(
        self, make: Callable[..., SpanStart], carrier: Mapping[str, Any] | None, facts: Facts, more: MoreFacts
    ) -> LiveSpan:
        begun = make(*facts, **more)
        parent = _context_of(extract(carrier)) if carrier else None
        span = self._tracer.start_span(begun.name, parent, KINDS[begun.kind], begun.attributes)
        return _OpenSpan(span, get_current() if parent is None else parent, more.get("req_id"))

    def record(
        self,
        make: Callable[..., SpanStart],
        traceparent: str | None,
        times: Times,
        error_type: str | None,
        facts: Facts,
        more: MoreFacts,
    ) -> None:
        begun = make(*facts, **more)
        parent = _context_of(extract({_PARENT: traceparent})) if traceparent else None
        span = self._tracer.start_span(begun.name, parent, KINDS[begun.kind], begun.attributes, start_time=times[0])
        if error_type:
            span.set_attribute(ERROR_TYPE, error_type)
            span.set_status(ERROR)
        span.end(times[1])

    def current(self) -> SpanContext:
        return current_in(get_current())

    def log_fields(self) -> dict[str, str]:
        current = self.current()
        ids = {"trace_id": f"{current.trace_id:032x}", "span_id": f"{current.span_id:016x}"}
        fields = ids if current.is_valid else {}
        req_id = get_value(REQ_ID)
        return fields | {"req_id": req_id} if isinstance(req_id, str) else fields


class _OpenSpan(LiveSpan):
    """A span of OpenTelemetry."""

    __slots__ = ("_context", "_req_id", "_span", "_token")

    def __init__(self, span: Span, context: Context, req_id: str | None) -> None:
        self._span = span
        self._context = context
        self._req_id = req_id

    def __enter__(self) -> LiveSpan:
        self._token: Token[Context] = make_current(self._span, self._context, self._req_id)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        detach(self._token)
        if kind is not None:
            self.fail(error_type_of(kind))
        self._span.end()

    def set(self, name: str, value: str | int | bool) -> None:
        self._span.set_attribute(name, value)

    def fail(self, error_type: str) -> None:
        self._span.set_attribute(ERROR_TYPE, error_type)
        self._span.set_status(ERROR)

    def inject(self, meta: Mapping[str, Any] | None) -> Mapping[str, Any]:
        return inject(self._span.get_span_context(), meta)


def make_current(span: Span, context: Context, req_id: str | None) -> Token[Context]:
    """Attaches a context with this span, and with a `req_id` for log lines."""
    more = {_SPAN: span, REQ_ID: req_id} if req_id else {_SPAN: span}
    return attach(Context({**context, **more}))


def current_in(context: Context) -> SpanContext:
    """The span of a context; an invalid one if it has none."""
    span: Any = context.get(_SPAN)
    return INVALID_SPAN_CONTEXT if span is None else span.get_span_context()


def extract(carrier: Mapping[str, Any]) -> SpanContext | None:
    """The context in a `_meta`; `None` if there is none."""
    header = carrier.get(_PARENT)
    if not isinstance(header, str):
        return None
    if _STATE not in carrier and (usual := _USUAL.fullmatch(header)):
        trace_id, span_id, flags = usual.groups()
        context = SpanContext(int(trace_id, 16), int(span_id, 16), True, TraceFlags(int(flags, 16)))
    else:
        headers = {name: carrier[name] for name in (_PARENT, _STATE) if name in carrier}
        if not all(isinstance(value, str) and len(value) <= _LONGEST for value in headers.values()):
            return None
        context = get_current_span(_propagator.extract(headers)).get_span_context()
    return context if context.is_valid else None


def inject(context: SpanContext, meta: Mapping[str, Any] | None) -> dict[str, Any]:
    """A `_meta` with this context instead of its own."""
    flags = context.trace_flags
    injected = {**(meta or {}), _PARENT: f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"}
    if context.trace_state:
        injected[_STATE] = context.trace_state.to_header()
    elif _STATE in injected:
        del injected[_STATE]
    return injected


def error_type_of(kind: type[BaseException]) -> str:
    return "cancelled" if issubclass(kind, asyncio.CancelledError) else kind.__name__


def _context_of(remote: SpanContext | None) -> Context | None:
    return None if remote is None else set_span_in_context(NonRecordingSpan(remote), Context())
