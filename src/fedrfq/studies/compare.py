"""Kind `compare`: methods in several settings over the same seeds, beside controls, λ tuned.

target = 97.0                   optional: an own-head accuracy (%); report the round that reaches it
against = ["fedproto"]          optional: the methods that printed differences are taken from; by
                                default local and fedproto, or the first method that exchanges
                                prototypes (table.json has the differences of all pairs)
controls = true                 optional: local, codes and self stand beside the methods by default
tune = [0.1, 0.3, 1, 4]         optional: the λ to try (see tuning.py); [] to tune nothing
[no_worse]                      optional: a method that is worse than others nowhere (no_worse.py)
[axes]
method = ["local", "fedproto"]  the methods; any other axes make up the settings

The other keys are those of a grid (axes.py) and of claims (claims.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.files.toml import Table
from fedrfq.studies import axes as grids
from fedrfq.studies.axes import Axes, Labels, check_named, read_labels
from fedrfq.studies.claims import claims
from fedrfq.studies.differences import Pair, difference_sheets, pairs, places, read_against
from fedrfq.studies.grid import EndedRun
from fedrfq.studies.measures import MEASURES, Measure, MeasuredRuns, lam_of
from fedrfq.studies.no_worse import NoWorse
from fedrfq.studies.pictures import Facet, PlotLine, draw_facets, round_lines, slug
from fedrfq.studies.plan import GridPlan
from fedrfq.studies.sheets import NOTHING, Cell, Columns, Sheet, number, plus_minus
from fedrfq.studies.study import Study, section
from fedrfq.studies.tuning import ChosenLam, Tuning, read_lams, tuning_sheet, with_chosen

KEYS = ("target", "against", "controls", "tune", "claims", "no_worse", *grids.KEYS)
# Methods without exchange. One that sends something must beat them all.
CONTROLS = ("local", "codes", "self")
ALL = "all settings"
_MEANS = (
    *("own_std", "prototype_std", "ece", "parameters", "bytes", "collapsed", "seconds"),
    "rounds_to_target",
)
# Measures that are called otherwise in a comparison's files.
_RENAMED = {"all_classes": "accuracy_all", "held": "accuracy_held", "unheld": "accuracy_unheld"}


@dataclass(frozen=True)
class ComparePlan(GridPlan):
    """The grid of a comparison, what its differences are taken from, and the λ to choose."""

    target: float | None
    against: tuple[str, ...]
    tuning: Tuning
    no_worse: NoWorse | None
    chosen: tuple[ChosenLam, ...] = ()  # once the runs of the tuning have ended

    spreads: ClassVar[Sequence[str]] = ("own", "prototype", "all_classes", "held", "unheld")
    # The accuracies whose differences are printed, and the headings of these.
    printed: ClassVar[Mapping[str, str]] = {
        "own": "own head, points",
        "prototype": "nearest prototype, points",
        "all_classes": "all classes, points",
    }
    before_name: ClassVar[str] = "tuning λ"
    before_switch: ClassVar[str] = "--no-tune, or tune = [] in the study"

    @staticmethod
    def of(study: Study) -> ComparePlan:
        """Read and check a study of this kind."""
        table = study.table
        study.check_keys(KEYS)
        check_named(table, "method")
        given = section(table, "axes")
        asked = read_labels(given, "method")
        controls = _controls(table, asked)
        # The methods of one setting stand together, the controls first.
        settings = {axis: labels for axis, labels in given.items() if axis != "method"}
        methods = {**controls, **asked}
        whole = replace(study, table={**table, "axes": {**settings, "method": methods}})
        axes = Axes.of(whole, optional=set(controls) - set(asked))
        if any(ALL in labels for labels in axes.labels.values()):
            raise UserError(f"the label '{ALL}' is reserved for the mean over them; choose another")
        by_method = {labels[-1]: one for (labels, _), one in axes.experiments.items()}
        tunable = {
            place: one
            for place, one in axes.experiments.items()
            # A λ in the file is there on purpose, such as where several are compared.
            if not any("lam" in section(layer, "method") for layer in axes.layers[place[0]])
        }
        return ComparePlan(
            study,
            axes,
            claims(table, axes, _RENAMED),
            target=_target(table),
            against=_against(table, by_method, list(asked)),
            tuning=Tuning.of(study.seeds, read_lams(table.get("tune")), tunable),
            no_worse=NoWorse.of(table, set(by_method)),
        )

    @property
    def before(self) -> Sequence[Experiment]:
        """The runs from which λ is chosen."""
        return self.tuning.experiments

    def after(self, ended: Mapping[str, EndedRun]) -> ComparePlan:
        """Return the comparison with the λ that the runs of its tuning speak for."""
        return self.with_lams(self.tuning.choose(ended))

    def with_lams(self, chosen: Sequence[ChosenLam]) -> ComparePlan:
        """Return the comparison with these λ."""
        axes = self.axes.with_experiments(with_chosen(self.axes.experiments, chosen))
        return replace(self, axes=axes, chosen=tuple(chosen))

    @property
    def measures(self) -> Mapping[str, Measure]:
        """What is taken of every run; some measures have other names in a comparison's files."""
        renamed = {name: MEASURES[measure] for name, measure in _RENAMED.items()}
        reached = replace(MEASURES["own"], over=partial(_first_round, self.target))
        return {**MEASURES, **renamed, "rounds_to_target": reached}

    @property
    def settings(self) -> list[str]:
        """The combinations of all axes but the methods, in words."""
        return [", ".join(rest) for rest in self.axes.others("method")]

    def whole(self, measured: MeasuredRuns) -> dict[str, Any]:
        """Return everything as plain values, as table.json has it."""
        found = self._pairs(measured)
        judged = None
        if self.no_worse is not None:
            judged = self.no_worse.plain(self.no_worse.bounds(found, self.settings))
        return {
            **super().whole(measured),
            "target": self.target,
            "equal": {", ".join(a): ", ".join(b) for a, b in self.axes.equal("method").items()},
            "left_out": list(self.axes.impossible),
            "tuning": [asdict(choice) for choice in self.chosen],
            "no_worse": judged,
            "pairs": [pair.plain("method", "setting") for pair in found],
        }

    def cell(self, measured: MeasuredRuns, labels: Labels) -> Cell:
        """Return the figures of a method in a setting."""
        rounds = [value for value in measured.values("rounds_to_target", labels) if value]
        return {
            "setting": ", ".join(labels[:-1]),
            "method": labels[-1],
            "lam": lam_of(self.axes.experiments[labels, self.study.seeds[0]]),
            "runs": measured.count(labels) + measured.gone(labels),
            "diverged": measured.gone(labels),
            **{name: measured.spread(name, labels) for name in self.spreads},
            **{name: measured.mean(name, labels) for name in _MEANS},
            "reached": len(rounds),
        }

    def _pairs(self, measured: MeasuredRuns) -> list[Pair]:
        return pairs(measured, "method", list(self.spreads), ALL)

    def sheets(self, measured: MeasuredRuns) -> list[Sheet]:
        """Return a table for each setting, one of differences for each `against`, and one of λ."""
        cells = self.cells(measured)
        sheets = [
            Sheet.of(
                self.title(setting),
                self.columns(),
                [cell for cell in cells if cell["setting"] == setting],
                self.note(),
            )
            for setting in self.settings
        ]
        found = self._pairs(measured)
        sheets += difference_sheets(found, self.against, self.printed, "method", "setting")
        if self.no_worse is not None:
            bounds = self.no_worse.bounds(found, self.settings)
            sheets.append(self.no_worse.sheet(bounds, self._titles()))
        if self.chosen:
            sheets.append(tuning_sheet(self.chosen, self.tuning.seeds))
        return sheets

    def _titles(self) -> dict[str, str]:
        """Return what the accuracies are called."""
        return {name: self.measures[name].title for name in self.spreads}

    def columns(self) -> Columns:
        """Return the columns of a setting's table."""
        target: Columns = {}
        if self.target is not None:
            target = {f"rounds to {self.target:g} %": _reached}
        return {
            "method": _method,
            "λ": lambda cell: number(cell["lam"], "g"),
            "own head, %": lambda cell: _accuracy(cell, "own") or "diverged",
            "nearest prototype, %": lambda cell: _accuracy(cell, "prototype") or NOTHING,
            "all classes (held / not held), %": _on_all_classes,
            **target,
            "values per round": lambda cell: number(cell["parameters"]),
            "bytes per round": lambda cell: number(cell["bytes"]),
            "seconds": lambda cell: number(cell["seconds"], ",.1f"),
        }

    def title(self, setting: str) -> str:
        """Return the title of a setting's table and picture."""
        return ": ".join(filter(None, [self.study.title, setting]))

    def note(self) -> str:
        """Say what the figures of a setting's table are."""
        note = (
            f"Seeds: {len(self.study.seeds)}. Accuracies are means over seeds ± standard deviation "
            "over clients (± standard deviation over seeds), on the classes that a client holds; "
            "on all classes ± standard deviation over seeds, with all classes allowed as answers. "
            "Values and bytes are those that all clients together upload."
        )
        if self.target is not None:
            note += (
                " Rounds to the target: mean over the runs that reach it (how many do / all runs)."
            )
        run = {labels[-1] for labels in self.axes.combinations()}
        controls = [name for name in CONTROLS if name in run]
        if controls:
            note += f" Controls, which send no prototypes and no models: {', '.join(controls)}."
        if self.axes.impossible:
            note += f" Controls left out: {'; '.join(self.axes.impossible)}."
        return note + self.privacy() + self.equal_settings()

    def privacy(self) -> str:
        """Say what noise costs a client of each combination that has any."""
        costs: dict[str, list[str]] = {}
        for labels in self.axes.combinations():
            experiment = self.axes.experiments[labels, self.axes.seeds[0]]
            if experiment.has_noise:
                costs.setdefault(experiment.planned_privacy(), []).append(" / ".join(labels))
        return "".join(f" Privacy of {', '.join(names)}: {cost}." for cost, names in costs.items())

    def equal_settings(self) -> str:
        """Say which settings are the same experiments."""
        return "".join(
            f" {', '.join(rest)} is the same experiment as {', '.join(first)}: run once, and "
            "counted once in means over all settings."
            for rest, first in self.axes.equal("method").items()
        )

    def draw(self, measured: MeasuredRuns, folder: Path) -> list[Path]:
        """Draw the curves of each setting, and the final accuracies of all, into a folder."""
        paths = []
        by_setting = places(self.axes, "method", ALL)
        for i, setting in enumerate(self.settings, 1):
            facets = [
                Facet("", "round", MEASURES[name].title, lines, zoomed=True)
                for name in ("own", "prototype")
                if (lines := round_lines(measured, name, by_setting[setting]))
            ]
            if facets:
                name = "curves.png"
                if setting:
                    name = f"curves-{i}-{slug(setting)}.png"
                paths.append(draw_facets(folder / name, self.title(setting), [facets]))
        if paths:
            cells = self.cells(measured)
            facets = [
                Facet("", "setting", self.measures[name].title, lines)
                for name in self.printed
                if (lines := self.lines(cells, name))
            ]
            paths.append(draw_facets(folder / "final.png", self.study.title, [facets]))
        return paths

    def lines(self, cells: Sequence[Cell], name: str) -> dict[str, PlotLine]:
        """Return each method's figures over the settings, if it has any."""
        lines = {}
        for method in self.axes.labels["method"]:
            found = {
                cell["setting"]: cell[name]
                for cell in cells
                if cell["method"] == method and cell[name] is not None
            }
            if found:
                lines[method] = PlotLine(list(found), list(found.values()))
        return lines


