"""Offices and calls as metrics for Prometheus, and calls as spans for OpenTelemetry."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from time import monotonic

from a2c_smcp.protocol.events import EVENTS, Action, EventSpec
from a2c_smcp.protocol.results import call_result
from a2c_smcp.server.calls.call import Call
from a2c_smcp.server.connections import Connections
from a2c_smcp.server.directory import Directory
from a2c_smcp.server.observation.happened import CallEnded, EventRefused, Happened, McpCallRefused
from a2c_smcp.server.observation.reporting import Recorded
from a2c_smcp.smcp import TOOL_CALL_EVENT
from a2c_smcp.telemetry import conventions, tracing
from a2c_smcp.telemetry.metrics import HistogramSeries, Metrics, Series

__all__ = ["CallMetrics", "record_call", "watch_offices"]

_KNOWN = frozenset(event.name for event in EVENTS)
_OTHER = "other"
"""The label of all events that this version does not know: clients choose their names."""


class CallMetrics:
    """Counts requests to computers by event and outcome, and measures how long they take."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._series: dict[tuple[str, str], tuple[Series, HistogramSeries]] = {}

    def __call__(self, happened: Sequence[Recorded]) -> None:
        series, now = self._series, monotonic()
        for each in happened:
            if type(each) is Call:
                assert each.result
                event, outcome = each.event, each.result.outcome
                calls, durations = series.get((event.name, outcome)) or self._series_of(event, outcome)
                calls.value += 1
                durations.observe(now - each.until + each.timeout)
            elif type(each) is EventRefused and each.event and each.event.action is Action.FORWARD:
                self._metrics.count("a2c_calls_total", _label(each.event), call_result(each.error.code).outcome)
            elif type(each) is McpCallRefused:
                self._metrics.count("a2c_calls_total", TOOL_CALL_EVENT, call_result(each.error.code).outcome)

    def _series_of(self, event: EventSpec, outcome: str) -> tuple[Series, HistogramSeries]:
        calls = self._metrics.counter("a2c_calls_total", _label(event), outcome)
        series = calls, self._metrics.histogram("a2c_call_duration_seconds", _label(event))
        if event.name in _KNOWN:
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


def record_call(happened: Happened) -> None:
    """Makes a span of a request that has ended, in the trace that its agent names, after the answer has left.

    Of requests outside of a trace only tool calls have one: clients read lists in the background.
    """
    if type(happened) is not CallEnded:
        return
    trace = happened.trace  # read now, because a large request is forgotten
    if trace or happened.call.event.is_call:
        asyncio.get_running_loop().call_soon(_record, happened, tracing.until_now(happened.seconds))


def _record(happened: CallEnded, times: tracing.Times) -> None:
    call, result = happened.call, happened.result
    error_type = None if result.code is None else result.outcome
    facts = call.event.name, happened.tool, call.target.name, call.caller.office_id, call.req_id, result.outcome
    tracing.record(conventions.relayed, happened.trace, times, error_type, *facts)


def _label(event: EventSpec) -> str:
    return event.name if event.name in _KNOWN else _OTHER
