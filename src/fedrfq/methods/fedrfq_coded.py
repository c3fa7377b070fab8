"""fedrfq-coded is FedRFQ with prototypes between agreed codes and what the clients learned. Ours.

Fixed codes that nobody has to send (`codes.py`) are hard to beat: they are far apart and the same
for all from the first round on. Exchange is left to add what a code cannot know, how the classes
lie to each other. So the target of a class is of length `norm`, in the direction of

    (1 − w) · code + w · unit(certified mean),

where w is `learned`, reached over the first `ramp` rounds; a class without a certified mean has its
code. Then, in `steps` steps, targets repel each other as in ProtoNorm. All of it is the clients'
own work on what was certified. The loss is that of fedrfq-lean with the squared distance: λ times
the mean squared error to the target, and `separation` times the cross-entropy over the negative
distances to all targets. To it comes, as in FedSA, `calibration` times the cross-entropy of the
client's decision layer on the targets themselves. Prototypes are not pooled, unless the experiment
says so, and travel in `bits` bits.

With `learned`, `separation` and `calibration` 0, clients train as with `codes` of this norm. The
defaults were picked from candidates tried on samples held back (`bench/variant_search.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from fedrfq.files.options import option
from fedrfq.methods.codes import codes, norm_of
from fedrfq.methods.decision_loss import decision_losses
from fedrfq.methods.fedrfq_lean import FedRFQLean
from fedrfq.methods.method import MAX_WEIGHT, Batch, Guide
from fedrfq.methods.protonorm import spread, unit
from fedrfq.models.stacked import Params
from fedrfq.prototypes.fixed_point import Globals, fixed


@dataclass(frozen=True)
class FedRFQCoded(FedRFQLean):
    """Targets of one length, partly an agreed code and partly the clients' mean."""

    lam: float = option(4.0, "Weight of the prototype loss (λ)", f"0 to {MAX_WEIGHT:g}")
    power: int = option(
        2, "Distance in the prototype loss: 1 is the L2 norm, 2 the mean squared error", "1 to 2"
    )
    norm: float = option(
        0.0, "Length of every target, as a vector; 0 chooses by its number of values", "0 to 64"
    )
    separation: float = option(
        0.1,
        "Weight of the term that keeps the classes' prototypes apart",
        f"0 to {MAX_WEIGHT:g}",
    )
    learned: float = option(
        0.7, "Share of the clients' mean in a target; the rest is its code", "0 to 1"
    )
    ramp: int = option(0, "Rounds over which the learned share grows from 0", "0 or more")
    steps: int = option(0, "Steps in which targets repel each other", "0 or more")
    push: float = option(0.1, "Size of the first steps", f"0 to {MAX_WEIGHT:g}")

    calibration: float = option(
        0.3, "Weight of the decision layer's loss on the targets", f"0 to {MAX_WEIGHT:g}"
    )

    pool: ClassVar[Mapping[str, Any]] = {"name": "none"}
    carried: ClassVar[tuple[str, ...]] = (
        *FedRFQLean.carried,
        "norm",
        "learned",
        "ramp",
        "steps",
        "push",
        "calibration",
    )

    def targets(self, rounds: int, globals_: Globals, rng: Generator) -> Globals:
        classes, values = globals_.values_JV.shape
        share = self.learned
        if self.ramp:
            share *= min(1.0, rounds / self.ramp)
        share_J1 = np.where(globals_.present_J, share, 0.0)[:, None]
        mean_JV = unit(globals_.floats().astype(np.float64))
        mixed_JV = (1 - share_J1) * codes(classes, values, rng) + share_J1 * mean_JV
        apart_JV = spread(unit(mixed_JV), self.steps, self.push)
        length = norm_of(self.norm, values)
        return Globals(np.ones(classes, np.bool_), fixed(length * apart_JV))

    def guide(self, number: int, targets: Globals, own: Params) -> Guide:
        guide = super().guide(number, targets, own)
        weight_K = torch.full_like(guide["lam_K"], self.calibration)
        return {**guide, "calibration_K": weight_K}

    def losses(self, batch: Batch, guide: Guide) -> tuple[Tensor, Tensor, Tensor]:
        total, classification, prototype = super().losses(batch, guide)
        calibration = guide["calibration_K"] * decision_losses(batch, guide)
        return total + calibration, classification, prototype + calibration
