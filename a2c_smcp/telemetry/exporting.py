"""The tracer provider of our programs: where their spans go, by the standard `OTEL_…` variables or into a file.

| variable | meaning |
|---|---|
| `OTEL_TRACES_EXPORTER` | `otlp`, `console` (on stderr) or `none`; several with commas |
| `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` | the collector; setting one of them is enough |
| `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_EXPORTER_OTLP_TRACES_HEADERS` | headers, as `name=value,…` |
| `OTEL_EXPORTER_OTLP_TIMEOUT` | milliseconds until a request to the collector is given up |
| `OTEL_SDK_DISABLED` | `true`: nothing is exported |

All others, such as `OTEL_SERVICE_NAME` and `OTEL_TRACES_SAMPLER`, are read by the SDK. Spans are sent as OTLP in JSON
(`http/json`), which every collector takes on its port for HTTP, and which needs no further package. A file has the same
objects, one in a line. `opentelemetry-sdk` is imported when it is needed.

If spans are limited or sampled by such variables, all are made by the SDK. Otherwise ours are cheaper (`own_spans.py`).
"""

from __future__ import annotations

import logging
import os
import sys
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from a2c_smcp.errors import ConfigError
from a2c_smcp.installation import needs_extra
from a2c_smcp.telemetry import tracing

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter


logger = logging.getLogger(__name__)

_OTLP = "OTEL_EXPORTER_OTLP_"
_YES = ("true", "1")
_TIMEOUT = 10_000
_KINDS = {"INTERNAL": 1, "SERVER": 2, "CLIENT": 3, "PRODUCER": 4, "CONSUMER": 5}
_STATUS = {"UNSET": 0, "OK": 1, "ERROR": 2}


def export_traces(
    service: str, file: Path | None = None, environment: Mapping[str, str] = os.environ
) -> Callable[[], None]:
    """Sets the tracer provider of this process, if the environment or a file asks for traces.

    Returns a function that exports the last spans, to be called at the end; without a provider it does nothing.
    `service` is the name of the program, unless `OTEL_SERVICE_NAME` names it. Raises `ConfigError`, or
    `ModuleNotFoundError` with what to install.
    """
    if environment.get("OTEL_SDK_DISABLED", "").lower() in _YES:
        return _nothing
    if not (names := _exporters(file, environment)):
        return _nothing
    try:
        with needs_extra("otel", "tracing"):
            import opentelemetry.sdk.trace  # noqa: F401
    except ModuleNotFoundError:
        if file is None and "OTEL_TRACES_EXPORTER" not in environment:
            return _nothing  # the endpoint may be meant for other programs
        raise
    exporters = [_exporter(name, file, environment) for name in names]
    return _set_provider(service, exporters, environment)


def _set_provider(
    service: str, exporters: Sequence[SpanExporter], environment: Mapping[str, str]
) -> Callable[[], None]:
    from opentelemetry import trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider, sampling

    from a2c_smcp.telemetry.own_spans import OwnSpans, SpanWriter
    from a2c_smcp.telemetry.spans import Spans

    named = "OTEL_SERVICE_NAME" in environment or "service.name=" in environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create({} if named else {"service.name": f"a2c-smcp {service}"})
    provider = TracerProvider(resource=resource)
    writer = SpanWriter(exporters, provider)
    provider.add_span_processor(writer)
    trace.set_tracer_provider(provider)
    if trace.get_tracer_provider() is provider:  # a program may have set its own before
        is_limited = any(name.startswith("OTEL_") and name.endswith("_LIMIT") for name in environment)
        is_usual = provider.sampler is sampling.DEFAULT_ON and not is_limited
        tracing.use(OwnSpans(writer.add) if is_usual else Spans())
    return provider.shutdown


def _nothing() -> None:
    """Export nothing."""


def _exporters(file: Path | None, environment: Mapping[str, str]) -> list[str]:
    """Return the exporters of spans. Raises `ConfigError`."""
    has_endpoint = any(environment.get(f"{_OTLP}{name}") for name in ("ENDPOINT", "TRACES_ENDPOINT"))
    exporters = environment.get("OTEL_TRACES_EXPORTER", "otlp" if has_endpoint else "none")
    names = [name for name in map(str.strip, exporters.lower().split(",")) if name and name != "none"]
    if wrong := [name for name in names if name not in ("otlp", "console")]:
        raise ConfigError(f"OTEL_TRACES_EXPORTER: {wrong[0]!r} is not known here, give otlp, console or none")
    return ["file", *names] if file else names


