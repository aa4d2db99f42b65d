"""Where the spans of our programs go."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from a2c_smcp.errors import ConfigError
from a2c_smcp.telemetry.exporting import _exporter, export_traces


@pytest.fixture
def collector() -> Iterator[tuple[str, list[Any]]]:
    """A collector's URL, and the requests that it was sent."""
    requests: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append((self.path, dict(self.headers), json.loads(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", requests
        server.shutdown()


def test_spans_are_sent_to_a_collector_as_json(collector: tuple[str, list[Any]]) -> None:
    url, requests = collector
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_HEADERS": "x-token=a%20b"}
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(_exporter("otlp", None, environment)))
    with provider.get_tracer("here").start_as_current_span("work", attributes={"n": 2, "yes": True, "t": ("a", "b")}):
        pass
    ((path, headers, body),) = requests
    assert (path, headers["X-Token"], headers["Content-Type"]) == ("/v1/traces", "a b", "application/json")
    (span,) = body["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert (span["name"], len(span["traceId"]), len(span["spanId"])) == ("work", 32, 16)
    assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
    assert span["attributes"] == [
        {"key": "n", "value": {"intValue": "2"}},
        {"key": "yes", "value": {"boolValue": True}},
        {"key": "t", "value": {"arrayValue": {"values": [{"stringValue": "a"}, {"stringValue": "b"}]}}},
    ]


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"},
    ],
)
def test_without_being_asked_to_nothing_is_exported(environment: dict[str, str]) -> None:
    from opentelemetry import trace

    before = trace.get_tracer_provider()
    export_traces("test", None, environment)()
    assert trace.get_tracer_provider() is before


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"OTEL_TRACES_EXPORTER": "jaeger"}, "give otlp, console or none"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}, "no http or https URL"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_TIMEOUT": "10s"}, "milliseconds"),
    ],
)
def test_a_wrong_variable_is_named_with_what_to_write(environment: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        export_traces("test", None, environment)


LOGGED = """
import logging
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from a2c_smcp.cli import logs
from a2c_smcp.telemetry import conventions, tracing
trace.set_tracer_provider(TracerProvider())
logs.set_up("info", as_json=True)
logging.info("outside")
with tracing.span(conventions.computer_call, None, "add", "desk", "planner", req_id="r1") as span:
    logging.info(span.inject({})["traceparent"])
"""


def test_a_log_line_within_a_call_names_its_trace_and_its_request() -> None:
    done = subprocess.run([sys.executable, "-c", LOGGED], capture_output=True, text=True, check=True, timeout=60)
    outside, inside = map(json.loads, done.stderr.splitlines())
    assert "trace_id" not in outside
    assert inside["message"].startswith(f"00-{inside['trace_id']}-{inside['span_id']}-")
    assert inside["req_id"] == "r1"
