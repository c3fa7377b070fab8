"""Committees without training: random uploads, and the files that a run would leave."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedrfq.committee import AgreedRound, Committee, CommitteeSettings, PreviousRound, Simulated
from fedrfq.federation.application import PublicTask, Task
from fedrfq.federation.federation_file import experiment_digest
from fedrfq.files import hash_chain, toml
from fedrfq.prototypes.fixed_point import FULL_PRECISION, LIMIT, Precision, Uploads
from fedrfq.robust.detectors import Detector
from fedrfq.robust.detectors.adaptive import AdaptiveDetector

CLASSES = 3
VALUES = 4
# Statistics of the classes, and two rows of second moments, in rounds 1, 4, 7, …
PUBLIC = PublicTask("random:1", 2.0, Precision(6), CLASSES, moments=2, values=5, every=3)
TABLE: dict[str, Any] = {"rounds": 2, "committee": {"name": "simulated", "servers": 4}}


def some_settings(
    clients: int = 4,
    seed: int = 0,
    detector: Detector | None = None,
    table: Mapping[str, Any] = TABLE,
    public: PublicTask | None = None,
) -> CommitteeSettings:
    task = Task(
        detector or AdaptiveDetector(),
        "weighted",
        FULL_PRECISION,
        clients,
        CLASSES,
        VALUES,
        public,
    )
    return CommitteeSettings(task, seed, experiment_digest(table))


def uploads(asked: CommitteeSettings, round_: int, absent: tuple[int, ...] = ()) -> Uploads:
    """Return random uploads of a round's clients, who do not hold every class."""
    rng = np.random.default_rng([asked.seed, round_])
    clients = tuple(k for k in range(asked.task.clients) if k not in absent)
    public = asked.task.public_in(round_)
    if public is not None:
        return _statistics(public, clients, rng)
    counts_KJ = rng.integers(0, 4, (len(clients), CLASSES))
    values_KJV = rng.integers(-LIMIT // 2, LIMIT // 2, (len(clients), CLASSES, VALUES))
    return Uploads(clients, counts_KJ, np.where(counts_KJ[..., None] > 0, values_KJV, 0))


def _statistics(public: PublicTask, clients: tuple[int, ...], rng: np.random.Generator) -> Uploads:
    """Return random statistics, of some classes and with all rows of second moments."""
    counts_KJ = rng.integers(0, 4, (len(clients), public.rows))
    counts_KJ[:, public.classes :] = counts_KJ[:, : public.classes].sum(1, keepdims=True)
    shape = (len(clients), public.rows, public.values)
    values_KJV = rng.integers(-2, 3, shape) * public.precision.step
    sent_KJV = np.where(counts_KJ[..., None] > 0, values_KJV, 0)
    return Uploads(clients, counts_KJ, sent_KJV, precision=public.precision)


def rounds(
    committee: Committee, asked: CommitteeSettings, number: int, absent: tuple[int, ...] = ()
) -> list[AgreedRound]:
    """Let a committee decide a number of rounds, one after the other."""
    found: list[AgreedRound] = []
    before = PreviousRound.start(asked.task)
    for round_ in range(1, number + 1):
        agreed = committee.decide(asked, round_, before, uploads(asked, round_, absent))
        decision = agreed.decision
        before = PreviousRound(agreed.last, decision.state, decision.globals_, decision.public)
        found.append(agreed)
    return found


def written(
    path: Path,
    committee: Simulated,
    number: int = 2,
    clients: int = 4,
    seed: int = 0,
    public: PublicTask | None = None,
) -> Path:
    """Write a directory with the files that `fedrfq verify` reads."""
    table = toml.merge(TABLE, {"rounds": number, "committee": {"servers": committee.servers}})
    asked = some_settings(clients, seed, table=table, public=public)
    federation = committee.federation(asked)
    path.mkdir(parents=True, exist_ok=True)
    (path / "experiment.toml").write_text(toml.dump(table))
    (path / "federation.toml").write_text(federation.text)
    (path / "rounds.jsonl").write_text("{}\n" * number)
    for name in ("audit.log", "bodies.bin"):
        (path / name).write_bytes(b"")
    for agreed in rounds(committee, asked, number):
        report = agreed.report
        assert report is not None
        hash_chain.append(path / "audit.log", report.run, report.entry)
        hash_chain.append(path / "bodies.bin", report.run, report.bodies)
    return path
