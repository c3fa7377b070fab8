"""The page that compares several runs: accuracies, and the settings that differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedrfq.learning.evaluation import RoundRecord
from fedrfq.report import marks, markup
from fedrfq.report.curves import HEAD, PROTOTYPE
from fedrfq.report.figure import Figure, Row, Spec, banded
from fedrfq.report.groups import Brief, Group, differing, grouped, left_out, readable
from fedrfq.report.page import ReportPage, Section
from fedrfq.report.run_page import length
from fedrfq.runs.find_runs import MAX_RUNS
from fedrfq.runs.summary import last_tested, points
from fedrfq.studies.intervals import difference
from fedrfq.studies.sheets import NOTHING, interval

# The series of a figure, and the prefix of the RoundRecord fields that it shows.
_FIELDS = {HEAD: "accuracy", PROTOTYPE: "prototype_accuracy"}


def page(paths: Sequence[Path]) -> ReportPage:
    """Compare the runs in these directories, up to MAX_RUNS of them.

    Those that cannot be read are left out; where none is left, raise the UserError of the first.
    """
    runs, errors = readable(paths[:MAX_RUNS])
    if errors and not runs:
        raise errors[0]
    notes = left_out(errors)
    if len(paths) > MAX_RUNS:
        notes.insert(0, f"Only the first {MAX_RUNS} of {len(paths)} runs are shown.")
    return replace(compared(runs, notes), left_out=notes)


def compared(runs: Sequence[Brief], notes: Sequence[str]) -> ReportPage:
    """Compare these runs; `notes` stand above everything else."""
    groups = grouped(runs)
    notes = [*notes, *(f"{run.path} has no rounds yet." for run in runs if not run.records)]
    figures = [*(_curves(groups, name) for name in _FIELDS), _final(groups)]
    sections = [
        Section("Results", _table(groups)),
        Section("Accuracy", figures=[figure for figure in figures if figure is not None]),
        Section("Settings that differ", _differences(groups)),
        Section("Runs", _list(runs)),
    ]
    title = " and ".join(dict.fromkeys(run.experiment.name for run in runs[:3]))
    return ReportPage(
        title=f"Comparison: {title}",
        subtitle=f"{len(runs)} runs, {len(groups)} settings",
        head=markup.notes(notes),
        sections=[section for section in sections if section.body or section.figures],
    )


def _values(group: Group, field: str, number: int | None = None) -> list[float]:
    """Return each run's mean accuracy after round `number`, or after its last round."""
    records = [_record(run.records, number) for run in group.runs]
    # Runs of a group may have got to different rounds, and old records lack some figures.
    means = [getattr(record, f"{field}_mean") for record in records if record is not None]
    return [mean for mean in means if mean is not None]


def _record(records: Sequence[RoundRecord], number: int | None) -> RoundRecord | None:
    """Return the record of round `number`, or the last one; None if the run has no such round."""
    if number is None:
        number = len(records)
    if 1 <= number <= len(records):
        return records[number - 1]
    return None


def _curves(groups: Sequence[Group], name: str) -> Figure | None:
    rows = [row for group in groups for row in _rows(group, _FIELDS[name])]
    if not rows:
        return None
    tooltip = marks.tips(series="", round="round", mean="accuracy, %", std="±, %", runs="runs")
    caption = (
        f"Mean test accuracy over clients, {name}. The band is one standard deviation: "
        "over seeds for a setting with several runs, over clients otherwise."
    )
    labels = [group.label for group in groups]
    spec = marks.curves(labels, marks.axis("mean", marks.PERCENT), tooltip, band=True)
    return Figure(f"accuracy-{name.split()[-1]}", f"Accuracy, {name}", caption, rows, spec)


def _rows(group: Group, field: str) -> list[Row]:
    """Return a row for each round that at least one run of the group has reached."""
    rows: list[Row] = []
    rounds = max(len(run.records) for run in group.runs)
    for number in range(1, rounds + 1):
        values = _values(group, field, number)
        if values:
            spread = _spread(values, _std(group, field, values, number))
            rows.append({"series": group.label, "round": number, **spread})
    return rows


def _spread(values: Sequence[float], std: float) -> Row:
    """Return the mean of these runs, and the band around it."""
    return {**banded(float(np.mean(values)), std), "runs": len(values)}


