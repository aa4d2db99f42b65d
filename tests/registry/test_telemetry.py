"""Calls as OpenTelemetry spans."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from a2c_smcp.registry import MCPRegistry, OpenTelemetryHook
from tests.registry.tools import Bare, EchoTool, registry_of, tool

pytestmark = pytest.mark.covers("registry-telemetry")

CANARY = "canary-0b2e44"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


@pytest.fixture
def registry(provider: TracerProvider) -> MCPRegistry:
    return registry_of(EchoTool(), hooks=[OpenTelemetryHook(provider)])


def only(exporter: InMemorySpanExporter) -> ReadableSpan:
    (span,) = exporter.get_finished_spans()
    return span


async def test_a_call_is_a_span_by_the_conventions(registry: MCPRegistry, exporter: InMemorySpanExporter) -> None:
    registry.call("echo", {"text": CANARY})
    await registry.acall("echo", {"text": CANARY})
    for span in exporter.get_finished_spans():
        assert span.name == "execute_tool echo"
        assert dict(span.attributes or {}) == {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "echo",
            "gen_ai.tool.type": "function",
            "gen_ai.tool.description": "echo back",
        }
        assert span.kind is trace.SpanKind.INTERNAL
        assert span.status.status_code is trace.StatusCode.UNSET
    assert len(exporter.get_finished_spans()) == 2
    assert CANARY not in str([span.to_json() for span in exporter.get_finished_spans()])


def test_the_span_of_a_failure_has_its_type_and_not_its_message(
    registry: MCPRegistry, exporter: InMemorySpanExporter
) -> None:
    def fail(arguments: dict[str, Any]) -> None:
        raise ValueError(CANARY)

    registry.register(Bare("fail", fail))
    with pytest.raises(ValueError, match=CANARY):
        registry.call("fail", {})
    span = only(exporter)
    assert (span.attributes or {})["error.type"] == "ValueError"
    assert span.status.status_code is trace.StatusCode.ERROR
    assert CANARY not in span.to_json()


def test_the_span_of_a_remote_tool_has_origin_and_cost(registry: MCPRegistry, exporter: InMemorySpanExporter) -> None:
    registry.register(Bare("dear", lambda _: {"output": 1, "meta": {"cost": 0.5}}, origin="desk/laptop"))
    registry.call("dear", {})
    attributes = only(exporter).attributes or {}
    assert attributes["gen_ai.tool.type"] == "extension"
    assert attributes["a2c_smcp.tool.origin"] == "desk/laptop"
    assert attributes["a2c_smcp.tool.cost"] == 0.5


async def test_spans_of_the_tool_are_below_its_call_and_the_call_below_its_caller(
    provider: TracerProvider, registry: MCPRegistry, exporter: InMemorySpanExporter
) -> None:
    tracer = provider.get_tracer("test")

    def work(arguments: dict[str, Any]) -> None:
        with tracer.start_as_current_span("inner"):
            pass

    async def work_async(arguments: dict[str, Any]) -> None:
        work(arguments)

    registry.register(Bare("sync", work))
    registry.register(Bare("timed", work), timeout=10)
    registry.register(Bare("async", work_async))
    with tracer.start_as_current_span("plan") as plan:
        registry.call("sync", {})
        registry.call("timed", {})
        for name in ("sync", "timed", "async"):
            await registry.acall(name, {})
        assert trace.get_current_span() is plan
    *spans, outer = exporter.get_finished_spans()
    for inner, call in zip(spans[::2], spans[1::2], strict=True):
        assert inner.name == "inner"
        assert inner.parent.span_id == call.get_span_context().span_id
        assert call.parent.span_id == outer.get_span_context().span_id


def test_a_span_that_is_not_sampled_is_still_the_parent() -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF)
    registry = registry_of(Bare("current", lambda _: trace.get_current_span()), hooks=[OpenTelemetryHook(provider)])
    context = registry.call("current", {}).get_span_context()
    assert context.is_valid
    assert not context.trace_flags.sampled


def test_without_a_provider_there_are_no_spans() -> None:
    registry = registry_of(Bare("current", lambda _: trace.get_current_span()), hooks=[OpenTelemetryHook()])
    assert registry.call("current", {}) is trace.INVALID_SPAN


def test_opentelemetry_is_imported_only_when_it_is_used() -> None:
    code = "import a2c_smcp.registry, sys; sys.exit('opentelemetry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_a_call_of_an_unknown_tool_is_a_span_too(registry: MCPRegistry, exporter: InMemorySpanExporter) -> None:
    registry.register(tool("other"))
    with pytest.raises(KeyError):
        registry.call("nope", {})
    assert (only(exporter).attributes or {})["error.type"] == "UnknownTool"
