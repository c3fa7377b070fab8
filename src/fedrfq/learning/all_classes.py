"""The common test: what every client knows of all classes, also of those it does not hold.

All clients of a run are tested on the same samples, which nobody trains on, and every class is
allowed as an answer. There are several ways to predict: `head` is the client's own decision layer,
`prototype` the nearest global prototype, `public` a classifier on a public feature map, and
`combined` the head and that classifier together. One of them is the client's final prediction:
`combined` where there is a public map, `head` otherwise.

Every class counts alike: an accuracy is the mean of the recalls of its classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedrfq.data.client_data import ClientData
from fedrfq.engine.engine import Engine
from fedrfq.learning import metrics
from fedrfq.learning.public.combination import combined
from fedrfq.models.stacked import Params
from fedrfq.prototypes.fixed_point import Globals

Floats = NDArray[np.float64]

# The ways to predict that have figures of their own, besides those of the final prediction.
WAYS = ("head", "prototype", "public")
# All ways; what a node sends of its clients has the figures of each.
ALL_WAYS = (*WAYS, "combined")
# The figures of a way that records and tables of clients have.
COMMON_MEASURES = ("accuracy_all", "accuracy_held", "accuracy_unheld", "ece")
# The names of all of these; those of the final prediction have no prefix.
COMMON_COLUMNS = tuple(
    f"{prefix}{measure}"
    for prefix in ("", *(f"{way}_" for way in WAYS))
    for measure in COMMON_MEASURES
)
# What a row of packed figures has before the recalls.
PACKED_MEASURES = (*COMMON_MEASURES, "answered", "accuracy_answered")
# Samples times clients that are evaluated at once: it bounds the memory of the test.
_AT_ONCE = 1 << 17


@dataclass(frozen=True, eq=False)
class WayFigures:
    """One way to predict, client by client, in percent; NaN where there is nothing to measure."""

    accuracy_all_K: Floats
    accuracy_held_K: Floats  # on the classes that the client holds
    accuracy_unheld_K: Floats  # … and on the others: NaN if it holds all
    ece_K: Floats  # calibration error
    # The samples that are answered at all, and how many of these rightly: NaN without a threshold.
    answered_K: Floats
    accuracy_answered_K: Floats
    recall_KJ: Floats

    def only(self, known_K: NDArray[np.bool_]) -> WayFigures:
        """Return the figures of these clients, with NaN for all others."""
        return WayFigures.unpacked(np.where(known_K[:, None], self.packed(), np.nan))

    def packed(self) -> Floats:
        """Return a row for each client: the measures, then the recalls."""
        return np.column_stack(list(vars(self).values()))

    @staticmethod
    def unpacked(packed_KF: Floats) -> WayFigures:
        """Return the figures in these rows."""
        number = len(PACKED_MEASURES)
        columns = zip(PACKED_MEASURES, packed_KF.T[:number], strict=True)
        measured = {f"{name}_K": column_K for name, column_K in columns}
        return WayFigures(**measured, recall_KJ=packed_KF[:, number:])


@dataclass(frozen=True, eq=False)
class CommonFigures:
    """The figures of every way to predict; `final` names the way that the client goes by."""

    ways: Mapping[str, WayFigures]
    final: str

    def prefixed(self) -> dict[str, WayFigures]:
        """Return the figures by the prefix of their names; the final prediction has none."""
        own = {f"{way}_": self.ways[way] for way in WAYS if way in self.ways}
        return {"": self.ways[self.final], **own}

    def client(self, k: int) -> dict[str, float | None]:
        """Return client k's figures by the names of their columns."""
        return {
            f"{prefix}{measure}": _known(getattr(figures, f"{measure}_K")[k])
            for prefix, figures in self.prefixed().items()
            for measure in COMMON_MEASURES
        }

    def packed(self) -> Floats:
        """Return the figures as a row for each client, as a node sends them; see `unpacked`."""
        found = {way: figures.packed() for way, figures in self.ways.items()}
        absent = np.full_like(found[self.final], np.nan)
        return np.hstack([found.get(way, absent) for way in ALL_WAYS])

    @staticmethod
    def unpacked(packed_KF: Floats) -> CommonFigures:
        """Return the figures in these rows; a way in which nobody was tested is left out."""
        by_way = zip(ALL_WAYS, np.split(packed_KF, len(ALL_WAYS), 1), strict=True)
        ways = {way: WayFigures.unpacked(rows_KF) for way, rows_KF in by_way}
        # Every client has a head.
        for way in ALL_WAYS[1:]:
            if np.isnan(ways[way].accuracy_all_K).all():
                del ways[way]
        return CommonFigures(ways, _final(ways))

    def record(self, honest_K: NDArray[np.bool_]) -> dict[str, Any]:
        """Return what a round's record has of them: means over the clients that have a figure."""
        means = {
            f"{prefix}{measure}": _mean(getattr(figures, f"{measure}_K"))
            for prefix, figures in self.prefixed().items()
            for measure in COMMON_MEASURES
        }
        final = self.ways[self.final]
        # A malicious client may ruin its own model: it is not counted as the worst.
        worst = np.fmin.reduce(final.accuracy_all_K[honest_K], initial=np.inf)
        return {
            **means,
            "accuracy_all_worst": _known(worst),
            "answered": _mean(final.answered_K),
            "accuracy_answered": _mean(final.accuracy_answered_K),
            "recall": [_mean(recall_K) for recall_K in final.recall_KJ.T],
        }


