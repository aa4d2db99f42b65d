"""The records of a Server: the audit file, metrics for Prometheus, and spans of calls.

The audit file has an entry for everything that happens, and it is in the file before the answer leaves.

Progress, logs and other tells are not recorded, nor are updates and requests that only read; `client:get_config` is, as
`config read`. A call takes one line. Its arguments are recorded as a keyed hash of their JSON, or as they are if that
was asked for. The Server cannot read a sealed call: its `tool` is `null`, and its outcome `answered` unless the Server
itself has ended it.

A busy Server writes thousands of lines a second, so little is done for each call: its arguments are hashed, and a small
entry is made. The rest is done once for all calls of a turn (time, encoding, hash of the block, system call), or for
all calls of a route that end in the same way: who calls whom and which tool, from where and by which device.

Clients without a key cannot push entries out of the file: of what they do, the first `_KEYLESS` entries of a minute are
written, and then one entry for all like it, with `times` and the number of their `addresses`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from time import monotonic

import msgspec

from a2c_smcp.audit.file import AuditFile, encoded
from a2c_smcp.audit.observers import Facts, Observed, known
from a2c_smcp.protocol.events import EventSpec
from a2c_smcp.server.calls.call import Call
from a2c_smcp.server.cluster.memory import Directory
from a2c_smcp.server.connections import Connections
from a2c_smcp.server.envelope import Answer
from a2c_smcp.server.observation.happened import (
    CallEnded,
    Recorded,
    answered_size,
    call_ended,
    event_label,
    recorded_fields,
)
from a2c_smcp.server.routing_fields import NO_PARAMS
from a2c_smcp.telemetry import conventions, tracing
from a2c_smcp.telemetry.metrics import HistogramSeries, Metrics, Series

logger = logging.getLogger(__name__)

_OF_KEYLESS = frozenset({"refused", "slow reader cut"})
_KEYLESS = 20
_MINUTE = 60.0
_MOST_ADDRESSES = 1024


class _CallEntry(msgspec.Struct, omit_defaults=True, gc=False):
    """The line of a call.

    `event` is `call`, and behind it, as further members of the line, what calls like it have in common: they are
    encoded once, and noted with their route.
    """

    n: int
    time: str
    event: msgspec.Raw
    req_id: str
    ms: float
    bytes_in: int
    bytes_out: int
    arguments: msgspec.Raw | str | None = None
    trace: str | None = None


class KeylessEntries:
    """Entries about clients without a key. `write` takes the sums, a minute after the first entry, or on `close`."""

    def __init__(self, write: Callable[[Sequence[Facts]], None], period: float = _MINUTE) -> None:
        self._write, self._period = write, period
        self._count = 0
        self._sums: dict[tuple[str, object], tuple[int, set[object]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def admits(self, entry: Facts) -> bool:
        """True if the entry is to be written; otherwise it is counted."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._period, self.close)
        self._count += 1
        if self._count <= _KEYLESS:
            return True
        times, addresses = self._sums.get((entry["event"], entry.get("code")), (0, set()))
        if len(addresses) < _MOST_ADDRESSES:
            addresses.add(entry.get("address"))
        self._sums[entry["event"], entry.get("code")] = times + 1, addresses
        return False

    def close(self) -> None:
        """Write the sums. The next entry begins another period."""
        if self._timer:
            self._timer.cancel()
        sums, self._sums, self._count, self._timer = self._sums, {}, 0, None
        self._write(
            [
                known(event, code=code, times=times, addresses=len(addresses))
                for (event, code), (times, addresses) in sums.items()
            ]
        )


