"""Kind `lipschitz`: SoftPool's Lipschitz constant, measured, against the k̂² − 1 of the paper's appendix B.

seed = 0
kernels = [1, 2, 3, 4, 5]      k̂
maps = [[2, 25], [5, 10]]      rows × columns of whole maps, where the kernel fits
strides = [1, 2]
starts = 32                    of each maximisation
pairs = 20000                  of random inputs that are compared with the constant found
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.random import Generator

from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, known
from fedrfq.paper.lipschitz_estimate import (
    pair_ratios,
    random_pairs,
    steepest_l2,
    steepest_max,
    window,
)
from fedrfq.prototypes.pooling import Pool
from fedrfq.studies.plots import legend, pyplot, saved
from fedrfq.studies.recipe import Recipe, Shown, Tell
from fedrfq.studies.sheets import NOTHING, Sheet
from fedrfq.studies.study_file import whole_numbers

if TYPE_CHECKING:
    from fedrfq.studies.grid import EndedRun

_LEAST = {"seed": 0, "starts": 1, "pairs": 2}
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Constant:
    """Of one norm and kernel: the largest value of the operator norm that was found, and the largest ratio of a pair."""

    norm: str
    kernel: int
    printed: int
    measured: float
    pairs: float

    @property
    def holds(self) -> bool:
        """Whether the printed constant is one."""
        return self.printed >= self.measured - _ROUNDING


@dataclass(frozen=True)
class LipschitzPlan:
    recipe: Recipe
    seed: int
    kernels: tuple[int, ...]
    maps: tuple[tuple[int, int], ...]
    strides: tuple[int, ...]
    starts: int
    pairs: int
    experiments: Sequence[Experiment] = ()
    keep: bool = False

    @staticmethod
    def of(recipe: Recipe) -> LipschitzPlan:
        known(recipe.table, [*_LEAST, "kernels", "maps", "strides"], "")
        table = {
            "seed": 0,
            "starts": 32,
            "pairs": 20_000,
            "maps": [],
            "strides": [1],
            **recipe.table,
        }
        kernels, strides = (
            whole_numbers(table, key, 1, "[1, 2]") for key in ("kernels", "strides")
        )
        for key, least in _LEAST.items():
            if type(table[key]) is not int or table[key] < least:
                raise UserError(f"{key} is a whole number from {least} on, not {table[key]!r}")
        seed, starts, pairs = (table[key] for key in _LEAST)
        return LipschitzPlan(recipe, seed, kernels, _maps(table["maps"]), strides, starts, pairs)

    def show(
        self, ended: Mapping[str, EndedRun], folder: Path, device: torch.device, tell: Tell
    ) -> Shown:
        norms = self._norms()
        rng = np.random.default_rng(self.seed)
        constants = []
        for i, kernel in enumerate(self.kernels):
            tell(i / len(self.kernels), f"SoftPool with k̂ = {kernel}")
            constants += [
                self._constant(norm, kernel, *how, rng)
                for norm, how in norms.items()
                if _fits(kernel, how[1])
            ]
        steps = {kernel: _unbounded(kernel, self.pairs, rng) for kernel in self.kernels}
        rows = [{**asdict(constant), "holds": constant.holds} for constant in constants]
        whole = {"title": self.recipe.title, "constants": rows, "pairs_against_s18": steps}
        picture = self._drawn(folder / "lipschitz.png", list(norms), constants)
        return Shown(
            [self._sheet(list(norms), constants), self._claims(list(norms), constants, steps)],
            whole,
            rows,
            [picture],
        )

    def _norms(self) -> dict[str, tuple[bool, tuple[int, int] | None, int]]:
        """Each by its label: whether it is the max norm, the map (none: one window) and the stride."""
        norms: dict[str, tuple[bool, tuple[int, int] | None, int]] = {
            "max norm, a window": (True, None, 1),
            "L2, a window": (False, None, 1),
        }
        for rows, columns in self.maps:
            norms |= {
                f"L2, map {rows}×{columns}, stride {s}": (False, (rows, columns), s)
                for s in self.strides
            }
        return norms

    def _constant(
        self,
        norm: str,
        kernel: int,
        largest: bool,
        map_: tuple[int, int] | None,
        stride: int,
        rng: Generator,
    ) -> Constant:
        if map_ is None:
            pool = window(kernel)
        else:
            pool = Pool("softpool", map_[0], kernel, stride)
        if map_ is None:
            values = kernel**2
        else:
            values = map_[0] * map_[1]
        found = (steepest_max if largest else steepest_l2)(pool, values, self.starts, rng)
        ratios = pair_ratios(pool, found, torch.inf if largest else 2.0, self.pairs, rng)
        return Constant(norm, kernel, kernel**2 - 1, found.value, float(ratios.max()))

    def _sheet(self, norms: Sequence[str], constants: Sequence[Constant]) -> Sheet:
        by = {(c.kernel, c.norm): c for c in constants}
        cells = {key: f"{c.measured:.3f}" + ("" if c.holds else " !") for key, c in by.items()}
        rows = [
            (str(k), str(k**2 - 1), *(cells.get((k, norm), NOTHING) for norm in norms))
            for k in self.kernels
        ]
        note = (
            f"The largest operator norm of the Jacobian found from {self.starts} starts; ! where it exceeds what is printed, "
            f"{NOTHING} where the kernel is larger than the map."
        )
        return Sheet(self.recipe.title, ("k̂", "printed k̂² − 1", *norms), tuple(rows), note)

    def _claims(
        self, norms: Sequence[str], constants: Sequence[Constant], steps: Mapping[int, float]
    ) -> Sheet:
        rows = []
        for norm in norms:
            own = [c for c in constants if c.norm == norm]
            rows.append(
                (
                    f"k̂² − 1 bounds SoftPool: {norm}",
                    *_said({c.kernel: c.holds for c in own}),
                    _slack(own),
                )
            )
        beyond = {c.norm for c in constants if c.pairs > c.measured + _ROUNDING}
        if beyond:
            sound = ("fails", ", ".join(sorted(beyond)))
        else:
            sound = ("holds", "every norm and k̂")
        rows.append(
            (f"no pair of {self.pairs:,} random ones exceeds the constant found", *sound, "")
        )
        share = ", ".join(f"{100 * share:.0f} % (k̂ = {kernel})" for kernel, share in steps.items())
        if any(steps.values()):
            step = "fails"
        else:
            step = "holds"
        rows.append(
            (
                "step s18: outputs no farther apart than sums of inputs",
                step,
                f"not for {share} of random pairs",
                "",
            )
        )
        header = ("claim", "", "where", "printed / measured, where it holds")
        return Sheet("What the appendix says of it", header, tuple(rows), labels=3)

    def _drawn(self, path: Path, norms: Sequence[str], constants: Sequence[Constant]) -> Path:
        plt = pyplot()
        figure, axes = plt.subplots(figsize=(8.4, 4.6), layout="constrained")
        axes.plot(self.kernels, [k**2 - 1 for k in self.kernels], "k--", label="printed: k̂² − 1")
        for norm in norms:
            own = [c for c in constants if c.norm == norm]
            axes.plot([c.kernel for c in own], [c.measured for c in own], marker="o", label=norm)
        axes.set(xlabel="k̂", ylabel="Lipschitz constant", yscale="symlog", xticks=self.kernels)
        axes.grid(alpha=0.3)
        legend(figure, [axes], self.recipe.title)
        return saved(plt, figure, path)


def _maps(given: Any) -> tuple[tuple[int, int], ...]:
    """Rows and columns of each."""
    if isinstance(given, list):
        pairs = given
    else:
        pairs = [given]
    for sides in pairs:
        if (
            not isinstance(sides, list)
            or len(sides) != 2
            or any(type(side) is not int or side < 1 for side in sides)
        ):
            raise UserError(f"maps is a list of rows and columns, such as [[2, 25]], not {given!r}")
    return tuple((rows, columns) for rows, columns in pairs)


def _fits(kernel: int, map_: tuple[int, int] | None) -> bool:
    return map_ is None or kernel <= min(map_)


def _unbounded(kernel: int, pairs: int, rng: Generator) -> float:
    """The share of pairs whose outputs are farther apart than the sums of their inputs, which s18 says none is."""
    a, b = random_pairs(kernel**2, pairs, rng)
    pool = window(kernel)
    apart = (pool(a) - pool(b)).abs()[:, 0]
    return float((apart > (a.sum(1) - b.sum(1)).abs() + _ROUNDING).double().mean())


def _said(holds: Mapping[int, bool]) -> tuple[str, str]:
    bad = [str(kernel) for kernel, held in holds.items() if not held]
    if bad:
        return ("fails", f"k̂ = {', '.join(bad)}")
    return ("holds", "every k̂")


def _slack(constants: Sequence[Constant]) -> str:
    found = [c.printed / c.measured for c in constants if c.holds]
    if found:
        return f"{min(found):.2f} … {max(found):.2f}"
    return NOTHING