def measure(
    ways: Mapping[str, Tensor],
    final: str,
    y_KN: Tensor,
    weight_KN: Tensor,
    held_KJ: Tensor,
    threshold_K: Tensor,
) -> CommonFigures:
    """Return the figures of the ways to predict, given each one's log-probabilities, K × N × J.

    Samples of weight 0 are padding; `held_KJ` says which classes each client holds, and
    `threshold_K` below which probability it does not answer (0: it always does).
    """
    figures = {
        way: _measure(log_KNJ, y_KN, weight_KN, held_KJ, threshold_K)
        for way, log_KNJ in ways.items()
    }
    return CommonFigures(figures, final)


def _measure(
    log_KNJ: Tensor, y_KN: Tensor, weight_KN: Tensor, held_KJ: Tensor, threshold_K: Tensor
) -> WayFigures:
    best_KN, guess_KN = log_KNJ.max(-1)
    # What is not a number predicts nothing, not even class 0.
    right_KN = ((guess_KN == y_KN) & ~best_KN.isnan()).float()
    confidence_KN = best_KN.exp().nan_to_num(0)
    recall_KJ = metrics.recalls(right_KN, y_KN, weight_KN, held_KJ.shape[1])
    held = held_KJ.cpu().numpy()
    answered_K, right_K = metrics.answered(right_KN, confidence_KN, weight_KN, threshold_K)
    return WayFigures(
        accuracy_all_K=_mean_over_classes(recall_KJ, np.ones_like(held)),
        accuracy_held_K=_mean_over_classes(recall_KJ, held),
        accuracy_unheld_K=_mean_over_classes(recall_KJ, ~held),
        ece_K=metrics.calibration_error(right_KN, confidence_KN, weight_KN),
        answered_K=answered_K,
        accuracy_answered_K=right_K,
        recall_KJ=recall_KJ,
    )


def _mean_over_classes(recall_KJ: Floats, of_KJ: NDArray[np.bool_]) -> Floats:
    """Return each client's mean recall of its classes in `of_KJ` that have samples."""
    counted_KJ = of_KJ & ~np.isnan(recall_KJ)
    total_K = np.where(counted_KJ, recall_KJ, 0).sum(1)
    number_K = counted_KJ.sum(1)
    mean_K: Floats = np.where(number_K, total_K / number_K.clip(1), np.nan)
    return mean_K


def _mean(values_K: Floats) -> float | None:
    """Return the mean of the figures there are; None of none."""
    present = values_K[~np.isnan(values_K)]
    if len(present):
        return float(present.mean())
    return None


def _known(value: float) -> float | None:
    """Return a figure, or None for one that there is not."""
    if np.isfinite(value):
        return float(value)
    return None


