"""The page of metrics and spans, generated from the catalog and the conventions."""

from __future__ import annotations

from a2c_smcp.telemetry import conventions
from a2c_smcp.telemetry.metrics import COMPUTER, LATENCY_BUCKETS, SERVER, MetricSpec
from reference import markdown
from reference.markdown import code, table

__all__ = ["page"]

_INTRODUCTION = """\
Prometheus reads them at `/metrics`, in its text format 0.0.4. [Metrics and traces](../guides/monitoring.md) says how,
and has a dashboard and alerts. Each node of several has the label `node`. Labels never have names of clients, offices
or tools."""

_SPANS = (
    ("agent", conventions.agent_call("client:tool_call", "TOOL", "COMPUTER", "OFFICE", "ID")),
    ("agent", conventions.agent_request("client:get_tools", "COMPUTER", "OFFICE", "ID")),
    ("agent", conventions.connection_wait("client:tool_call")),
    ("agent", conventions.resend("client:tool_call", 1)),
    ("agent, computer", conventions.queue("NAME")),
    ("Server", conventions.relayed("client:tool_call", "TOOL", "COMPUTER", "OFFICE", "ID", "OUTCOME")),
    ("computer", conventions.computer_call("TOOL", "OFFICE", "AGENT", "ID")),
    ("computer", conventions.approval("SERVER", "TOOL")),
    ("computer", conventions.question("SERVER", "elicitation/create")),
    ("computer", conventions.mcp_request("tools/call", "TOOL", "2026-07-28", "pipe")),
)
"""Who makes a span, and an example of it."""


def page() -> str:
    buckets = ", ".join(f"{bound:g}" for bound in LATENCY_BUCKETS)
    return markdown.page(
        "Metrics and spans",
        _INTRODUCTION,
        "## Metrics of a Server\n\nWith `a2c-smcp server --metrics`.",
        _metrics(SERVER),
        f"The buckets of `a2c_call_duration_seconds` end at {buckets} seconds.",
        "## Metrics of a computer\n\nWith `a2c-smcp computer --metrics-port PORT`, or `a2c-smcp up`.",
        _metrics(COMPUTER),
        "## Spans\n\nWords in capitals stand for values.",
        table(["made by", "name", "kind", "attributes"], [_span(who, begun) for who, begun in _SPANS]),
        "A failure has `error.type`: the name of the error, `tool_error` for a tool that failed, or `cancelled`. The\n"
        "span of a question has `a2c.answer`.",
    )


def _metrics(catalog: tuple[MetricSpec, ...]) -> str:
    rows = [[code(spec.name), spec.kind, ", ".join(map(code, spec.labels)), spec.help] for spec in catalog]
    return table(["name", "type", "labels", "meaning"], rows)


def _span(who: str, begun: conventions.SpanStart) -> list[str]:
    return [who, code(begun.name), begun.kind, ", ".join(map(code, begun.attributes))]