def _method(cell: Cell) -> str:
    if cell["diverged"]:
        return f"{cell['method']} ({cell['diverged']} of {cell['runs']} diverged)"
    return str(cell["method"])


def _accuracy(cell: Cell, name: str) -> str:
    """Return a mean, its deviation over clients and that over seeds; empty if there is none."""
    accuracy = cell[name]
    if accuracy is None:
        return ""
    text = f"{accuracy.mean:.2f} ± {cell[f'{name}_std']:.2f}"
    if accuracy.std is not None:
        text += f" (± {accuracy.std:.2f})"
    return text


def _on_all_classes(cell: Cell) -> str:
    """Return the accuracy on all classes, and on those that a client holds and the others."""
    text = plus_minus(cell["all_classes"])
    parts = [cell[name] for name in ("held", "unheld")]
    if None in parts:
        return text
    held, unheld = [f"{part.mean:.2f}" for part in parts]
    return f"{text} ({held} / {unheld})"


def _reached(cell: Cell) -> str:
    return f"{number(cell['rounds_to_target'], ',.1f')} ({cell['reached']}/{cell['runs']})"


def _first_round(target: float | None, accuracies: Sequence[float | None]) -> float | None:
    """Return the first round with at least this accuracy."""
    for round_, accuracy in enumerate(accuracies, 1):
        if target is not None and accuracy is not None and accuracy >= target:
            return round_
    return None


