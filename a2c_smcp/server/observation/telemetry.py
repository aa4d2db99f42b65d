"""Offices and calls as metrics for Prometheus, and calls as spans for OpenTelemetry."""

from __future__ import annotations

import asyncio
from collections import Counter

from a2c_smcp.protocol.events import EVENTS, Action, EventSpec
from a2c_smcp.protocol.results import call_result
from a2c_smcp.server.connections import Connections
from a2c_smcp.server.directory import Directory
from a2c_smcp.server.observation.happened import CallEnded, EventRefused, Happened
from a2c_smcp.server.outcomes import Answer
from a2c_smcp.telemetry import conventions, tracing
from a2c_smcp.telemetry.metrics import HistogramSeries, Metrics, Series

__all__ = ["CallMetrics", "record_call", "watch_offices"]

_KNOWN = frozenset(event.name for event in EVENTS)
_OK = "ok"
_OTHER = "other"
"""The label of all events that this version does not know: clients choose their names."""


class CallMetrics:
    """Counts requests to computers by event and outcome, and measures how long they take."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._series: dict[tuple[str, str], Series] = {}
        self._durations: dict[str, HistogramSeries] = {}

    def __call__(self, happened: Happened) -> None:
        if type(happened) is CallEnded:
            event = happened.call.event
            self._count(event, _OK if _is_plain_success(happened) else happened.result.outcome)
            (self._durations.get(event.name) or self._duration(event)).observe(happened.seconds)
        elif type(happened) is EventRefused and happened.event and happened.event.action is Action.FORWARD:
            self._count(happened.event, call_result(happened.error.code).outcome)

    def _count(self, event: EventSpec, outcome: str) -> None:
        series = self._series.get((event.name, outcome))
        if series is None:
            series = self._metrics.counter("a2c_calls_total", _label(event), outcome)
            if event.name in _KNOWN:
                self._series[event.name, outcome] = series
        series.value += 1

    def _duration(self, event: EventSpec) -> HistogramSeries:
        series = self._metrics.histogram("a2c_call_duration_seconds", _label(event))
        if event.name in _KNOWN:
            self._durations[event.name] = series
        return series


def watch_offices(metrics: Metrics, connections: Connections, directory: Directory) -> None:
    """Counts offices and their members whenever metrics are read."""

    def members() -> dict[tuple[str, ...], float]:
        """The seats of this node's connections by role, and by protocol version without its patch level."""
        seats = (seat for each in connections for seat in directory.cached_seats(each.sid) or ())
        return dict(Counter((seat.role, ".".join(seat.version.split(".")[:2])) for seat in seats))

    def offices() -> int:
        """The offices whose agent is connected here, or else their first computer: so no other node counts them."""
        cached = map(directory.cached_office, connections.office_ids())
        first = (office.agent or office.computers[min(office.computers)] for office in cached if office)
        return sum(connections.get(member.sid) is not None for member in first)

    metrics.watch("a2c_members", members)
    metrics.watch("a2c_offices", offices)


def record_call(happened: Happened) -> None:
    """Makes a span of a request that has ended, in the trace that its agent names, after the answer has left.

    Of requests outside of a trace only tool calls have one: clients read lists in the background.
    """
    if type(happened) is not CallEnded:
        return
    fields = happened.fields  # read now, because a large request is forgotten
    if fields.trace or happened.call.event.is_call:
        asyncio.get_running_loop().call_soon(_record, happened, tracing.until_now(happened.seconds))


def _record(happened: CallEnded, times: tracing.Times) -> None:
    call, result = happened.call, happened.result
    error_type = None if result.code is None else result.outcome
    facts = call.event.name, happened.tool, call.target.name, call.caller.office_id, call.req_id, result.outcome
    tracing.record(conventions.relayed, happened.fields.trace, times, error_type, *facts)


def _is_plain_success(happened: CallEnded) -> bool:
    """Whether the answer is a success by the look of its bytes, which nearly all are. Others are read as JSON.

    Quotes within a string are escaped, so these bytes are keys.
    """
    if happened.call.event.is_sealed or type(happened.outcome) is not Answer:
        return False
    body = happened.outcome.body
    is_once = isinstance(body, bytes) and body.count(b'"isError"') == body.count(b'"isError":false') == 1
    return is_once and b'"error"' not in body


def _label(event: EventSpec) -> str:
    return event.name if event.name in _KNOWN else _OTHER
