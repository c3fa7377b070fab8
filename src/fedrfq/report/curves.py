"""Curves over rounds: accuracy, and the bytes that were sent."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from fedrfq.learning.evaluation import RoundRecord
from fedrfq.report import marks
from fedrfq.report.figure import Figure, Row, banded
from fedrfq.report.run_data import RunData

HEAD = "own head"
PROTOTYPE = "nearest prototype"
ALL_CLASSES = "all classes, final prediction"
_HONEST = {
    f"{HEAD} (honest only)": "honest_accuracy_mean",
    f"{PROTOTYPE} (honest only)": "honest_prototype_accuracy_mean",
}


# The series of the traffic figure, and the RoundRecord field that each shows.
_TRAFFIC = {
    "up from clients": "bytes_up",
    "down to clients": "bytes_down",
    "committee": "committee_bytes",
}


def accuracy(run: RunData) -> Figure | None:
    """Draw the clients' mean accuracies with bands; under an attack, honest clients' means too."""
    rows = _banded(run.records, HEAD, "accuracy")
    rows += _banded(run.records, PROTOTYPE, "prototype_accuracy")
    rows += _plain(run.records, ALL_CLASSES, "accuracy_all")
    if run.experiment.attack.clients:
        for name, field in _HONEST.items():
            rows += _plain(run.records, name, field)
    if not rows:
        return None
    # In the order of the rows, so that a series keeps its colour from run to run.
    names = list(dict.fromkeys(str(row["series"]) for row in rows))
    tooltip = marks.tips(series="", round="round", mean="accuracy, %", std="± over clients, %")
    y = marks.axis("mean", marks.PERCENT)
    caption = (
        "Mean test accuracy over clients after each round. The band is one standard deviation "
        "over clients, cut off at 100 %. With its own head, a client predicts with its whole "
        "model; by the nearest prototype, it predicts from its features and the global "
        "prototypes alone. These are tested on the classes that a client holds; on all classes, "
        "what a client finally predicts is tested, at checkpoints only."
    )
    return Figure("accuracy", "Accuracy", caption, rows, marks.curves(names, y, tooltip, band=True))


def _banded(records: Sequence[RoundRecord], name: str, field: str) -> list[Row]:
    """Return a row with a band of one standard deviation for each round that has a mean."""
    rows: list[Row] = []
    for record in records:
        mean = getattr(record, f"{field}_mean")
        std = getattr(record, f"{field}_std") or 0.0
        if mean is not None:
            rows.append({"series": name, "round": record.round, **banded(mean, std)})
    return rows


def _plain(records: Sequence[RoundRecord], name: str, field: str) -> list[Row]:
    """Return a row without a band for each round that has a value."""
    means = [(record.round, getattr(record, field)) for record in records]
    return [
        {"series": name, "round": number, "mean": mean, "std": None, "low": mean, "high": mean}
        for number, mean in means
        if mean is not None
    ]


def traffic(run: RunData) -> Figure | None:
    """Draw the bytes sent since the first round: by clients, to clients, and in the committee."""
    rows = [row for name, field in _TRAFFIC.items() for row in _totals(run.records, name, field)]
    if not rows:
        return None
    names = list(dict.fromkeys(str(row["series"]) for row in rows))
    tooltip = marks.tips(series="", round="round", bytes="this round, bytes", total="so far, bytes")
    y = marks.amount("total", "bytes so far", max(float(row["total"] or 0) for row in rows))
    caption = "Bytes since the first round: what all clients sent and what they received"
    if "committee" in names:
        caption += ", and every message with which the committee agreed, uploads and votes included"
    spec = marks.curves(names, y, tooltip, band=False, height=260)
    return Figure("traffic", "Traffic", caption + ".", rows, spec)


def _totals(records: Sequence[RoundRecord], name: str, field: str) -> list[Row]:
    """Return the bytes of each round in which any were sent, and their running total."""
    counts = [(record.round, getattr(record, field)) for record in records]
    counts = [(number, count) for number, count in counts if count]
    totals = accumulate(count for _, count in counts)
    return [
        {"series": name, "round": number, "bytes": count, "total": total}
        for (number, count), total in zip(counts, totals, strict=True)
    ]
