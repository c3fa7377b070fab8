"""Differences between the labels of an axis, paired over seeds, each with its interval.

    against = ["local", "fedproto"]    the labels from which printed differences are taken

They are taken at each combination of the other axes' labels, and over all of these together, where
combinations whose runs are equal count once. A mean over everything is fair only to labels that
were run everywhere, so the others have none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from statistics import fmean
from typing import Any

from fedrfq.errors import UserError
from fedrfq.studies.axes import Axes, Labels, without
from fedrfq.studies.intervals import Difference, difference
from fedrfq.studies.measures import LOWER_IS_BETTER, MeasuredRuns
from fedrfq.studies.sheets import NOTHING, Sheet, interval, plain


@dataclass(frozen=True)
class Pair:
    """A label minus another of the same axis, by measure, at one place or over all."""

    where: str
    label: str
    other: str
    differences: Mapping[str, Difference | None]

    def plain(self, axis: str, where: str) -> dict[str, Any]:
        """Return everything as plain values; `axis` and `where` name the labels and the place."""
        labels = {where: self.where, axis: self.label, "other": self.other}
        return plain({**labels, **self.differences})


def places(axes: Axes, axis: str, together: str) -> dict[str, dict[str, list[Labels]]]:
    """Return by place, in words, the combinations of each label of an axis that was run there.

    The last place is `together`, if there are several: all places that are not equal to an earlier
    one, with the labels that were run at each of them.
    """
    at = axes.at(axis)
    by_label: dict[Labels, dict[str, list[Labels]]] = {rest: {} for rest in axes.others(axis)}
    for labels in axes.combinations():
        by_label[without(labels, at)][labels[at]] = [labels]
    found = {", ".join(rest): by_label[rest] for rest in by_label}
    if len(by_label) > 1:
        equal = axes.equal(axis)
        once = [by_label[rest] for rest in by_label if rest not in equal]
        found[together] = {
            label: [place[label][0] for place in once]
            for label in axes.labels[axis]
            if all(label in place for place in once)
        }
    return found


def paired(
    measured: MeasuredRuns, measure: str, ours: Sequence[Labels], theirs: Sequence[Labels]
) -> Difference | None:
    """Return the difference of two means over combinations, paired over seeds."""
    return difference(
        _means(measured, measure, ours),
        _means(measured, measure, theirs),
        lower_is_better=measure in LOWER_IS_BETTER,
    )


def _means(
    measured: MeasuredRuns, measure: str, combinations: Sequence[Labels]
) -> list[float | None]:
    """Return for each seed the mean over combinations, or None if one of them has no figure."""
    means: list[float | None] = []
    for values in zip(*(measured.values(measure, labels) for labels in combinations), strict=True):
        if None in values:
            means.append(None)
        else:
            means.append(fmean(values))
    return means


def pairs(measured: MeasuredRuns, axis: str, measures: Sequence[str], together: str) -> list[Pair]:
    """Compare every label with every other; both ways, because a reader looks up either."""
    found = []
    for where, by_label in places(measured.axes, axis, together).items():
        for one, other in permutations(by_label, 2):
            differences = {
                measure: paired(measured, measure, by_label[one], by_label[other])
                for measure in measures
            }
            found.append(Pair(where, one, other, differences))
    return found


def read_against(given: Any, choices: Sequence[str]) -> tuple[str, ...]:
    """Check the list of labels under `against`."""
    # Labels are text; numbers of attackers, say, may be written as numbers.
    if not isinstance(given, list) or any(str(label) not in choices for label in given):
        raise UserError(f"against must be a list of labels ({', '.join(choices)}), not {given!r}")
    return tuple(map(str, given))


def difference_sheets(
    found: Sequence[Pair], against: Sequence[str], titles: Mapping[str, str], axis: str, place: str
) -> list[Sheet]:
    """Return the table of differences from each label of `against`, if there are any.

    `titles` are those of the measures' columns, and `place` is what a place is called.
    """
    several = len({pair.where for pair in found}) > 1
    header = [*[place] * several, axis]
    for title in titles.values():
        header += [title, "verdict"]
    sheets = []
    for other in against:
        rows = []
        for pair in found:
            if pair.other == other:
                figures = [_with_verdict(pair.differences[measure]) for measure in titles]
                texts = [text for figure in figures for text in figure]
                rows.append((*[pair.where] * several, pair.label, *texts))
        if rows:
            title = f"Differences from {other}"
            sheets.append(Sheet(title, tuple(header), tuple(rows), _note(axis, other), 1 + several))
    return sheets


def _with_verdict(paired: Difference | None) -> tuple[str, str]:
    if paired is None:
        return (NOTHING, "")
    return (interval(paired), paired.verdict)


def _note(axis: str, other: str) -> str:
    return (
        f"Figure of the {axis} minus that of {other}, paired over the same seeds, ± half of the "
        "95 % interval by Student's t; better is higher, but lower for errors, spreads and costs. "
        "Each pair is judged by itself, without a correction for the number of pairs."
    )
