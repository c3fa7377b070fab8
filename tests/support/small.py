"""Small experiments on the embedded data, and what their clients know."""

from __future__ import annotations

import numpy as np

from fedrfq.api.contracts.example_runs import CPU, TINY, equal, rows_of, run, timeless, tiny
from fedrfq.methods.method import Guide, Method
from fedrfq.models.stacked import Params
from fedrfq.prototypes.fixed_point import Globals

__all__ = ["CPU", "TINY", "equal", "rows_of", "run", "timeless", "tiny", "told"]


def told(method: Method, known: Globals, own: Params) -> Guide:
    """Return what clients with these parameters know before the second round."""
    targets = method.targets(1, known, np.random.default_rng(0))
    return method.guide(2, targets, own)
