"""ProtoNorm makes prototypes equally long and pushes them apart on the sphere.

Lee et al., "Heterogeneous Federated Learning with Prototype Alignment and Upscaling", 2025
(arXiv 2507.04310).

The mean prototypes u of the classes are brought to norm 1. Then, as electrons on a sphere repel
each other, each one moves in `steps` steps: v ← 0.9 v + η Σ_j (u − u_j) / ‖u − u_j‖², u ← unit(u +
v), where η starts at `push` and loses 5 % every ten steps. Clients minimise cross-entropy plus λ
times the mean squared error to s · u of the sample's class, with the scale s = `norm`, and predict
by the nearest s · u.

Departures: the clients do this, each for itself, on the certified mean, so that servers aggregate
integers as ever. There is no early end of the steps. The paper's λ = 10 and s = 80 are for features
of 512 values and more; the defaults here suit the CNN's 50 values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from fedrfq.files.options import option
from fedrfq.methods.codes import norm_of
from fedrfq.methods.fedproto import FedProto
from fedrfq.methods.method import MAX_WEIGHT
from fedrfq.prototypes.fixed_point import Globals, fixed

_MOMENTUM = 0.9
_DECAY = 0.95
_STEPS_BETWEEN_DECAYS = 10
# Two prototypes at one place would repel each other without bound, in no direction.
_NEAREST = 1e-6


@dataclass(frozen=True)
class ProtoNorm(FedProto):
    """FedProto whose clients spread the global prototypes over a sphere."""

    norm: float = option(
        8.0, "Length of every prototype (the paper's s); 0 chooses by its values", "0 to 64"
    )
    steps: int = option(500, "Steps in which prototypes repel each other", "0 or more")
    push: float = option(0.1, "Size of the first steps (η)", f"0 to {MAX_WEIGHT:g}")

    carried: ClassVar[tuple[str, ...]] = (*FedProto.carried, "norm", "steps", "push")

    def targets(self, rounds: int, globals_: Globals, rng: Generator) -> Globals:
        units_JV = unit(globals_.floats().astype(np.float64))
        present_J = globals_.present_J
        spread_JV = np.zeros_like(units_JV)
        spread_JV[present_J] = spread(units_JV[present_J], self.steps, self.push)
        length = norm_of(self.norm, spread_JV.shape[1])
        return Globals(present_J, fixed(length * spread_JV))


def unit(vectors_JV: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the vectors with norm 1; one of zeros stays as it is."""
    norm_J1 = np.linalg.norm(vectors_JV, axis=1, keepdims=True)
    unit_JV: NDArray[np.float64] = vectors_JV / np.where(norm_J1 > 0, norm_J1, 1)
    return unit_JV


def spread(units_JV: NDArray[np.float64], steps: int, push: float) -> NDArray[np.float64]:
    """Return unit vectors after so many steps in which they repel each other."""
    velocity_JV = np.zeros_like(units_JV)
    for step in range(steps):
        size = push * _DECAY ** (step // _STEPS_BETWEEN_DECAYS)
        velocity_JV = _MOMENTUM * velocity_JV + size * _repulsion(units_JV)
        units_JV = unit(units_JV + velocity_JV)
    return units_JV


def _repulsion(units_JV: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Σ_j (u − u_j) / ‖u − u_j‖² for each u."""
    # Of unit vectors, ‖u − u_j‖² = 2 − 2 u·u_j. What a vector does to itself cancels out.
    strength_JJ = 1 / np.maximum(2 - 2 * units_JV @ units_JV.T, _NEAREST)
    forces_JV: NDArray[np.float64] = (
        strength_JJ.sum(1, keepdims=True) * units_JV - strength_JJ @ units_JV
    )
    return forces_JV
