"""What went on round after round: accuracy, and the bytes that travelled."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from fedrfq.learning.evaluation import RoundRecord
from fedrfq.report import marks
from fedrfq.report.figure import Figure, Row
from fedrfq.report.run_data import RunData

HEAD = "own head"
PROTOTYPE = "nearest prototype"
_HONEST = {
    f"{HEAD} (honest only)": "honest_accuracy_mean",
    f"{PROTOTYPE} (honest only)": "honest_prototype_accuracy_mean",
}


def accuracy(run: RunData) -> Figure | None:
    """The clients' mean accuracies with bands of one standard deviation; of honest clients too where some attack."""
    rows = banded(run.records, HEAD, "accuracy") + banded(
        run.records, PROTOTYPE, "prototype_accuracy"
    )
    if run.experiment.attack.clients:
        rows += [row for name, field in _HONEST.items() for row in _plain(run.records, name, field)]
    if not rows:
        return None
    names = list(dict.fromkeys(str(row["series"]) for row in rows))
    tooltip = marks.tips(series="", round="round", mean="accuracy, %", std="± over clients, %")
    y = marks.axis("mean", marks.PERCENT)
    caption = (
        "Mean test accuracy over clients after each round; the band is one standard deviation over clients, cut at 100 %. "
        "By its own head a client predicts with its whole model, by the nearest prototype with its features and the "
        "global prototypes alone."
    )
    return Figure("accuracy", "Accuracy", caption, rows, marks.curves(names, y, tooltip, band=True))


def banded(records: Sequence[RoundRecord], name: str, field: str) -> list[Row]:
    rows: list[Row] = []
    for record in records:
        mean = getattr(record, f"{field}_mean")
        std = getattr(record, f"{field}_std") or 0.0
        if mean is not None:
            low = max(0.0, mean - std)
            high = min(100.0, mean + std)
            rows.append(
                {
                    "series": name,
                    "round": record.round,
                    "mean": mean,
                    "std": std,
                    "low": low,
                    "high": high,
                }
            )
    return rows


def _plain(records: Sequence[RoundRecord], name: str, field: str) -> list[Row]:
    found = [(record.round, getattr(record, field)) for record in records]
    return [
        {"series": name, "round": number, "mean": mean, "std": None, "low": mean, "high": mean}
        for number, mean in found
        if mean is not None
    ]


def traffic(run: RunData) -> Figure | None:
    """Bytes from the first round on: up from clients, down to clients, and among the committee."""
    rows: list[Row] = []
    for name, field in (
        ("up from clients", "bytes_up"),
        ("down to clients", "bytes_down"),
        ("committee", "committee_bytes"),
    ):
        each = [
            (record.round, getattr(record, field))
            for record in run.records
            if getattr(record, field)
        ]
        totals = accumulate(length for _, length in each)
        rows += [
            {"series": name, "round": number, "bytes": length, "total": total}
            for (number, length), total in zip(each, totals, strict=True)
        ]
    if not rows:
        return None
    names = list(dict.fromkeys(str(row["series"]) for row in rows))
    tooltip = marks.tips(series="", round="round", bytes="this round, bytes", total="so far, bytes")
    y = marks.amount("total", "bytes so far", max(float(row["total"] or 0) for row in rows))
    caption = "Bytes since the first round: what all clients sent, what came back to them" + (
        ", and every message of the committee's agreeing, uploads and votes included."
        if "committee" in names
        else "."
    )
    return Figure(
        "traffic", "Traffic", caption, rows, marks.curves(names, y, tooltip, band=False, height=260)
    )
