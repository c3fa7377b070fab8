"""Kind `lipschitz`: SoftPool's Lipschitz constant, measured, and the k̂² − 1 of appendix B.

seed = 0
kernels = [1, 2, 3, 4, 5]      k̂
maps = [[2, 25], [5, 10]]      rows × columns of whole maps, used where the kernel fits
strides = [1, 2]
starts = 32                    random starts of each maximisation
pairs = 20000                  random pairs of inputs to check each constant with
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
from fedrfq.paper.lipschitz_estimate import (
    pair_ratios,
    random_pairs,
    steepest_l2,
    steepest_max,
    window,
)
from fedrfq.prototypes.pooling import Pool
from fedrfq.studies.pictures import Facet, draw_facets, points_line
from fedrfq.studies.plan import Plan, Progress, StudyResult
from fedrfq.studies.sheets import NOTHING, Sheet
from fedrfq.studies.study import Study, whole_numbers

if TYPE_CHECKING:
    from fedrfq.studies.grid import EndedRun

_DEFAULTS = {"seed": 0, "starts": 32, "pairs": 20_000, "maps": [], "strides": [1]}
_MINIMA = {"seed": 0, "starts": 1, "pairs": 2}
_ROUNDING = 1e-9  # of constants that are equal but for floating point


@dataclass(frozen=True)
class Constant:
    """The constant for one norm and kernel: printed, measured, and the largest ratio of a pair."""

    norm: str
    kernel: int
    printed: int
    measured: float
    pairs: float

    @property
    def holds(self) -> bool:
        """Whether the printed number is a Lipschitz constant."""
        return self.printed >= self.measured - _ROUNDING


@dataclass(frozen=True)
class Norm:
    """A norm in which a constant is measured, on a map (rows, columns) or on a single window."""

    label: str
    is_max: bool = False  # the max norm; otherwise L2
    map_: tuple[int, int] | None = None
    stride: int = 1

    def fits(self, kernel: int) -> bool:
        """Return whether the kernel is no larger than the map."""
        return self.map_ is None or kernel <= min(self.map_)


@dataclass(frozen=True)
class LipschitzPlan(Plan):
    """The kernels and maps to measure, and how thoroughly."""

    seed: int
    kernels: tuple[int, ...]
    maps: tuple[tuple[int, int], ...]
    strides: tuple[int, ...]
    starts: int
    pairs: int

    @staticmethod
    def of(study: Study) -> LipschitzPlan:
        """Read and check a study of this kind."""
        study.check_keys([*_MINIMA, "kernels", "maps", "strides"])
        table = {**_DEFAULTS, **study.table}
        for key, minimum in _MINIMA.items():
            if type(table[key]) is not int or table[key] < minimum:
                raise UserError(
                    f"{key} must be an integer of at least {minimum}, not {table[key]!r}"
                )
        return LipschitzPlan(
            study,
            seed=table["seed"],
            kernels=whole_numbers(table, "kernels", 1, "[1, 2]"),
            maps=_maps(table["maps"]),
            strides=whole_numbers(table, "strides", 1, "[1, 2]"),
            starts=table["starts"],
            pairs=table["pairs"],
        )

    def show(
        self, ended: Mapping[str, EndedRun], folder: Path, device: torch.device, tell: Progress
    ) -> StudyResult:
        """Measure every constant, and draw lipschitz.png."""
        norms = self._norms()
        rng = np.random.default_rng(self.seed)
        constants = []
        for i, kernel in enumerate(self.kernels):
            tell(i / len(self.kernels), f"SoftPool with k̂ = {kernel}")
            constants += [self._measure(norm, kernel, rng) for norm in norms if norm.fits(kernel)]
        shares = {kernel: _share_against_s18(kernel, self.pairs, rng) for kernel in self.kernels}
        rows = [{**asdict(constant), "holds": constant.holds} for constant in constants]
        whole = {"title": self.study.title, "constants": rows, "pairs_against_s18": shares}
        labels = [norm.label for norm in norms]
        sheets = [self._sheet(labels, constants), self._claims(labels, constants, shares)]
        picture = self._draw(folder / "lipschitz.png", labels, constants)
        return StudyResult(sheets, whole, rows, [picture])

    def _norms(self) -> list[Norm]:
        norms = [Norm("max norm, a window", is_max=True), Norm("L2, a window")]
        norms += [
            Norm(f"L2, map {rows}×{columns}, stride {stride}", False, (rows, columns), stride)
            for rows, columns in self.maps
            for stride in self.strides
        ]
        return norms

    def _measure(self, norm: Norm, kernel: int, rng: Generator) -> Constant:
        pool = window(kernel)
        values = kernel**2
        if norm.map_ is not None:
            rows, columns = norm.map_
            pool = Pool("softpool", rows, kernel, norm.stride)
            values = rows * columns
        steepest = steepest_l2
        order = 2.0
        if norm.is_max:
            steepest = steepest_max
            order = torch.inf
        largest = steepest(pool, values, self.starts, rng)
        ratios = pair_ratios(pool, largest, order, self.pairs, rng)
        return Constant(norm.label, kernel, kernel**2 - 1, largest.value, float(ratios.max()))

    def _sheet(self, norms: Sequence[str], constants: Sequence[Constant]) -> Sheet:
        cells = {}
        for constant in constants:
            text = f"{constant.measured:.3f}"
            if not constant.holds:
                text += " !"
            cells[constant.kernel, constant.norm] = text
        rows = [
            (str(k), str(k**2 - 1), *(cells.get((k, norm), NOTHING) for norm in norms))
            for k in self.kernels
        ]
        note = (
            f"The largest operator norm of the Jacobian found from {self.starts} random starts. "
            f"!: it exceeds the printed constant. {NOTHING}: the kernel is larger than the map."
        )
        return Sheet(self.study.title, ("k̂", "printed k̂² − 1", *norms), tuple(rows), note)

    def _claims(
        self, norms: Sequence[str], constants: Sequence[Constant], shares: Mapping[int, float]
    ) -> Sheet:
        rows = []
        for norm in norms:
            of_norm = [constant for constant in constants if constant.norm == norm]
            claim = f"k̂² − 1 bounds SoftPool: {norm}"
            rows.append((claim, *_verdict(of_norm), _slack(of_norm)))
        rows.append(
            (
                f"none of {self.pairs:,} random pairs exceeds the measured constant",
                *_soundness(constants),
                "",
            )
        )
        verdict = "holds"
        if any(shares.values()):
            verdict = "fails"
        percentages = [f"{100 * share:.0f} % (k̂ = {kernel})" for kernel, share in shares.items()]
        rows.append(
            (
                "step s18: outputs are no farther apart than sums of inputs",
                verdict,
                f"random pairs against it: {', '.join(percentages)}",
                "",
            )
        )
        header = ("claim", "verdict", "where", "printed / measured, where it holds")
        return Sheet("The appendix's claims", header, tuple(rows), labels=3)

    def _draw(self, path: Path, norms: Sequence[str], constants: Sequence[Constant]) -> Path:
        lines = {"printed: k̂² − 1": points_line({k: k**2 - 1 for k in self.kernels})}
        for norm in norms:
            lines[norm] = points_line({c.kernel: c.measured for c in constants if c.norm == norm})
        # symlog: the printed constant for k̂ = 1 is 0.
        facet = Facet("", "k̂", "Lipschitz constant", lines, yscale="symlog")
        return draw_facets(path, self.study.title, [[facet]], caption="")


def _maps(given: Any) -> tuple[tuple[int, int], ...]:
    if not isinstance(given, list) or not all(_is_map(sides) for sides in given):
        raise UserError(f"maps must be a list of [rows, columns], such as [[2, 25]], not {given!r}")
    return tuple((rows, columns) for rows, columns in given)


def _is_map(sides: Any) -> bool:
    return (
        isinstance(sides, list)
        and len(sides) == 2
        and all(type(side) is int and side >= 1 for side in sides)
    )


def _share_against_s18(kernel: int, pairs: int, rng: Generator) -> float:
    """Return the share of random pairs that contradict step s18 of the appendix.

    It says that no outputs are farther apart than the sums of their inputs.
    """
    a, b = random_pairs(kernel**2, pairs, rng)
    pool = window(kernel)
    # A single window has a single output.
    outputs_apart = (pool(a) - pool(b)).abs()[:, 0]
    sums_apart = (a.sum(1) - b.sum(1)).abs()
    return float((outputs_apart > sums_apart + _ROUNDING).double().mean())


def _verdict(constants: Sequence[Constant]) -> tuple[str, str]:
    exceptions = [str(constant.kernel) for constant in constants if not constant.holds]
    if exceptions:
        return ("fails", f"k̂ = {', '.join(exceptions)}")
    return ("holds", "every k̂")


def _soundness(constants: Sequence[Constant]) -> tuple[str, str]:
    """Return whether the measured constants bound the random pairs, and if not, in which norms."""
    exceeded = {c.norm for c in constants if c.pairs > c.measured + _ROUNDING}
    if exceeded:
        return ("fails", ", ".join(sorted(exceeded)))
    return ("holds", "every norm and k̂")


def _slack(constants: Sequence[Constant]) -> str:
    ratios = [constant.printed / constant.measured for constant in constants if constant.holds]
    if ratios:
        return f"{min(ratios):.2f} … {max(ratios):.2f}"
    return NOTHING
