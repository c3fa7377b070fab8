"""A recipe: one file of `experiments/`, from which a table or figure is made.

title = "Figure 8: accuracy against λ"
kind = "figure"       how the rest is read: table, figure, frontier, security, lipschitz, bound or
                      failures
claim = "…"           what the paper says, in one line
seeds = 5             how many: 0, 1, … 4
[quick]               what --quick changes, so that the recipe takes minutes on two cores
seeds = 1
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedrfq.errors import UserError, did_you_mean
from fedrfq.files import toml
from fedrfq.files.toml import Table
from fedrfq.studies.sheets import Sheet

if TYPE_CHECKING:
    import torch

    from fedrfq.experiment import Experiment
    from fedrfq.studies.grid import EndedRun

_COMMON_KEYS = ("title", "kind", "claim", "seeds", "quick")
# Where `experiments/` is: in an installed package, and in a checkout.
_PLACES = (Path(__file__).parents[1] / "experiments", Path(__file__).parents[3] / "experiments")
NOT_RECIPES = ("paper",)  # the figures that the paper prints

Progress = Callable[
    [float, str], None
]  # is called with the share that is done, and what is being done


@dataclass(frozen=True)
class Recipe:
    """A recipe as it was read: what all kinds share, and the rest as a table for its kind."""

    name: str
    title: str
    claim: str
    kind: str
    seeds: tuple[int, ...]
    table: Table

    @staticmethod
    def load(
        name: str,
        quick: bool = False,
        seeds: int | None = None,
        only: Mapping[str, Sequence[str]] | None = None,
    ) -> Recipe:
        """Read a recipe by its name in `experiments/`, or by a path to a file.

        `seeds` replaces the recipe's number of seeds, and `only` restricts axes to some labels.
        """
        table = toml.read(find(name))
        quick_changes = table.pop("quick", {})
        if not isinstance(quick_changes, Mapping):
            raise UserError(f"{name}: quick must be a section, [quick], with what it changes")
        if quick:
            table = _quickened(table, quick_changes)
        # After [quick], which may have its own `only`: the caller's choice counts.
        if only:
            labels = {axis: list(chosen) for axis, chosen in only.items()}
            table = toml.merge(table, {"only": labels})
        label = Path(name).stem
        if quick:
            label += "-quick"
        return Recipe(
            name=label,
            title=_text(table, "title", name),
            claim=_text({"claim": "", **table}, "claim", name),
            kind=_text(table, "kind", name),
            seeds=_seeds(table, seeds, name),
            table={key: value for key, value in table.items() if key not in _COMMON_KEYS},
        )


def _quickened(table: Table, changes: Mapping[str, Any]) -> Table:
    """Return a recipe's table with what [quick] changes, such as one model for another."""
    # Imported here: those who look only at a recipe's title need no PyTorch.
    from fedrfq.experiment.reading import without_replaced_kinds

    before = table.get("experiment")
    after = changes.get("experiment")
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        table = {**table, "experiment": without_replaced_kinds(dict(before), after)}
    return toml.merge(table, changes)


def _text(table: Table, key: str, name: str) -> str:
    if key not in table:
        raise UserError(f'{name}: {key} is missing; add {key} = "…"')
    text = table[key]
    if not isinstance(text, str):
        raise UserError(f"{name}: {key} must be a line of text in quotes, not {text!r}")
    return text


def _seeds(table: Table, given: int | None, name: str) -> tuple[int, ...]:
    number = given
    if number is None:
        number = table.get("seeds", 1)
    # type() and not isinstance(): True is an int too.
    if type(number) is not int or number < 1:
        raise UserError(f"{name}: seeds must be how many seeds to run, such as 5, not {number!r}")
    return tuple(range(number))


@dataclass(frozen=True)
class StudyResult:
    """The result of a recipe: tables to read, all values, rows for a CSV file, and pictures."""

    sheets: Sequence[Sheet]
    whole: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    pictures: Sequence[Path]


class Plan(Protocol):
    """A recipe as its kind understands it: the runs it needs, and how to show their results."""

    @property
    def experiments(self) -> Sequence[Experiment]:
        """The experiments to run first; none if the recipe is computed without runs."""
        ...

    @property
    def keep(self) -> bool:
        """Whether the runs' trained models are needed."""
        ...

    def show(
        self, ended: Mapping[str, EndedRun], folder: Path, device: torch.device, tell: Progress
    ) -> StudyResult:
        """Draw pictures into the folder and return the result; runs are by experiment hash."""
        ...


def folder() -> Path:
    """Return the folder of recipes, beside the installed program or in its checkout."""
    for place in _PLACES:
        if place.is_dir():
            return place
    raise UserError(
        "the recipes (experiments/) are not installed with the program; give the path to a recipe"
    )


def names() -> list[str]:
    """Return the names of all recipes, sorted."""
    return sorted(path.stem for path in folder().glob("*.toml") if path.stem not in NOT_RECIPES)


def find(name: str) -> Path:
    """Return the path of a recipe, given its name or its path."""
    if name.endswith(".toml"):
        if not Path(name).is_file():
            raise UserError(f"there is no recipe {name}; start from a copy of one in experiments/")
        return Path(name)
    known = names()
    if name not in known:
        raise UserError(
            f"there is no recipe '{name}'{did_you_mean(name, known)}; "
            f"choose one of {', '.join(known)}"
        )
    return folder() / f"{name}.toml"
