"""The metrics of one process, and their text as Prometheus reads it (text format 0.0.4).

A metric is a row of `catalog.py`. Each combination of values of its labels is a series. Code in a hot path asks once
for its series (`counter`, `histogram`) and keeps it, so that counting is one addition. Values that some object knows
anyway are read when metrics are (`watch`). Labels of all series of a process, such as its node, are given once.

A metric has at most `_MOST_SERIES` series: what comes later is counted under the label `other`.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

__all__ = ["CONTENT_TYPE", "HistogramSeries", "MetricSpec", "Metrics", "Series", "merged", "watch_process"]

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
    """How many values fell into each bucket, and their sum."""

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
        found = self.series.get(values)
        if found is None:
            assert len(values) == len(self.spec.labels), f"{self.spec.name} has the labels {self.spec.labels}"
            if len(self.series) >= _MOST_SERIES:
                values = (_OTHER,) * len(values)
            made = HistogramSeries(self.spec.buckets) if self.spec.kind == "histogram" else Series()
            found = self.series.setdefault(values, made)
        return found

    def values(self) -> dict[LabelValues, float]:
        """The value of each series. That of a histogram is how many values it has."""
        if self.read is not None:
            found = self.read()
            return dict(found) if isinstance(found, Mapping) else {(): found}
        return {
            values: sum(series.counts) if isinstance(series, HistogramSeries) else series.value
            for values, series in self.series.items()
        }

    def lines(self, fixed: tuple[tuple[str, str], ...]) -> Iterable[str]:
        name, kind, labels = self.spec.name, self.spec.kind, self.spec.labels
        yield f"# HELP {name} {_escaped_help(self.spec.help)}"
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
    text = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{text}}}" if text else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _escaped_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


# The process itself, under the names that all Prometheus libraries give


def watch_process(metrics: Metrics, build_info: str) -> None:
    """Adds processor time, memory and open files, and what runs as the labels of `build_info`."""
    began = time.time()
    metrics.watch("process_start_time_seconds", lambda: began)
    metrics.watch("process_cpu_seconds_total", time.process_time)
    metrics.watch("process_resident_memory_bytes", _memory)
    metrics.watch("process_open_fds", _open_files)
    metrics.count(build_info, _own_version(), platform.python_version())


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


def _own_version() -> str:
    try:
        return version("a2c-smcp")
    except PackageNotFoundError:
        return "0"
