"""What a run records of its clients' privacy: privacy.json, beside the uploads that it is about."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from fedrfq.experiment import Experiment
from fedrfq.files.strict_json import to_json
from fedrfq.privacy.claim import PrivacyClaim, claim, loose_delta
from fedrfq.runs.run_directory import PRIVACY, RunDirectory

Rows = list[tuple[str, str]]

# Why there is no ε on Flower.
ON_FLOWER = "a node of Flower also reports its clients' losses and accuracies to the server app"


def without_epsilon(experiment: Experiment, rounds: int, why: str) -> list[PrivacyClaim]:
    """Return the claims after so many rounds where others than the run drew the uploads."""
    if not experiment.privacy.used:
        return []
    uploads = experiment.noisy_uploads(rounds)
    made = replace(claim(experiment.privacy, [], why), uploads=uploads)
    return [made for _ in range(experiment.clients)]


def save(run: RunDirectory, claims: Sequence[PrivacyClaim]) -> None:
    """Write what may be claimed of every client; nothing where there is no noise."""
    if claims:
        rows = [{"client": client, **made.table()} for client, made in enumerate(claims)]
        run.write(PRIVACY, to_json({"clients": rows}, indent=2) + "\n")


def summary(claims: Sequence[PrivacyClaim]) -> dict[str, Any]:
    """Return what a result says: the claim for the client with the largest ε, or with none."""
    if not claims:
        return {}
    return {"privacy": max(claims, key=_spent).table()}


def rows(run: RunDirectory) -> Rows:
    """Return what a run says of its clients' privacy, for people to read; nothing without noise."""
    recorded = run.privacy()
    if recorded is None:
        return []
    claims = [_claim(row) for row in recorded["clients"]]
    first = claims[0]
    noises = [f"{noise:g}" for noise in (first.noise, first.training_noise) if noise]
    return [
        (
            "noise",
            f"{' and '.join(noises)} × what one {first.unit} can change: {first.mechanism}",
        ),
        *(("privacy", text) for text in _grouped(claims)),
        *_loose(first.delta, run.environment()["partition"]),
    ]


def planned_rows(experiment: Experiment, dealt: Mapping[str, Any]) -> Rows:
    """Return what a run will cost each client, of what it was dealt; nothing without noise."""
    if not experiment.has_noise:
        return []
    cost = ("privacy", experiment.planned_privacy())
    if experiment.uncovered():
        return [cost]
    return [cost, *_loose(experiment.privacy.delta, dealt)]


def _loose(delta: float, dealt: Mapping[str, Any]) -> Rows:
    """Return a warning where δ is large beside the samples of the client that has most."""
    text = loose_delta(delta, dealt.get("samples_max", 0))
    return [("warning", text)] if text else []


def _spent(made: PrivacyClaim) -> tuple[float, int]:
    if made.epsilon is None:
        return math.inf, made.uploads
    return made.epsilon, made.uploads


def _grouped(claims: Sequence[PrivacyClaim]) -> list[str]:
    """Return a line for all clients of whom the same can be claimed."""
    clients: dict[str, int] = {}
    for made in claims:
        text = f"{made}; uploads: {made.uploads}"
        if made.steps:
            text += f", steps of training: {made.steps}"
        clients[text] = clients.get(text, 0) + 1
    return [f"{text} ({number} clients)" for text, number in clients.items()]


def _claim(row: Any) -> PrivacyClaim:
    """Return the claim in a row of a file that may be anybody's."""
    # Records from before there was DP-SGD know no steps.
    known = {"steps": 0, "training_noise": 0.0, **row}
    made = PrivacyClaim(**{field.name: known[field.name] for field in fields(PrivacyClaim)})
    numbers = [made.noise, made.delta, made.uploads, made.steps, made.training_noise]
    numbers += [number for number in (made.epsilon, made.budget) if number is not None]
    texts = (made.mechanism, made.unit, made.why)
    if any(type(number) not in (int, float) for number in numbers) or any(
        type(text) is not str for text in texts
    ):
        raise TypeError(f"{row!r:.100} is not a claim")
    return made
