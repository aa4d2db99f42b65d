"""The text that Prometheus reads, and the catalog of all metrics."""

from __future__ import annotations

import re

import pytest

from a2c_smcp.telemetry.metrics import COMPUTER, SERVER, Metrics, MetricSpec, merged

CALLS = MetricSpec("a_calls_total", "counter", "Calls.", ("event", "outcome"))
TIME = MetricSpec("a_call_seconds", "histogram", "Time.", ("event",), buckets=(0.1, 0.5, 1.0))
PEOPLE = MetricSpec("a_people", "gauge", "People.", ("role",))


def test_a_metric_has_help_and_type_before_its_series() -> None:
    metrics = Metrics([CALLS])
    metrics.counter("a_calls_total", "call", "ok").value += 2
    metrics.count("a_calls_total", "call", "error", by=0.5)
    assert metrics.render() == (
        "# HELP a_calls_total Calls.\n"
        "# TYPE a_calls_total counter\n"
        'a_calls_total{event="call",outcome="ok"} 2\n'
        'a_calls_total{event="call",outcome="error"} 0.5\n'
    )


def test_a_histogram_counts_each_value_in_its_bucket_and_all_larger_ones() -> None:
    metrics = Metrics([TIME], {"node": "north"})
    series = metrics.histogram("a_call_seconds", "call")
    for value in (0.05, 0.1, 0.3, 7.0):
        series.observe(value)
    assert metrics.render().splitlines()[2:] == [
        'a_call_seconds_bucket{node="north",event="call",le="0.1"} 2',
        'a_call_seconds_bucket{node="north",event="call",le="0.5"} 3',
        'a_call_seconds_bucket{node="north",event="call",le="1"} 3',
        'a_call_seconds_bucket{node="north",event="call",le="+Inf"} 4',
        'a_call_seconds_sum{node="north",event="call"} 7.45',
        'a_call_seconds_count{node="north",event="call"} 4',
    ]
    assert metrics.value("a_call_seconds", event="call") == 4


def test_a_value_that_is_known_elsewhere_is_read_when_metrics_are() -> None:
    metrics = Metrics([PEOPLE])
    present = {("agent",): 1.0}
    metrics.watch("a_people", lambda: present)
    present["computer",] = 3.0
    assert metrics.value("a_people") == 4
    assert metrics.value("a_people", role="computer") == 3
    assert metrics.render().endswith('a_people{role="agent"} 1\na_people{role="computer"} 3\n')


def test_values_of_labels_and_help_are_escaped() -> None:
    metrics = Metrics([PEOPLE._replace(help="One\\two\nthree")])
    metrics.count("a_people", 'a"b\\c\nd')
    assert metrics.render() == (
        '# HELP a_people One\\\\two\\nthree\n# TYPE a_people gauge\na_people{role="a\\"b\\\\c\\nd"} 1\n'
    )


def test_too_many_values_of_a_label_are_counted_as_others() -> None:
    metrics = Metrics([PEOPLE])
    for number in range(2000):
        metrics.count("a_people", str(number))
    assert metrics.value("a_people") == 2000
    assert metrics.value("a_people", role="other") > 1400
    assert len(metrics.render().splitlines()) < 600


def test_metrics_of_several_processes_become_one_text_with_the_series_of_a_metric_together() -> None:
    texts = []
    for node in ("n-1", "n-2"):
        metrics = Metrics([CALLS, PEOPLE], {"node": node})
        metrics.count("a_calls_total", "call", "ok")
        metrics.count("a_people", "agent")
        texts.append(metrics.render())
    texts.append('# HELP a_people\na_people{node="n-3"} 0\n# HELP a_new New.\n# TYPE a_new gauge\na_new 1\n')
    assert merged(texts) == (
        "# HELP a_calls_total Calls.\n"
        "# TYPE a_calls_total counter\n"
        'a_calls_total{node="n-1",event="call",outcome="ok"} 1\n'
        'a_calls_total{node="n-2",event="call",outcome="ok"} 1\n'
        "# HELP a_people People.\n"
        "# TYPE a_people gauge\n"
        'a_people{node="n-1",role="agent"} 1\n'
        'a_people{node="n-2",role="agent"} 1\n'
        'a_people{node="n-3"} 0\n'
        "# HELP a_new New.\n"
        "# TYPE a_new gauge\n"
        "a_new 1\n"
    )


@pytest.mark.parametrize("spec", [*SERVER, *COMPUTER], ids=lambda spec: spec.name)
def test_names_say_unit_and_kind(spec: MetricSpec) -> None:
    assert re.fullmatch(r"(a2c|process)_[a-z_]+", spec.name)
    assert spec.name.endswith("_total") == (spec.kind == "counter")
    assert re.fullmatch(r"[A-Z0-9].*\.", spec.help), "a sentence in one line"
    assert bool(spec.buckets) == (spec.kind == "histogram")
    assert spec.kind != "histogram" or spec.name.endswith("_seconds")
    assert not {"name", "office", "agent", "computer", "tool", "principal"} & set(spec.labels), "not bounded"


def test_a_name_is_used_once() -> None:
    for catalog in (SERVER, COMPUTER):
        assert len({spec.name for spec in catalog}) == len(catalog)
