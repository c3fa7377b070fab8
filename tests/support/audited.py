"""A small run that holds, and helpers to audit it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrfq.audit import Audit, AuditFailed
from fedrfq.committee import Simulated
from fedrfq.consensus.rules import Rules
from fedrfq.federation.federation_file import Federation
from fedrfq.files import hash_chain
from support.committees import written

ROUNDS = 3
SEED = 2


def equivocated(path: Path) -> Path:
    """Write a run of three rounds and four servers, one of which signs conflicting messages."""
    return written(path, Simulated(4, 1, "equivocate"), ROUNDS, clients=3, seed=SEED)


def offsets(path: Path, name: str) -> list[int]:
    """Return where the entries of a file begin, and where the file ends."""
    found = list(hash_chain.entries(path / name, rules(path).run))
    return [entry.offset for entry in found] + [found[-1].end]


def rules(path: Path) -> Rules:
    return Rules(Federation.read((path / "federation.toml").read_text(), "").roster)


def failure(path: Path, recompute: bool = False) -> AuditFailed:
    with pytest.raises(AuditFailed) as caught:
        list(Audit(path, recompute).rounds())
    return caught.value