def _std(group: Group, field: str, values: Sequence[float], number: int | None = None) -> float:
    """Return the standard deviation over seeds; for a single run, over its clients."""
    # The same figure as in the page of that run.
    if len(group.runs) == 1:
        record = _record(group.runs[0].records, number)
        return float(getattr(record, f"{field}_std") or 0.0)
    if len(values) == 1:
        return 0.0
    return float(np.std(values, ddof=1))


def _final(groups: Sequence[Group]) -> Figure | None:
    """Draw each setting's accuracies after the last round."""
    rows: list[Row] = []
    for group in groups:
        for name, field in _FIELDS.items():
            values = _values(group, field)
            if values:
                spread = _spread(values, _std(group, field, values))
                rows.append({"setting": group.label, "series": name, **spread})
    if not rows:
        return None
    caption = (
        "Test accuracy after each run's last round. "
        "The bars are one standard deviation, as in the curves."
    )
    return Figure("final", "After the last round", caption, rows, _dots(len(groups)))


def _dots(settings: int) -> Spec:
    """Draw a dot with a bar for each setting and series."""
    names = list(_FIELDS)
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
            "opacity": marks.shown(1),
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
        "all classes",
        "held / not held",
        "ECE",
        "uploaded per round",
    ]
    rows = [
        [
            group.label,
            len(group.runs),
            max(len(run.records) for run in group.runs),
            *_result(group, groups, "accuracy"),
            *_result(group, groups, "prototype_accuracy"),
            _tested(group, "accuracy_all"),
            f"{_tested(group, 'accuracy_held')} / {_tested(group, 'accuracy_unheld')}",
            _tested(group, "ece"),
            _uploaded(group),
        ]
        for group in groups
    ]
    caption = markup.text(
        "Test accuracy in % after the last round: mean over clients and seeds, ± one standard "
        "deviation over seeds. Differences are from the first row that has a value, paired over "
        "the seeds that both have, ± half of the 95 % interval over seeds. The final prediction is "
        "tested on all classes, those that a client holds and the others, with all classes allowed "
        "as answers; ECE is its calibration error."
    )
    return markup.table(header, rows, numbers=10) + f"<figcaption>{caption}</figcaption>"


def _tested(group: Group, field: str) -> str:
    """Return a figure of the runs' last tests on all classes, as the mean over runs."""
    records = [last_tested(run.records) for run in group.runs]
    values = [getattr(record, field) for record in records if record is not None]
    present = [value for value in values if value is not None]
    if not present:
        return NOTHING
    return points(float(np.mean(present)))


def _uploaded(group: Group) -> str:
    """Return how many bytes the clients uploaded in the last round of the group's first run."""
    records = group.runs[0].records
    if not records:
        return NOTHING
    return length(records[-1].bytes_up)


def _result(group: Group, groups: Sequence[Group], field: str) -> tuple[str, str]:
    """Return the group's accuracy, and its difference from the first group that has one."""
    own = _by_seed(group, field)
    if not own:
        return NOTHING, NOTHING
    accuracy = points(float(np.mean(list(own.values()))))
    if len(own) > 1:
        accuracy += f" ± {np.std(list(own.values()), ddof=1):.2f}"
    # The first group may have no figures at all, such as a run that has only begun.
    first = next(other for other in groups if _by_seed(other, field))
    if first is group:
        return accuracy, ""
    others = _by_seed(first, field)
    both = [seed for seed in own if seed in others]
    return accuracy, interval(difference([own[s] for s in both], [others[s] for s in both]))


def _by_seed(group: Group, field: str) -> dict[int, float]:
    """Return each run's mean accuracy after its last round, by its seed."""
    means = {
        run.experiment.seed: getattr(run.records[-1], f"{field}_mean")
        for run in group.runs
        if run.records
    }
    # Old records lack some figures.
    return {seed: mean for seed, mean in means.items() if mean is not None}


def _differences(groups: Sequence[Group]) -> str:
    """Return a table of the settings in which the groups differ."""
    all_settings = [group.settings for group in groups]
    rows = [
        [key, *(settings.get(key, "–") for settings in all_settings)]
        for key in differing(all_settings)
    ]
    if not rows:
        return "<p>The runs differ only in their seeds.</p>"
    return markup.table(["key", *(group.label for group in groups)], rows)


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
        return NOTHING, "–"
    return points(records[-1].accuracy_mean), points(records[-1].prototype_accuracy_mean)
