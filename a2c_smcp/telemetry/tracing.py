"""Spans, if the program has set a tracer provider, and nothing otherwise.

`span` is a context manager. While no provider is set it is always the same object, which does nothing: no name and no
attributes are made. The provider may be the program's own, or the one that `exporting.py` makes for our programs. One
that is set later is noticed within 50 ms.

The context of a trace travels as `traceparent` and `tracestate` (W3C) in the `_meta` object of a request: from agent to
computer, which replaces it by its own span for the MCP server. The Server passes it on unchanged; its span is a sibling
of the computer's. Baggage is not sent.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec

from a2c_smcp.telemetry.conventions import LiveSpan, SpanStart, Times

if TYPE_CHECKING:
    from a2c_smcp.telemetry.spans import Spans

P = ParamSpec("P")

_WAIT = 0.001  # seconds, of which no span is made
_PAUSE = 0.05


def use(spans: Spans) -> None:
    """Make all spans by this from now on."""
    global _found
    _found = spans


def is_on() -> bool:
    """True if this process has a tracer provider."""
    return _spans() is not None


def span(make: Callable[P, SpanStart], carrier: Mapping[str, Any] | None, *facts: P.args, **more: P.kwargs) -> LiveSpan:
    """Begins a span. `make` is a function of `conventions.py` for these facts, which may be called later.

    It is a child of the context in `carrier`, the `_meta` of a request, or else of the current span. A `req_id` that is
    given by this name is written into log lines.
    """
    spans = _spans()
    return _OFF if spans is None else spans.begin(make, carrier, facts, more)


def record(
    make: Callable[P, SpanStart],
    traceparent: str | None,
    times: Times,
    error_type: str | None,
    *facts: P.args,
    **more: P.kwargs,
) -> None:
    """Makes a span of something that is over. Its parent is the one that `traceparent` names, or the current one."""
    if (spans := _spans()) is not None:
        spans.record(make, traceparent, times, error_type, facts, more)


def record_wait(make: Callable[P, SpanStart], began: float, *facts: P.args, **more: P.kwargs) -> None:
    """Makes a span of a wait since `began`, by `time.monotonic`, if it was one."""
    seconds = time.monotonic() - began
    if seconds > _WAIT:
        record(make, None, until_now(seconds), None, *facts, **more)


def until_now(seconds: float) -> Times:
    """The times of something that took so many seconds, and ends now."""
    now = time.time_ns()
    return now - int(seconds * 1e9), now


def is_within() -> bool:
    """True if a span is current."""
    spans = _spans()
    return spans is not None and spans.current().is_valid


def log_fields() -> dict[str, str]:
    """The trace, the span and the `req_id` that the current task works for, to be written into its log lines."""
    return {} if _found is None else _found.log_fields()


_OFF = LiveSpan()
_found: Spans | None = None
_next_look = 0.0


def _spans() -> Spans | None:
    """A provider that was set stays. Until then it is looked for at most once in `_PAUSE` seconds: it takes a while."""
    global _found, _next_look
    if _found is not None or (now := time.monotonic()) < _next_look:
        return _found
    _next_look = now + _PAUSE
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry import trace

        none = trace.ProxyTracerProvider | trace.NoOpTracerProvider
        if not isinstance(trace.get_tracer_provider(), none):
            from a2c_smcp.telemetry.spans import Spans

            _found = Spans()
    return _found