class ServerAudit:
    """A recorder that writes an audit file. `connections` are those of its Server."""

    def __init__(self, file: AuditFile, connections: Connections, *, with_arguments: bool = False) -> None:
        self.file = file
        self._keyless = KeylessEntries(self._write_facts)
        self._connections = connections
        self._with_arguments = with_arguments

    def __call__(self, happened: Sequence[Recorded]) -> None:
        """Writes entries, those of calls that stand together by one step."""
        file, ended = self.file, monotonic()
        number, now, calls = file.next_number, file.now(), list[_CallEntry]()
        for observed in happened:
            try:
                if isinstance(observed, Call) and observed.event.is_call:
                    calls.append(self._entry(observed, number, now, ended))
                    number += 1
                elif (
                    facts := (
                        call_ended(observed, self._connections) if isinstance(observed, Call) else observed
                    ).entry()
                ) and (facts["event"] not in _OF_KEYLESS or "principal" in facts or self._keyless.admits(facts)):
                    self._write_calls(calls)
                    file.write(facts)
                    number = file.next_number
            except Exception:
                logger.exception("something was not recorded")
                number = file.next_number + len(calls)
        try:
            self._write_calls(calls)
        finally:
            file.flush()

    def close(self) -> None:
        self._keyless.close()
        self.file.close()

    def _write_facts(self, entries: Sequence[Facts]) -> None:
        for facts in entries:
            self.file.write(facts)
        self.file.flush()

    def _write_calls(self, calls: list[_CallEntry]) -> None:
        entries = calls.copy()
        calls.clear()
        if entries:
            self.file.write_numbered(entries)

    def _entry(self, call: Call, number: int, now: str, ended: float) -> _CallEntry:
        envelope, outcome = call.envelope, call.outcome
        fields = (envelope and envelope.recorded) or recorded_fields(call)
        params, arguments = fields.params, None
        if params is not NO_PARAMS and not call.event.is_sealed:
            arguments = in_one_line(bytes(params)) if self._with_arguments else self.file.hash(params)
        assert call.result
        is_usual = call.caller_sid == call.caller.sid and call.target_sid == call.target.sid
        known = call.notes.get(call.result.outcome) if is_usual and call.notes else None
        return _CallEntry(
            number,
            now,
            known or self._common_members(call, is_usual=is_usual),
            call.req_id,
            int((ended - call.until + call.timeout) * 1_000_000) / 1000,
            call.size,
            len(outcome.body) if type(outcome) is Answer else answered_size(outcome),
            arguments,
            fields.meta.trace if fields.meta is not None else None,
        )

    def _common_members(self, call: Call, *, is_usual: bool) -> msgspec.Raw:
        """Return the members that calls like this share. The route keeps them if both clients stayed."""
        ended = call_ended(call, self._connections)
        members = _members(ended)
        is_usual = is_usual and ended.connection is not None and ended.result.code is None
        if is_usual and call.notes is not None:
            call.notes[ended.result.outcome] = members
        return members


def _members(ended: CallEnded) -> msgspec.Raw:
    call, result, connection = ended.call, ended.result, ended.connection
    facts = known(
        "call",
        office=call.caller.office_id,
        agent=call.caller.name,
        computer=call.target.name,
        tool=ended.tool,
        outcome=result.outcome,
        principal=call.caller.owner,
        address=connection and connection.address,
        device=connection and connection.principal.device,
        computer_device=ended.answered_by,
        sealed=call.event.is_sealed or None,
        code=result.code,
        ran=result.ran,
    )
    text = encoded(facts)
    return msgspec.Raw(text.removeprefix(b'{"event":').removesuffix(b"}"))


def in_one_line(arguments: bytes) -> msgspec.Raw | None:
    """JSON as it came, without spaces between its parts: a newline there would begin another entry.

    `None` if it cannot be read.
    """
    try:
        text = msgspec.json.format(arguments, indent=-1)
        text.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _read_and_written(arguments)
    return _read_and_written(arguments) if b"\n" in text else msgspec.Raw(text)


def _read_and_written(arguments: bytes) -> msgspec.Raw | None:
    """The same for JSON that msgspec refuses, such as half a surrogate pair."""
    try:
        return msgspec.Raw(json.dumps(json.loads(arguments), separators=(",", ":"), allow_nan=False).encode("ascii"))
    except (ValueError, RecursionError):
        return None


# Offices and calls as metrics for Prometheus, and calls as spans for OpenTelemetry.


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
