"""Calls as OpenTelemetry spans, by the GenAI conventions for `execute_tool`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from a2c_smcp.registry.calls.hooks import Hook, ToolCall

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

__all__ = ["OpenTelemetryHook"]

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
