"""Deliberately broken parties: what the fuzzer does not find in them, it would not find in the true ones."""

from __future__ import annotations

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
from fedrfq.simulator.mutants.mutant import MUTANTS, TRUE, Mutant

__all__ = ["MUTANTS", "TRUE", "Mutant"]
