"""Deliberately broken parties: what the fuzzer does not find in them, it would not find in the true ones."""

from __future__ import annotations

from fedrfq.simulator.fuzz.mutants import (  # noqa: F401  (importing a mutant registers it)
    beliefs,
    change_proposals,
    memory,
    quorums,
    rejoining,
    timing,
    uploads,
    views,
)
from fedrfq.simulator.fuzz.mutants.mutant import MUTANTS, TRUE, Mutant

__all__ = ["MUTANTS", "TRUE", "Mutant"]
