"""Offices and calls as metrics for Prometheus, and calls as spans for OpenTelemetry."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from time import monotonic

from a2c_smcp.audit.observers import Observed
from a2c_smcp.protocol.events import EventSpec
from a2c_smcp.server.calls.call import Call
from a2c_smcp.server.cluster.memory import Directory
from a2c_smcp.server.connections import Connections
from a2c_smcp.server.observation.happened import CallEnded, Recorded, event_label
from a2c_smcp.telemetry import conventions, tracing
from a2c_smcp.telemetry.metrics import HistogramSeries, Metrics, Series


class CallMetrics:
    """Counts requests to computers by event and outcome, and measures how long they take."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._series: dict[tuple[str, str], tuple[Series, HistogramSeries]] = {}

    def __call__(self, happened: Sequence[Recorded]) -> None:
        series, now = self._series, monotonic()
        for observed in happened:
            if isinstance(observed, Call):
                assert observed.result
                event, outcome = observed.event, observed.result.outcome
                calls, durations = series.get((event.name, outcome)) or self._series_of(event, outcome)
                calls.value += 1
                durations.observe(now - observed.until + observed.timeout)
            else:
                observed.count(self._metrics)

    def _series_of(self, event: EventSpec, outcome: str) -> tuple[Series, HistogramSeries]:
        calls = self._metrics.counter("a2c_calls_total", event_label(event), outcome)
        series = calls, self._metrics.histogram("a2c_call_duration_seconds", event_label(event))
        if event_label(event) == event.name:
            self._series[event.name, outcome] = series
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


def record_call(happened: Observed) -> None:
    """Makes a span of a request that has ended, in the trace that its agent names, after the answer has left.

    Of requests outside of a trace only tool calls have one: clients read lists in the background.
    """
    if type(happened) is not CallEnded:
        return
    trace = happened.trace  # read now, because a large request is forgotten
    if trace or happened.call.event.is_call:
        asyncio.get_running_loop().call_soon(_record, happened, tracing.until_now(happened.seconds))


def _record(happened: CallEnded, times: conventions.Times) -> None:
    call, result = happened.call, happened.result
    error_type = None if result.code is None else result.outcome
    facts = call.event.name, happened.tool, call.target.name, call.caller.office_id, call.req_id, result.outcome
    tracing.record(conventions.relayed, happened.trace, times, error_type, *facts)
