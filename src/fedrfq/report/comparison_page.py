"""The page of several runs: their curves side by side, what they came to, and what they differ in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedrfq.learning.evaluation import RoundRecord
from fedrfq.report import marks, markup
from fedrfq.report.curves import HEAD, PROTOTYPE
from fedrfq.report.figure import Figure, Row, Spec
from fedrfq.report.find_runs import MOST_RUNS
from fedrfq.report.groups import Brief, Group, differing, grouped
from fedrfq.report.page import ReportPage, Section
from fedrfq.report.run_page import length, points

_KINDS = {HEAD: "accuracy", PROTOTYPE: "prototype_accuracy"}


def page(paths: Sequence[Path]) -> ReportPage:
    """A comparison of the runs in these directories; of too many, of the first."""
    runs = [Brief.read(path) for path in paths[:MOST_RUNS]]
    groups = grouped(runs)
    if len(paths) > MOST_RUNS:
        notes = [f"Only the first {MOST_RUNS} of {len(paths)} runs."]
    else:
        notes = []
    notes += [f"{run.path} has no rounds yet." for run in runs if not run.records]
    figures = [
        figure
        for figure in (*(_curves(groups, name) for name in _KINDS), _final(groups))
        if figure is not None
    ]
    sections = [
        Section("What they came to", _table(groups)),
        Section("Accuracy", figures=figures),
        Section("What they differ in", _differences(groups)),
        Section("Runs", _list(runs)),
    ]
    title = " and ".join(dict.fromkeys(run.experiment.name for run in runs[:3]))
    subtitle = f"{len(runs)} runs, {len(groups)} settings"
    return ReportPage(
        f"Comparison: {title}",
        subtitle,
        markup.notes(notes),
        [s for s in sections if s.body or s.figures],
    )


def _values(group: Group, field: str, number: int | None = None) -> list[float]:
    """Each run's mean accuracy after a round, or after its last."""
    records = [_record(run.records, number) for run in group.runs]
    found = [getattr(record, f"{field}_mean") for record in records if record is not None]
    return [value for value in found if value is not None]


def _record(records: Sequence[RoundRecord], number: int | None) -> RoundRecord | None:
    if number is None:
        at = len(records) - 1
    else:
        at = number - 1
    if 0 <= at < len(records):
        return records[at]
    return None


def _curves(groups: Sequence[Group], name: str) -> Figure | None:
    rows = [row for group in groups for row in _rows(group, _KINDS[name])]
    if not rows:
        return None
    tooltip = marks.tips(series="", round="round", mean="accuracy, %", std="±, %", runs="runs")
    several = "standard deviation over seeds where there are several, else over clients"
    caption = f"Mean test accuracy over clients, {name}; the band is one {several}."
    spec = marks.curves(
        [group.label for group in groups], marks.axis("mean", marks.PERCENT), tooltip, band=True
    )
    return Figure(f"accuracy-{name.split()[-1]}", f"Accuracy, {name}", caption, rows, spec)


def _rows(group: Group, field: str) -> list[Row]:
    rows: list[Row] = []
    for number in range(1, max(len(run.records) for run in group.runs) + 1):
        values = _values(group, field, number)
        if values:
            mean = float(np.mean(values))
            std = _std(group, field, values, number)
            low = max(0.0, mean - std)
            high = min(100.0, mean + std)
            own: Row = {
                "series": group.label,
                "round": number,
                "mean": mean,
                "std": std,
                "low": low,
                "high": high,
            }
            rows.append({**own, "runs": len(values)})
    return rows


def _std(group: Group, field: str, values: Sequence[float], number: int | None = None) -> float:
    """Over seeds; of one run, over its clients."""
    if len(group.runs) > 1:
        if len(values) > 1:
            return float(np.std(values, ddof=1))
        return 0.0
    record = _record(group.runs[0].records, number)
    return float(getattr(record, f"{field}_std") or 0.0)


