"""What a campaign must exercise to mean anything.

"No violation" says nothing if nothing happened: every name below counts something that must have
happened. The names are part of recorded campaigns.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedrfq.simulator.adversaries import BEHAVIOURS, CLIENTS

_EVIDENCE = (
    "UPLOAD",
    "PROPOSAL",
    "LIST",
    "PREPREPARE",
    "PREPARE",
    "COMMIT",
    "VIEWCHANGE",
    "RECEIPT and LIST",
)
_IGNORED = (
    "another run",
    "unknown party",
    "bad signature",
    "old round",
    "old view",
    "another upload",
    "inadmissible upload",
    "inadmissible change proposal",
    "upload after closing",
    "improper list",
    "improper proposal",
    "improper view change",
    "bad certificate",
    "known evidence",
    "evidence that proves nothing",
    "evidence of improper messages",
    "improper early message",
    "not to be had",
    "nobody asked",
    "not a receipt of ours",
    "no answer of use",
    "the run is over",
)
REQUIRED: dict[str, tuple[str, ...]] = {
    "faulty servers": tuple(f"server {name}" for name in BEHAVIOURS),
    "faulty clients": tuple(f"client {name}" for name in CLIENTS),
    "the network": ("lost", "doubled", "cut off", "partitions", "clock jumps"),
    "crashes": ("crashes", "restarts", "to one away", "logs lost", "logs cut to their essence"),
    "views": (
        *(f"decided in view {view}" for view in range(4)),
        "view changes",
        "prepared values carried over",
    ),
    "evidence": (*(f"evidence of two {kinds}" for kinds in _EVIDENCE), "proofs handed on"),
    "catching up": ("catch-ups", "fetches", "waits for clients", "outcomes fetched by clients"),
    "changes of the federation": ("change proposals that count", "run over"),
    "refused": ("weak key refused", *(f"ignored: {why}" for why in _IGNORED)),
}


def missing(exercised: Mapping[str, int]) -> list[str]:
    """Return what must happen and never did."""
    return [name for names in REQUIRED.values() for name in names if not exercised.get(name)]


def by_group(exercised: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return all counts by group; what must happen and did not is there with 0."""
    groups = {
        group: {name: exercised.get(name, 0) for name in names} for group, names in REQUIRED.items()
    }
    known = {name for names in REQUIRED.values() for name in names}
    others = {name: count for name, count in sorted(exercised.items()) if name not in known}
    if others:
        groups["besides"] = others
    return groups
