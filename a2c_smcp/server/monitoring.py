"""What operators see of a Server: counters and gauges for `/metrics`, and the audit trail in the log."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

__all__ = ["Metrics", "audit"]

_audit = logging.getLogger("a2c_smcp.audit")


class Metrics:
    """Counters, which only grow, and gauges, which are read when metrics are. Each has a name and at most one label."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._gauges: dict[str, Callable[[], float]] = {}

    def count(self, name: str, **label: object) -> None:
        self._counts[_series(name, label) if label else name] += 1

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        self._gauges[name] = read

    def snapshot(self) -> dict[str, float]:
        return {**self._counts, **{name: read() for name, read in self._gauges.items()}}

    def render(self) -> str:
        """The text format that Prometheus reads."""
        return "".join(f"a2c_{name} {value}\n" for name, value in sorted(self.snapshot().items()))


def audit(action: str, **facts: object) -> None:
    """Logs what an operator may be asked about later: `joined office='desk' role='agent' name='planner'`.

    Names are quoted, and hold no control characters. Payloads, credentials and sids are never logged.
    """
    if _audit.isEnabledFor(logging.INFO):
        _audit.info("%s", " ".join((action, *(f"{name}={fact!r}" for name, fact in facts.items() if fact is not None))))


def _series(name: str, label: dict[str, object]) -> str:
    return name + "".join(f'{{{key}="{value}"}}' for key, value in label.items())
