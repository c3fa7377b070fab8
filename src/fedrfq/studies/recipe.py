"""A recipe: one file of `experiments/`, and what a kind of recipe makes of it.

title = "Figure 8: accuracy against λ"
kind = "figure"       how the rest is read: table, figure, security, lipschitz, bound or failures
claim = "…"           what the paper says, in a line
seeds = 5             0, 1, … 4
[quick]               laid over the file by --quick: minutes on two cores
seeds = 1
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedrfq.errors import UserError, nearest
from fedrfq.files import toml
from fedrfq.files.toml import Table
from fedrfq.studies.sheets import Sheet

if TYPE_CHECKING:
    import torch

    from fedrfq.experiment import Experiment
    from fedrfq.studies.grid import EndedRun

_OWN = ("title", "kind", "claim", "seeds", "quick")
_PLACES = (
    Path(__file__).parents[1] / "experiments",
    Path(__file__).parents[3] / "experiments",
)  # installed; a checkout
NOT_RECIPES = ("paper",)

Tell = Callable[[float, str], None]  # the share that is done, and what is being done


@dataclass(frozen=True)
class Recipe:
    name: str
    title: str
    claim: str
    kind: str
    seeds: tuple[int, ...]
    table: Table  # what is left for the kind

    @staticmethod
    def load(
        name: str,
        quick: bool = False,
        seeds: int | None = None,
        only: Mapping[str, Sequence[str]] | None = None,
    ) -> Recipe:
        """Of this name in `experiments/`, or of a path to a file; of some axes, only these labels."""
        table = toml.read(find(name))
        over = table.pop("quick", {})
        if not isinstance(over, Mapping) or not isinstance(table.get("claim", ""), str):
            raise UserError(
                f"{name}: quick is a section, [quick] and what it changes, and claim a line of text"
            )
        if quick:
            table = toml.merge(table, over)
        if only:
            table = toml.merge(
                table, {"only": {axis: list(labels) for axis, labels in only.items()}}
            )
        if seeds is None:
            number = table.get("seeds", 1)
        else:
            number = seeds
        if type(number) is not int or number < 1:
            raise UserError(f"{name}: seeds is how many, such as 5, not {number!r}")
        for key in ("title", "kind"):
            if not isinstance(table.get(key), str):
                raise UserError(f'{name}: {key} = "…" is missing')
        title = table["title"]
        claim = table.get("claim", "")
        own = {k: v for k, v in table.items() if k not in _OWN}
        label = Path(name).stem + ("-quick" if quick else "")
        return Recipe(label, title, claim, table["kind"], tuple(range(number)), own)


@dataclass(frozen=True)
class Shown:
    """What a recipe gave: tables for people, everything as plain values, rows of figures, and pictures in its folder."""

    sheets: Sequence[Sheet]
    whole: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    pictures: Sequence[Path]


class Plan(Protocol):
    """What a kind makes of a recipe: the runs it needs, if any, and what to make of them once they have ended."""

    @property
    def experiments(self) -> Sequence[Experiment]: ...

    @property
    def keep(self) -> bool:
        """Whether the runs' trained models are needed."""
        ...

    def show(
        self, ended: Mapping[str, EndedRun], folder: Path, device: torch.device, tell: Tell
    ) -> Shown:
        """`ended` is by the experiments' hashes."""
        ...


def folder() -> Path:
    """Where the recipes are: beside the program, installed or in its checkout."""
    for place in _PLACES:
        if place.is_dir():
            return place
    raise UserError(
        "the recipes (experiments/) are not installed with the program: give the path to one"
    )


def names() -> list[str]:
    return sorted(path.stem for path in folder().glob("*.toml") if path.stem not in NOT_RECIPES)


def find(name: str) -> Path:
    if name.endswith(".toml"):
        if not Path(name).is_file():
            raise UserError(
                f"there is no recipe {name}: those of experiments/ are there to start from"
            )
        return Path(name)
    known = names()
    if name not in known:
        raise UserError(
            f"reproduce what? One of {', '.join(known)}, not '{name}'{nearest(name, known)}"
        )
    return folder() / f"{name}.toml"
