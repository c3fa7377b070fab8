"""Committees without training: random uploads, and the files that a run would leave."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedrfq.committee import AgreedRound, Committee, CommitteeSettings, PreviousRound, Simulated
from fedrfq.federation.application import Task
from fedrfq.federation.federation_file import experiment_digest
from fedrfq.files import hash_chain, toml
from fedrfq.prototypes.fixed_point import FULL_PRECISION, LIMIT, Globals, Uploads
from fedrfq.robust.detectors import Detector
from fedrfq.robust.detectors.adaptive import AdaptiveDetector

CLASSES = 3
VALUES = 4
TABLE: dict[str, Any] = {"rounds": 2, "committee": {"name": "simulated", "servers": 4}}


def some_settings(
    clients: int = 4,
    seed: int = 0,
    detector: Detector | None = None,
    table: Mapping[str, Any] = TABLE,
) -> CommitteeSettings:
    task = Task(
        detector or AdaptiveDetector(), "weighted", FULL_PRECISION, clients, CLASSES, VALUES
    )
    return CommitteeSettings(task, seed, experiment_digest(table))


def uploads(asked: CommitteeSettings, round_: int, absent: tuple[int, ...] = ()) -> Uploads:
    """Return random uploads of a round's clients, who do not hold every class."""
    rng = np.random.default_rng([asked.seed, round_])
    clients = tuple(k for k in range(asked.task.clients) if k not in absent)
    counts_KJ = rng.integers(0, 4, (len(clients), CLASSES))
    values_KJV = rng.integers(-LIMIT // 2, LIMIT // 2, (len(clients), CLASSES, VALUES))
    return Uploads(clients, counts_KJ, np.where(counts_KJ[..., None] > 0, values_KJV, 0))


def rounds(
    committee: Committee, asked: CommitteeSettings, number: int, absent: tuple[int, ...] = ()
) -> list[AgreedRound]:
    """Let a committee decide a number of rounds, one after the other."""
    found: list[AgreedRound] = []
    globals_ = Globals.none(CLASSES, VALUES)
    memory = asked.task.detector.start(asked.task.clients)
    last = b""
    for round_ in range(1, number + 1):
        found.append(
            committee.decide(
                asked, round_, PreviousRound(last, memory, globals_), uploads(asked, round_, absent)
            )
        )
        globals_ = found[-1].decision.globals_
        memory = found[-1].decision.state
        last = found[-1].last
    return found


def written(
    path: Path, committee: Simulated, number: int = 2, clients: int = 4, seed: int = 0
) -> Path:
    """Write a directory with the files that `fedrfq verify` reads."""
    table = toml.merge(TABLE, {"rounds": number, "committee": {"servers": committee.servers}})
    asked = some_settings(clients, seed, table=table)
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
