"""example-rule: the middle between the smallest and the largest value of each class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import fedrfq
from fedrfq.prototypes.fixed_point import Globals, Ints, Uploads
from fedrfq.robust.rules import Rule
from fedrfq.robust.state import State


@fedrfq.register("rule", "example-rule")
@dataclass(frozen=True)
class ExampleRule(Rule):
    """The midrange of those uploads that have any weight."""

    # It uses integers alone, so several servers may combine by it; `fedrfq check` looks.
    exact: ClassVar[bool] = True

    # K clients, J classes, V values; weights are from 0 to 1024.
    def combine(
        self, state: State, last: Globals, uploads: Uploads, weight_KJ: Ints
    ) -> tuple[State, Ints]:
        """Return what to remember, and the centre of each class, J × V."""
        counts_KJV = (uploads.held_KJ & (weight_KJ > 0))[..., None]
        values_KJV = uploads.values_KJV
        low_JV = values_KJV.min(0, where=counts_KJV, initial=np.iinfo(np.int64).max >> 1)
        high_JV = values_KJV.max(0, where=counts_KJV, initial=np.iinfo(np.int64).min >> 1)
        # What is returned for a class that nobody sent is ignored.
        return state, (low_JV + high_JV) // 2
