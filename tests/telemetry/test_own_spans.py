"""Spans of our programs are those that OpenTelemetry's SDK would make, in every trace that others may send."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from a2c_smcp.telemetry import conventions
from a2c_smcp.telemetry.own_spans import OwnSpans, SpanWriter
from a2c_smcp.telemetry.spans import extract

pytestmark = pytest.mark.covers("traces")

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
CALL = conventions.computer_call, "add", "desk", "planner"


class Encoded:
    """Our spans and those of the SDK, as they are exported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(resource=Resource({}))
        self.writer = SpanWriter([self._exporter], provider)
        self.ours = OwnSpans(self.writer.add)
        provider.add_span_processor(self.writer)
        self.sdk = provider.get_tracer("program")

    @property
    def spans(self) -> Sequence[Any]:
        self.writer.force_flush()
        return self._exporter.get_finished_spans()

    def call(self, meta: dict[str, Any] | None) -> Any:
        return self.ours.begin(CALL[0], meta, CALL[1:], {"req_id": "r1"})


@pytest.fixture
def written() -> Iterator[Encoded]:
    found = Encoded()
    yield found
    found.writer.shutdown()


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"traceparent": PARENT},
        {"traceparent": f"00-{TRACE}-{SPAN}-00"},
        {"traceparent": f"00-{TRACE}-{SPAN}-03"},
        {"traceparent": f"cc-{TRACE}-{SPAN}-01-more"},
        {"traceparent": f"00-{TRACE}-{SPAN}-01-more"},
        {"traceparent": f"ff-{TRACE}-{SPAN}-01"},
        {"traceparent": f" {PARENT} "},
        {"traceparent": PARENT.upper()},
        {"traceparent": f"00-{'0' * 32}-{SPAN}-01"},
        {"traceparent": f"00-{TRACE}-{'0' * 16}-01"},
        {"traceparent": f"00-{TRACE}-{SPAN}-0x"},
        {"traceparent": PARENT, "tracestate": "a=1,b=2"},
        {"tracestate": "a=1"},
    ],
)
def test_a_context_is_read_as_opentelemetry_reads_it(meta: dict[str, str]) -> None:
    theirs = trace.get_current_span(TraceContextTextMapPropagator().extract(meta)).get_span_context()
    assert (extract(meta) or trace.INVALID_SPAN_CONTEXT) == theirs


@pytest.mark.parametrize(
    "meta", [{"traceparent": 1}, {"traceparent": "0" * 1000}, {"traceparent": PARENT, "tracestate": 1}]
)
def test_a_context_that_is_no_text_or_too_long_is_none(meta: dict[str, Any]) -> None:
    assert extract(meta) is None


def test_a_span_is_the_child_of_its_caller_and_the_parent_of_what_the_sdk_makes_within(written: Encoded) -> None:
    with written.call({"traceparent": PARENT, "tracestate": "a=1"}) as span:
        sent = span.inject({"traceparent": "old", "mine": 1})
        span.set("n", 2)
        with written.sdk.start_as_current_span("inside"):
            pass
    inside, call = written.spans
    context = call.get_span_context()
    assert sent == {"mine": 1, "traceparent": f"00-{TRACE}-{context.span_id:016x}-01", "tracestate": "a=1"}
    assert call.parent
    assert (f"{call.parent.trace_id:032x}", f"{call.parent.span_id:016x}") == (TRACE, SPAN)
    assert inside.parent == context
    assert call.attributes == {**CALL[0](*CALL[1:], "r1").attributes, "n": 2}
    assert call.start_time <= inside.start_time <= inside.end_time <= call.end_time


def test_it_is_the_same_span_that_the_sdk_makes(written: Encoded) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider(resource=Resource({}))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    begun = CALL[0](*CALL[1:], "r1")
    scope = provider.get_tracer("a2c_smcp")
    scope.start_span(begun.name, kind=trace.SpanKind.SERVER, attributes=begun.attributes).end()
    with written.call(None):
        pass
    theirs: Any
    (theirs,), (ours,) = exporter.get_finished_spans(), written.spans

    def facts(span: Any) -> list[Any]:
        context = span.get_span_context()
        plain = span.name, span.kind, dict(span.attributes or {}), span.status.status_code, span.parent, span.resource
        return [*plain, list(span.events), list(span.links), context.trace_flags, context.trace_state]

    assert facts(ours) == facts(theirs)
    assert ours.instrumentation_scope.name == theirs.instrumentation_scope.name


