"""Deliberately broken parties: a flaw the fuzzer misses in one it would miss in a true one too."""

from __future__ import annotations

from fedrfq.simulator.fuzz.mutants import (  # noqa: F401  (importing a mutant registers it)
    beliefs,
    change_proposals,
    evidence,
    memory,
    quorums,
    rejoining,
    timing,
    uploads,
    views,
)
from fedrfq.simulator.fuzz.mutants.mutant import MUTANTS, TRUE, Mutant

__all__ = ["MUTANTS", "TRUE", "Mutant"]
