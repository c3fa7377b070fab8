"""FedSA guides clients by anchors that are agreed on at first and hardly move.

Zhou et al., "FedSA: A Unified Representation Learning via Semantic Anchors for Prototype-based
Federated Learning", AAAI 2025.

Every class has an anchor, at first a random vector. A client minimises cross-entropy plus
- λ times the mean squared error between a sample's feature vector and the anchor of its class,
- `contrast` times the cross-entropy over the negative distances to all anchors, where that to the
  own class has a margin added, so that it must be nearer by the margin, and
- `calibration` times the cross-entropy of its decision layer on the anchors themselves.
After a round the anchors move a little toward the clients' mean prototypes:
A ← a · A + (1 − a) · mean, with a = `inertia`.

Departures: clients compute the anchors, each for itself, from the first ones, the number of rounds
t and the mean that was certified last: A = aᵗ · A₀ + (1 − aᵗ) · mean. That is the paper's average
for a mean that stands still, and needs no memory that servers would have to certify. The margin is
the largest, over the classes, of the distance to the nearest other anchor, at most `margin`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.random import Generator
from torch import Tensor

from fedrfq.files.options import option
from fedrfq.methods.decision_loss import decision_losses
from fedrfq.methods.fedproto import FedProto
from fedrfq.methods.method import MAX_WEIGHT, Batch, Guide
from fedrfq.methods.trained_prototypes import largest_gap
from fedrfq.models.stacked import Params
from fedrfq.prototypes.fixed_point import Globals, fixed


@dataclass(frozen=True)
class FedSA(FedProto):
    """Cross-entropy with three terms that tie features and decision layer to agreed anchors."""

    contrast: float = option(
        1.0, "Weight of the term by which a sample's own anchor is nearest", f"0 to {MAX_WEIGHT:g}"
    )
    calibration: float = option(
        1.0, "Weight of the decision layer's loss on the anchors", f"0 to {MAX_WEIGHT:g}"
    )
    margin: float = option(
        100.0, "The largest margin by which the own anchor must be nearest", f"0 to {MAX_WEIGHT:g}"
    )
    inertia: float = option(0.9999, "Share of an anchor that a round leaves as it is", "0 to 1")

    carried: ClassVar[tuple[str, ...]] = (
        *FedProto.carried,
        "contrast",
        "calibration",
        "margin",
        "inertia",
    )

    def targets(self, rounds: int, globals_: Globals, rng: Generator) -> Globals:
        first_JV = rng.standard_normal(globals_.values_JV.shape)
        share_J = np.where(globals_.present_J, self.inertia**rounds, 1.0)[:, None]
        anchors_JV = share_J * first_JV + (1 - share_J) * globals_.floats()
        return Globals(np.ones(len(anchors_JV), np.bool_), fixed(anchors_JV))

    def guide(self, number: int, targets: Globals, own: Params) -> Guide:
        guide = super().guide(number, targets, own)
        one_K = torch.ones_like(guide["lam_K"])
        anchors_JV = torch.from_numpy(targets.floats()[targets.present_J])
        margin = min(float(largest_gap(anchors_JV)), self.margin)
        return {
            **guide,
            "contrast_K": one_K * self.contrast,
            "calibration_K": one_K * self.calibration,
            "margin_K": one_K * margin,
        }

    def losses(self, batch: Batch, guide: Guide) -> tuple[Tensor, Tensor, Tensor]:
        total, classification, prototype = super().losses(batch, guide)
        contrast = guide["contrast_K"] * batch.mean(self.contrasts(batch, guide))
        calibration = guide["calibration_K"] * decision_losses(batch, guide)
        added = contrast + calibration
        return total + added, classification, prototype + added

    def contrasts(self, batch: Batch, guide: Guide) -> Tensor:
        """Return each sample's cross-entropy of being nearest to its anchor by the margin."""
        difference_KBJV = batch.p_KBV[:, :, None] - guide["values_KJV"][:, None]
        distance_KBJ = torch.linalg.vector_norm(difference_KBJV, dim=-1)
        own_KBJ = F.one_hot(batch.y_KB, distance_KBJ.shape[2])
        away_KBJ = distance_KBJ + own_KBJ * guide["margin_K"][:, None, None]
        chance_KBJ: Tensor = (-away_KBJ).log_softmax(-1)
        own_KB = chance_KBJ.gather(2, batch.y_KB[..., None])[..., 0]
        return -own_KB * guide["present_KJ"].gather(1, batch.y_KB)