def test_a_trace_that_its_caller_does_not_record_is_passed_on_and_not_recorded(written: Encoded) -> None:
    with written.call({"traceparent": f"00-{TRACE}-{SPAN}-00"}) as span:
        sent = span.inject(None)
        with written.sdk.start_as_current_span("inside"):
            pass
    written.ours.record(conventions.queue, f"00-{TRACE}-{SPAN}-00", (1, 2), None, ("start",), {})
    assert sent["traceparent"].startswith(f"00-{TRACE}-")
    assert sent["traceparent"].endswith("-00")
    assert not written.spans


@pytest.mark.parametrize(("error", "error_type"), [(KeyError("secret"), "KeyError"), (None, "tool_error")])
def test_a_failure_has_its_kind_and_not_its_text(written: Encoded, error: Exception | None, error_type: str) -> None:
    def fails() -> None:
        with written.call(None) as span:
            if error:
                raise error
            span.fail("tool_error")

    if error:
        with pytest.raises(type(error)):
            fails()
    else:
        fails()
    (span,) = written.spans
    assert (span.status.status_code, span.status.description) == (trace.StatusCode.ERROR, None)
    assert span.attributes
    assert span.attributes["error.type"] == error_type
    assert not span.events


def test_an_exporter_that_fails_does_not_end_the_thread() -> None:
    class Failing(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            raise ValueError

    exporter = InMemorySpanExporter()
    writer = SpanWriter([Failing(), exporter], TracerProvider())
    for number in range(300):
        OwnSpans(writer.add).record(conventions.queue, None, (number, number + 1), None, ("start",), {})
    writer.shutdown()
    assert [span.start_time for span in exporter.get_finished_spans()] == list(range(300))


SET_UP = """
import sys
from pathlib import Path
from a2c_smcp.telemetry import conventions, tracing
from a2c_smcp.telemetry.exporting import export_traces

end = export_traces("test", Path(sys.argv[1]))
for _ in range(2):
    with tracing.span(conventions.queue, None, "a name that is long"):
        pass
print(type(tracing._found).__name__)
end()
"""


@pytest.mark.parametrize(
    ("environment", "kind", "count", "name"),
    [
        ({}, "OwnSpans", 2, "a name that is long"),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, "Spans", 0, ""),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_on"}, "OwnSpans", 2, "a name that is long"),
        ({"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "6"}, "Spans", 2, "a name"),
    ],
)
def test_samplers_and_limits_of_the_environment_are_followed(
    tmp_path: Any, environment: dict[str, str], kind: str, count: int, name: str
) -> None:
    file = tmp_path / "spans.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", SET_UP, str(file)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    text = file.read_text()
    assert done.stdout.split() == [kind]
    assert text.count('"a2c.queue"') == count
    assert text.count(f'"{name}"') == count


FORKED = """
import os, sys
from pathlib import Path
from a2c_smcp.telemetry import conventions, tracing
from a2c_smcp.telemetry.exporting import export_traces

end = export_traces("test", Path(sys.argv[1]))
with tracing.span(conventions.queue, None, "parent"):
    pass
child = os.fork()
if not child:
    with tracing.span(conventions.queue, None, "child"):
        pass
else:
    assert os.waitpid(child, 0)[1] == 0
end()
"""


def test_each_process_exports_its_own_spans_after_a_fork(tmp_path: Any) -> None:
    file = tmp_path / "spans.jsonl"
    subprocess.run([sys.executable, "-c", FORKED, str(file)], check=True, timeout=60)
    text = file.read_text()
    assert (text.count('"parent"'), text.count('"child"')) == (1, 1)
