"""Codes: fixed prototypes that all clients agree on beforehand, and no exchange. A control. Ours.

Every class has a code, drawn from the experiment's seed. A client's loss is FedProto's: λ times the
mean squared error between a sample's feature vector and the code of its class. Nothing is uploaded
and nothing comes back. What a method with exchanged prototypes gains over this, it gains from the
exchange; the rest is the gain of any agreed target.

Where there are at least as many values as classes, each class has ones in places of its own, as
many as fit, and zeros elsewhere. Otherwise each has ten ones (or half of the values, if these are
fewer) in random places, and no two codes are equal. Codes are scaled to the norm `norm`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import ClassVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from fedrfq.errors import UserError
from fedrfq.files.options import option
from fedrfq.methods.method import MAX_WEIGHT
from fedrfq.methods.prototype_loss import PrototypeLoss
from fedrfq.prototypes.fixed_point import Globals, fixed

# Ones in a code whose places are random.
_RANDOM_ONES = 10
# Fixed point ends here.
MAX_NORM = 64.0


@dataclass(frozen=True)
class Codes(PrototypeLoss):
    """Cross-entropy plus λ times the distance to the fixed code of the sample's class."""

    lam: float = option(4.0, "Weight of the prototype loss (λ)", f"0 to {MAX_WEIGHT:g}")
    norm: float = option(
        0.0, "Length of a code, as a vector; 0 chooses by its number of values", "0 to 64"
    )

    predicts: ClassVar[bool] = True
    carried: ClassVar[tuple[str, ...]] = (*PrototypeLoss.carried, "norm")

    def targets(self, rounds: int, globals_: Globals, rng: Generator) -> Globals:
        classes, values = globals_.values_JV.shape
        codes_JV = codes(classes, values, rng)
        length = norm_of(self.norm, values)
        return Globals(np.ones(classes, np.bool_), fixed(length * codes_JV))


def codes(classes: int, values: int, rng: Generator) -> NDArray[np.float64]:
    """Return a code of norm 1 for every class."""
    if classes <= values:
        ones = values // classes
        places_JM = rng.permutation(values)[: classes * ones].reshape(classes, ones)
    else:
        ones = min(_RANDOM_ONES, max(1, values // 2))
        places_JM = _distinct_places(classes, values, ones, rng)
    codes_JV = np.zeros((classes, values))
    np.put_along_axis(codes_JV, places_JM, ones**-0.5, axis=1)
    return codes_JV


def _distinct_places(classes: int, values: int, ones: int, rng: Generator) -> NDArray[np.int64]:
    """Draw the places of each class's ones; those that another class has already, again."""
    possible = comb(values, ones)
    if possible < classes:
        raise UserError(
            f"prototypes of {values} values have only {possible} codes, too few for {classes} "
            "classes: choose a model with more features"
        )
    drawn: dict[tuple[int, ...], None] = {}
    while len(drawn) < classes:
        places = rng.choice(values, ones, replace=False)
        drawn[tuple(np.sort(places).tolist())] = None
    return np.array(list(drawn))


def norm_of(norm: float, values: int) -> float:
    """Return the norm that was set or, for 0, one that suits vectors of so many values.

    4 suits the 50 values of the CNN; vectors of more values are longer, each value being alike.
    """
    return norm or min(4.0 * (values / 50) ** 0.5, MAX_NORM)
