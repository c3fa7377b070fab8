"""Label flipping: attackers train on false labels and are honest otherwise.

Tolpegin et al., "Data Poisoning Attacks Against Federated Learning Systems", ESORICS 2020.

`to` says which label a class gets:
- "own": another of the client's own classes, each class a different one (all of them in one random
  cycle), so that its prototypes look like those of the classes it claims to hold; a client of a
  single class takes any other class;
- "any": another class at random, of all there are, each class for itself;
- "one": class 0, the same for all attackers; samples of class 0 keep it.
`strength` is the share of the client's samples that are flipped, chosen at random (default 1).

Departures: the paper flips one source class to one target class; here every class is flipped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from fedrfq.errors import UserError
from fedrfq.files.options import one_of, option
from fedrfq.prototypes.fixed_point import Ints
from fedrfq.robust.attacks.attack import Attack

TO = ("own", "any", "one")


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Trains on flipped labels."""

    strength: float = option(
        1.0, "Share of a malicious client's samples whose labels are flipped", "0 to 1"
    )

    to: str = option(
        "own",
        "Label of a flipped sample: another class of the client, any other class, or class 0",
        one_of(TO),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start_round != 1:
            raise UserError(
                "attack.start_round must be 1 for label-flip, because labels are flipped "
                f"before the training starts, not {self.start_round}"
            )

    def poison(self, labels: Ints, classes: int, rng: Generator) -> Ints:
        if classes < 2:
            return labels
        flipped = rng.permutation(len(labels))[: round(self.strength * len(labels))]
        poisoned = labels.copy()
        poisoned[flipped] = self._target(np.unique(labels), classes, rng)[labels[flipped]]
        return poisoned

    def _target(self, held: Ints, classes: int, rng: Generator) -> Ints:
        """Return the label that each class gets."""
        if self.to == "one":
            return np.zeros(classes, np.int64)
        target_J: Ints = (np.arange(classes) + rng.integers(1, classes, classes)) % classes
        if self.to == "own" and len(held) > 1:
            cycle = rng.permutation(held)
            target_J[cycle] = np.roll(cycle, 1)
        return target_J
