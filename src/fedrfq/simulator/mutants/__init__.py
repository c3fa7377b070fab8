"""Deliberately broken parties: what the fuzzer does not find in them, it would not find in the true ones.

They are made of interpreted ones: what is compiled cannot be broken so, and in a compiled program there are none.
"""

from __future__ import annotations

from fedrfq.consensus.build import COMPILED
from fedrfq.simulator.mutants.mutant import MUTANTS, TRUE, Mutant

if not COMPILED:
    from fedrfq.simulator.mutants import (  # noqa: F401 (they enter themselves)
        beliefs,
        memory,
        motions,
        quorums,
        rejoining,
        timing,
        uploads,
        views,
    )

__all__ = ["MUTANTS", "TRUE", "Mutant"]