def _final(groups: Sequence[Group]) -> Figure | None:
    """What each setting ended with."""
    rows: list[Row] = []
    for group in groups:
        for name, field in _KINDS.items():
            values = _values(group, field)
            if values:
                mean = float(np.mean(values))
                std = _std(group, field, values)
                own: Row = {
                    "setting": group.label,
                    "series": name,
                    "mean": mean,
                    "std": std,
                    "runs": len(values),
                }
                rows.append({**own, "low": max(0.0, mean - std), "high": min(100.0, mean + std)})
    caption = "Test accuracy after each run's last round, ± one standard deviation as above."
    if rows:
        return Figure("final", "After the last round", caption, rows, _dots(len(groups)))
    return None


def _dots(settings: int) -> Spec:
    names = list(_KINDS)
    y = {
        "field": "setting",
        "type": "nominal",
        "title": None,
        "sort": None,
        "axis": {"labelLimit": 170, "grid": True},
    }
    offset = {"field": "series", "scale": {"domain": names}}
    x = marks.axis("mean", marks.PERCENT)
    colour = marks.series(names)
    opacity = marks.shown(1)
    tooltip = marks.tips(setting="", series="by", mean="accuracy, %", std="±, %", runs="runs")
    bars = {
        "mark": {"type": "rule", "strokeWidth": 3},
        "encoding": {
            "x": {**x, "field": "low"},
            "x2": {"field": "high"},
            "y": y,
            "yOffset": offset,
            "color": colour,
            "opacity": marks.shown(0.4),
        },
    }
    dots = {
        "mark": {"type": "point", "filled": True, "size": 100},
        "params": [marks.switch("series")],
        "encoding": {
            "x": x,
            "y": y,
            "yOffset": offset,
            "color": colour,
            "opacity": opacity,
            "tooltip": tooltip,
        },
    }
    return {"height": 34 * settings, "layer": [bars, dots]}


def _table(groups: Sequence[Group]) -> str:
    header = [
        "setting",
        "runs",
        "rounds",
        HEAD,
        "difference",
        PROTOTYPE,
        "difference",
        "uploaded a round",
    ]
    rows = [
        [
            group.label,
            len(group.runs),
            max(len(run.records) for run in group.runs),
            *_against(group, groups, "accuracy"),
            *_against(group, groups, "prototype_accuracy"),
            length(group.runs[0].records[-1].bytes_up) if group.runs[0].records else "–",
        ]
        for group in groups
    ]
    said = markup.text(
        "Test accuracy in % after the last round, mean over clients and seeds, ± one standard deviation over "
        "seeds; differences are to the first row that has a value."
    )
    return markup.table(header, rows, numbers=7) + f"<figcaption>{said}</figcaption>"


def _against(group: Group, groups: Sequence[Group], field: str) -> tuple[str, str]:
    """What the group came to, and by how much that is more than what the first one did that has such a figure."""
    own = _values(group, field)
    if not own:
        return "–", "–"
    if len(own) > 1:
        spread = f" ± {np.std(own, ddof=1):.2f}"
    else:
        spread = ""
    first = next(other for other in groups if _values(other, field))
    if first is group:
        difference = ""
    else:
        difference = f"{np.mean(own) - np.mean(_values(first, field)):+.2f}"
    return points(float(np.mean(own))) + spread, difference


def _differences(groups: Sequence[Group]) -> str:
    settings = [group.settings for group in groups]
    keys = differing(settings)
    rows = [[key, *(own.get(key, "–") for own in settings)] for key in keys]
    if rows:
        return markup.table(["key", *(group.label for group in groups)], rows)
    return "<p>In their seeds alone.</p>"


def _list(runs: Sequence[Brief]) -> str:
    rows = [
        [
            run.path,
            run.experiment.seed,
            f"{len(run.records)} of {run.experiment.rounds}",
            *_last(run.records),
        ]
        for run in runs
    ]
    return markup.table(["directory", "seed", "rounds", HEAD, PROTOTYPE], rows, numbers=4)


def _last(records: Sequence[RoundRecord]) -> tuple[str, str]:
    if not records:
        return "–", "–"
    return points(records[-1].accuracy_mean), points(records[-1].prototype_accuracy_mean)