def _exporter(name: str, file: Path | None, environment: Mapping[str, str]) -> SpanExporter:
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter, SpanExportResult

    if name == "console":
        return ConsoleSpanExporter(out=sys.stderr)
    write = _file_writer(file) if name == "file" and file else _http_writer(environment)

    class JSONExporter(SpanExporter):
        """Gives batches of spans, as OTLP in JSON, to `write`, in the thread of the processor."""

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            try:
                write(msgspec.json.encode(otlp_json(spans)) + b"\n")
            except OSError as error:  # urllib's errors are such errors, too
                logger.warning("%d spans are lost: %s", len(spans), error)
                return SpanExportResult.FAILURE
            return SpanExportResult.SUCCESS

    return JSONExporter()


def _file_writer(file: Path) -> Callable[[bytes], None]:
    """Appends, so that several processes may write into one file. Raises `ConfigError`."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"traces cannot be written to {file}: {error.strerror}") from None

    def write(lines: bytes) -> None:
        os.write(descriptor, lines)

    return write


def _http_writer(environment: Mapping[str, str]) -> Callable[[bytes], None]:
    """Raises `ConfigError`."""
    base = environment.get(f"{_OTLP}ENDPOINT", "http://localhost:4318").rstrip("/")
    url = environment.get(f"{_OTLP}TRACES_ENDPOINT") or f"{base}/v1/traces"
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{_OTLP}ENDPOINT: {url!r} is no http or https URL")
    listed = environment.get(f"{_OTLP}TRACES_HEADERS") or environment.get(f"{_OTLP}HEADERS", "")
    fields = (field.partition("=") for field in listed.split(",") if "=" in field)
    headers = {name.strip(): unquote(value.strip()) for name, _, value in fields}
    timeout = environment.get(f"{_OTLP}TRACES_TIMEOUT") or environment.get(f"{_OTLP}TIMEOUT") or str(_TIMEOUT)
    if not timeout.isdecimal():
        raise ConfigError(f"{_OTLP}TIMEOUT: {timeout!r} is no number of milliseconds")

    def write(body: bytes) -> None:
        request = urllib.request.Request(  # noqa: S310, its scheme was checked
            url, body, {**headers, "Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=int(timeout) / 1000):  # noqa: S310
            pass

    return write


def otlp_json(spans: Sequence[ReadableSpan]) -> dict[str, Any]:
    """Spans of one process in the JSON encoding of OTLP."""
    scopes: dict[str, list[dict[str, Any]]] = {}
    for span in spans:
        scope = span.instrumentation_scope
        scopes.setdefault(scope.name if scope else "", []).append(_span(span))
    resource = {"attributes": _attributes(spans[0].resource.attributes)}
    by_scope = [{"scope": {"name": name}, "spans": of_scope} for name, of_scope in scopes.items()]
    return {"resourceSpans": [{"resource": resource, "scopeSpans": by_scope}]}


def _span(span: ReadableSpan) -> dict[str, Any]:
    context = span.get_span_context()
    assert context
    parent = {"parentSpanId": f"{span.parent.span_id:016x}"} if span.parent else {}
    return {
        "traceId": f"{context.trace_id:032x}",
        "spanId": f"{context.span_id:016x}",
        **parent,
        "name": span.name,
        "kind": _KINDS[span.kind.name],
        "startTimeUnixNano": str(span.start_time),
        "endTimeUnixNano": str(span.end_time),
        "attributes": _attributes(span.attributes or {}),
        "events": [
            {
                "timeUnixNano": str(event.timestamp),
                "name": event.name,
                "attributes": _attributes(event.attributes or {}),
            }
            for event in span.events
        ],
        "status": {"code": _STATUS[span.status.status_code.name]},
    }


def _attributes(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: Any) -> dict[str, Any]:
    match value:
        case str():
            return {"stringValue": value}
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
    return {"arrayValue": {"values": [_value(item) for item in value]}}