def _controls(table: Mapping[str, Any], asked: Mapping[str, Table]) -> dict[str, Table]:
    """Return the controls, and what each changes, that stand beside what was asked for."""
    wanted = table.get("controls", True)
    if type(wanted) is not bool:
        raise UserError(f"controls must be true or false, not {wanted!r}")
    if not wanted:
        return {}
    usual: dict[str, Table] = {name: {"method": {"name": name}} for name in CONTROLS}
    # A control that stands there under another label is not run twice.
    return {
        name: changes
        for name, changes in usual.items()
        if name in asked or changes not in asked.values()
    }


def _target(table: Mapping[str, Any]) -> float | None:
    target = table.get("target")
    if target is None:
        return None
    if type(target) not in (int, float) or not 0 < target <= 100:
        raise UserError(f"target must be an accuracy in percent, such as 97.0, not {target!r}")
    return float(target)


def _against(
    table: Mapping[str, Any], methods: Mapping[str, Experiment], asked: Sequence[str]
) -> tuple[str, ...]:
    if "against" in table:
        return read_against(table["against"], list(methods))
    exchanging = [label for label in asked if label in methods and methods[label].method.exchanges]
    reference = [*exchanging, *asked][0]
    if "fedproto" in methods:
        reference = "fedproto"
    return tuple(dict.fromkeys(label for label in ("local", reference) if label in methods))
