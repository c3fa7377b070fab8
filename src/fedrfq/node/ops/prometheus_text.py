"""The text format in which Prometheus reads metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping

# Upper bounds of a histogram's buckets. A round takes milliseconds in tests, minutes in training.
_BOUNDS_S = (
    *(0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0),
    *(10.0, 30.0, 60.0),
    *(120.0, 300.0, 600.0),
)
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})

Value = int | float


class Histogram:
    """Counts how often something took how long."""

    def __init__(self, bounds_s: tuple[float, ...] = _BOUNDS_S) -> None:
        self._bounds = bounds_s
        # One more than the bounds: the last bucket has none.
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str, about: str) -> list[str]:
        """Return the histogram as a metric; a bucket counts all durations up to its bound."""
        lines = _head(name, "histogram", about)
        total = 0
        for bound, count in zip([*self._bounds, "+Inf"], self._counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {total}')
        return [*lines, f"{name}_sum {self._sum}", f"{name}_count {total}"]


def gauge(name: str, about: str, value: Value) -> list[str]:
    """Return a metric that may go up and down."""
    return [*_head(name, "gauge", about), f"{name} {value}"]


def counter(name: str, about: str, value: Value) -> list[str]:
    """Return a metric that only goes up."""
    return [*_head(name, "counter", about), f"{name} {value}"]


def counters(name: str, about: str, label: str, values: Mapping[str, Value]) -> list[str]:
    """Return a metric with one counter for each value of a label."""
    lines = _head(name, "counter", about)
    for key, value in sorted(values.items()):
        lines.append(f'{name}{{{label}="{key.translate(_ESCAPES)}"}} {value}')
    return lines


def text(families: Iterable[list[str]]) -> str:
    """Return the page of these metrics."""
    return "".join(f"{line}\n" for family in families for line in family)


def _head(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
