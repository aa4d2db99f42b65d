"""The metrics of one process, and their text as Prometheus reads it (text format 0.0.4).

A metric is a row of `SERVER` or `COMPUTER` below. Each combination of values of its labels is a series. Code in a hot
path asks once for its series (`counter`, `histogram`) and keeps it, so that counting is one addition. Values that some
object knows anyway are read when metrics are (`watch`). Labels of all series of a process, such as its node, are given
once.

A metric has at most `_MOST_SERIES` series: what comes later is counted under the label `other`.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from a2c_smcp import __version__
from a2c_smcp.errors import SMCPError, kind_of

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MetricKind: TypeAlias = Literal["counter", "gauge", "histogram"]
LabelValues: TypeAlias = tuple[str, ...]
Read: TypeAlias = Callable[[], "float | Mapping[LabelValues, float]"]
"""Returns the value of a metric without labels, or those of all its series."""

_MOST_SERIES = 512
_OTHER = "other"
_PROC = Path("/proc/self")


class MetricSpec(NamedTuple):
    """A row of the catalog. `known` are values of its labels that are shown, as 0, before they are first counted."""

    name: str
    kind: MetricKind
    help: str
    labels: LabelValues = ()
    known: tuple[LabelValues, ...] = ()
    buckets: tuple[float, ...] = ()


class Series:
    """One number. Who holds it adds to `value`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class HistogramSeries:
    """The number of values in each bucket, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class _Family:
    """All series of one metric."""

    def __init__(self, spec: MetricSpec) -> None:
        self.spec = spec
        self.series: dict[LabelValues, Series | HistogramSeries] = {}
        self.read: Read | None = None
        for values in spec.known or (() if spec.labels else ((),)):
            self.at(values)

    def at(self, values: LabelValues) -> Series | HistogramSeries:
        series = self.series.get(values)
        if series is None:
            assert len(values) == len(self.spec.labels), f"{self.spec.name} has the labels {self.spec.labels}"
            if len(self.series) >= _MOST_SERIES:
                values = (_OTHER,) * len(values)
            made = HistogramSeries(self.spec.buckets) if self.spec.kind == "histogram" else Series()
            series = self.series.setdefault(values, made)
        return series

    def values(self) -> dict[LabelValues, float]:
        """The value of each series. That of a histogram is how many values it has."""
        if self.read is not None:
            value = self.read()
            return dict(value) if isinstance(value, Mapping) else {(): value}
        return {
            values: sum(series.counts) if isinstance(series, HistogramSeries) else series.value
            for values, series in self.series.items()
        }

    def lines(self, fixed: tuple[tuple[str, str], ...]) -> Iterable[str]:
        name, kind, labels = self.spec.name, self.spec.kind, self.spec.labels
        yield f"# HELP {name} {_escaped(self.spec.help)}"
        yield f"# TYPE {name} {kind}"
        if kind != "histogram":
            for values, value in self.values().items():
                yield f"{name}{_labels((*fixed, *zip(labels, values, strict=True)))} {_number(value)}"
            return
        for values, series in self.series.items():
            assert isinstance(series, HistogramSeries)
            own = (*fixed, *zip(labels, values, strict=True))
            totals = list(accumulate(series.counts))
            for bound, total in zip((*map(_number, series.bounds), "+Inf"), totals, strict=True):
                yield f"{name}_bucket{_labels((*own, ('le', bound)))} {total}"
            yield f"{name}_sum{_labels(own)} {_number(series.sum)}"
            yield f"{name}_count{_labels(own)} {totals[-1]}"


class Metrics:
    """The metrics of a catalog. `labels` are those of every series, such as the node."""

    def __init__(self, catalog: Iterable[MetricSpec], labels: Mapping[str, str] | None = None) -> None:
        self._families = {spec.name: _Family(spec) for spec in catalog}
        self._labels = tuple((labels or {}).items())
        self._before_reading: list[Callable[[], None]] = []

    def counter(self, name: str, *values: str) -> Series:
        """The series of a counter or a gauge with these values of its labels."""
        series = self._families[name].at(values)
        assert isinstance(series, Series)
        return series

    def histogram(self, name: str, *values: str) -> HistogramSeries:
        series = self._families[name].at(values)
        assert isinstance(series, HistogramSeries)
        return series

    def count(self, name: str, *values: str, by: float = 1) -> None:
        self.counter(name, *values).value += by

    def watch(self, name: str, read: Read) -> None:
        """Calls `read` whenever metrics are read, in place of counting."""
        self._families[name].read = read

    def before_reading(self, count: Callable[[], None]) -> None:
        """Calls `count` before metrics are read: it counts what waits to be counted."""
        self._before_reading.append(count)

    def _be_current(self) -> None:
        for count in self._before_reading:
            count()

    def value(self, name: str, **labels: object) -> float:
        """The sum of all series of a metric that have these labels. That of a histogram is how many values it has."""
        self._be_current()
        family = self._families[name]
        wanted = {family.spec.labels.index(label): str(value) for label, value in labels.items()}
        return sum(
            value for values, value in family.values().items() if all(values[at] == it for at, it in wanted.items())
        )

    def render(self) -> str:
        """The text format of Prometheus."""
        self._be_current()
        return "".join(f"{line}\n" for family in self._families.values() for line in family.lines(self._labels))


def merged(texts: Iterable[str]) -> str:
    """The metrics of several processes as one text, in which the series of a metric stand together.

    Their series must differ in a label. A metric that only one of the processes knows is in the text as well.
    """
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for text in texts:
        name = ""
        for line in text.splitlines():
            if line.startswith("# "):
                name = line.split(" ", 3)[2]
                head = heads.setdefault(name, [])
                if line not in head and len(head) < 2:
                    head.append(line)
            elif line:
                samples.setdefault(name, []).append(line)
    return "".join(f"{line}\n" for name, head in heads.items() for line in (*head, *samples.get(name, ())))


def _labels(labels: Iterable[tuple[str, str]]) -> str:
    escaped = ((name, _escaped(value).replace('"', r"\"")) for name, value in labels)
    text = ",".join(f'{name}="{value}"' for name, value in escaped)
    return f"{{{text}}}" if text else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


# The process itself, under the names that all Prometheus libraries give


def watch_process(metrics: Metrics, build_info: str) -> None:
    """Adds processor time, memory, open files and lost log lines, and what runs as the labels of `build_info`."""
    began = time.time()
    metrics.watch("process_start_time_seconds", lambda: began)
    metrics.watch("process_cpu_seconds_total", time.process_time)
    metrics.watch("process_resident_memory_bytes", _memory)
    metrics.watch("process_open_fds", _open_files)
    metrics.watch("a2c_log_lines_dropped_total", lambda: getattr(sys.stderr, "dropped", 0))
    metrics.count(build_info, __version__, platform.python_version())


def _memory() -> float:
    """The resident memory. Where the system does not tell it, the most it ever was."""
    try:
        return int((_PROC / "statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        pass
    try:
        import resource
    except ImportError:  # on Windows
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _open_files() -> float:
    for folder in (_PROC / "fd", Path("/dev/fd")):
        try:
            return len(os.listdir(folder))  # noqa: PTH208, only counted
        except OSError:
            continue
    return 0


# All metrics of a Server and of a computer: the one table from which they are made, checked and documented.
#
# A name says its unit (`_seconds`, `_bytes`) and ends with `_total` if the number only grows. A label has few values:
# names of clients, offices and tools are never labels.

LATENCY_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip
_STORE_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)

_FAILING = (
    "1 while the audit file (--audit) cannot be written or rotated: entries wait, or the file grows; and for ten "
    "minutes after it was deleted, cut or moved to another folder."
)
_GONE = "Times that the audit file was deleted, cut or moved to another folder while it was written."
_LOST = "Entries of the audit file that were dropped, because too many were waiting."

_PROCESS = (
    MetricSpec("process_start_time_seconds", "gauge", "When the process began, in seconds since 1970."),
    MetricSpec("process_cpu_seconds_total", "counter", "Processor time of the process."),
    MetricSpec("process_resident_memory_bytes", "gauge", "Memory of the process."),
    MetricSpec("process_open_fds", "gauge", "Open files and sockets of the process."),
    MetricSpec("a2c_log_lines_dropped_total", "counter", "Lines for stderr that were dropped: nobody read it."),
)

SERVER = (
    MetricSpec("a2c_build_info", "gauge", "Always 1. The labels say what runs.", ("version", "python")),
    MetricSpec("a2c_ready", "gauge", "1 while new clients may come, 0 while it drains or has lost its store."),
    MetricSpec("a2c_node_up", "gauge", "1 for a process that answered this scrape, 0 for a worker that did not."),
    MetricSpec("a2c_workers", "gauge", "Processes that serve this port (--workers)."),
    MetricSpec("a2c_sessions", "gauge", "Engine.IO sessions, also of clients that are not authenticated."),
    MetricSpec("a2c_connections", "gauge", "Authenticated connections."),
    MetricSpec("a2c_connects_total", "counter", "Connections that were authenticated."),
    MetricSpec("a2c_offices", "gauge", "Offices with a member. Each office is counted by one node only."),
    MetricSpec("a2c_members", "gauge", "Seats of clients connected here, by protocol version.", ("role", "version")),
    MetricSpec("a2c_calls_in_flight", "gauge", "Requests to computers that are not answered yet."),
    MetricSpec(
        "a2c_calls_total",
        "counter",
        "Requests of agents to computers that have ended. The outcome is ok, tool_error (the tool failed), answered "
        "(it is sealed), or the kind of error: bad_request, busy, cancelled, denied, error, frozen, not_found, "
        "sign_in_required, timeout, too_large, unavailable.",
        ("event", "outcome"),
    ),
    MetricSpec(
        "a2c_call_duration_seconds",
        "histogram",
        "From the arrival of a request to its answer.",
        ("event",),
        buckets=LATENCY_BUCKETS,
    ),
    MetricSpec("a2c_received_bytes_total", "counter", "Bytes of messages that clients sent."),
    MetricSpec("a2c_sent_bytes_total", "counter", "Bytes of messages that were sent to clients."),
    MetricSpec(
        "a2c_refused_total",
        "counter",
        "Connects, HTTP requests and events that were refused, by the code and the name of the error.",
        ("code", "reason"),
    ),
    MetricSpec(
        "a2c_cut_total",
        "counter",
        "Clients that were disconnected: slow_reader (too much unread), blocked (a write took too long), flood (more "
        "than may be sent before authentication, or too many empty frames), crowd (too many unauthenticated clients).",
        ("reason",),
        known=(("slow_reader",), ("blocked",), ("flood",), ("crowd",)),
    ),
    MetricSpec(
        "a2c_descriptors_short_total",
        "counter",
        "Connections that came when only the reserve of file descriptors was left: health pages and operators' pages "
        "are answered on them, and no new clients.",
    ),
    MetricSpec("a2c_tells_total", "counter", "Messages from a computer to one agent, such as progress and questions."),
    MetricSpec(
        "a2c_tells_dropped_total",
        "counter",
        "Such messages that were not delivered: rate (too many), unread (the agent reads slowly), away (it is gone).",
        ("reason",),
        known=(("rate",), ("unread",), ("away",)),
    ),
    MetricSpec("a2c_passed_on_total", "counter", "HTTP requests that were passed on to the node of their session."),
    MetricSpec("a2c_node_calls_total", "counter", "Requests that came from agents of other nodes to computers here."),
    MetricSpec(
        "a2c_directory_request_duration_seconds",
        "histogram",
        "Round trips to the shared store, by command.",
        ("command",),
        buckets=_STORE_BUCKETS,
    ),
    MetricSpec("a2c_directory_errors_total", "counter", "Round trips to the shared store that failed.", ("command",)),
    MetricSpec(
        "a2c_directory_conflicts_total",
        "counter",
        "Joins and leaves that were decided again, because their office had changed meanwhile.",
    ),
    MetricSpec("a2c_frozen", "gauge", "Freezes by operators: offices, computers, or the whole Server."),
    MetricSpec("a2c_keys_failing", "gauge", "1 while keys could not be read again: the earlier ones stay in force."),
    MetricSpec("a2c_audit_failing", "gauge", _FAILING),
    MetricSpec("a2c_audit_lost_total", "counter", _LOST),
    MetricSpec("a2c_audit_gone_total", "counter", _GONE),
    *_PROCESS,
)

COMPUTER = (
    MetricSpec("a2c_computer_build_info", "gauge", "Always 1. The labels say what runs.", ("version", "python")),
    MetricSpec("a2c_computer_connected", "gauge", "1 while it is connected and sits in its office."),
    MetricSpec("a2c_computer_frozen", "gauge", "1 while its owner lets nothing through."),
    MetricSpec("a2c_computer_servers", "gauge", "Configured MCP servers by state.", ("state",)),
    MetricSpec("a2c_computer_tools", "gauge", "Tools that are offered to agents."),
    MetricSpec(
        "a2c_computer_server_starts_total",
        "counter",
        "Starts of each MCP server; all but the first are restarts.",
        ("server",),
    ),
    MetricSpec("a2c_computer_calls_in_flight", "gauge", "Tool calls that run or wait for approval."),
    MetricSpec(
        "a2c_computer_calls_total",
        "counter",
        "Tool calls that have ended, by outcome as on the Server.",
        ("outcome",),
        known=(("ok",), ("tool_error",), ("denied",), ("timeout",), ("cancelled",)),
    ),
    MetricSpec(
        "a2c_computer_call_duration_seconds",
        "histogram",
        "From the arrival of a tool call to its answer, with approval and questions.",
        buckets=LATENCY_BUCKETS,
    ),
    MetricSpec(
        "a2c_computer_call_waited_seconds",
        "histogram",
        "The part of it in which the call waited: for its MCP server, for approval, for answers to questions.",
        buckets=LATENCY_BUCKETS,
    ),
    MetricSpec(
        "a2c_computer_call_run_seconds", "histogram", "The part of it in which the tool ran.", buckets=LATENCY_BUCKETS
    ),
    MetricSpec(
        "a2c_computer_approvals_total",
        "counter",
        "Calls that need approval, by who decided, and how: yes, no, always, always_for_server, always_for_agent, "
        "none. Grant and configuration allow without asking; nobody: there was nobody who could be asked.",
        ("by", "answer"),
    ),
    MetricSpec("a2c_computer_approvals_waiting", "gauge", "Calls that wait here for an approval."),
    MetricSpec(
        "a2c_computer_questions_total",
        "counter",
        "Questions of tools, by who answered, and how: accept, decline, cancel, none.",
        ("by", "answer"),
    ),
    MetricSpec("a2c_computer_questions_waiting", "gauge", "Questions of tools that wait for an answer."),
    MetricSpec("a2c_computer_refused_total", "counter", "Requests of agents that were refused, by code.", ("code",)),
    MetricSpec(
        "a2c_computer_blobs_total",
        "counter",
        "Large contents that agents have begun to fetch, and files that they have sent.",
        ("direction",),
        known=(("fetched",), ("stored",)),
    ),
    MetricSpec(
        "a2c_computer_blob_bytes_total",
        "counter",
        "Bytes of these contents.",
        ("direction",),
        known=(("fetched",), ("stored",)),
    ),
    MetricSpec("a2c_computer_audit_failing", "gauge", _FAILING),
    MetricSpec("a2c_computer_audit_lost_total", "counter", _LOST),
    MetricSpec("a2c_computer_audit_gone_total", "counter", _GONE),
    *_PROCESS,
)


def server_metrics(node: str | None = None) -> Metrics:
    """The metrics of a Server. One of several nodes is named in each series."""
    metrics = Metrics(SERVER, {"node": node} if node else None)
    watch_process(metrics, "a2c_build_info")
    metrics.count("a2c_node_up")
    return metrics


def count_refusal(metrics: Metrics, error: SMCPError) -> None:
    metrics.count("a2c_refused_total", str(error.code), kind_of(type(error)).replace(" ", "_"))
