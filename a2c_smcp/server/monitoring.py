"""What a Server counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

__all__ = ["Metrics"]


class Metrics:
    """Counters that only grow, and gauges that are asked when somebody looks. Both are a name and at most one label."""

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


def _series(name: str, label: dict[str, object]) -> str:
    return name + "".join(f'{{{key}="{value}"}}' for key, value in label.items())