@dataclass(frozen=True)
class CommonTest:
    """The common tests of stacked runs; their clients lie run after run, as in a cohort's stack."""

    tests: ClientData
    held_KJ: Tensor
    threshold_K: Tensor  # below which probability each client does not answer
    cohorts: Sequence[Sequence[int]]  # the rows of each cohort's clients
    runs: int

    def measure(
        self,
        engines: Sequence[Engine],
        params: Sequence[Params],
        globals_: Sequence[Globals],
        public_KNJ: Tensor | None = None,
    ) -> list[CommonFigures]:
        """Return each run's figures, given the cohorts' models and the runs' global prototypes.

        `public_KNJ` has the log-probabilities that each client's public classifier gives.
        """
        clients = len(self.held_KJ) // self.runs
        prototypes = GlobalPrototypes.of(globals_, self.held_KJ.device)
        size = max(1, _AT_ONCE // self.tests.index_KN.shape[1])
        parts = []
        for engine, own, cohort in zip(engines, params, self.cohorts, strict=True):
            for first in range(0, len(cohort), size):
                rows = list(cohort[first : first + size])
                some = {name: p[first : first + size] for name, p in own.items()}
                known = prototypes.rows([row // clients for row in rows])
                tests = self.tests.of(rows)
                public = None
                if public_KNJ is not None:
                    public = public_KNJ[rows][:, : tests.index_KN.shape[1]]
                own_J = self.held_KJ[rows]
                threshold = self.threshold_K[rows]
                parts.append(evaluate(engine, some, tests, own_J, known, threshold, public))
        # Back from the order of the cohorts to that of the runs.
        order = np.argsort([row for cohort in self.cohorts for row in cohort])
        packed_KF = np.vstack([part.packed() for part in parts])[order]
        return [CommonFigures.unpacked(run_KF) for run_KF in np.split(packed_KF, self.runs)]


@dataclass(frozen=True)
class GlobalPrototypes:
    """The global prototypes that each client predicts by, and which classes have one."""

    values_KJV: Tensor
    present_KJ: Tensor

    @staticmethod
    def of(globals_: Sequence[Globals], device: torch.device) -> GlobalPrototypes:
        """Return a row for each of these."""
        values_KJV = np.stack([g.floats() for g in globals_])
        present_KJ = np.stack([g.present_J for g in globals_])
        return GlobalPrototypes(
            torch.from_numpy(values_KJV).to(device), torch.from_numpy(present_KJ).to(device)
        )

    def rows(self, rows: Sequence[int]) -> GlobalPrototypes:
        """Return some rows, each as often as it is named."""
        return GlobalPrototypes(self.values_KJV[list(rows)], self.present_KJ[list(rows)])

    def log_probabilities(self, p_KNV: Tensor) -> Tensor:
        """Return the log-softmax of minus the squared distance to each global prototype, K × N × J.

        A class without one has probability 0; without any, nothing is a number.
        """
        square_KNJ = metrics.distances(p_KNV, self.values_KJV.to(p_KNV)).square()
        return (-square_KNJ).masked_fill(~self.present_KJ[:, None], -torch.inf).log_softmax(-1)


def evaluate(
    engine: Engine,
    params: Params,
    tests: ClientData,
    held_KJ: Tensor,
    known: GlobalPrototypes,
    threshold_K: Tensor,
    public_KNJ: Tensor | None = None,
) -> CommonFigures:
    """Test an engine's clients with these parameters on these samples, in every way there is."""
    c_KND, logits_KNJ = engine.features(params, tests)
    ways = {"head": logits_KNJ.log_softmax(-1)}
    if known.present_KJ.any():
        ways["prototype"] = known.log_probabilities(engine.program.pool(c_KND))
    if public_KNJ is not None:
        ways["public"] = public_KNJ
        ways["combined"] = combined(logits_KNJ, public_KNJ, held_KJ[:, None])
    y_KN = tests.y[tests.index_KN]
    found = measure(ways, _final(ways), y_KN, tests.weight_KN(), held_KJ, threshold_K)
    if "prototype" not in ways:
        return found
    # In a stack, one run may have global prototypes and another none.
    known_K = known.present_KJ.any(1).cpu().numpy()
    prototype = found.ways["prototype"].only(known_K)
    return replace(found, ways={**found.ways, "prototype": prototype})


def _final(ways: Mapping[str, object]) -> str:
    """Return the way that a client goes by."""
    if "combined" in ways:
        return "combined"
    return "head"
