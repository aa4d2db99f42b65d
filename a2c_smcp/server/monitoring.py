"""The metrics of a Server, for `/metrics`."""

from __future__ import annotations

import re
from functools import cache

from a2c_smcp.errors import SMCPError
from a2c_smcp.telemetry.catalog import SERVER
from a2c_smcp.telemetry.metrics import Metrics, watch_process

__all__ = ["count_refusal", "server_metrics"]


def server_metrics(node: str | None = None) -> Metrics:
    """The metrics of a Server. One of several nodes is named in each series."""
    metrics = Metrics(SERVER, {"node": node} if node else None)
    watch_process(metrics, "a2c_build_info")
    metrics.count("a2c_node_up")
    return metrics


def count_refusal(metrics: Metrics, error: SMCPError) -> None:
    metrics.count("a2c_refused_total", str(error.code), _reason(type(error).__name__))


@cache
def _reason(error: str) -> str:
    """The name of a class as a label: `not_authenticated`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", error).lower()
