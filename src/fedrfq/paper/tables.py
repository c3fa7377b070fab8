"""Kind `table`: methods in settings, with the paper's figures beside the measured ones.

    kind = "table"
    paper = "table1"       a section of `paper.toml`, whose rows and columns are labels of the axes

It is a comparison (compare.py) with the axes `method` and `setting`, without controls and tuning
unless the study asks for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from fedrfq.errors import UserError
from fedrfq.paper.printed import Printed, printed
from fedrfq.studies.axes import Labels
from fedrfq.studies.compare import KEYS, ComparePlan
from fedrfq.studies.intervals import Spread
from fedrfq.studies.measures import MeasuredRuns
from fedrfq.studies.pictures import Facet, draw_facets
from fedrfq.studies.sheets import NOTHING, Cell, Columns, Sheet, mean_and_half, number
from fedrfq.studies.study import Study

_FACETS = {
    "printed": "the paper",
    "own": "measured, own head",
    "prototype": "measured, nearest global prototype",
}


@dataclass(frozen=True)
class TablePlan(ComparePlan):
    """A comparison, and the paper's figures."""

    paper: Mapping[str, Printed] = field(default_factory=dict)  # by method

    printed: ClassVar[Mapping[str, str]] = {
        "own": "own head, points",
        "prototype": "nearest prototype, points",
    }

    @staticmethod
    def of(study: Study) -> TablePlan:
        """Read and check a study of this kind."""
        study.check_keys([*KEYS, "paper"])
        table = {"controls": False, "tune": [], **study.table}
        paper = printed(str(table.pop("paper", None)))
        plan = ComparePlan.of(replace(study, table=table))
        if set(plan.axes.labels) != {"method", "setting"}:
            raise UserError(
                f"{study.name}: a table must have the two axes method and setting, "
                f"not {', '.join(plan.axes.labels)}"
            )
        return TablePlan(**vars(plan), paper=paper)

    def cell(self, measured: MeasuredRuns, labels: Labels) -> Cell:
        """Return the figures of a method in a setting, the paper's among them."""
        cell = super().cell(measured, labels)
        row = self.paper.get(cell["method"])
        paper: tuple[float | None, float | None] = (None, None)
        if row is not None:
            paper = row.accuracy.get(cell["setting"], paper)
        difference = None
        if cell["own"] is not None and paper[0] is not None:
            difference = cell["own"].mean - paper[0]
        return {
            **cell,
            "paper": paper[0],
            "paper_std": paper[1],
            "difference": difference,
            "rounds": self.axes.experiments[labels, self.study.seeds[0]].rounds,
        }

    def sheets(self, measured: MeasuredRuns) -> list[Sheet]:
        """Return an overview of methods × settings, then the tables of a comparison."""
        seeds = measured.seeds_in_words(self.axes.combinations())
        overview = Sheet.matrix(
            f"{self.study.title}: paper → measured",
            ("method", self.axes.labels["method"]),
            ("setting", self.axes.labels["setting"]),
            self.cells(measured),
            lambda cell: f"{number(cell['paper'], '.2f')} → {mean_and_half(cell['own'])}",
            "Test accuracy by clients' own heads, %. Left the paper's figure; right the measured "
            f"mean over {seeds} ± half of its 95 % interval.{self.equal_settings()}",
        )
        return [overview, *super().sheets(measured)]

    def columns(self) -> Columns:
        """Return the columns of a setting's table."""
        return {
            "method": lambda cell: str(cell["method"]),
            "paper, %": _printed_accuracy,
            "own head, %": _own,
            "95 %": _half,
            "difference": lambda cell: number(cell["difference"], "+.2f"),
            "nearest prototype, %": lambda cell: mean_and_half(cell["prototype"]),
            "rounds (paper)": self._rounds,
            "values per round (paper)": self._values,
        }

    def _rounds(self, cell: Cell) -> str:
        if cell["method"] not in self.paper:
            return str(cell["rounds"])
        return f"{cell['rounds']} ({self.paper[cell['method']].rounds})"

    def _values(self, cell: Cell) -> str:
        values = number(cell["parameters"])
        if cell["method"] not in self.paper:
            return values
        return f"{values} ({self.paper[cell['method']].parameters:,})"

    def title(self, setting: str) -> str:
        """Return the title of a setting's table."""
        return setting

    def note(self) -> str:
        """Say what the figures of a setting's table are."""
        return (
            "Own head: mean over seeds ± the true standard deviation over clients. 95 %: half of "
            "the interval over seeds. Difference: measured minus paper, in points. The paper's ± "
            "is probably the standard deviation of running averages, which is far smaller "
            "(docs/findings.md)."
        )

    def draw(self, measured: MeasuredRuns, folder: Path) -> list[Path]:
        """Draw figure.png: the paper's and the measured accuracies over the settings."""
        cells = [_with_printed(cell) for cell in self.cells(measured)]
        facets = [
            Facet(title, "classes per client", "test accuracy, %", self.lines(cells, name))
            for name, title in _FACETS.items()
        ]
        return [draw_facets(folder / "figure.png", self.study.title, [facets])]


def _with_printed(cell: Cell) -> Cell:
    # The paper prints no interval over seeds.
    if cell["paper"] is None:
        return {**cell, "printed": None}
    return {**cell, "printed": Spread(1, cell["paper"], None, None)}


def _printed_accuracy(cell: Cell) -> str:
    if cell["paper"] is None:
        return NOTHING
    return f"{cell['paper']:.2f} ± {cell['paper_std']:.2f}"


def _own(cell: Cell) -> str:
    # There is no accuracy only if every seed diverged.
    if cell["own"] is None:
        return "diverged"
    return f"{cell['own'].mean:.2f} ± {cell['own_std']:.2f}"


def _half(cell: Cell) -> str:
    if cell["own"] is None or cell["own"].half is None:
        return NOTHING
    return f"± {cell['own'].half:.2f}"
