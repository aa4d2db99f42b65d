"""Spans, as they are in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

PROGRAMS = Path(__file__).parents[1] / "telemetry" / "programs"


class Span(NamedTuple):
    """A span as a file has it."""

    service: str
    name: str
    kind: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]
    is_error: bool
    began: int
    ended: int

    def has(self, **attributes: Any) -> bool:
        return all(self.attributes.get(name.replace("__", ".")) == value for name, value in attributes.items())


KINDS = {1: "internal", 2: "server", 3: "client"}


def spans_in(file: Path) -> list[Span]:
    found = []
    for line in file.read_text("utf-8").splitlines():
        (resource,) = json.loads(line)["resourceSpans"]
        service = next(
            a["value"]["stringValue"] for a in resource["resource"]["attributes"] if a["key"] == "service.name"
        )
        for span in (span for scope in resource["scopeSpans"] for span in scope["spans"]):
            attributes = {each["key"]: next(iter(each["value"].values())) for each in span["attributes"]}
            times = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
            ids = span["traceId"], span["spanId"], span.get("parentSpanId", "")
            kind, is_error = KINDS[span["kind"]], span["status"]["code"] == 2
            found.append(
                Span(service.removeprefix("a2c-smcp "), span["name"], kind, *ids, attributes, is_error, *times)
            )
    return found


def trace_of(spans: list[Span], name: str) -> list[Span]:
    """All spans of the trace that the caller's program began under this name, in the order in which they began."""
    (root,) = [span for span in spans if span.name == name]
    assert (root.service, root.parent) == ("program", "")
    return sorted((span for span in spans if span.trace == root.trace), key=lambda span: span.began)
