"""Calls as OpenTelemetry spans, by the GenAI conventions for `execute_tool`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from a2c_smcp.registry.calls.hooks import Hook, ToolCall

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

__all__ = ["OpenTelemetryHook"]

_OPERATION = "execute_tool"


class OpenTelemetryHook(Hook):
    """A span per call, current while its tool runs, so that what the tool does is below it.

    Without a provider nothing is recorded, and a call costs next to nothing more. Neither arguments nor results nor
    the words of an error are in a span.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        """The program's own provider, also if it is set later; or this one. Needs `opentelemetry-api`."""
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
    """A tool with an origin is one that reaches out; the others run here."""
    attributes = {
        "gen_ai.operation.name": _OPERATION,
        "gen_ai.tool.name": call.name,
        "gen_ai.tool.type": "function" if call.origin is None else "extension",
    }
    if call.description:
        attributes["gen_ai.tool.description"] = call.description
    return attributes if call.origin is None else attributes | {"a2c_smcp.tool.origin": call.origin}
