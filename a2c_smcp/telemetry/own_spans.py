"""The spans of our programs. Most of their work is done by the thread that exports them.

A span of OpenTelemetry's SDK locks, checks and copies, because any program may use it in any thread: that takes about
as long as all else that a Server does for a call. A span here is used by one task. It keeps what it is made of, and
becomes a span of the SDK when it is exported (`readable`). Until then it is in OpenTelemetry's context as any span is,
so that spans of other libraries in the same process, which the SDK makes, are its children.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import Token
from dataclasses import dataclass
from random import getrandbits
from threading import Event, Lock, Thread
from time import time_ns
from typing import Any, TypeAlias

from opentelemetry.context import Context, attach, detach, get_current, set_value
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import INVALID_SPAN_CONTEXT, NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags

from a2c_smcp.telemetry.conventions import ERROR_TYPE, AttributeValues, Facts, LiveSpan, MoreFacts, SpanStart, Times
from a2c_smcp.telemetry.spans import (
    ERROR,
    KINDS,
    SCOPE,
    Spans,
    current_in,
    error_type_of,
    extract,
    inject,
    make_current,
)

logger = logging.getLogger(__name__)

_RANDOM = 0b10  # all bits of the id of a trace are random (W3C Trace Context, level 2)
_FLAGS = tuple(map(TraceFlags, range(4)))
_OF_ROOT = _FLAGS[TraceFlags.SAMPLED | _RANDOM]
_UNSET = Status(StatusCode.UNSET)
_SCOPE = InstrumentationScope(SCOPE)


class OwnSpans(Spans):
    """Makes spans, and gives those that have ended to a function. A trace is recorded if its caller records it."""

    def __init__(self, add: Callable[[Exportable], object]) -> None:
        super().__init__()
        self._add = add

    def begin(
        self, make: Callable[..., SpanStart], carrier: Mapping[str, Any] | None, facts: Facts, more: MoreFacts
    ) -> LiveSpan:
        return _OwnSpan(self._add, carrier, make, facts, more)

    def record(
        self,
        make: Callable[..., SpanStart],
        traceparent: str | None,
        times: Times,
        error_type: str | None,
        facts: Facts,
        more: MoreFacts,
    ) -> None:
        parent = traceparent or self.current()
        self._add(_RecordedSpan(make, parent, times, error_type, facts, more))


class _OwnSpan(LiveSpan):
    """A span that is current until the block ends."""

    __slots__ = ("_add", "_carrier", "_end", "_facts", "_make", "_more", "_own", "_parent", "_set", "_start", "_token")

    def __init__(
        self,
        add: Callable[[Exportable], object],
        carrier: Mapping[str, Any] | None,
        make: Callable[..., SpanStart],
        facts: Facts,
        more: MoreFacts,
    ) -> None:
        self._add = add
        self._carrier = carrier
        self._make = make
        self._facts = facts
        self._more = more
        self._set: AttributeValues = {}

    def __enter__(self) -> LiveSpan:
        context = get_current()
        parent = extract(self._carrier) if self._carrier else None
        self._parent = parent or current_in(context)
        self._own = _child_of(self._parent)
        self._token: Token[Context] = make_current(NonRecordingSpan(self._own), context, self._more.get("req_id"))
        self._start = time_ns()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        detach(self._token)
        if kind is not None:
            self.fail(error_type_of(kind))
        self._end = time_ns()
        self._add(self)

    def set(self, name: str, value: str | int | bool) -> None:
        self._set[name] = value

    def fail(self, error_type: str) -> None:
        self._set[ERROR_TYPE] = error_type

    def inject(self, meta: Mapping[str, Any] | None) -> Mapping[str, Any]:
        return inject(self._own, meta)

    def readable(self, resource: Resource) -> ReadableSpan | None:
        begun = self._make(*self._facts, **self._more)
        return _readable(begun, self._set, self._own, self._parent, (self._start, self._end), resource)


@dataclass(slots=True)
class _RecordedSpan:
    """A span that nothing happens within. `parent` is a `traceparent`, or a context, which need not be valid."""

    make: Callable[..., SpanStart]
    parent: str | SpanContext
    times: Times
    error_type: str | None
    facts: Facts
    more: MoreFacts

    def readable(self, resource: Resource) -> ReadableSpan | None:
        parent = self.parent
        if isinstance(parent, str):
            parent = extract({"traceparent": parent}) or INVALID_SPAN_CONTEXT
        error: AttributeValues = {ERROR_TYPE: self.error_type} if self.error_type else {}
        begun = self.make(*self.facts, **self.more)
        return _readable(begun, error, _child_of(parent), parent, self.times, resource)


Exportable: TypeAlias = _OwnSpan | _RecordedSpan
"""A span that has ended. `readable` returns a span of the SDK; `None` if the trace is not recorded."""


def _child_of(parent: SpanContext) -> SpanContext:
    """The context of a new span, which is recorded if its parent is, or if it has none."""
    if not parent.is_valid:
        return SpanContext(getrandbits(128) or 1, getrandbits(64) or 1, False, _OF_ROOT)
    flags = _FLAGS[parent.trace_flags & _OF_ROOT]
    return SpanContext(parent.trace_id, getrandbits(64) or 1, False, flags, parent.trace_state)


def _readable(
    begun: SpanStart,
    more: AttributeValues,
    own: SpanContext,
    parent: SpanContext,
    times: Times,
    resource: Resource,
) -> ReadableSpan | None:
    if not own.trace_flags.sampled:
        return None
    return ReadableSpan(
        begun.name,
        own,
        parent if parent.is_valid else None,
        resource,
        begun.attributes | more,
        kind=KINDS[begun.kind],
        status=ERROR if ERROR_TYPE in more else _UNSET,
        start_time=times[0],
        end_time=times[1],
        instrumentation_scope=_SCOPE,
    )


# The thread that gives spans to exporters. To end a span is to append it to a queue, so that no call waits for it.

_PAUSE = 1.0
_LAST = 30.0  # seconds that the last spans have
_MOST = 16 * 1024
_AT_ONCE = 128  # few, because other threads wait meanwhile


class SpanWriter(SpanProcessor):
    """Exports spans once a second, and the last ones at the end. While exporters are stuck, the oldest are dropped."""

    def __init__(self, exporters: Sequence[SpanExporter], provider: TracerProvider) -> None:
        self._exporters = exporters
        self._provider = provider
        self._waiting: deque[Exportable | ReadableSpan] = deque(maxlen=_MOST)
        self.add = self._waiting.append
        self._start()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._restart)

    def on_end(self, span: ReadableSpan) -> None:
        context = span.get_span_context()
        if context and context.trace_flags.sampled:
            self.add(span)

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        self._write()
        return True

    def shutdown(self) -> None:
        self._is_over.set()
        self._thread.join(_LAST)
        for exporter in self._exporters:
            exporter.shutdown()

    def _start(self) -> None:
        self._is_over = Event()
        self._writing = Lock()
        self._thread = Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def _restart(self) -> None:
        """A child process has no thread yet. The spans that wait are those of its parent."""
        self._waiting.clear()
        self._start()

    def _run(self) -> None:
        attach(set_value("suppress_instrumentation", True))  # no spans of what an exporter does
        while not self._is_over.wait(_PAUSE):
            self._write()
        self._write()

    def _write(self) -> None:
        with self._writing:
            if len(self._waiting) == _MOST:
                logger.warning("spans are lost: more than %d wait to be exported", _MOST)
            while spans := self._taken():
                for exporter in self._exporters:
                    try:
                        exporter.export(spans)
                    except Exception:
                        logger.exception("spans are lost")

    def _taken(self) -> list[ReadableSpan]:
        """Take some of the spans that wait."""
        taken: list[ReadableSpan] = []
        while self._waiting and len(taken) < _AT_ONCE:
            span = self._waiting.popleft()
            readable = span if isinstance(span, ReadableSpan) else span.readable(self._provider.resource)
            if readable is not None:
                taken.append(readable)
        return taken
